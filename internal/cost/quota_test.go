package cost

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/cost/worldtest"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var plainQuota = cmpopts.IgnoreUnexported(Quota{})

// Catches a limit of any kind that is not read from its source.
func TestQuotas(t *testing.T) {
	t.Parallel()
	file, err := ParseQuotas([]byte(`
quotas:
- {team: research, gpus: 16, gpu_hours_per_month: 10000, money_per_month: 25000.50}
- {name: notebooks, match: {namespace: "nb-*"}, gpus: 2}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Quota{
		{Name: "research", Source: "file", GPUs: new(16.), Hours: new(10000.), Money: new(Money(25000.50e6))},
		{Name: "notebooks", Source: "file", GPUs: new(2.)},
	}
	if diff := cmp.Diff(want, file, plainQuota); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	if !file[1].Matches(query.Labels{"k8s_namespace_name": "nb-7"}) || file[1].Matches(query.Labels{"k8s_namespace_name": "prod"}) {
		t.Error("the quota matches other teams")
	}
	kube, err := ParseResourceQuotas([]byte(`{"kind":"List","items":[
		{"metadata":{"name":"gpus","namespace":"research"},"spec":{"hard":{"requests.nvidia.com/gpu":"8","limits.nvidia.com/gpu":"8","requests.amd.com/gpu":4,"pods":"10"}}},
		{"metadata":{"name":"pods","namespace":"research"},"spec":{"hard":{"pods":"10"}}}]}`), isDevice)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Quota{{Name: "research/gpus", Source: "kubernetes", GPUs: new(12.)}}, kube, plainQuota); diff != "" {
		t.Errorf("kubernetes (-want +got):\n%s", diff)
	}
	if one, err := ParseResourceQuotas([]byte(`{"kind":"ResourceQuota","metadata":{"name":"a","namespace":"b"},"spec":{"hard":{"requests.nvidia.com/gpu":"0"}}}`), isDevice); err != nil || len(one) != 1 || *one[0].GPUs != 0 {
		t.Errorf("one: %v, %v", one, err)
	}
	slurm, err := ParseAssociations([]byte("Cluster|Account|User|Partition|Share|GrpJobs|GrpTRES|GrpTRESMins|QOS|\n" +
		"c1|root||||||| normal|\n" +
		"c1|physics||||100|cpu=64,gres/gpu=8,gres/gpu:h100=8|gres/gpu=60000|normal|\n" +
		"c1|physics|alice|||| gres/gpu=1|||\n" +
		"c1|chem|bob||||gres/gpu:a100=2,gres/gpu:h100=1|gres/gpu=-1||\n"))
	if err != nil {
		t.Fatal(err)
	}
	want = []Quota{
		{Name: "c1/physics", Source: "slurm", GPUs: new(8.), Hours: new(1000.)},
		{Name: "c1/chem/bob", Source: "slurm", GPUs: new(3.)},
	}
	if diff := cmp.Diff(want, slurm, plainQuota); diff != "" {
		t.Errorf("slurm (-want +got):\n%s", diff)
	}
}

// Catches an invalid quota that is accepted: a quota without an owner would never be exceeded.
func TestQuotasRefuse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"quotas: [{gpus: 1}]":                     "team, namespace or match",
		"quotas: [{team: a}]":                     "is required",
		"quotas: [{match: {team: a}, gpus: 1}]":   "needs a name",
		"quotas: [{team: a, gpus: -1}]":           "0 or more",
		"quotas: [{team: a, gpus: .nan}]":         "not a plain number",
		"quotas: [{team: a, money_per_month: x}]": "money_per_month",
		"quotas: [{team: a, gpu: 1}]":             "unknown key gpu",
	} {
		if _, err := ParseQuotas([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ParseResourceQuotas([]byte(`{"items":[{"metadata":{"namespace":"a"},"spec":{"hard":{"requests.nvidia.com/gpu":"many"}}}]}`), isDevice); err == nil {
		t.Error("a resource quota of \"many\" is accepted")
	}
	if _, err := ParseAssociations([]byte("a|b|\n")); err == nil {
		t.Error("a table without accounts is accepted")
	}
	if _, err := ParseAssociations([]byte("Account|GrpTRES|\nx|gres/gpu=many|\n")); err == nil {
		t.Error("a limit of \"many\" is accepted")
	}
}

// Catches a team reported over a limit that it does not exceed, and the reverse, for each kind.
func TestCheck(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i := range 121 {
		at := noon.Add(time.Duration(i-120) * time.Minute)
		for _, g := range []string{"g1", "g2"} {
			one(m, at, float64(i*60), 0, "gpu_uuid", g, "gpu_workload_team", "red", "k8s_pod_uid", "p")
			m.Add(query.Labels{"__name__": "gpu_allocation_ratio", "gpu_uuid": g, "gpu_workload_team": "red", "gpu_workload_kind": "job", "job": "scraped"}, at, 0.5)
			m.Add(query.Labels{"__name__": "gpu_allocation_ratio", "gpu_uuid": g, "gpu_workload_team": "red", "gpu_workload_kind": "job", "job": "pushed"}, at, 0.5)
		}
		m.Add(query.Labels{"__name__": "gpu_allocation_ratio", "gpu_uuid": "g3", "gpu_workload_kind": "unallocated"}, at, 1)
	}
	p := mustParse(t, "{currency: USD, prices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}]}")
	bill := mustBill(t, m, p, noon.Add(-3*time.Hour), noon)
	held, err := fleet.Held(t.Context(), m, noon, nil)
	if err != nil {
		t.Fatal(err)
	}
	quotas, err := ParseQuotas([]byte("quotas: [{team: red, gpus: 1, gpu_hours_per_month: 3, money_per_month: 8}, {team: blue, gpus: 0}]"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Use{
		{Quota: "red", Source: "file", Team: "red", What: "gpus", Used: 1, Limit: 1},
		{Quota: "red", Source: "file", Team: "red", What: "gpu_hours", Used: 4, Limit: 3, Over: true},
		{Quota: "red", Source: "file", Team: "red", What: "money", Used: 8, Limit: 8},
		{Quota: "blue", Source: "file", Team: "blue", What: "gpus"},
	}
	if diff := cmp.Diff(want, Check(quotas, bill, held)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a quota of a namespace that counts the namespace of the same name in another cluster.
func TestQuotaOfNamespace(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for i, cluster := range []string{"prod", "test", "test"} {
		m.Add(query.Labels{
			"__name__": "gpu_allocation_ratio", "gpu_uuid": fmt.Sprint("g", i), "host_name": "n1", "gpu_workload_kind": "job", "gpu_workload_name": "train",
			"k8s_namespace_name": "lab", "k8s_cluster_name": cluster,
		}, noon, 1)
	}
	held, err := fleet.Held(t.Context(), m, noon, nil)
	if err != nil {
		t.Fatal(err)
	}
	quotas, err := ParseQuotas([]byte(`quotas: [{namespace: lab, gpus: 2}, {cluster: prod, namespace: lab, gpus: 2}, {cluster: test, namespace: "l*", gpus: 1}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Use{
		{Quota: "lab", Source: "file", Namespace: "lab", What: "gpus", Used: 3, Limit: 2, Over: true},
		{Quota: "prod/lab", Source: "file", Namespace: "lab", Cluster: "prod", What: "gpus", Used: 1, Limit: 2},
		{Quota: "test/l*", Source: "file", Cluster: "test", What: "gpus", Used: 2, Limit: 1, Over: true},
	}
	if diff := cmp.Diff(want, Check(quotas, Statement{}, held)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a running monthly bill that counts its cached part twice, keeps the previous month, or
// lacks the first days.
func TestMonth(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 10, 31, 0, 0, 0, 0, time.UTC)
	length := 4 * 24 * time.Hour
	if testing.Short() {
		length = 30 * time.Hour
	}
	f := worldtest.New(7, begin, length, true).Run()
	p := mustParse(t, "{currency: USD, prices: [{rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}]}")
	var m Month
	for at := begin.Add(time.Hour); !at.After(f.End); at = at.Add(17 * time.Hour) {
		got, err := m.Bill(t.Context(), f.Store, p, at, Options{})
		if err != nil {
			t.Fatal(err)
		}
		first := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
		want := mustBill(t, f.Store, p, first, at)
		if diff := cmp.Diff(total(want.Rows), total(got.Rows)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", at, diff)
		}
	}
	if s, err := m.Bill(t.Context(), f.Store, p, time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Options{}); err != nil || len(s.Rows) != 0 {
		t.Errorf("at the start of a month: %d rows, %v", len(s.Rows), err)
	}
}

func total(rows []Row) Amounts {
	var sum Amounts
	for i := range rows {
		sum = sum.Add(rows[i].Amounts)
	}
	return sum
}

// isDevice is the device resource of these tests.
func isDevice(resource string) bool {
	return resource == "nvidia.com/gpu" || resource == "amd.com/gpu"
}

func FuzzQuotas(f *testing.F) {
	f.Add([]byte("Cluster|Account|User|GrpTRES|GrpTRESMins|\nc|a|u|gres/gpu=1|gres/gpu:x=2|\n"))
	f.Add([]byte(`{"items":[{"metadata":{"namespace":"a"},"spec":{"hard":{"requests.nvidia.com/gpu":"1"}}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func([]byte) ([]Quota, error){ParseAssociations, func(b []byte) ([]Quota, error) { return ParseResourceQuotas(b, isDevice) }} {
			list, err := parse(text)
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			for _, q := range list {
				if q.GPUs != nil && !(*q.GPUs >= 0) {
					t.Errorf("a limit of %v", *q.GPUs)
				}
			}
		}
	})
}
