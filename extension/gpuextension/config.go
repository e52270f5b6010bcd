package gpuextension

import (
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Config is what users set under extensions::gpu.
type Config struct {
	// Interval is the time between two ticks, 100ms to 5m.
	Interval time.Duration `mapstructure:"interval"`
	// SlowInterval is the time between two readings of values that cost milliseconds
	// or rarely change: energy, errors, links, limits.
	SlowInterval time.Duration `mapstructure:"slow_interval"`
	// HostName is reported as host.name; empty is what the kernel says.
	HostName string `mapstructure:"host_name"`
	// Root is where the host's file system is mounted, in a container.
	Root string `mapstructure:"root"`
	// NVIDIALibrary is the path of libnvidia-ml.so.1; empty searches the usual places.
	NVIDIALibrary string `mapstructure:"nvidia_library"`
	// NVIDIALibraryDirs are searched before the usual places.
	NVIDIALibraryDirs []string `mapstructure:"nvidia_library_dirs"`
	// PCIeThroughput measures PCIe traffic on NVIDIA GPUs before Hopper, which keeps
	// the driver busy for 40 ms every 30 s.
	PCIeThroughput bool `mapstructure:"pcie_throughput"`
	// GaudiLibrary is the path of libhlml.so; empty searches the usual places.
	GaudiLibrary string `mapstructure:"gaudi_library"`
	// TPUExporter is the address of the page of GKE's TPU device plugin; empty asks this
	// node's, and only if there is a TPU of which its runtime says nothing.
	TPUExporter string `mapstructure:"tpu_exporter"`
	// NeuronMonitor is a file or a socket with what neuron-monitor writes. Utilization of
	// AWS accelerators comes from there alone.
	NeuronMonitor string `mapstructure:"neuron_monitor"`
	// Simulate names a model to simulate instead of reading hardware.
	Simulate string `mapstructure:"simulate"`
	// ExpectedDevices is how many physical devices the machine should have: fewer are a
	// finding. 0: those that it has had since it was booted.
	ExpectedDevices int `mapstructure:"expected_devices"`
	// StateDir is the folder in which counts of events outlive the Collector; empty: they
	// begin at 0 with it.
	StateDir string `mapstructure:"state_dir"`
	// Resource are more resource attributes of what the gpu receiver emits, such as
	// k8s.cluster.name.
	Resource map[string]string `mapstructure:"resource"`
	// Cloud asks the metadata server of AWS, Google or Azure for region, zone and
	// instance type, if the firmware says that this is such a machine.
	Cloud bool `mapstructure:"cloud"`
	// Workloads says how to find out whose work is on the devices.
	Workloads WorkloadsConfig `mapstructure:"workloads"`
}

// WorkloadsConfig is what users set under extensions::gpu::workloads.
type WorkloadsConfig struct {
	// Enabled: false asks nobody, and nothing is said of workloads.
	Enabled bool `mapstructure:"enabled"`
	// KubeletSocket is the pod-resources socket; empty: var/lib/kubelet/pod-resources/kubelet.sock
	// below root.
	KubeletSocket string `mapstructure:"kubelet_socket"`
	// Kubeconfig says how to reach the Kubernetes API; empty: as a pod does, if this is one.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Node is the name of this node there; empty: host_name.
	Node string `mapstructure:"node"`
	// PodLabels are keys of pod labels that become attributes k8s.pod.label.KEY.
	PodLabels []string `mapstructure:"pod_labels"`
	// TeamLabel is the key of the pod label that becomes gpu.workload.team.
	TeamLabel string `mapstructure:"team_label"`
	// Teams are teams by namespace, for pods without that label.
	Teams map[string]string `mapstructure:"teams"`
	// StaleFor is how long what the kubelet said is used while it does not answer; 5m if it
	// is 0.
	StaleFor time.Duration `mapstructure:"stale_for"`
	// Slurm says how to find out about its jobs, if this is one of its nodes.
	Slurm SlurmConfig `mapstructure:"slurm"`
}

// SlurmConfig is what users set under extensions::gpu::workloads::slurm. All of it has
// good defaults.
type SlurmConfig struct {
	Node     string `mapstructure:"node"`      // name of this node in Slurm; empty: as slurm.conf or the host has it
	Conf     string `mapstructure:"conf"`      // path of slurm.conf; empty: the usual places
	GresConf string `mapstructure:"gres_conf"` // path of gres.conf; empty: beside slurm.conf
	JobMaps  string `mapstructure:"job_maps"`  // folder of the files that a prolog writes; empty: none
	Scontrol string `mapstructure:"scontrol"`  // path of scontrol; empty: the usual places
	REST     string `mapstructure:"rest"`      // address of slurmrestd; empty: Slurm's tools are run instead
	// RESTToken is the path of the file with its token, RESTUser whose the token is.
	RESTToken string            `mapstructure:"rest_token_file"`
	RESTUser  string            `mapstructure:"rest_user"`
	Offline   bool              `mapstructure:"offline"` // the controller is not asked
	Steps     bool              `mapstructure:"steps"`   // slurm.step.id is an attribute
	Teams     map[string]string `mapstructure:"teams"`   // by account; without one the account is the team
	Refresh   time.Duration     `mapstructure:"refresh"` // how often the controller is asked; 30s if it is 0
}

func createDefaultConfig() component.Config {
	return &Config{
		Interval: local.DefaultInterval, SlowInterval: local.DefaultSlowInterval, PCIeThroughput: true,
		Workloads: WorkloadsConfig{Enabled: true, TeamLabel: local.DefaultTeamLabel},
	}
}

// Validate implements component.ConfigValidator.
func (c *Config) Validate() error { return c.Local().Validate() }

// Local returns the configuration of the View.
func (c *Config) Local() local.Config {
	return local.Config{
		Interval:         c.Interval,
		SlowInterval:     c.SlowInterval,
		Host:             c.HostName,
		Root:             c.Root,
		NVIDIALibrary:    c.NVIDIALibrary,
		LibraryDirs:      c.NVIDIALibraryDirs,
		GaudiLibrary:     c.GaudiLibrary,
		TPUExporter:      c.TPUExporter,
		NeuronMonitor:    c.NeuronMonitor,
		NoPCIeThroughput: !c.PCIeThroughput,
		Simulate:         c.Simulate,
		StateDir:         c.StateDir,
		Expected:         c.ExpectedDevices,
		Resource:         c.Resource,
		Cloud:            c.Cloud,
		Workloads: local.Workloads{
			Off: !c.Workloads.Enabled, KubeletSocket: c.Workloads.KubeletSocket, Kubeconfig: c.Workloads.Kubeconfig, Node: c.Workloads.Node,
			PodLabels: c.Workloads.PodLabels, TeamLabel: c.Workloads.TeamLabel, Teams: c.Workloads.Teams, StaleFor: c.Workloads.StaleFor,
			Slurm: local.Slurm{
				Node: c.Workloads.Slurm.Node, Conf: c.Workloads.Slurm.Conf, GresConf: c.Workloads.Slurm.GresConf, JobMaps: c.Workloads.Slurm.JobMaps,
				Scontrol: c.Workloads.Slurm.Scontrol, REST: c.Workloads.Slurm.REST, RESTToken: c.Workloads.Slurm.RESTToken, RESTUser: c.Workloads.Slurm.RESTUser,
				Offline: c.Workloads.Slurm.Offline, Steps: c.Workloads.Slurm.Steps, Teams: c.Workloads.Slurm.Teams, Refresh: c.Workloads.Slurm.Refresh,
			},
		},
	}
}
