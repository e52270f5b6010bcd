//go:build linux

package agent

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"strings"
)

// Identity identifies the machine, in addition to Host of local.Config.
type Identity struct {
	Cluster string // k8s.cluster.name, whatever the scheduler
	Node    string // k8s.node.name; empty: K8S_NODE_NAME, else NODE_NAME
}

// resource returns the resource attributes from the options and the environment.
func (i *Identity) resource(env func(string) string) (map[string]string, error) {
	variable := setting{env("OTEL_RESOURCE_ATTRIBUTES"), "OTEL_RESOURCE_ATTRIBUTES"}
	all, err := parsePairs(variable)
	if err != nil {
		return nil, err
	}
	for key := range all {
		if key == "gpumeter.simulated" || strings.Contains(key, "::") { // :: separates keys in a Collector configuration
			return nil, variable.bad("must not set the attribute %q", key)
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

// identify sets the resource attributes and the host name. An explicit host name takes
// precedence over one in the resource attributes.
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

// instance returns the resource attributes including service.instance.id, which distinguishes
// the agents of different machines and becomes Prometheus' instance label.
func (a *Agent) instance() (map[string]string, error) {
	all := maps.Clone(a.attributes)
	if all == nil {
		all = map[string]string{}
	}
	if all["service.instance.id"] == "" {
		host, err := os.Hostname()
		if all["service.instance.id"] = cmp.Or(a.Local.Host, host); all["service.instance.id"] == "" {
			return nil, errors.Join(errors.New("this machine has no host name: set --host-name"), err)
		}
	}
	return all, nil
}
