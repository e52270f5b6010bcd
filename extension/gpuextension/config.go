package gpuextension

import (
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Config is the configuration under extensions::gpu.
type Config struct {
	// Interval is the time between two ticks, 100ms to 5m.
	Interval time.Duration `mapstructure:"interval"`
	// SlowInterval is the time between two readings of values that cost milliseconds or rarely
	// change: energy, errors, links, limits.
	SlowInterval time.Duration `mapstructure:"slow_interval"`
	// HostName is reported as host.name; empty means the kernel's host name.
	HostName string `mapstructure:"host_name"`
	// Root is where the host's file system is mounted in a container.
	Root string `mapstructure:"root"`
	// NVIDIALibrary is the path of libnvidia-ml.so.1; empty searches the usual places.
	NVIDIALibrary string `mapstructure:"nvidia_library"`
	// NVIDIALibraryDirs are searched before the usual places.
	NVIDIALibraryDirs []string `mapstructure:"nvidia_library_dirs"`
	// PCIeThroughput measures PCIe traffic on NVIDIA GPUs before Hopper, which keeps the driver
	// busy for 40 ms every 30 s.
	PCIeThroughput bool `mapstructure:"pcie_throughput"`
	// GaudiLibrary is the path of libhlml.so; empty searches the usual places.
	GaudiLibrary string `mapstructure:"gaudi_library"`
	// TPUExporter is the address of the metrics page of GKE's TPU device plugin; empty means
	// this node's plugin, queried only if there is a TPU whose runtime does not answer.
	TPUExporter string `mapstructure:"tpu_exporter"`
	// NeuronMonitor is a file or a socket with the output of neuron-monitor, the only source of
	// utilization of AWS accelerators.
	NeuronMonitor string `mapstructure:"neuron_monitor"`
	// Simulate names a model to simulate instead of reading hardware.
	Simulate string `mapstructure:"simulate"`
	// ExpectedDevices is the number of physical devices the machine should have; fewer are a
	// finding. 0 means the devices seen since boot.
	ExpectedDevices int `mapstructure:"expected_devices"`
	// StateDir is the directory in which event counts survive a restart; empty means that they
	// restart at 0.
	StateDir string `mapstructure:"state_dir"`
	// Resource are additional resource attributes of the gpu receiver, such as
	// k8s.cluster.name.
	Resource map[string]string `mapstructure:"resource"`
	// Cloud queries the metadata server of AWS, Google or Azure for region, zone and instance
	// type, if the firmware indicates such a machine.
	Cloud bool `mapstructure:"cloud"`
	// Workloads configures how the owners of work on the devices are determined.
	Workloads WorkloadsConfig `mapstructure:"workloads"`
}

// WorkloadsConfig is the configuration under extensions::gpu::workloads.
type WorkloadsConfig struct {
	// Enabled: if false, no source is queried and no workloads are reported.
	Enabled bool `mapstructure:"enabled"`
	// KubeletSocket is the pod-resources socket; empty means
	// var/lib/kubelet/pod-resources/kubelet.sock below root.
	KubeletSocket string `mapstructure:"kubelet_socket"`
	// Kubeconfig configures access to the Kubernetes API; empty means the pod's service account.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Node is the Kubernetes name of this node; empty means host_name.
	Node string `mapstructure:"node"`
	// PodLabels are the pod labels that become attributes k8s.pod.label.KEY.
	PodLabels []string `mapstructure:"pod_labels"`
	// TeamLabel is the pod label that becomes gpu.workload.team.
	TeamLabel string `mapstructure:"team_label"`
	// Teams maps namespaces to teams, for pods without that label.
	Teams map[string]string `mapstructure:"teams"`
	// StaleFor is how long the kubelet's last answer is used while it does not answer; 0 means
	// 5m.
	StaleFor time.Duration `mapstructure:"stale_for"`
	// Slurm configures job discovery on a Slurm node.
	Slurm SlurmConfig `mapstructure:"slurm"`
}

// SlurmConfig is the configuration under extensions::gpu::workloads::slurm. The defaults are
// normally right.
type SlurmConfig struct {
	Node     string `mapstructure:"node"`      // name of this node in Slurm; empty: from slurm.conf or the host name
	Conf     string `mapstructure:"conf"`      // path of slurm.conf; empty: the usual paths
	GresConf string `mapstructure:"gres_conf"` // path of gres.conf; empty: next to slurm.conf
	JobMaps  string `mapstructure:"job_maps"`  // directory of the files written by a prolog; empty: none
	Scontrol string `mapstructure:"scontrol"`  // path of scontrol; empty: the usual paths
	REST     string `mapstructure:"rest"`      // address of slurmrestd; empty: Slurm's tools are run instead
	// RESTToken is the path of the token file, RESTUser the token's user.
	RESTToken string            `mapstructure:"rest_token_file"`
	RESTUser  string            `mapstructure:"rest_user"`
	Offline   bool              `mapstructure:"offline"` // do not query the controller
	Steps     bool              `mapstructure:"steps"`   // add the attribute slurm.step.id
	Teams     map[string]string `mapstructure:"teams"`   // by account; default is the account itself
	Refresh   time.Duration     `mapstructure:"refresh"` // interval of controller queries; 0 means 30s
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
