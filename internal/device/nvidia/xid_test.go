//go:build linux

package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
)

// realXID is what an H200 logged when a program accessed an unmapped address.
const realXID = "NVRM: Xid (PCI:0000:00:06): 31, pid=610, name=bad, channel 0x00000009, intr 00000000. " +
	"MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"

func TestParseXID(t *testing.T) {
	f := func(line string, want device.Event) {
		t.Helper()
		want.Name = device.EventXID
		got, ok := parseXID(line)
		if !ok {
			t.Errorf("%q was not parsed", line)
		}
		if diff := cmp.Diff(want, got.Event); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	f(realXID, device.Event{
		PCI: "0000:00:06.0", Code: 31, PID: 610, Process: "bad",
		Message: "channel 0x00000009, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. " +
			"Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
	})
	f("NVRM: Xid (0000:03:00): 14, Channel 00000001", device.Event{PCI: "0000:03:00.0", Code: 14, Message: "Channel 00000001"})
	f("NVRM: Xid (PCI:0000:05:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		device.Event{PCI: "0000:05:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	f("NVRM: Xid (PCI:00000009:0A:00): 48, pid=7", device.Event{PCI: "0009:0a:00.0", Code: 48, PID: 7})
	f("NVRM: Xid (PCI:00010009:0A:00): 48, DBE", device.Event{PCI: "00010009:0a:00.0", Code: 48, Message: "DBE"})
	f("NVRM: Xid (PCI:0000:41:00 GPU-I:02): 13, pid=9, name=ray::Worker, Graphics", device.Event{PCI: "0000:41:00.0", Code: 13, PID: 9, Process: "ray::Worker", Message: "Graphics"})
	f("NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
		device.Event{PCI: "0018:01:00.0", Code: 145, PID: 876767, Process: "ray::WorkerDict", Message: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"})
	f("NVRM: Xid (PCI:0000:01:00): 31, pid=XXX", device.Event{PCI: "0000:01:00.0", Code: 31, Message: "pid=XXX"})
	f("NVRM: GPU 0000:8A:00.0: GPU has fallen off the bus.", device.Event{PCI: "0000:8a:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	// Without a PCI domain, and over several lines of one record.
	f("NVRM: GPU 18:00.0: GPU has fallen off the bus.", device.Event{PCI: "0000:18:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	f("NVRM: GPU at 0000:02:00.0 has fallen off the bus.", device.Event{PCI: "0000:02:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	f("NVRM: Xid (PCI:18:00): 48, DBE", device.Event{PCI: "0000:18:00.0", Code: 48, Message: "DBE"})
	f("NVRM: The NVIDIA GPU 0000:8a:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.\n",
		device.Event{PCI: "0000:8a:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	f("NVRM: GPU at PCI:0000:00:06: GPU-0\nNVRM: GPU Board Serial Number: 1650123456789\nNVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
		device.Event{PCI: "0000:05:00.0", Code: 79, Message: "GPU has fallen off the bus."})
	f("NVRM: Xid (PCI:0000:01:00): 62, board 1650123456789, GPU serial number 1650123456789",
		device.Event{PCI: "0000:01:00.0", Code: 62})
	f("NVRM: Xid (PCI:0000:01:00): 13, a\xff"+strings.Repeat("é", maxMessage)+"\nsecond line",
		device.Event{PCI: "0000:01:00.0", Code: 13, Message: "a" + strings.Repeat("é", (maxMessage-1)/2)})

	for _, line := range []string{
		"", "NVRM: GPU at PCI:0000:00:06: GPU-0", "NVRM: GPU Board Serial Number: 1650123456789",
		"NVRM: GPU 0000:00:06.0: GPU serial number is 1650123456789.", "NVRM: Xid (invalid): some error",
		"NVRM: Xid (PCI:0000:00:06): no, code", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal",
		"Xid (PCI:0000:01:00): 31, somebody else",
		"NVRM: The NVIDIA GPU 0000:8a:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system is fine", "NVRM: GPU 0000:8a:00.0\nfallen off the bus",
	} {
		if e, ok := parseXID(line); ok {
			t.Errorf("%q parsed as %+v", line, e)
		}
	}
}

// Every Xid line in the captured logs is parsed, and no other line is.
func TestParseXIDFixtures(t *testing.T) {
	data, err := os.ReadFile(filepath.FromSlash("../../../../shared/fixtures/nvidia/kernel-log/xid-sxid-lines.txt"))
	if err != nil {
		t.Skip("the collected kernel logs are not beside this repository: ", err)
	}
	read := 0
	for line := range strings.Lines(string(data)) {
		want := strings.Contains(line, "NVRM: Xid (") && !strings.Contains(line, "(invalid)")
		e, ok := parseXID(line)
		if ok != want {
			t.Errorf("%q: parsed %v as %+v", line, ok, e)
		}
		if ok && (e.Code == 0 || e.Message == "" && e.PID == 0) {
			t.Errorf("%q parsed as %+v", line, e)
		}
		if ok {
			read++
		}
	}
	if read < 90 {
		t.Errorf("%d lines parsed", read)
	}
}

func FuzzParseXID(f *testing.F) {
	f.Add(realXID)
	f.Add("NVRM: Xid (PCI:0000:41:00 GPU-I:02): 13, pid='<unknown>', name=<unknown>, x")
	f.Add("NVRM: GPU 0000:8A:00.0: GPU has fallen off the bus.")
	f.Add("NVRM: Xid (PCI:0000:01:00): 62, GPU serial number 1650123456789")
	f.Add("NVRM: The NVIDIA GPU 8a:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.\n")
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := parseXID(line)
		if !ok {
			return
		}
		if e.Code < 0 || len(e.PCI) < len("0000:00:00.0") || len(e.Message) > maxMessage || !utf8.ValidString(e.Message+e.Process) ||
			strings.Contains(strings.ToLower(e.Message), "serial") {
			t.Errorf("%q parsed as %+v", line, e)
		}
	})
}

// Catches one fall that is counted several times, and a second fall that is not counted.
func TestFallen(t *testing.T) {
	p := fallen{}
	f := func(pci string, at int, form offBusForm, want bool) {
		t.Helper()
		if got := p.repeats(pci, time.Duration(at)*time.Second, form); got != want {
			t.Errorf("%s at %d s, form %d: %v", pci, at, form, got)
		}
	}
	f("a", 0, offBusXID, false)
	f("b", 1, offBusLine, false) // another GPU
	f("a", 1, offBusLine, true)
	f("a", 1, offBusOpen, true)
	f("a", 2, offBusXID, false)   // again, after a reset
	f("b", 2, offBusXID, true)    // in the other order
	f("a", 100, offBusXID, false) // the other line never came
	f("a", 200, offBusLine, false)
	f("a", 900, offBusOpen, true) // somebody tried to open the GPU
	f("c", 0, offBusOpen, false)
	f("c", 50, offBusOpen, true)
}

// A switch error belongs to no GPU, and its register dump is not a second error.
func TestParseSXID(t *testing.T) {
	f := func(line string, want device.Event) {
		t.Helper()
		got, ok := parseSXID(line)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want.Name != "") {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	sxid := func(code int, pci, message string) device.Event {
		return device.Event{Name: device.EventSXID, Code: code, PCI: pci, Message: message}
	}
	f("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", sxid(12028, "0000:05:00.0", "Non-fatal, Link 32 egress non-posted PRIV error (First)"))
	f("nvidia-nvswitch0: SXid (PCI:0000:A9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", sxid(20034, "0000:a9:00.0", "Fatal, Link 30 LTSSM Fault Up"))
	f("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x50610002, 0x10100030}", device.Event{})
	f("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00", device.Event{})
	f("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error", device.Event{})
	f("nvidia-nvswitch0: SXid (invalid): some error", device.Event{})
	f("", device.Event{})
}

func FuzzParseSXID(f *testing.F) {
	f.Add("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32")
	f.Fuzz(func(t *testing.T, line string) {
		if e, ok := parseSXID(line); ok && (e.Code < 0 || len(e.PCI) < len("0000:00:00.0") || len(e.Message) > maxMessage || !utf8.ValidString(e.Message)) {
			t.Errorf("%q parsed as %+v", line, e)
		}
	})
}
