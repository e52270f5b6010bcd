//go:build linux

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpumeter/gpumeter/internal/folder"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

// takeFolder creates a folder in the state folder, verifies that it is writable, and locks it
// until the returned file is closed.
func takeFolder(state, name string) (dir string, lock *os.File, err error) {
	if state == "" {
		return "", nil, errors.New("no state folder: set --state-dir")
	}
	dir = filepath.Join(state, name)
	if err := folder.Make(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("cannot use the folder: %w", err)
	}
	lock, err = os.CreateTemp(dir, "try")
	if err != nil {
		return "", nil, fmt.Errorf("cannot write to the folder: %w", err)
	}
	lock.Close()
	if err := os.Remove(lock.Name()); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(dir); err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return "", nil, fmt.Errorf("another agent uses %s: set a different --state-dir", dir)
	}
	return dir, lock, nil
}

// maxReceived is the maximum size of a request to --otlp-receiver in bytes, uncompressed.
// Requests are decoded recursively: the most deeply nested request of 16 MiB overflows the
// stack and crashes the process. One of this size needs a quarter of that stack, 256 MiB.
const maxReceived = 4 << 20

const (
	// maxStreams bounds the requests per gRPC connection to --otlp-receiver.
	maxStreams = 16
	// receiveTime is how long a request to --otlp-receiver may take to arrive. Its sender is on
	// this machine.
	receiveTime = 10 * time.Second
)

// applications is the suffix of the pipelines for telemetry of applications, which pass the
// reserved processor. The receivers of the agent itself do not: nothing else counts as gpumeter.
const applications = "/applications"

// gpuScope is the scope of the device metrics. The agent is not ready until they arrive,
// whatever else it exports.
const gpuScope = "github.com/gpumeter/gpumeter/receiver/gpureceiver"

// config returns the Collector configuration of an agent without a configuration file. queue
// is the folder of the send queue; empty: the queue is in memory.
func (a *Agent) config(queue string) (map[string]any, error) {
	c := a.DeviceConfig()
	resource, err := a.instance()
	if err != nil {
		return nil, err
	}
	b := newBuilder(map[string]any{
		"interval":            c.Interval.String(),
		"slow_interval":       c.SlowInterval.String(),
		"host_name":           c.Host,
		"root":                c.Root,
		"nvidia_library":      c.NVIDIALibrary,
		"nvidia_library_dirs": c.LibraryDirs,
		"gaudi_library":       c.GaudiLibrary,
		"neuron_monitor":      c.NeuronMonitor,
		"pcie_throughput":     !c.NoPCIeThroughput,
		"simulate":            c.Simulate,
		"state_dir":           a.StateDir,
		"expected_devices":    c.Expected,
		"resource":            resource,
		"workloads": map[string]any{
			"enabled":        !c.Workloads.Off,
			"kubelet_socket": c.Workloads.KubeletSocket,
			"kubeconfig":     c.Workloads.Kubeconfig,
			"node":           c.Workloads.Node,
			"pod_labels":     c.Workloads.PodLabels,
			"team_label":     c.Workloads.TeamLabel,
			"slurm": map[string]any{
				"rest": c.Workloads.Slurm.REST, "rest_token_file": c.Workloads.Slurm.RESTToken, "job_maps": c.Workloads.Slurm.JobMaps,
			},
		},
		"cloud": c.Cloud,
	})
	b.export("page", map[string]any{"endpoint": a.Listen, "ready_scope": gpuScope}, metrics)
	if a.Store != nil {
		b.export("hub", nil, metrics, logs)
	}
	if a.File != "" {
		kind, conf := fileSink(a.File)
		b.export(kind, conf, metrics, logs, traces)
	}
	for _, signal := range []string{metrics, logs, traces} {
		kind, conf, err := a.OTLP.exporter(signal, a.Env)
		if err != nil {
			return nil, err
		}
		if kind != "" {
			queued(conf, b.storage(queue), a.QueueSize)
			b.export(kind+"/"+signal, conf, signal)
		}
	}
	b.receive("gpu", nil, metrics)
	b.receive("self", nil, metrics)
	b.receive("host", map[string]any{"interval": c.Interval.String(), "root": c.Root}, metrics)
	if conf := a.Inference.settings(c); conf != nil {
		b.receive("inference", conf, metrics)
	}
	if a.Trace {
		b.receive("cuda", tracing(c.Interval, c.Root, a.StateDir, a.TraceKeep), metrics, logs)
	}
	if gpureceiver.NewFactory().LogsStability() != component.StabilityLevelUndefined {
		b.receive("gpu", nil, logs)
	}
	b.receive("scheduler/node", a.firstWork(resource["k8s.cluster.name"]), metrics)
	if a.Scheduler.Kind != "" {
		b.receive("scheduler", a.Scheduler.settings(c.Workloads, resource["k8s.cluster.name"], a.StateDir), metrics, logs)
	}
	if a.Receiver {
		localOnly := []any{map[string]any{"id": "local_only"}}
		b.receive("otlp", map[string]any{"protocols": map[string]any{
			"grpc": map[string]any{
				"endpoint": "localhost:4317", "max_recv_msg_size_mib": maxReceived >> 20, "max_concurrent_streams": maxStreams, "middlewares": localOnly,
			},
			"http": map[string]any{
				"endpoint": "localhost:4318", "max_request_body_size": maxReceived, "read_timeout": receiveTime.String(),
				// What OTLP requires, as in the hub: the window of a small zstd frame takes 512 MiB.
				"compression_algorithms": []any{"", "gzip"},
				"middlewares":            localOnly,
			},
		}}, metrics+applications, logs+applications, traces)
		// Every local user can reach the receiver, and the agent forwards with its own token.
		if a.Spans != SpansOff { // before the reserved processor, which replaces the name of the sender's host
			b.process("gpuspan", map[string]any{"names": a.Spans, "root": c.Root}, logs+applications, traces)
		}
		b.process("reserved", nil, metrics+applications, logs+applications)
		b.process("training", nil, metrics+applications)
		b.extensions["local_only"] = nil
	}
	return b.config(), nil
}

// AnomalyFile returns the path of the anomalies for gpumeter explain, empty if state is.
func AnomalyFile(state string) string {
	if state == "" {
		return ""
	}
	return filepath.Join(state, "anomalies.jsonl")
}

// tracing returns the configuration of the cuda receiver, which reads at most once per
// second.
func tracing(interval time.Duration, root, state, keep string) map[string]any {
	conf := map[string]any{
		"interval": max(interval, time.Second).String(), "proc": filepath.Join("/", root, "proc"), "anomaly_file": AnomalyFile(state), "keep": keep,
	}
	if keep != "" && state != "" {
		conf["state_file"] = filepath.Join(state, "traced.json")
	}
	return conf
}

// fileSink returns the exporter for --otlp-file and its configuration. A file is rotated at 100
// MiB, and three old ones are kept.
func fileSink(path string) (kind string, conf map[string]any) {
	if path == "-" || path == "/dev/stdout" {
		return "stdout", nil
	}
	return "file", map[string]any{"path": path, "rotation": map[string]any{"max_megabytes": 100, "max_backups": 3}}
}

// builder assembles a Collector configuration.
type builder struct {
	extensions, receivers, processors, exporters map[string]any
	in, through                                  map[string][]any // by pipeline: a signal, with an optional suffix
	out                                          map[string][]any // by signal
}

func newBuilder(gpu map[string]any) *builder {
	return &builder{
		extensions: map[string]any{"gpu": gpu}, receivers: map[string]any{}, processors: map[string]any{}, exporters: map[string]any{},
		in: map[string][]any{}, through: map[string][]any{}, out: map[string][]any{},
	}
}

func (b *builder) receive(id string, conf map[string]any, pipelines ...string) {
	b.receivers[id] = conf
	for _, p := range pipelines {
		b.in[p] = append(b.in[p], id)
	}
}

func (b *builder) process(id string, conf map[string]any, pipelines ...string) {
	b.processors[id] = conf
	for _, p := range pipelines {
		b.through[p] = append(b.through[p], id)
	}
}

func (b *builder) export(id string, conf map[string]any, signals ...string) {
	b.exporters[id] = conf
	for _, s := range signals {
		b.out[s] = append(b.out[s], id)
	}
}

// storage adds an extension that stores into dir and returns its name, empty if dir is.
func (b *builder) storage(dir string) string {
	if dir == "" {
		return ""
	}
	b.extensions["file_storage"] = map[string]any{
		"directory": dir,
		// The agent has created the folder; a configuration that was printed may run elsewhere.
		"create_directory":      true,
		"directory_permissions": "0700",
		// A killed agent loses nothing: the page cache has the data. A crash of the machine
		// may corrupt the queue, which is then recreated.
		"fsync":    false,
		"recreate": true,
		// The file does not shrink by itself after a long queue has drained.
		"compaction": map[string]any{"on_rebound": true, "directory": dir, "cleanup_on_start": true},
	}
	return "file_storage"
}

// config returns the configuration, with the pipelines that have both a receiver and an exporter.
func (b *builder) config() map[string]any {
	pipelines := map[string]any{}
	for name, in := range b.in {
		signal, _, _ := strings.Cut(name, "/")
		out := b.out[signal]
		if len(out) == 0 {
			continue
		}
		pipeline := map[string]any{"receivers": in, "exporters": out}
		if through := b.through[name]; len(through) > 0 {
			pipeline["processors"] = through
		}
		pipelines[name] = pipeline
	}
	names := make([]any, 0, len(b.extensions))
	for name := range b.extensions {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y any) int { return cmp.Compare(x.(string), y.(string)) })
	all := map[string]any{
		"extensions": b.extensions,
		"receivers":  b.receivers,
		"exporters":  b.exporters,
		"service":    map[string]any{"extensions": names, "pipelines": pipelines},
	}
	if len(b.processors) > 0 {
		all["processors"] = b.processors
	}
	return all
}
