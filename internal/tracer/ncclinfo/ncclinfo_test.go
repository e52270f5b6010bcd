package ncclinfo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// status is what rasDumpCommsToJSON of NCCL's sources writes for a job of three ranks, of
// which one has not begun its last collective and one does not answer.
const status = `{
  "nccl_version": "2.28.3",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-01-02 03:04:05",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0x7f8c496ae9f661",
      "secondary_hash": "0x1:0x2",
      "size": 3,
      "ranks_count": 2,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 1,
          "host": "10.0.0.2",
          "pid": 102,
          "cuda_dev": 0,
          "nvml_dev": 1,
          "status": {
            "init_state": 0,
            "async_error": 6,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 1,
            "AllReduce": 99
          }
        },
        {
          "rank": 0,
          "host": "10.0.0.1",
          "pid": 101,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 1,
            "AllReduce": 100
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 2,
          "host": "10.0.0.3",
          "pid": 103,
          "cuda_dev": 0,
          "nvml_dev": 2,
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 5.001,
    "timeouts_count": 1
  }
}
`

var parsed = Status{
	Version: "2.28.3", Timeouts: 1,
	Comms: []Comm{{
		Hash: "0x7f8c496ae9f661", Size: 3,
		Ranks: []Rank{
			{Rank: 0, PID: 101, Host: "10.0.0.1", Device: 0, Counts: map[string]uint64{"Broadcast": 1, "AllReduce": 100}},
			{Rank: 1, PID: 102, Host: "10.0.0.2", Device: 1, Error: 6, Counts: map[string]uint64{"Broadcast": 1, "AllReduce": 99}},
		},
		Missing: []Missing{{Rank: 2, PID: 103, Host: "10.0.0.3", Device: 2, Unresponsive: true}},
	}},
}

// The rank that is behind and the one that is missing are told by their numbers.
func TestParseStatus(t *testing.T) {
	s, err := ParseStatus([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(parsed, s); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int{1}, s.Comms[0].Lagging()); d != "" {
		t.Error(d)
	}
	s.Comms[0].Ranks[1].Ended = true
	if got := s.Comms[0].Lagging(); got != nil {
		t.Errorf("a rank that ended lags: %v", got)
	}
	for _, bad := range []string{"", "{}", status[:len(status)/2], `{"nccl_version":1}`} {
		if _, err := ParseStatus([]byte(bad)); err == nil {
			t.Errorf("%.20q is a status", bad)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(status))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if s, err := ParseStatus(b); err == nil {
			for i := range s.Comms {
				s.Comms[i].Lagging()
			}
		}
	})
}

// serve is a RAS service that answers commands as NCCL does.
func serve(t *testing.T, answers map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for s := bufio.NewScanner(conn); s.Scan(); {
					answer, ok := answers[s.Text()]
					if !ok {
						answer = fmt.Sprintf("ERROR: Unknown command %s\n", s.Text())
					}
					fmt.Fprint(conn, answer)
					if s.Text() == "STATUS" {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestAsk(t *testing.T) {
	address := serve(t, map[string]string{"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "SET FORMAT json": "OK\n", "STATUS": status})
	s, err := Ask(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(parsed, s); d != "" {
		t.Error(d)
	}
}

// An old NCCL, another service, one that does not answer, and none at all are errors that
// say which, in time.
func TestAskFails(t *testing.T) {
	f := func(ctx context.Context, name string, answers map[string]string, want string) {
		t.Helper()
		_, err := Ask(ctx, serve(t, answers))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	f(t.Context(), "old", map[string]string{"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n"}, ErrNoJSON.Error())
	f(t.Context(), "another service", map[string]string{"CLIENT PROTOCOL 2": "HTTP/1.1 400 Bad Request\n"}, "it answers")
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	f(soon, "silent", map[string]string{"CLIENT PROTOCOL 2": ""}, "deadline exceeded")
	f(t.Context(), "endless line", map[string]string{"CLIENT PROTOCOL 2": strings.Repeat("x", 10*maxLine)}, "buffer full")
	f(t.Context(), "torn", map[string]string{"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "SET FORMAT json": "OK\n", "STATUS": status[:100]}, "cannot read")
	if _, err := Ask(context.Background(), "127.0.0.1:1"); err == nil {
		t.Error("nobody answers, and it is no error")
	}
}

// record is the example of the plugin's own description, on one line as it writes it.
func record(sn int) string {
	return fmt.Sprintf(`{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"profiler_plugin","dump_timestamp_us":1748030377748202,"hostname":"example-hostname","pid":1639453},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_algobw_gbs":277.5,"coll_busbw_gbs":485.5}}`, sn) + "\n"
}

func want(sn int) Record {
	return Record{
		Time: time.UnixMicro(1748030377748202), Host: "example-hostname", PID: 1639453,
		Comm: "0x7f8c496ae9f661", Rank: 2, Size: 8, Op: "AllReduce", Sequence: uint64(sn), Bytes: 17179869184,
		Duration: 61974 * time.Microsecond, Algorithm: 277.5e9, Bus: 485.5e9,
	}
}

func TestParseRecord(t *testing.T) {
	got, err := ParseRecord([]byte(record(1407)))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want(1407), got); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{
		"", "{}", record(1)[:60],
		`{"header":{"id":"0x1"},"coll_perf":{"coll":"Send","coll_exec_time_us":18446744073709551615}}`,
		`{"header":{"id":"0x1"},"coll_perf":{"coll":"Send","coll_busbw_gbs":1e300}}`, // in bytes it is infinite
		`{"header":{"id":"0x1"},"coll_perf":{"coll":"Send","coll_algobw_gbs":-1}}`,
	} {
		if _, err := ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%.30q is a record", bad)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(record(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRecord(b); err == nil && r.Duration < 0 {
			t.Errorf("%+v", r)
		}
	})
}

// Each record comes once, also where a line was half written, a file was written anew, or
// more came than is read at one time.
func TestDump(t *testing.T) {
	log := filepath.Join(t.TempDir(), "host-pid1639453.log")
	d := &Dump{Path: log}
	write := func(s string, flags int) {
		t.Helper()
		f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|flags, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(s)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want ...Record) {
		t.Helper()
		got, err := d.Read()
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	write(record(1)+record(2)+record(3)[:50], os.O_APPEND)
	read(want(1), want(2))
	read()
	write(record(3)[50:]+"nonsense\n", os.O_APPEND)
	read(want(3))
	if d.Bad != 1 {
		t.Errorf("%d bad lines", d.Bad)
	}
	write(record(9), os.O_TRUNC)
	read(want(9))
	write(strings.Repeat(strings.Repeat(" ", 1023)+"\n", maxPerRead/1024+1)+record(10), os.O_APPEND)
	got, err := d.Read()
	if err != nil || len(got) != 1 || got[0].Sequence != 10 || d.Skipped == 0 {
		t.Errorf("%d records, %d bytes skipped, %v", len(got), d.Skipped, err)
	}
	skipped := d.Skipped
	write(strings.Repeat("x", maxRecord+1), os.O_APPEND)
	read()
	if d.Skipped == skipped {
		t.Error("a line without end is waited for")
	}
	write("\n"+record(11), os.O_APPEND)
	read(want(11))
	// A long file that was there before us is read from near its end.
	write(strings.Repeat(record(1), firstRead/len(record(1))+10)+record(77), os.O_TRUNC)
	got, err = (&Dump{Path: log}).Read()
	if err != nil || len(got) == 0 || len(got) > firstRead/len(record(1))+1 || got[len(got)-1].Sequence != 77 {
		t.Errorf("%d records, %v", len(got), err)
	}
	if err := errors.Join(os.Remove(log), syscall.Mkfifo(log, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(); err == nil {
		t.Error("a pipe was read")
	}
}

func TestIsDump(t *testing.T) {
	for name, want := range map[string]bool{
		"/x/node-1-pid12.log": true, "n-pid1.log": true,
		"-pid1.log": false, "n-pid.log": false, "n-pidx.log": false, "n-pid1.txt": false, "": false, "n-pid1.log (deleted)": false,
	} {
		if IsDump(name) != want {
			t.Errorf("%q", name)
		}
	}
}
