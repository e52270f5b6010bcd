package gang

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a system whose groups say how many they need, or why they wait, in another place.
func TestParsePodGroup(t *testing.T) {
	f := func(spec, status string, want PodGroup) {
		t.Helper()
		got, err := ParsePodGroup([]byte(`{"metadata":{"namespace":"ml","name":"g"},"spec":{` + spec + `},"status":{` + status + `}}`))
		want.Namespace, want.Name = "ml", "g"
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	f(`"minMember":4`, `"conditions":[{"type":"Unschedulable","status":"True","message":"2/4 tasks\n in \u001b[1mgang unschedulable"}]`, PodGroup{Minimum: 4, Message: "2/4 tasks in [1mgang unschedulable"})
	f(`"minMember":4`, `"conditions":[{"type":"Unschedulable","status":"True","message":"x"},{"type":"Scheduled","status":"True","message":"tasks in gang are ready"}]`, PodGroup{Minimum: 4})
	f(`"minMember":2`, `"schedulingConditions":[{"message":"old"},{"type":"UnschedulableOnNodePool","message":"deprecated","reasons":[{"message":"no nodes with enough GPUs"}]}]`,
		PodGroup{Minimum: 2, Message: "no nodes with enough GPUs"})
	f(`"schedulingPolicy":{"gang":{"minCount":8}}`, `"conditions":[{"type":"PodGroupScheduled","status":"False","message":"no room"}]`, PodGroup{Minimum: 8, Message: "no room"})
	f(`"schedulingPolicy":{"basic":{}}`, ``, PodGroup{})
	f(`"minMember":-1`, ``, PodGroup{})
}

// Catches words of Kueue that are out of date, and an eviction that is remembered after the workload was admitted again.
func TestParseWorkload(t *testing.T) {
	f := func(conditions string, want Workload) {
		t.Helper()
		got, err := ParseWorkload([]byte(`{"metadata":{"namespace":"ml","name":"w","ownerReferences":[{"uid":"u1"},{"uid":"u2"}]},"status":{"conditions":[` + conditions + `]}}`))
		want.Namespace, want.Name, want.Owners = "ml", "w", []string{"u1", "u2"}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	f(``, Workload{})
	f(`{"type":"QuotaReserved","status":"False","reason":"WaitingForQuota","message":"2 more needed"},{"type":"Admitted","status":"False","reason":"NoReservation","message":"no quota"}`,
		Workload{Reason: "WaitingForQuota", Message: "2 more needed"})
	f(`{"type":"QuotaReserved","status":"True","message":"reserved"},{"type":"Admitted","status":"False","reason":"UnsatisfiedAdmissionChecks","message":"a check"}`,
		Workload{Reserved: true, Reason: "UnsatisfiedAdmissionChecks", Message: "a check"})
	f(`{"type":"Admitted","status":"True","message":"admitted"},{"type":"QuotaReserved","status":"True"},{"type":"Evicted","status":"False","reason":"QuotaReserved"}`, Workload{Reserved: true, Admitted: true, EvictedBefore: true})
	f(`{"type":"Evicted","status":"True","reason":"Preempted"},{"type":"QuotaReserved","status":"False","reason":"Pending","message":"`+strings.Repeat("x", 3000)+`"}`,
		Workload{Evicted: "Preempted", EvictedBefore: true, Reason: "Pending", Message: strings.Repeat("x", maxMessage)})
}

// Catches an object that a fuzzer finds and that ends the process.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"a","name":"b"},"spec":{"minMember":4},"status":{"conditions":[{"type":"Evicted","status":"True"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := ParsePodGroup(b); err == nil && (g.Name == "" || g.Minimum < 0 || len(g.Message) > maxMessage) {
			t.Errorf("%+v", g)
		}
		if w, err := ParseWorkload(b); err == nil && (w.Name == "" || len(w.Message) > maxMessage || w.Admitted && w.Message != "") {
			t.Errorf("%+v", w)
		}
	})
}
