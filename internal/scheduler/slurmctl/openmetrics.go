package slurmctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpumeter/gpumeter/internal/promtext"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Native is what the controller's own metrics report about jobs and nodes. They do not
// combine user with partition or node with state, and do not know GPU types.
type Native struct {
	Jobs  []JobCount // by state and partition
	Loads []Load
	All   *Pool
	Parts map[string]*Pool
}

// metricsClient reads the controller's own metrics.
type metricsClient struct {
	base   string
	auth   REST // the controller accepts the same token
	client *http.Client
}

func newMetricsClient(address string, auth REST) (*metricsClient, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, errors.New("OpenMetrics address must be http:// or https://, without a user")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	return &metricsClient{
		base: u.Scheme + "://" + u.Host + strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/metrics"), auth: auth,
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a backup controller redirects, and the token must not follow
		}},
	}, nil
}

// maxMetrics bounds a page. Ten thousand nodes take 6 MiB.
const maxMetrics = 32 << 20

func (m *metricsClient) get(ctx context.Context, page string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.base+"/metrics/"+page, nil)
	if err != nil {
		return nil, err
	}
	if m.auth.TokenFile != "" {
		token, err := slurm.ReadFile(m.auth.TokenFile, 1<<16)
		if err != nil {
			return nil, fmt.Errorf("cannot read token: %w", err)
		}
		token = bytes.TrimPrefix(bytes.TrimSpace(token), []byte("SLURM_JWT="))
		if len(token) == 0 || bytes.ContainsAny(token, " \t\r\n") {
			return nil, fmt.Errorf("no token in %s", m.auth.TokenFile)
		}
		req.Header.Set("X-SLURM-USER-TOKEN", string(token))
	}
	if m.auth.User != "" {
		req.Header.Set("X-SLURM-USER-NAME", m.auth.User)
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s for /metrics/%s", resp.Status, page)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics+1))
	if err == nil && len(b) > maxMetrics {
		err = slurm.ErrTooLong
	}
	return b, err
}

// native reads three pages. The page of users and accounts is not read: its size is
// unbounded and it does not break jobs down by partition.
func (c *Client) native(ctx context.Context, s *Snapshot) error {
	pages := map[string]page{}
	for _, name := range []string{"nodes", "partitions", "scheduler"} {
		source := askMetrics + "." + name
		c.requests[source]++
		b, err := c.metrics.get(ctx, name)
		if err == nil {
			pages[name], err = parsePage(b)
		}
		if err != nil {
			c.errors[source]++
			return fmt.Errorf("%s: %w", source, err)
		}
	}
	s.Native = newNative(pages["nodes"], pages["partitions"])
	s.Diag = nativeDiag(pages["scheduler"])
	return nil
}

// page holds metric values by name and by the value of their only label, which may be
// missing.
type page map[string]map[string]float64

func parsePage(b []byte) (page, error) {
	metrics, err := promtext.Parse(bytes.NewReader(b), maxMetrics)
	if err != nil {
		return nil, fmt.Errorf("answer is not a metrics page: %w", err)
	}
	p := page{}
	for name, list := range metrics {
		values := make(map[string]float64, len(list))
		for _, s := range list {
			label := ""
			if len(s.Labels) > 0 {
				label = slurm.Text(s.Labels[0].Value)
			}
			if s.Value >= 0 && s.Value < 1e18 {
				values[label] = s.Value
			}
		}
		p[name] = values
	}
	if len(p) == 0 {
		return nil, errors.New("page has no metrics")
	}
	return p, nil
}

// nativeJobs are the metrics of mutually exclusive job states. The others count flags: a
// completing job is also counted as running.
var nativeJobs = map[string]string{
	"pending": "pending", "running": "running", "suspended": "suspended", "completed": "completed", "cancelled": "cancelled", "failed": "failed",
	"timeout": "timeout", "node_failed": "node_fail", "preempted": "preempted", "bootfail": "boot_fail", "deadline": "deadline", "outofmemory": "out_of_memory",
}

// nativeNodes are the metrics of mutually exclusive node states. Drained, reserved and the
// like are flags and would count a node twice.
var nativeNodes = map[string]string{"alloc": "allocated", "mixed": "mixed", "idle": "idle", "down": "down", "future": "future", "unknown": "unknown"}

// wraps is where 16-bit counters wrap around.
const wraps = 1 << 16

func newNative(nodes, parts page) *Native {
	n := &Native{All: newPool(), Parts: map[string]*Pool{}}
	for metric, state := range nativeNodes {
		if v, ok := nodes["slurm_nodes_"+metric][""]; ok {
			n.All.Nodes[state] = int64(v)
		}
	}
	for name := range nodes["slurm_node_cpus"] {
		n.All.cpus(nodes["slurm_node_cpus_effective"][name], nodes["slurm_node_cpus_alloc"][name])
	}
	total, used := 0.0, 0.0
	for name, v := range nodes["slurm_node_gpus_alloc"] {
		total, used = total+nodes["slurm_node_gpus"][name], used+v
	}
	n.All.gpus(total, used)
	for part, jobs := range parts["slurm_partition_nodes"] {
		p := newPool()
		n.Parts[part] = p
		for metric, state := range nativeNodes {
			if v, ok := parts["slurm_partition_nodes_"+metric][part]; ok {
				p.Nodes[state] = int64(v)
			}
		}
		small := parts["slurm_partition_cpus"][part] < wraps && jobs < wraps // a larger value may have wrapped
		if small {
			p.cpus(parts["slurm_partition_nodes_cpus_efctv"][part], parts["slurm_partition_nodes_cpus_alloc"][part])
			n.Loads = append(n.Loads, Load{State: "running", Partition: part, CPUs: int64(parts["slurm_partition_jobs_cpus_alloc"][part])})
		}
		for metric, state := range nativeJobs {
			v, ok := parts["slurm_partition_jobs_"+metric][part]
			if !ok {
				continue
			}
			c := JobCount{JobKey: JobKey{State: state, Partition: part}, Jobs: int64(v)}
			if held, ok := parts["slurm_partition_jobs_gpus_alloc"][part]; ok && state == "running" {
				c.GPUs, c.Held = int64(held), parts["slurm_partition_gpus"][part] > 0
			}
			n.Jobs = append(n.Jobs, c)
		}
	}
	return n
}

func (p *Pool) cpus(total, used float64) {
	p.CPUs["allocated"] += int64(used)
	p.CPUs[Unallocated] += int64(max(0, total-used))
}

// gpus sets the GPU counts. Without gres/gpu in AccountingStorageTRES every total is 0, even
// on nodes with GPU jobs; then only the allocated GPUs are known.
func (p *Pool) gpus(total, used float64) {
	if total == 0 && used == 0 {
		return
	}
	p.GPUs[GPUKey{"allocated", ""}] = int64(used)
	if total >= used {
		p.GPUs[GPUKey{Unallocated, ""}] = int64(total - used)
	}
}

// nativeScheduler maps the metrics that sdiag reports as well.
var nativeScheduler = map[string]string{
	"slurm_server_thread_cnt": "server_thread_count", "slurm_agent_queue_size": "agent_queue_size", "slurm_agent_cnt": "agent_count",
	"slurm_agent_thread_cnt": "agent_thread_count", "slurm_slurmdbd_queue_size": "dbd_agent_queue_size",
	"slurm_sdiag_jobs_submitted": "jobs_submitted", "slurm_sdiag_jobs_started": "jobs_started", "slurm_sdiag_jobs_completed": "jobs_completed",
	"slurm_sdiag_jobs_canceled": "jobs_canceled", "slurm_sdiag_jobs_failed": "jobs_failed",
	"slurm_schedule_cycle_cnt": "schedule_cycle_total", "slurm_schedule_cycle_tot": "schedule_cycle_sum", "slurm_schedule_cycle_last": "schedule_cycle_last",
	"slurm_schedule_cycle_max": "schedule_cycle_max", "slurm_schedule_queue_len": "schedule_queue_length",
	"slurm_bf_cycle_cnt": "bf_cycle_counter", "slurm_bf_cycle_tot": "bf_cycle_sum", "slurm_bf_cycle_last": "bf_cycle_last", "slurm_bf_cycle_max": "bf_cycle_max",
	"slurm_bf_queue_len": "bf_queue_len", "slurm_bf_last_depth": "bf_last_depth", "slurm_last_backfilled_jobs": "bf_last_backfilled_jobs",
	"slurm_last_proc_req_start": "req_time_start",
}

func nativeDiag(p page) *Diag {
	d := &Diag{Values: map[string]float64{}}
	for metric, name := range nativeScheduler {
		if v, ok := p[metric][""]; ok {
			d.Values[name] = v
		}
	}
	_ = d.check() // missing statistics are absent
	return d
}
