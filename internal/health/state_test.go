package health

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/workload"
)

func TestStateRules(t *testing.T) {
	down := func(d *Device) { *d = Device{Sample: device.Sample{ID: d.ID}, Problem: "device is lost", Since: boot} }
	expect(t, "late for two ticks", lately(20*time.Second, down), "")
	expect(t, "the driver says that it is gone", lately(0, func(d *Device) { down(d); d.Lost = true }), "gpu.lost critical 0")
	expect(t, "lost", lately(30*time.Second, down), "gpu.lost critical 0")
	expect(t, "needs a reset", lately(0, func(d *Device) { down(d); d.Reset = true }), "gpu.needs_reset critical 0")

	asks := func(code float64) func(*Device) { return func(d *Device) { d.RecoveryAction = of(code) } }
	expect(t, "nothing to recover", lately(0, asks(0)), "")
	for _, code := range []float64{1, 2, 3, 4, 5, 6, 7, 9} {
		expect(t, "recovery", lately(0, asks(code)), fmt.Sprintf("gpu.recovery critical 0 %.0f", code))
	}

	zombie := func(used, util float64, processes ...device.Process) func(*Device) {
		return func(d *Device) {
			d.Memory.Used, d.Utilization.Compute, d.Processes, d.Holders = of(used), of(util), processes, nil
		}
	}
	expect(t, "memory of nobody", lately(2*time.Minute, zombie(1<<30, 0)), "gpu.memory.orphaned warning 0")
	expect(t, "it is being cleaned up", lately(110*time.Second, zombie(1<<30, 0)), "")
	expect(t, "what the driver keeps", lately(5*time.Minute, zombie(1<<30-1, 0)), "")
	expect(t, "somebody is there", lately(5*time.Minute, zombie(1<<40, 0, device.Process{PID: 1})), "")
	expect(t, "somebody works whom we cannot see", lately(5*time.Minute, zombie(1<<40, 0.1)), "")
	expect(t, "a pod whose processes we do not see has it", lately(5*time.Minute, func(d *Device) {
		zombie(1<<40, 0)(d)
		d.Holders = []workload.Workload{alice}
	}), "")
	expect(t, "a vendor that lists no processes", machine(1, 5*time.Minute, func(_ time.Duration, _ int, d *Device) {
		zombie(1<<40, 0)(d)
		d.ID.Vendor = "gaudi"
	}), "")

	beats := func(still time.Duration) Machine {
		return machine(1, time.Minute, func(ago time.Duration, _ int, d *Device) { d.Heartbeat = of(1000 - max(ago, still).Seconds()) })
	}
	expect(t, "it beats", beats(0), "")
	expect(t, "it stands still", beats(10*time.Second), "gpu.heartbeat critical 0")

	is := func(code float64) func(*Device) { return func(d *Device) { d.Status = of(code) } }
	expect(t, "operational", lately(5*time.Minute, is(0)), "")
	expect(t, "in reset", lately(50*time.Second, is(2)), "")
	expect(t, "malfunction", lately(time.Minute, is(1)), "gpu.status critical 0")
	count := func(d *Device, v float64) { d.Resets = []device.ErrorCount{{Type: "hard", Count: of(v)}} }
	expect(t, "resets of last week", risen(0, count), "")
	expect(t, "a reset", risen(1, count), "gpu.reset warning 0")
	expect(t, "all other counters begin anew with it", machine(1, 5*time.Minute, func(ago time.Duration, _ int, d *Device) {
		count(d, 3)
		switch {
		case ago < time.Minute:
			count(d, 4)
			d.Since = noon.Add(-time.Minute)
		case ago < 2*time.Minute:
			down(d)
		}
	}), "gpu.reset warning 0")
}

func TestMachineRules(t *testing.T) {
	m := machine(8, time.Minute, nil)
	m.Expected = 8
	expect(t, "all there", m, "")
	m.Expected = 9
	expect(t, "one was never there", m, "gpu.missing critical")
	m.Expected = 0
	m.Known = []device.ID{steady(7).ID, steady(3).ID}
	last := &m.Moments[len(m.Moments)-1]
	last.Devices = last.Devices[:7]
	expect(t, "one is gone since boot", m, "gpu.missing critical 7 GPU-7")
	last.Devices[0].ID.PCI, m.Known[0].PCI = "0000:1a:00.0", "0000:1a:00.0"
	expect(t, "it has another name now", m, "")

	versions := func(name string, want string, list ...string) {
		t.Helper()
		expect(t, name, machine(len(list), 0, func(_ time.Duration, i int, d *Device) { d.Info.VBIOS = list[i] }), want)
	}
	versions("alike", "", "1", "1", "1")
	versions("one is old", "gpu.firmware.mismatch warning 1 VBIOS", "2", "1", "2")
	versions("one does not say", "", "2", "", "2")
	expect(t, "another model", machine(3, 0, func(_ time.Duration, i int, d *Device) {
		if i == 1 {
			d.ID.Model, d.Info.VBIOS, d.Info.Firmware = "L40S", "7", "8"
		}
	}), "")
}

// The whole job waits for its slowest device, which only shows next to its peers.
func TestStragglers(t *testing.T) {
	slow := func(n int, long time.Duration, change func(d *Device)) Machine {
		return machine(n, 10*time.Minute, func(ago time.Duration, i int, d *Device) {
			d.Powers = nil // other rules cover the effect of heat
			if i == 1 && ago <= long {
				change(d)
			}
		})
	}
	clocked := func(mhz float64) func(*Device) { return func(d *Device) { d.Clocks[0].Frequency = of(mhz * 1e6) } }
	expect(t, "slower", slow(4, 3*time.Minute, clocked(1349)), "gpu.straggler warning 1")
	expect(t, "a little slower", slow(4, 10*time.Minute, clocked(1350)), "")
	expect(t, "for a moment", slow(4, 170*time.Second, clocked(1200)), "")
	expect(t, "of two nobody can say", slow(2, 10*time.Minute, clocked(1200)), "")
	expect(t, "hotter", slow(4, 3*time.Minute, func(d *Device) { d.Temperatures[0].Value = of(75) }), "gpu.straggler warning 1")
	expect(t, "a little hotter", slow(4, 3*time.Minute, func(d *Device) { d.Temperatures[0].Value = of(74) }), "")
	expect(t, "it has less to do", slow(4, 10*time.Minute, func(d *Device) {
		clocked(1200)(d)
		d.Utilization.Compute = of(0.5)
	}), "")
	expect(t, "the others have less to do", machine(4, 10*time.Minute, func(_ time.Duration, i int, d *Device) {
		d.Powers = nil
		if d.Utilization.Compute = of(0.1); i == 1 {
			d.Utilization.Compute, d.Temperatures[0].Value = of(0.9), of(75)
		}
	}), "")
	expect(t, "it is another job's", slow(4, 10*time.Minute, func(d *Device) {
		clocked(1200)(d)
		d.Holders = []workload.Workload{{ID: "other"}}
	}), "")
}

func TestXIDs(t *testing.T) {
	bob := workload.Workload{ID: "pod/bob"}
	seen := func(code int, ago time.Duration, change func(*XIDSeen, *Device)) Machine {
		return machine(1, time.Minute, func(_ time.Duration, _ int, d *Device) {
			x := XIDSeen{Code: code, Count: 1, Last: noon.Add(-ago), Workloads: []workload.Workload{bob}}
			if change != nil {
				change(&x, d)
			}
			d.XIDs = []XIDSeen{x}
		})
	}
	for _, code := range []int{13, 14, 31, 43, 45, 68, 94, 108, 154} {
		expect(t, "a program's fault", seen(code, time.Minute, nil), fmt.Sprintf("gpu.xid info 0 %d", code))
		if s := Score(Check(seen(code, 0, nil)), "GPU-0"); s != 1 {
			t.Errorf("XID %d lowers the score: %v", code, s)
		}
	}
	expect(t, "most likely a program's fault", seen(109, time.Minute, nil), "gpu.xid warning 0 109")
	down := func(_ *XIDSeen, d *Device) { d.Up, d.Lost = false, true }
	expect(t, "it fell off the bus", seen(79, time.Minute, down), "gpu.lost critical 0; gpu.xid critical 0 79")
	expect(t, "forgotten", seen(31, 10*time.Minute, nil), "")
	expect(t, "an error of memory", seen(95, time.Minute, nil), "gpu.xid critical 0 95")
	expect(t, "until it is reset", seen(95, 5*time.Hour, nil), "gpu.xid critical 0 95")
	expect(t, "it was reset", seen(95, 5*time.Hour, func(_ *XIDSeen, d *Device) { d.Since = noon.Add(-time.Hour) }), "")
	expect(t, "the driver needs nothing", seen(95, 5*time.Hour, func(_ *XIDSeen, d *Device) { d.RecoveryAction = of(0) }), "")
	expect(t, "the driver needs nothing, and it was now", seen(95, time.Minute, func(_ *XIDSeen, d *Device) { d.RecoveryAction = of(0) }), "gpu.xid critical 0 95")
	expect(t, "nobody knows it", seen(777, time.Minute, nil), "gpu.xid warning 0 777")

	got := Check(seen(31, time.Minute, func(x *XIDSeen, _ *Device) {
		x.Count, x.PID, x.Process, x.Message = 3, 42, "python3", "MMU Fault"
	}))
	want := []Finding{{
		Rule: "gpu.xid", Key: "31", Severity: Info, Device: steady(0).ID, Since: noon.Add(-time.Minute), Workloads: []workload.Workload{bob}, Evidence: []string{"MMU Fault"},
		Reason: "XID 31, a program accessed invalid memory, 1m ago, 3 in total, in python3 (pid 42)",
		Action: "Restart the program; debug it if this recurs. The GPU is fine unless different programs fail on it.",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplainXID(t *testing.T) {
	f := func(code int, message, want string) {
		t.Helper()
		x := ExplainXID(code, message)
		got := fmt.Sprintf("%s %s link=%s: %s", x.Class, x.Severity, x.Link, x.Meaning)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d %s (-want +got):\n%s", code, message, diff)
		}
	}
	f(79, "", "hardware critical link=: the GPU fell off the bus")
	f(48, "", "memory critical link=: uncorrectable memory error")
	f(154, "", "information info link=: the driver's recovery action changed")
	f(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "hardware critical link=: the driver requests a reboot of the machine")
	f(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "hardware critical link=: the driver requests a reset of the device")
	f(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "information info link=: the driver no longer requests a recovery action")
	f(154, "GPU recovery action changed from 0x0 (None) to 0x77 (New Thing)", "hardware critical link=: the driver requests an unknown recovery action, code 119")
	f(74, "", "link warning link=: an NVLink failed")
	f(149, "Placeholder", "link warning link=: NVLink reported an error")
	f(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x025001c6 0x00000000 0x0)", "link critical link=3: an error reported by NETIR_LINK_EVT")
	f(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x0)", "link info link=0: an error reported by NETIR_LINK_EVT")
	f(144, "SAW_MVB Nonfatal XC0 i0 Link -1 (0x00000001 0x00000008 0x0)", "link info link=: an error reported by SAW_MVB")
	f(146, "TLW_RX/TLW_RX_PIPE0 Fatal XC1 i0 Link 17 (0x00000001 0x1 0x0)", "link critical link=17: an error reported by TLW_RX TLW_RX_PIPE0")
	for code, x := range xids {
		if x.name == "" || x.meaning == "" || actions[x.action].text == "" {
			t.Errorf("%d: %+v", code, x)
		}
	}
	if len(xids) < 100 {
		t.Errorf("%d codes", len(xids))
	}
}

// Our actions match NVIDIA's tables: a reset wherever they list one.
func TestTables(t *testing.T) {
	read := func(name string) []map[string]string {
		f, err := os.Open(filepath.Join("../../../shared/fixtures/nvidia/tables", name))
		if err != nil {
			t.Skipf("no tables of the vendor: %v", err)
		}
		defer f.Close()
		rows, err := csv.NewReader(f).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		var out []map[string]string
		for _, row := range rows[1:] {
			m := map[string]string{}
			for i, v := range row {
				m[rows[0][i]] = v
			}
			out = append(out, m)
		}
		return out
	}
	for _, row := range read("xid-144-150-nvlink5-decode.csv") {
		bits := strings.ReplaceAll(row["intrinfo_bits_v1"], "-", "0")
		info, err := strconv.ParseUint(bits, 2, 32)
		if err != nil {
			t.Fatal(err)
		}
		word := "Nonfatal"
		if strings.Contains(row["severity"], "Fatal") {
			word = "Fatal"
		}
		code, _ := strconv.Atoi(row["xid"])
		x := ExplainXID(code, fmt.Sprintf("%s %s XC0 i0 Link 1 (0x%08x %s 0x0)", row["unit"], word, info, row["error_status"]))
		if reset := row["resolution"] == "RESET_GPU"; reset != (x.Severity == Critical) {
			t.Errorf("%v: %+v", row, x)
		}
	}
	for _, row := range read("xid-catalog.csv") {
		code, _ := strconv.Atoi(row["code"])
		x, ok := xids[code]
		if unused := strings.HasPrefix(row["description"], "Unused") && code != 14 && code != 108; unused == ok {
			t.Errorf("%d: in our table %v, %q", code, ok, row["description"])
		}
		if want := row["immediate_resolution"]; ok && want == "RESET_GPU" && x.action != resetGPU && code != 109 {
			t.Errorf("%d: %v, want a reset", code, x)
		} else if ok && want == "RESTART_APP" && x.action != restartApp {
			t.Errorf("%d: %v, want a restart of the program", code, x)
		}
	}
}

func TestSwitches(t *testing.T) {
	f := func(code int, fatal bool, ago time.Duration, want string, reset ...time.Duration) {
		t.Helper()
		m := machine(1, time.Minute, func(_ time.Duration, _ int, d *Device) {
			for _, at := range reset {
				d.Since = noon.Add(-at)
			}
		})
		m.Switches = []SXIDSeen{{Code: code, PCI: "0000:c1:00.0", Fatal: fatal, Last: noon.Add(-ago)}}
		expect(t, fmt.Sprint(code), m, want)
	}
	f(12028, false, time.Minute, "nvswitch.sxid info 0000:c1:00.0 12028")
	f(12028, true, time.Minute, "nvswitch.sxid critical 0000:c1:00.0 12028")
	f(23005, false, time.Minute, "nvswitch.sxid critical 0000:c1:00.0 23005")
	f(23018, false, time.Minute, "nvswitch.sxid info 0000:c1:00.0 23018")
	f(12028, false, 10*time.Minute, "")
	f(12028, true, 10*time.Minute, "nvswitch.sxid critical 0000:c1:00.0 12028") // until the GPUs are reset
	f(12028, true, 10*time.Minute, "", 5*time.Minute)
	f(23005, false, 10*time.Minute, "nvswitch.sxid critical 0000:c1:00.0 23005", 5*time.Minute) // until the host is restarted
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 30 * time.Second: "30s", time.Minute: "1m", 90 * time.Second: "1m30s", 110 * time.Second: "1m50s", 5*time.Minute + 29*time.Second: "5m",
		10 * time.Minute: "10m", time.Hour: "1h", 25*time.Hour + time.Minute: "25h1m", 400 * time.Millisecond: "0s",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestSeverityText(t *testing.T) {
	b, err := json.Marshal([]Severity{Info, Warning, Critical})
	if err != nil || string(b) != `["info","warning","critical"]` {
		t.Errorf("%s, %v", b, err)
	}
	var back []Severity
	if err := json.Unmarshal(b, &back); err != nil || !cmp.Equal(back, []Severity{Info, Warning, Critical}) {
		t.Errorf("%v, %v", back, err)
	}
}

var rewrite = flag.Bool("update", false, "rewrite docs/xid.md")

// docs/xid.md is generated from the table.
func TestXIDDocument(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("[comment]: <> (Written by go test ./internal/health -run Document -update from xid_table.go. Do not edit.)\n\n# XIDs\n\n")
	b.WriteString("What NVIDIA's driver reports, as of 2026-11 (driver R595). Severity is that of the [finding](health.md); of 144 to 150 and 154 the driver's text decides.\n\n")
	b.WriteString("Actions are those of NVIDIA's catalog, with these exceptions. 109: the catalog recommends a reset, but NVIDIA's own device plugin takes 109 for an application error; it is a warning here, " +
		"and a driver that needs a reset says so by 154 or its recovery action, which is critical. 92, 93, 121, 157 and 161: the catalog recommends investigation only; they are warnings. 162 to 176 have no action in the catalog. " +
		"Codes that the catalog calls unused are unknown errors, except 14 and 108, which it says to ignore.\n\n")
	b.WriteString("| XID | name | class | severity | meaning | action |\n|---|---|---|---|---|---|\n")
	for _, code := range slices.Sorted(maps.Keys(xids)) {
		x := ExplainXID(code, "")
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", code, x.Name, x.Class, x.Severity, x.Meaning, x.Action)
	}
	const path = "../../docs/xid.md"
	if *rewrite {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("docs/xid.md is out of date, rewrite it with -update (%v)", err)
	}
}
