package slo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

const day = 24 * time.Hour

// Catches an objective that is lost, in another unit, or with the error budget of another one.
func TestParse(t *testing.T) {
	t.Parallel()
	f := func(text string, want *File) {
		t.Helper()
		got, err := Parse([]byte(text))
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Entry{})); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	f("", &File{Window: 30 * day})
	f("# none yet\n", &File{Window: 30 * day})
	f("window: 7d\n", &File{Window: 7 * day})
	f(`
window: 28d
objectives:
  - model: meta-llama/*
    team: chat
    ttft: {p95: 500ms, p50: 0.2s}
    tpot: {p99.9: 60ms}
    duration: {p99: 30s}
    errors: 0.1%
    availability: 99.5 %
  - {model: "*", errors: &few 1%}
  - {model: "*", namespace: lab, cluster: c1, workload: "x?", errors: *few}
`, &File{Window: 28 * day, Entries: []Entry{
		{Model: "meta-llama/*", Team: "chat", Objectives: []Objective{
			{"ttft_p50", FirstToken, 0.5, 0.5, 200 * time.Millisecond},
			{"ttft_p95", FirstToken, 0.95, 0.05, 500 * time.Millisecond},
			{"tpot_p99.9", PerToken, 0.999, 0.001, 60 * time.Millisecond},
			{"duration_p99", Duration, 0.99, 0.01, 30 * time.Second},
			{"errors", Errors, 0.999, 0.001, 0},
			{"availability", Availability, 0.995, 0.005, 0},
		}},
		{Model: "*", Objectives: []Objective{{"errors", Errors, 0.99, 0.01, 0}}},
		{Model: "*", Namespace: "lab", Cluster: "c1", Workload: "x?", Objectives: []Objective{{"errors", Errors, 0.99, 0.01, 0}}},
	}})
}

// Catches a mistake that drops an objective without a word, and an error that does not say where it is.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
	entry := func(text string) string { return "objectives:\n  - model: m\n    " + text + "\n" }
	f("[", "cannot parse the objectives: line 1: did not find expected node content")
	f("window: 1d\n---\nwindow: 2d\n", "cannot parse the objectives: line 2: a second document begins: the file must have one")
	f("just text", "line 1: must be keys with values")
	f("objective: []", "line 1: unknown key objective, want one of window, objectives")
	f("window: 1d\nwindow: 2d\n", "line 2: the key window is there twice")
	f("window: 720h", `line 1: window: "720h" must be in days, such as 30d`)
	f("window: 91d", "line 1: window: must be from 1d to 90d, is 91d")
	f("window: 0d", "line 1: window: must be from 1d to 90d, is 0d")
	f("window:", "line 1: window: has no value")
	f("objectives: {}", "line 1: objectives: must be a list")
	f("objectives: [x]", "line 1: objectives[0]: must be keys with values")
	f("objectives: [{[a]: 1}]", "line 1: objectives[0]: a key must be a single word")
	f("objectives: [{errors: 1%}]", `line 1: objectives[0]: a model is required, or a pattern such as "*"`)
	f("objectives: [{model: m}]", "line 1: objectives[0]: an objective is required: one of ttft, tpot, duration, errors, availability")
	f(entry("tftt: {p95: 1s}"), "line 3: objectives[0]: unknown key tftt, want one of model, workload, team, namespace, cluster, ttft, tpot, duration, errors, availability")
	f(entry("model: n"), "line 3: objectives[0]: the key model is there twice")
	f(entry("ttft: 1s"), "line 3: objectives[0].ttft: must be keys with values")
	f(entry("ttft: {}"), "line 3: objectives[0].ttft: a percentile is required, such as {p95: 500ms}")
	f(entry("ttft: {95: 1s}"), `line 3: objectives[0].ttft.95: "95" is no percentile such as p95 or p99.9`)
	f(entry("ttft: {p100: 1s}"), `line 3: objectives[0].ttft.p100: "p100" is no percentile such as p95 or p99.9`)
	f(entry("ttft: {pInf: 1s}"), `line 3: objectives[0].ttft.pInf: "pInf" is no percentile such as p95 or p99.9`)
	f(entry("ttft: {p95: 500}"), `line 3: objectives[0].ttft.p95: "500" must be a duration such as 500ms or 30s`)
	f(entry("ttft: {p95: -1s}"), "line 3: objectives[0].ttft.p95: must be from 1µs to 24h, is -1s")
	f(entry("ttft: {p95: [1s]}"), "line 3: objectives[0].ttft.p95: must be a single value")
	f(entry("ttft: {p95: 1s, p99: 500ms}"), "line 3: objectives[0].ttft.p99: contradicts ttft_p95: a higher percentile needs the longer time")
	f(entry("ttft: {p99: 1s, p95: 2s}"), "line 3: objectives[0].ttft.p95: contradicts ttft_p99: a higher percentile needs the longer time")
	f(entry("ttft: {p95: 1s, p95.0: 1s}"), "line 3: objectives[0].ttft.p95.0: contradicts ttft_p95: a higher percentile needs the longer time")
	f(entry("errors: 0.1"), `line 3: objectives[0].errors: "0.1" must be a percentage such as 0.1%`)
	f(entry("errors: 0%"), "line 3: objectives[0].errors: must be above 0% and below 100%, is 0%: an objective needs an error budget")
	f(entry("availability: 100%"), "line 3: objectives[0].availability: must be above 0% and below 100%, is 100%: an objective needs an error budget")
	f(entry("availability: 1e1%"), `line 3: objectives[0].availability: "1e1%" must be a percentage such as 0.1%`)
	f(entry("errors: 1%")+"  - {errors: 2%, model: m}\n", "line 4: objectives[1]: the entry in line 2 is about the same: the objectives of a model are in one entry")
}

// Catches an entry that is about a model or a workload of somebody else, and one that hides an earlier one.
func TestFind(t *testing.T) {
	t.Parallel()
	f, err := Parse([]byte(`objectives:
  - {model: llama, team: "a?", errors: 1%}
  - {model: lla*, workload: chat, errors: 2%}
  - {model: llama.3, errors: 3%}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, c := range []struct{ model, team, workload string }{
		{"llama", "ab", "chat"}, {"llama", "abc", "chat"}, {"llama", "abc", "x"}, {"llama.3", "", ""}, {"llamax3", "", ""}, {"Llama", "ab", ""},
	} {
		list := f.find(c.model, query.Labels{fleet.LabelTeam: c.team, fleet.LabelWorkload: c.workload})
		if len(list) > 0 {
			got[c.model+" "+c.team+" "+c.workload] = list[0].Allowed
		}
	}
	want := map[string]float64{"llama ab chat": 0.01, "llama abc chat": 0.02, "llama.3  ": 0.03}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objectives (-want +got):\n%s", diff)
	}
}

// Catches an objective that people cannot read.
func TestObjectiveText(t *testing.T) {
	t.Parallel()
	f, err := Parse([]byte("objectives: [{model: m, ttft: {p99.9: 500ms}, errors: 0.1%, availability: 99.95%}]"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range f.Entries[0].Objectives {
		got = append(got, o.Text())
	}
	if diff := cmp.Diff([]string{"TTFT within 500ms for 99.9 %", "errors at most 0.1 %", "available 99.95 %"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
