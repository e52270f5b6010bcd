//go:build linux

package cli

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/local"
)

// hardware holds the flags of every command that reads devices.
type hardware struct {
	library  string
	root     string
	host     string
	simulate string

	noWorkloads bool
	kubelet     string
	kubeconfig  string
	podLabels   []string
	teamLabel   string
	slurmREST   string
	slurmToken  string
	slurmMaps   string

	gaudiLibrary  string
	neuronMonitor string
}

// workloadFlags are rejected together with --config.
var workloadFlags = []string{"no-workloads", "kubelet-socket", "kubeconfig", "pod-label", "team-label", "slurm-rest", "slurm-token", "slurm-job-maps"}

func (h *hardware) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.library, "nvidia-library", "", "path of libnvidia-ml.so.1 (default: search the usual places)")
	f.StringVar(&h.gaudiLibrary, "gaudi-library", "", "path of libhlml.so (default: search the usual places)")
	f.StringVar(&h.neuronMonitor, "neuron-monitor", "", "`FILE` or socket with the output of neuron-monitor; without it AWS accelerators report no utilization")
	f.StringVar(&h.root, "root", "/", "mount point of the host's file system, in a container")
	f.StringVar(&h.host, "host-name", "", "name of this machine, exported as host.name (default: from the kernel)")
	f.StringVar(&h.simulate, "simulate", "", "simulate a node of this model instead of reading hardware: "+strings.Join(sim.Models(), ", "))
	f.BoolVar(&h.noWorkloads, "no-workloads", false, "do not attribute devices to workloads")
	f.StringVar(&h.kubelet, "kubelet-socket", "", "the kubelet's pod-resources socket `FILE` (default: var/lib/kubelet/pod-resources/kubelet.sock below --root)")
	f.StringVar(&h.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for the Kubernetes API (default: the service account, in a pod)")
	f.StringArrayVar(&h.podLabels, "pod-label", nil, "`KEY` of a pod label to export with the usage of the pod, as k8s.pod.label.KEY; may be repeated")
	f.StringVar(&h.teamLabel, "team-label", local.DefaultTeamLabel, "`KEY` of the pod label that becomes gpu.workload.team")
	f.StringVar(&h.slurmREST, "slurm-rest", "", "`URL` of slurmrestd (default: use the Slurm tools, on a Slurm node)")
	f.StringVar(&h.slurmToken, "slurm-token", "", "`FILE` with the token for slurmrestd")
	f.StringVar(&h.slurmMaps, "slurm-job-maps", "", "`FOLDER` in which a prolog records which job has which GPU")
	_ = cmd.RegisterFlagCompletionFunc("simulate", cobra.FixedCompletions(sim.Models(), cobra.ShellCompDirectiveNoFileComp))
}

// config returns the configuration for reading the hardware at the default intervals.
func (h *hardware) config() local.Config {
	return local.Config{
		Interval:      local.DefaultInterval,
		SlowInterval:  local.DefaultSlowInterval,
		Host:          h.host,
		Root:          h.root,
		NVIDIALibrary: h.library,
		LibraryDirs:   filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), // which the dynamic loader searches first
		GaudiLibrary:  h.gaudiLibrary,
		NeuronMonitor: h.neuronMonitor,
		Simulate:      h.simulate,
		Workloads: local.Workloads{
			Off: h.noWorkloads, KubeletSocket: h.kubelet, Kubeconfig: h.kubeconfig, PodLabels: h.podLabels, TeamLabel: h.teamLabel,
			Node:  cmp.Or(os.Getenv("K8S_NODE_NAME"), os.Getenv("NODE_NAME")),
			Slurm: local.Slurm{REST: h.slurmREST, RESTToken: h.slurmToken, JobMaps: h.slurmMaps},
		},
	}
}

// defaultState returns the state folder for agents of this user, empty if there is none.
func defaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/gpumeter"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "gpumeter")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local/state/gpumeter")
	}
	return ""
}

// defaultSocket returns the control socket for agents of this user, empty if there is none.
func defaultSocket() string {
	if os.Getuid() == 0 {
		return "/run/gpumeter/agent.sock"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "gpumeter-agent.sock")
	}
	return ""
}

// parseSize parses a number of bytes with an optional suffix KiB, MiB or GiB.
func parseSize(text string) (int64, error) {
	number, shift := text, 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, shift = strings.TrimSpace(n), 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<40>>shift {
		return 0, errors.New("must be a size up to 1024GiB, such as 256MiB, is " + strconv.Quote(text))
	}
	return n << shift, nil
}
