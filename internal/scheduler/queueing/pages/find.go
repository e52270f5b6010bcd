package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// service is where a system has its page when it is installed as its documentation says. Only Services in the namespace of the
// system are looked at: whoever may create one elsewhere could invent numbers, or direct requests to any address.
type service struct {
	system, namespace, name string
	scheme, path            string
	ports                   []string // names or numbers, the first that there is
}

var services = []service{
	{"kueue", "kueue-system", "kueue-controller-manager-metrics-service", "https", "/metrics", []string{"https", "8443"}},
	{"volcano", "volcano-system", "volcano-scheduler-service", "http", "/metrics", []string{"metrics", "8080"}},
	{"volcano", "volcano-system", "volcano-controllers-service", "http", "/metrics", []string{"metrics", "8081"}},
	{"kai", "kai-scheduler", "kai-scheduler-default", "http", "/metrics", []string{"http-metrics", "8080"}},
	{"kai", "kai-scheduler", "scheduler", "http", "/metrics", []string{"http-metrics", "8080"}},
	{"kai", "kai-scheduler", "queue-controller", "http", "/metrics", []string{"metrics", "8080"}},
	{"yunikorn", "yunikorn", "yunikorn-service", "http", "/ws/v1/metrics", []string{"yunikorn-core", "9080"}},
	{"hami", "kube-system", "hami-scheduler", "http", "/metrics", []string{"monitor", "9395"}},
	{"hami", "hami-system", "hami-scheduler", "http", "/metrics", []string{"monitor", "9395"}},
}

// API lists objects of a cluster.
type API interface {
	List(ctx context.Context, of kubeapi.Resource, to kubeapi.Sink) error
}

// Trust is how found pages with https are verified. A token is sent only to those that are.
type Trust struct {
	CAFile, TokenFile string
	Insecure          bool
}

// maxFound bounds the pages that are found, and maxParents the queues with others below them.
const maxFound, maxParents = 32, 10_000

const (
	// findEvery is the time between two lists.
	findEvery = 5 * time.Minute
	// findTimeout is how long they may take.
	findTimeout = 10 * time.Second
)

// serviceLabel is whose endpoints an EndpointSlice has.
const serviceLabel = "kubernetes.io/service-name"

// find returns the pages behind the known Services of a cluster.
func find(ctx context.Context, api API, trust Trust) ([]Target, error) {
	names := make([]string, len(services))
	for i, s := range services {
		names[i] = s.name
	}
	slices.Sort(names)
	of := kubeapi.Resource{
		Path: []string{"apis", "discovery.k8s.io", "v1", "endpointslices"}, Kind: "EndpointSlice",
		Query: url.Values{"labelSelector": {serviceLabel + " in (" + strings.Join(slices.Compact(names), ",") + ")"}},
	}
	var out []Target
	if err := api.List(ctx, of, each(func(object []byte) { out = append(out, parseSlice(object, trust)...) })); err != nil {
		return nil, err
	}
	slices.SortFunc(out, compare)
	out = slices.CompactFunc(out, func(a, b Target) bool { return compare(a, b) == 0 })
	return out[:min(len(out), maxFound)], nil
}

// parseSlice returns the pages behind the ready endpoints of an EndpointSlice.
func parseSlice(object []byte, trust Trust) (out []Target) {
	var slice struct {
		Metadata struct {
			Namespace string            `json:"namespace"`
			Labels    map[string]string `json:"labels"`
		} `json:"metadata"`
		Endpoints []struct {
			Addresses  []string `json:"addresses"`
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
		} `json:"endpoints"`
		Ports []struct {
			Name string `json:"name"`
			Port int    `json:"port"`
		} `json:"ports"`
	}
	if json.Unmarshal(object, &slice) != nil {
		return nil
	}
	i := slices.IndexFunc(services, func(s service) bool {
		return s.namespace == slice.Metadata.Namespace && s.name == slice.Metadata.Labels[serviceLabel]
	})
	if i < 0 {
		return nil
	}
	s := services[i]
	port := 0
	for _, want := range s.ports {
		for _, p := range slice.Ports {
			if port == 0 && (p.Name == want || strconv.Itoa(p.Port) == want) {
				port = p.Port
			}
		}
	}
	if port < 1 || port > 65535 {
		return nil
	}
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		ip, err := netip.ParseAddr(e.Addresses[0]) // the others are equal
		if err != nil || !allowed(ip) {
			continue
		}
		t := Target{System: s.system, URL: &url.URL{Scheme: s.scheme, Host: netip.AddrPortFrom(ip, uint16(port)).String(), Path: s.path}}
		if s.scheme == "https" {
			t.CAFile, t.Insecure, t.ServerName = trust.CAFile, trust.Insecure, s.name+"."+s.namespace+".svc"
			if !t.Insecure {
				t.TokenFile = trust.TokenFile
			}
		}
		out = append(out, t)
	}
	return out
}

// allowed reports whether an address may be that of a pod: not of this machine, and not of a cloud's metadata.
func allowed(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.Zone() == "" && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsUnspecified()
}

// trees are the systems whose pages do not tell which queues have others below them, and where their objects do.
var trees = map[string]kubeapi.Resource{
	"kai":     {Path: []string{"apis", "scheduling.run.ai", "v2", "queues"}, Kind: "Queue"},
	"volcano": {Path: []string{"apis", "scheduling.volcano.sh", "v1beta1", "queues"}, Kind: "Queue"},
}

// parents returns the queues of a system that have others below them.
func parents(ctx context.Context, api API, system string) ([]string, error) {
	known := map[string]bool{}
	err := api.List(ctx, trees[system], each(func(object []byte) {
		var queue struct {
			Spec struct {
				Parent      string `json:"parent"`      // Volcano
				ParentQueue string `json:"parentQueue"` // KAI
			} `json:"spec"`
		}
		if json.Unmarshal(object, &queue) == nil && len(known) < maxParents {
			known[queue.Spec.Parent], known[queue.Spec.ParentQueue] = true, true
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("which queues of %s have others below them is not known: %w", system, err)
	}
	delete(known, "")
	out := make([]string, 0, len(known))
	for name := range known {
		out = append(out, name)
	}
	return out, nil
}

// each is a kubeapi.Sink that is listed into once.
type each func(object []byte)

func (e each) Begin() (add func([]byte), commit func()) { return e, func() {} }
func (e each) Put([]byte)                               {}
func (e each) Delete([]byte)                            {}
