//go:build linux

package cli

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// identity are the flags that say which machine this is, beside --host-name.
type identity struct {
	cluster string
	node    string
	noCloud bool
}

func (i *identity) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.cluster, "cluster", "", "name of the cluster in k8s.cluster.name, whatever runs it")
	f.StringVar(&i.node, "node-name", "", "name of the Kubernetes node in k8s.node.name (default: $K8S_NODE_NAME, else $NODE_NAME)")
	f.BoolVar(&i.noCloud, "no-cloud", false, "do not ask the cloud's metadata server for region, zone and instance type")
}

// identityFlags are refused with --config.
var identityFlags = []string{"cluster", "node-name", "no-cloud"}

// resource returns the resource attributes that flags and variables name.
func (i *identity) resource(env func(string) string) (map[string]string, error) {
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
	set("k8s.cluster.name", i.cluster)
	set("k8s.node.name", cmp.Or(i.node, all["k8s.node.name"], env("K8S_NODE_NAME"), env("NODE_NAME")))
	return all, nil
}

// identify puts the identity of this machine into the configuration of its View. A host
// name among the resource attributes counts like --host-name, which wins.
func (a *agent) identify(env func(string) string) error {
	all, err := a.resource(env)
	if err != nil {
		return err
	}
	a.host = cmp.Or(a.host, all["host.name"])
	delete(all, "host.name")
	a.attributes = all
	return nil
}

// instance returns the attributes of a, with one that tells this agent from those of
// other machines: what Prometheus calls the instance.
func (a *agent) instance() (map[string]string, error) {
	all := maps.Clone(a.attributes)
	if all == nil {
		all = map[string]string{}
	}
	if all["service.instance.id"] == "" {
		host, err := os.Hostname()
		if all["service.instance.id"] = cmp.Or(a.host, host); all["service.instance.id"] == "" {
			return nil, errors.Join(errors.New("this machine has no name: give it one with --host-name"), err)
		}
	}
	return all, nil
}
