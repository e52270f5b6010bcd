//go:build linux

package agent

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"strings"
)

// Identity says which machine this is, beside local.Config's Host.
type Identity struct {
	Cluster string // k8s.cluster.name, whatever runs it
	Node    string // k8s.node.name; empty: K8S_NODE_NAME, else NODE_NAME
}

// resource returns the resource attributes that options and variables name.
func (i *Identity) resource(env func(string) string) (map[string]string, error) {
	variable := setting{env("OTEL_RESOURCE_ATTRIBUTES"), "OTEL_RESOURCE_ATTRIBUTES"}
	all, err := parsePairs(variable)
	if err != nil {
		return nil, err
	}
	for key := range all {
		if key == "gpumeter.simulated" || strings.Contains(key, "::") { // which divides keys of a Collector's configuration
			return nil, variable.bad("must not have the attribute %q", key)
		}
	}
	set := func(key, value string) {
		if value != "" {
			all[key] = value
		}
	}
	set("service.name", env("OTEL_SERVICE_NAME"))
	set("k8s.cluster.name", i.Cluster)
	set("k8s.node.name", cmp.Or(i.Node, all["k8s.node.name"], env("K8S_NODE_NAME"), env("NODE_NAME")))
	return all, nil
}

// identify puts the identity of this machine into the configuration of its View. Without
// an explicit host name, one among the resource attributes counts.
func (a *Agent) identify() error {
	all, err := a.Identity.resource(a.Env)
	if err != nil {
		return err
	}
	a.Local.Host = cmp.Or(a.Local.Host, all["host.name"])
	delete(all, "host.name")
	a.attributes = all
	return nil
}

// instance returns the attributes of a, with one that tells this agent from those of
// other machines: what Prometheus calls the instance.
func (a *Agent) instance() (map[string]string, error) {
	all := maps.Clone(a.attributes)
	if all == nil {
		all = map[string]string{}
	}
	if all["service.instance.id"] == "" {
		host, err := os.Hostname()
		if all["service.instance.id"] = cmp.Or(a.Local.Host, host); all["service.instance.id"] == "" {
			return nil, errors.Join(errors.New("this machine has no name: give it one with --host-name"), err)
		}
	}
	return all, nil
}
