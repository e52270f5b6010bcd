// Package ncclinfo reads what NCCL reports about itself, if enabled: the status of a whole
// job from the RAS service (TCP, NCCL 2.28 or later for JSON), and the collectives recorded
// by the Inspector plugin (files). Both know what probes on one machine cannot: ranks on
// other machines, and durations on the device.
//
// The formats follow NCCL's sources, src/ras/client_support.cc and
// ext-profiler/inspector/inspector.cc; neither was tested against a running job. All input is
// untrusted and bounded.
package ncclinfo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// DefaultAddress is where RAS listens unless NCCL_RAS_ADDR is set. Several processes of a
// machine share the port, and each answers for its whole job; with two jobs on a machine,
// either may answer. The address is in the job's network namespace.
const DefaultAddress = "localhost:28028"

// ErrNoJSON means that the service is older than NCCL 2.28 and only writes plain text.
var ErrNoJSON = errors.New("NCCL does not support JSON status")

const (
	maxStatus = 64 << 20 // bytes; a rank takes about 600
	maxLine   = 4096
	patience  = 15 * time.Second // NCCL waits 5 s for its processes, and another 5 s
)

// Status is the status of one job as reported by RAS.
type Status struct {
	Version  string // NCCL version
	Comms    []Comm
	Timeouts int // processes that did not answer in time
}

// Comm is one communicator of a job.
type Comm struct {
	Hash    string // 0x..., as in NCCL's log
	Size    int
	Ranks   []Rank    // ranks that answered, by rank
	Missing []Missing // ranks that did not answer, by rank
}

// Rank is a rank that answered.
type Rank struct {
	Rank, PID int
	Host      string // address
	Device    int    // NVML index
	Error     int    // asynchronous error; 0 if none
	Aborted   bool
	Ended     bool              // finalized or destroyed
	Counts    map[string]uint64 // collectives started, by name
}

// Missing is a rank that did not answer.
type Missing struct {
	Rank, PID    int
	Host         string
	Device       int
	Unresponsive bool // its process did not answer at all
	Dead         bool // declared dead by the other ranks
}

// Lagging returns the ranks that started fewer collectives of a kind than another rank, by
// rank. In a running job some always do: only ranks that lag twice, with the same counts, are
// stuck.
func (c *Comm) Lagging() []int {
	most := map[string]uint64{}
	for _, r := range c.Ranks {
		for op, n := range r.Counts {
			most[op] = max(most[op], n)
		}
	}
	var behind []int
	for _, r := range c.Ranks {
		for op, n := range most {
			if !r.Ended && !r.Aborted && r.Counts[op] < n {
				behind = append(behind, r.Rank)
				break
			}
		}
	}
	return behind
}

// Ask queries the service at address. The query involves all processes of the job, so it is
// meant for suspected hangs and not for every interval.
func Ask(ctx context.Context, address string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := exchange(conn)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Status{}, fmt.Errorf("cannot query NCCL at %s: %w", address, err)
	}
	s, err := ParseStatus(b)
	if err != nil {
		return Status{}, fmt.Errorf("cannot parse NCCL status from %s: %w", address, err)
	}
	return s, nil
}

// exchange speaks version 2 of the line protocol and returns the status.
func exchange(conn io.ReadWriter) ([]byte, error) {
	r := bufio.NewReaderSize(conn, maxLine)
	ask := func(line string) (string, error) {
		if _, err := io.WriteString(conn, line+"\n"); err != nil {
			return "", err
		}
		answer, err := r.ReadSlice('\n')
		return strings.TrimRight(string(answer), "\r\n"), err
	}
	answer, err := ask("CLIENT PROTOCOL 2")
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(strings.ToUpper(answer), "SERVER PROTOCOL ") {
		return nil, fmt.Errorf("unexpected answer %.40q", answer)
	}
	if answer, err = ask("SET FORMAT json"); err != nil {
		return nil, err
	}
	if !strings.EqualFold(answer, "OK") {
		return nil, ErrNoJSON
	}
	if _, err := io.WriteString(conn, "STATUS\n"); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, maxStatus+1))
	if err == nil && len(b) > maxStatus {
		err = errors.New("status too long")
	}
	return b, err
}

// ParseStatus parses a status in JSON.
func ParseStatus(b []byte) (Status, error) {
	var doc struct {
		Version string `json:"nccl_version"`
		Comms   []struct {
			Hash  string `json:"hash"`
			Size  int    `json:"size"`
			Ranks []struct {
				rankID
				Status struct {
					AsyncError int  `json:"async_error"`
					Finalize   bool `json:"finalize_called"`
					Destroy    bool `json:"destroy_flag"`
					Abort      bool `json:"abort_flag"`
				} `json:"status"`
				Counts map[string]uint64 `json:"collective_counts"`
			} `json:"ranks"`
			Missing []struct {
				rankID
				Status struct {
					Unresponsive bool `json:"unresponsive"`
					Dead         bool `json:"considered_dead"`
				} `json:"status"`
			} `json:"missing_ranks"`
		} `json:"communicators"`
		RAS struct {
			Timeouts int `json:"timeouts_count"`
		} `json:"ras"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return Status{}, err
	}
	if doc.Version == "" {
		return Status{}, errors.New("status has no NCCL version")
	}
	s := Status{Version: doc.Version, Timeouts: doc.RAS.Timeouts}
	for _, c := range doc.Comms {
		comm := Comm{Hash: c.Hash, Size: c.Size}
		for _, r := range c.Ranks {
			comm.Ranks = append(comm.Ranks, Rank{
				Rank: r.Rank, PID: r.PID, Host: r.Host, Device: r.Device,
				Error: r.Status.AsyncError, Aborted: r.Status.Abort, Ended: r.Status.Finalize || r.Status.Destroy,
				Counts: r.Counts,
			})
		}
		for _, r := range c.Missing {
			comm.Missing = append(comm.Missing, Missing{
				Rank: r.Rank, PID: r.PID, Host: r.Host, Device: r.Device,
				Unresponsive: r.Status.Unresponsive, Dead: r.Status.Dead,
			})
		}
		slices.SortFunc(comm.Ranks, func(a, b Rank) int { return a.Rank - b.Rank })
		slices.SortFunc(comm.Missing, func(a, b Missing) int { return a.Rank - b.Rank })
		s.Comms = append(s.Comms, comm)
	}
	return s, nil
}

// rankID holds the fields common to all ranks, whether they answered or not.
type rankID struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Device int    `json:"nvml_dev"`
}
