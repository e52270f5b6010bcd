package slurmctl

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// Diag are the controller's own statistics, as sdiag has them.
type Diag struct {
	// Since is when they began: they begin anew each midnight, and when somebody resets them.
	Since time.Time
	// Values have the names of slurmrestd. Durations are in microseconds.
	Values map[string]float64
	// RPCs are by type. They do not begin anew at midnight.
	RPCs []RPC
	// Users are the same by who asked.
	Users []RPC
}

// RPC is a kind of request to the controller, or the user who sent them.
type RPC struct {
	Name  string
	Count int64
	Time  time.Duration // that they took in all
}

// maxRPCs bounds a table. Slurm has some 150 types.
const maxRPCs = 1000

// Seconds returns a duration in seconds.
func (d *Diag) Seconds(name string) optional.Float { return d.Value(name).Div(1e6) }

// Value returns a number by its name.
func (d *Diag) Value(name string) optional.Float {
	if v, ok := d.Values[name]; ok {
		return optional.Of(v)
	}
	return optional.Float{}
}

// CycleTime returns how long all cycles took, in seconds: the sum, of newer versions, else
// the mean by the number of cycles. The mean has no fractions, so that the product may fall.
func (d *Diag) CycleTime(sum, mean, count string) optional.Float {
	if v := d.Seconds(sum); v.OK() {
		return v
	}
	n, ok := d.Value(count).Get()
	if !ok {
		return optional.Float{}
	}
	return d.Seconds(mean).Scale(n)
}

func (d *Diag) json(r io.Reader) error {
	*d = Diag{Values: map[string]float64{}}
	var answer struct {
		Statistics map[string]json.RawMessage `json:"statistics"`
		Errors     []struct {
			Error       slurm.Line `json:"error"`
			Description slurm.Line `json:"description"`
		} `json:"errors"`
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return fmt.Errorf("the answer is no JSON: %w", err)
	}
	for _, e := range answer.Errors {
		return fmt.Errorf("%.200s %.200s", string(e.Error), string(e.Description))
	}
	for key, raw := range answer.Statistics {
		switch key {
		case "rpcs_by_message_type":
			d.RPCs = jsonRPCs(raw)
			continue
		case "rpcs_by_user":
			d.Users = jsonRPCs(raw)
			continue
		}
		var v slurm.Decimal
		if json.Unmarshal(raw, &v) != nil {
			continue
		}
		if f, ok := optional.Float(v).Get(); ok {
			d.Values[key] = f
		}
	}
	return d.check()
}

func (d *Diag) check() error {
	if since, ok := d.Values["req_time_start"]; ok && since > 0 && since < 1<<40 {
		d.Since = time.Unix(int64(since), 0)
	}
	if _, ok := d.Values["server_thread_count"]; !ok || len(d.Values) < 5 {
		return errors.New("the answer has no statistics")
	}
	return nil
}

func jsonRPCs(raw []byte) []RPC {
	var list []struct {
		Type  slurm.Line   `json:"message_type"`
		User  slurm.Line   `json:"user"`
		Count slurm.Number `json:"count"`
		Total slurm.Number `json:"total_time"` // microseconds
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	var out []RPC
	for _, e := range list[:min(len(list), maxRPCs)] {
		if name := string(e.Type) + string(e.User); name != "" {
			out = append(out, RPC{name, e.Count.Int(), time.Duration(e.Total.Int()) * time.Microsecond})
		}
	}
	return out
}

// labels are what sdiag calls the values, in the part of its answer that has them.
var labels = map[string]map[string]string{
	"": {
		"Server thread count": "server_thread_count", "Agent queue size": "agent_queue_size", "Agent count": "agent_count",
		"Agent thread count": "agent_thread_count", "DBD Agent queue size": "dbd_agent_queue_size",
		"Jobs submitted": "jobs_submitted", "Jobs started": "jobs_started", "Jobs completed": "jobs_completed", "Jobs canceled": "jobs_canceled",
		"Jobs failed": "jobs_failed", "Jobs pending": "jobs_pending", "Jobs running": "jobs_running",
	},
	"Main schedule": {
		"Last cycle": "schedule_cycle_last", "Max cycle": "schedule_cycle_max", "Total cycles": "schedule_cycle_total",
		"Mean cycle": "schedule_cycle_mean", "Last queue length": "schedule_queue_length",
	},
	"Backfilling": {
		"Total backfilled jobs (since last stats cycle start)": "bf_last_backfilled_jobs", "Total cycles": "bf_cycle_counter",
		"Last cycle": "bf_cycle_last", "Max cycle": "bf_cycle_max", "Mean cycle": "bf_cycle_mean",
		"Last depth cycle": "bf_last_depth", "Last queue length": "bf_queue_len",
	},
}

// rpcLine matches a line of either table: name, its number, count, mean and total time.
var rpcLine = regexp.MustCompile(`^\s*(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)`)

func (d *Diag) text(r io.Reader) error {
	*d = Diag{Values: map[string]float64{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 1<<20)
	part, rpcs := "", (*[]RPC)(nil)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "Data since"):
			d.since(strings.TrimSpace(strings.TrimPrefix(line, "Data since")))
		case strings.HasPrefix(line, "Main schedule"):
			part = "Main schedule"
		case strings.HasPrefix(line, "Backfilling"):
			part = "Backfilling"
		case strings.HasPrefix(line, "Remote Procedure Call statistics by message type"):
			part, rpcs = "rpcs", &d.RPCs
		case strings.HasPrefix(line, "Remote Procedure Call statistics by user"):
			part, rpcs = "rpcs", &d.Users
		case strings.HasPrefix(line, "Pending RPC"):
			part, rpcs = "rpcs", nil
		case part == "rpcs":
			if m := rpcLine.FindStringSubmatch(line); m != nil && rpcs != nil && len(*rpcs) < maxRPCs {
				n, _ := strconv.ParseInt(m[2], 10, 64) // digits
				total, _ := strconv.ParseInt(m[3], 10, 50)
				*rpcs = append(*rpcs, RPC{slurm.Text(m[1]), n, time.Duration(total) * time.Microsecond})
			}
		default:
			key, value, ok := strings.Cut(line, ":")
			if name := labels[part][strings.TrimSpace(key)]; ok && name != "" {
				if v, ok := slurm.ParseFloat(strings.TrimSpace(value)).Get(); ok {
					d.Values[name] = v
				}
			}
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	return d.check()
}

// since reads when the statistics began: Tue Sep 17 00:11:10 2024 (1726531870), without
// the number in old versions.
func (d *Diag) since(s string) {
	date, epoch, ok := strings.Cut(strings.TrimSuffix(s, ")"), "(")
	if v, known := slurm.ParseFloat(epoch).Get(); ok && known {
		d.Values["req_time_start"] = v
		return
	}
	if t, err := time.ParseInLocation(time.ANSIC, strings.TrimSpace(date), time.Local); err == nil {
		d.Values["req_time_start"] = float64(t.Unix())
	}
}
