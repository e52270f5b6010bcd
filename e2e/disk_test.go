//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// diskHub is a hub on a small disk of its own.
type diskHub struct {
	t                *testing.T
	binary           string
	mount, dir, fill string
	p                *process
	url              string
	kept             map[int64]bool // acknowledged times of the samples, in ms
}

func newDiskHub(t *testing.T, size int) *diskHub {
	t.Helper()
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		skip(t, "root", fmt.Sprintf("a small disk needs root: %v", err))
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &diskHub{t: t, binary: gpumeter(t), mount: mount, dir: filepath.Join(mount, "hub"), fill: filepath.Join(mount, "filler"), kept: map[int64]bool{}}
}

func (h *diskHub) launch() *process {
	h.t.Helper()
	return start(h.t, h.binary, "hub", "--data-dir", h.dir, "--listen", "127.0.0.1:0", "--listen-grpc", "")
}

func (h *diskHub) up() {
	h.t.Helper()
	h.p = h.launch()
	h.url = h.p.find(h.t, hubAddress)
}

// send sends one sample of each of n series and returns the status.
func (h *diskHub) send(n int, at int64) int {
	h.t.Helper()
	m := pmetric.NewMetrics()
	r := m.ResourceMetrics().AppendEmpty()
	r.Resource().Attributes().PutStr("service.name", "disk")
	g := r.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	g.SetName("disk.test")
	points := g.SetEmptyGauge().DataPoints()
	for i := range n {
		p := points.AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(time.UnixMilli(at)))
		p.SetDoubleValue(float64(at)*1.1 + float64(i))
		p.Attributes().PutInt("i", int64(i))
	}
	body, err := pmetricotlp.NewExportRequestFromMetrics(m).MarshalProto()
	if err != nil {
		h.t.Fatal(err)
	}
	resp, err := http.Post(h.url+"/v1/metrics", "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		if len(text) > 0 && strings.Contains(string(text), "rejected") {
			h.t.Fatalf("%q", text)
		}
		h.kept[at] = true
	}
	return resp.StatusCode
}

// samples returns the times of the samples of one series.
func (h *diskHub) samples() map[int64]bool {
	h.t.Helper()
	body, err := get(h.t, h.url+"/api/v1/query?query="+url.QueryEscape(`disk_test{i="7"}[3d]`))
	if err != nil {
		h.t.Fatal(err)
	}
	var answer struct {
		Data struct{ Result []struct{ Values [][2]any } }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		h.t.Fatal(err)
	}
	out := map[int64]bool{}
	for _, r := range answer.Data.Result {
		for _, v := range r.Values {
			seconds, ok := v[0].(float64)
			if !ok {
				h.t.Fatal(v)
			}
			out[int64(seconds*1000+0.5)] = true
		}
	}
	return out
}

// whole fails unless every acknowledged sample is there.
func (h *diskHub) whole(when string) {
	h.t.Helper()
	if diff := cmp.Diff(h.kept, h.samples()); diff != "" {
		h.t.Fatalf("%s (-acknowledged +stored):\n%s", when, diff)
	}
}

type diskReport struct {
	InUse    bool `json:"in_use"`
	Blocks   []struct{ ID, Damage string }
	Problems []struct{ Path, Reason string }
	SetAside []struct{ Path, Reason string } `json:"set_aside"`
}

// check runs gpumeter hub check and returns its report and exit code.
func (h *diskHub) check() (report diskReport, code int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.binary, "hub", "check", "--json", h.dir)
	out, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &report); err != nil {
		h.t.Fatalf("%v in %s", err, out)
	}
	return report, cmd.ProcessState.ExitCode()
}

// Catches a restart on a full disk that destroys the log, a start that repairs without room, and a repair
// that loses samples if it is killed, or if an earlier version could not finish it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	h := newDiskHub(t, 44<<20)
	h.up()
	at := time.Now().Add(-10 * time.Hour).UnixMilli()
	status := http.StatusOK
	for i := 0; status == http.StatusOK; i++ {
		at += 1000
		late := at
		if i%3 == 2 {
			late -= 2 * 3_600_000 // out of order
		}
		status = h.send(500, late)
	}
	if status != http.StatusServiceUnavailable || len(h.kept) < 100 {
		t.Fatalf("status %d after %d requests", status, len(h.kept))
	}
	if body, err := get(t, h.url+"/readyz"); err != nil || !strings.Contains(body, "no samples are accepted") {
		t.Errorf("/readyz says %q, %v", body, err)
	}
	h.whole("while the disk is full")
	if code := h.p.stop(t); code != 0 {
		t.Errorf("SIGTERM on a full disk: exit code %d", code)
	}

	// Another program takes the rest of the disk.
	filler, err := os.Create(h.fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := h.launch()
		<-p.done
		if p.cmd.ProcessState.ExitCode() == 0 || !strings.Contains(p.said(), "not enough space") || !strings.Contains(p.said(), "nothing was changed") {
			t.Fatalf("start without room: %s", p.said())
		}
	}
	if err := os.Remove(h.fill); err != nil {
		t.Fatal(err)
	}
	h.up()
	h.whole("after room was made")

	// Killed, then killed again in the repair.
	if err := h.p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.p.done
	if err := syscall.Mount("tmpfs", h.mount, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", 128<<20)); err != nil {
		t.Fatal(err)
	}
	killed := 0
	for range 20 {
		p := h.launch()
		wbl := filepath.Join(h.dir, "tsdb/wbl")
		for !ended(p) && !strings.Contains(p.said(), "The hub is serving") {
			_, made := os.Stat(wbl + ".tmp")
			_, old := os.Stat(wbl + ".old")
			if made == nil || old == nil {
				killed++
				break
			}
		}
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if killed == 0 {
		t.Error("no start was killed in the repair")
	}
	h.up()
	h.whole(fmt.Sprintf("after %d kills in the repair", killed))
	if code := h.p.stop(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}

	// An earlier version could not finish its repair.
	segment := filepath.Join(h.dir, "tsdb/wal/00000000")
	if err := os.Rename(segment, segment+".repair"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segment, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.up()
	h.whole("after an unfinished repair")
	at += 1000
	if status := h.send(500, at); status != http.StatusOK {
		t.Errorf("status %d with room on the disk", status)
	}
	h.whole("at the end")
	if report, code := h.check(); code != 0 || !report.InUse || len(report.SetAside) > 0 {
		t.Errorf("hub check: exit code %d, %+v", code, report)
	}
}

func ended(p *process) bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Catches a hub that does not start, or does not say why samples are missing, because of one damaged block.
func TestDamagedBlock(t *testing.T) {
	t.Parallel()
	h := newDiskHub(t, 128<<20)
	h.up()
	first := time.Now().Add(-11 * time.Hour).Truncate(2 * time.Hour).UnixMilli()
	for at := first; at < time.Now().UnixMilli(); at += 60_000 {
		if status := h.send(20, at); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
	}
	eventually(t, "blocks", func() error {
		report, _ := h.check()
		if len(report.Blocks) < 3 {
			return fmt.Errorf("%d blocks", len(report.Blocks))
		}
		return nil
	})
	report, code := h.check()
	if code != 0 || !report.InUse || len(report.Problems) > 0 {
		t.Fatalf("hub check: exit code %d, %+v", code, report)
	}
	if code := h.p.stop(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	report, _ = h.check()
	block := report.Blocks[1].ID
	var meta struct{ MinTime, MaxTime int64 }
	text, err := os.ReadFile(filepath.Join(h.dir, "tsdb", block, "meta.json"))
	if err == nil {
		err = json.Unmarshal(text, &meta)
	}
	if err == nil {
		err = os.Truncate(filepath.Join(h.dir, "tsdb", block, "index"), 100)
	}
	if err != nil {
		t.Fatal(err)
	}
	if report, code = h.check(); code != 1 || len(report.Problems) != 1 || report.Problems[0].Path != "tsdb/"+block || report.InUse {
		t.Errorf("hub check of a damaged block: exit code %d, %+v", code, report)
	}
	h.up()
	for at := range h.kept {
		if at >= meta.MinTime && at < meta.MaxTime {
			delete(h.kept, at)
		}
	}
	h.whole("without the damaged block")
	if body, err := get(t, h.url+"/readyz"); err != nil || !strings.Contains(body, "damaged parts of the store that were set aside: 1") {
		t.Errorf("/readyz says %q, %v", body, err)
	}
	if body, err := get(t, h.url+"/metrics"); err != nil || !strings.Contains(body, "gpumeter_hub_damaged_parts 1\n") {
		t.Errorf("gpumeter_hub_damaged_parts is not 1: %v", err)
	}
	if n := strings.Count(h.p.said(), "A damaged part of the store was set aside"); n != 1 {
		t.Errorf("the log names the damage %d times", n)
	}
	if report, code = h.check(); code != 0 || len(report.SetAside) != 1 || report.SetAside[0].Path != "tsdb/"+block {
		t.Errorf("hub check after the start: exit code %d, %+v", code, report)
	}
}
