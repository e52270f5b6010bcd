//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// serving are two pods with a queue, and one that has answered its requests, as a Prometheus and a hub know them.
type serving struct {
	t          *testing.T
	pods       []*enginePod
	prometheus *backend
	hub        server
}

// Seconds that the first token takes. It is in the bucket from 5 s to 7.5 s, whatever else this machine does.
const firstToken = 6

// serve starts the pods, with agents in them, and fills their queues.
func serve(t *testing.T) *serving {
	t.Helper()
	binary := gpumeter(t)
	quick := &enginePod{engine: vllmLike(t), name: "llama-3", ip: "127.0.0.1"}
	quick.model = documentedModel
	quick.place(quick.argv[0], "--model", quick.model, "--force-dummy-tokenizer", "--mode", "echo", "--time-to-first-token", fmt.Sprintf("%ds", firstToken), "--port")
	quick.start()
	s := &serving{t: t, pods: []*enginePod{busyPod(t, 1), busyPod(t, 2), quick}, prometheus: prometheus3(t)}
	hub := start(t, binary, "hub", "--data-dir", filepath.Join(t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "").find(t, hubAddress)
	s.hub = server{t, hub}
	jobs := "  - job_name: pods\n    static_configs:\n"
	for _, p := range s.pods {
		page := freeAddress(t)
		p.sidecar(binary, "--listen", page, "--interval=1s", "--slow-interval=1s", "--host-name="+p.name, "--otlp-endpoint="+hub)
		jobs += fmt.Sprintf("      - {targets: [%q], labels: {k8s_namespace_name: serving, k8s_pod_name: %s}}\n", page, p.name)
	}
	s.prometheus.edit = func(config string) string {
		return strings.Replace(config, "  - job_name: gpus\n", jobs+"  - job_name: gpus\n", 1)
	}
	s.prometheus.up("")
	s.pods[0].send(3)
	s.pods[1].send(7)
	return s
}

// close6 takes numbers for equal that differ after six digits: a quantile is computed from a rate.
var close6 = cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(a) })

// byPod returns values by the name of the pod, if they have one.
func byPod(list []series) map[string]float64 {
	out := map[string]float64{}
	for _, s := range list {
		v, err := strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64)
		if err != nil {
			v = math.NaN()
		}
		out[s.Metric["k8s_pod_name"]] = v
	}
	return out
}

// same waits until a query has one result in both stores.
func (s *serving) same(query string, want float64) {
	s.t.Helper()
	for name, store := range map[string]server{"the Prometheus": s.prometheus.server, "the hub": s.hub} {
		eventually(s.t, name+" answers", func() error {
			got, err := store.query(query)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(map[string]float64{"": want}, byPod(got), close6); diff != "" {
				return fmt.Errorf("%s (-want +got):\n%s", query, diff)
			}
			return nil
		})
	}
}

// Catches a query of docs/autoscaling.md that has no result, or not the number that the engines have.
func TestAutoscalingQueries(t *testing.T) {
	t.Parallel()
	s := serve(t)

	queries := strings.Split(block(t, autoscaling, "# requests that the engines of a model have accepted"), "\n\n")
	if len(queries) != 4 {
		t.Fatalf("the document has queries\n%q", queries)
	}
	s.same(queries[0], 3+7+2)
	s.same(queries[1], 3+7)
	s.same(queries[2], cached)
	// Each round makes the counters grow between two readings.
	quick := s.pods[2]
	go func() {
		for t.Context().Err() == nil {
			if _, err := quick.ask(2); err != nil {
				return
			}
		}
	}()
	s.same(queries[3], 5+0.95*2.5)

	var scaled struct {
		Spec struct {
			Triggers []struct {
				Type     string
				Metadata map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(block(t, autoscaling, "apiVersion: keda.sh/v1alpha1\n")), &scaled); err != nil {
		t.Fatal(err)
	}
	if n := len(scaled.Spec.Triggers); n != 2 {
		t.Fatalf("the ScaledObject has %d triggers", n)
	}
	eventually(t, "the last request has been answered", func() error {
		for i, want := range []string{"in flight", "waiting"} {
			trigger := scaled.Spec.Triggers[i]
			if trigger.Type != "prometheus" {
				t.Fatalf("trigger %d is of type %s", i, trigger.Type)
			}
			least := map[string]float64{"in flight": 3 + 7 + 2, "waiting": 3 + 7}[want]
			for _, store := range []server{s.prometheus.server, s.hub} {
				got, err := store.query(trigger.Metadata["query"])
				if err != nil {
					return err
				}
				// The engine that answers has a request now and then.
				if v := byPod(got)[""]; len(got) != 1 || v != least && (want == "waiting" || v != least+1) {
					return fmt.Errorf("%s: %v, want %v", trigger.Metadata["query"], got, least)
				}
			}
		}
		return nil
	})

	for i, want := range []map[string]float64{{"llama-1": 3, "llama-2": 7}, {"llama-1": cached, "llama-2": cached}} {
		expr := s.rule(i)
		eventually(t, "the rule of the adapter has values", func() error {
			got, err := s.prometheus.query(expr)
			if diff := cmp.Diff(want, byPod(got), close6); err == nil && diff != "" {
				err = fmt.Errorf("%s (-want +got):\n%s", expr, diff)
			}
			return err
		})
	}
}

// rule returns the query of a rule of the Prometheus adapter for two pods.
func (s *serving) rule(i int) string {
	s.t.Helper()
	var config struct {
		Rules []struct {
			SeriesQuery  string `yaml:"seriesQuery"`
			MetricsQuery string `yaml:"metricsQuery"`
		}
	}
	if err := yaml.Unmarshal([]byte(block(s.t, autoscaling, "# prometheus-adapter\n")), &config); err != nil || i >= len(config.Rules) {
		s.t.Fatalf("the rules of the adapter: %+v, %v", config, err)
	}
	r := config.Rules[i]
	if found, err := s.prometheus.query(r.SeriesQuery); err != nil || len(found) == 0 {
		s.t.Fatalf("the adapter would find no series: %v, %v", found, err)
	}
	name := regexp.MustCompile(`^\w+`).FindString(r.SeriesQuery)
	return strings.NewReplacer("<<.Series>>", name, "<<.LabelMatchers>>", `k8s_namespace_name="serving",k8s_pod_name=~"llama-1|llama-2"`, "<<.GroupBy>>", "k8s_pod_name").Replace(r.MetricsQuery)
}
