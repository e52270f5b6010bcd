// Package ncclinfo reads what NCCL tells of itself where it is asked to: the status of a
// whole job from its RAS service, and the collectives that the Inspector plugin writes
// down. Both know what no probe on one machine can: ranks elsewhere, and times on the
// device. Formats are those of NCCL's sources, src/ras/client_support.cc and
// ext-profiler/inspector/inspector.cc; neither was tried against a running job.
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

// DefaultAddress is where RAS listens unless NCCL_RAS_ADDR says else. Several processes
// of one machine share the port, each answers for its whole job; of two jobs on one machine
// any one answers. The address is in the network namespace of the job.
const DefaultAddress = "localhost:28028"

// ErrNoJSON says that a service is older than NCCL 2.28 and has text for people only.
var ErrNoJSON = errors.New("this NCCL does not write its status as JSON")

const (
	maxStatus = 64 << 20 // bytes; a rank takes some 600
	maxLine   = 4096
	patience  = 15 * time.Second // NCCL gives its processes 5 s to answer, and 5 more
)

// Status is what the RAS service of one job says.
type Status struct {
	Version  string // of NCCL
	Comms    []Comm
	Timeouts int // processes that did not answer in time
}

// Comm is one communicator of a job.
type Comm struct {
	Hash    string // 0x..., as NCCL's log has it
	Size    int
	Ranks   []Rank    // by rank; those that answered
	Missing []Missing // by rank; those that did not
}

// Rank is a rank that answered.
type Rank struct {
	Rank, PID int
	Host      string // address
	Device    int    // as NVML numbers it
	Error     int    // its asynchronous error; 0: none
	Aborted   bool
	Ended     bool              // finalised or destroyed
	Counts    map[string]uint64 // collectives it has begun, by name
}

// Missing is a rank that did not answer.
type Missing struct {
	Rank, PID    int
	Host         string
	Device       int
	Unresponsive bool // its process did not answer at all
	Dead         bool // the others have given it up
}

// Lagging returns the ranks that have begun fewer collectives of a kind than another rank,
// by rank. In a job that moves some always do: only ranks that are behind twice, at the
// same counts, are stuck.
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

// Ask asks the service at address for the status of its job. The question goes through all
// processes of the job: it is for a suspicion, not for each interval.
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
		return Status{}, fmt.Errorf("cannot ask NCCL at %s: %w", address, err)
	}
	s, err := ParseStatus(b)
	if err != nil {
		return Status{}, fmt.Errorf("cannot read what NCCL says at %s: %w", address, err)
	}
	return s, nil
}

// exchange speaks version 2 of the protocol of lines, and returns the status.
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
		return nil, fmt.Errorf("it answers %.40q", answer)
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
		err = errors.New("the status is too long")
	}
	return b, err
}

// ParseStatus parses the status in JSON.
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
		return Status{}, errors.New("it does not say the version of NCCL")
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

// rankID is what each rank says, answer or not.
type rankID struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Device int    `json:"nvml_dev"`
}
