package device

import (
	"encoding/json"
	"testing"
)

func TestJSON(t *testing.T) {
	s := Sample{ID: ID{Vendor: "v", UUID: "u", Model: "m"}, Energy: Of(0), Utilization: Engines{Compute: Of(1)}}
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	// An absent reading is omitted; a reading of 0 is not.
	const want = `{"id":{"vendor":"v","uuid":"u","index":0,"model":"m"},"utilization":{"compute":1},"energy_joules":0}`
	if string(got) != want {
		t.Errorf("JSON is\n%s\nwant\n%s", got, want)
	}
}

func TestThrottled(t *testing.T) {
	var s Sample
	if s.Throttled(BucketHW).OK() {
		t.Error("a device that does not report throttling counts as not throttled")
	}
	s.Throttles = []Throttle{{Cause: "idle", Active: true}, {Cause: "power", Buckets: BucketPower | BucketSW, Active: true}, {Cause: "heat", Buckets: BucketThermal}}
	if s.Throttled(BucketPower) != Of(1) || s.Throttled(BucketSW) != Of(1) || s.Throttled(BucketThermal) != Of(0) || s.Throttled(BucketHW) != Of(0) {
		t.Error("wrong buckets")
	}
}

func TestRestarted(t *testing.T) {
	f := func(before, now Runtime, want bool) {
		t.Helper()
		if got := now.Restarted(&before); got != want {
			t.Errorf("restarted = %v, want %v: %+v, then %+v", got, want, before, now)
		}
	}
	executions := func(typ string, n float64) Runtime {
		return Runtime{Executions: []ErrorCount{{Type: typ, Count: Of(n)}}}
	}
	latency := func(operation, detail string, n uint64) Runtime {
		return Runtime{Latencies: []Latency{{Operation: "x"}, {Operation: operation, Detail: detail, Count: n}}}
	}
	f(Runtime{}, Runtime{}, false)
	f(Runtime{}, Runtime{Queue: Of(1), Executions: []ErrorCount{{Type: "success"}}}, false) // nothing is counted
	f(Runtime{Queue: Of(2)}, Runtime{Queue: Of(1), Operations: Of(1)}, true)
	f(Runtime{Operations: Of(2)}, Runtime{Operations: Of(2)}, false)
	f(Runtime{Operations: Of(2)}, Runtime{Operations: Of(1)}, true)
	f(Runtime{Operations: Of(2)}, Runtime{}, false) // not read this time
	f(executions("success", 2), executions("success", 1), true)
	f(executions("success", 2), executions("timeout", 1), false)
	f(executions("success", 2), executions("success", 3), false)
	f(latency("program", "a", 2), latency("program", "a", 1), true)
	f(latency("program", "a", 2), latency("program", "b", 1), false)
	f(latency("program", "a", 2), latency("copy", "a", 1), false)
	f(Runtime{}, latency("program", "a", 1), true)
}

func TestPhysical(t *testing.T) {
	if (ID{UUID: "a"}).Physical() != "a" || (ID{UUID: "p", Parent: "a"}).Physical() != "a" {
		t.Error("wrong physical device")
	}
}
