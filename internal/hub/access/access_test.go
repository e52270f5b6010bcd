package access

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a token file that is misinterpreted, and a secret in an error.
func TestParseTokens(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	for _, bad := range []string{
		"", "# nothing", "root " + secret, "read short", "read", "team " + secret, "read " + secret + " extra", "read sha256:12", "admin " + secret + " node=a",
		"write " + secret + " node=", "write " + secret + " =a", "write " + secret + " namespace=a", "read " + secret + " node=a", "write node=a " + secret, "team " + secret + " ",
	} {
		_, err := ParseTokens([]byte(bad))
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	f := func(file string, want Grant) {
		t.Helper()
		tokens, err := ParseTokens([]byte(file))
		if err != nil {
			t.Fatal(err)
		}
		got, ok := tokens.Grant(secret)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s: found %t (-want +got):\n%s", file, ok, diff)
		}
		if _, ok := tokens.Grant(""); ok {
			t.Error("an empty secret is accepted")
		}
	}
	const id = "sha256:9f9f5111"
	f("read sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f", Grant{Name: id, Read: true})
	f("read "+secret+" name=grafana", Grant{Name: "grafana", Read: true})
	f("read "+secret+" namespace=lab cluster=prod", Grant{Name: id, Read: true, Scope: Scope{Namespace: "lab", Cluster: "prod"}})
	f("team "+secret+"   a b", Grant{Name: "a b", Read: true, Scope: Scope{Team: "a b"}})
	f("admin "+secret, Grant{Name: id, Read: true, Admin: true})
	f("write "+secret+" node=a node=b cluster=c", Grant{Name: id, Write: true, Bound: Bindings{{Nodes: []string{"a", "b"}, Clusters: []string{"c"}}}})
	// One secret on several lines: the wider permission counts, in either order.
	f("write "+secret+"\nread "+secret+"\nteam "+secret+" a", Grant{Name: id, Read: true, Write: true})
	f("team "+secret+" a\nread "+secret, Grant{Name: "a", Read: true})
	f("write "+secret+" node=a\nwrite "+secret, Grant{Name: id, Write: true})
	f("write "+secret+"\nwrite "+secret+" node=a", Grant{Name: id, Write: true})
	f("read "+secret+"\nwrite "+secret+" node=a\nwrite "+secret+" cluster=b", Grant{
		Name: id, Read: true, Write: true, Bound: Bindings{{Nodes: []string{"a"}}, {Clusters: []string{"b"}}},
	})
}

// Catches a stolen token that speaks for another node by either of its names, for another
// cluster, or for no node at all.
func TestBindings(t *testing.T) {
	t.Parallel()
	f := func(b Bindings, m Machine, want bool) {
		t.Helper()
		if got := b.Permit(m); got != want {
			t.Errorf("%s permits %+v: %t, want %t", b, m, got, want)
		}
	}
	f(nil, Machine{}, true)
	node := Bindings{{Nodes: []string{"a"}}}
	f(node, Machine{Host: "a"}, true)
	f(node, Machine{Node: "a", Cluster: "any"}, true)
	f(node, Machine{Host: "a", Node: "a"}, true)
	f(node, Machine{Host: "a", Node: "b"}, false)
	f(node, Machine{Host: "b", Node: "a"}, false)
	f(node, Machine{Host: "A"}, false)
	f(node, Machine{}, false)
	f(node, Machine{Cluster: "a"}, false)
	f(Bindings{{Nodes: []string{"a", "a.example"}}}, Machine{Host: "a.example", Node: "a"}, true)
	cluster := Bindings{{Clusters: []string{"c"}}}
	f(cluster, Machine{Host: "any", Cluster: "c"}, true)
	f(cluster, Machine{Cluster: "c"}, true)
	f(cluster, Machine{Host: "any"}, false)
	both := Bindings{{Nodes: []string{"a"}, Clusters: []string{"c"}}}
	f(both, Machine{Host: "a", Cluster: "c"}, true)
	f(both, Machine{Host: "a", Cluster: "d"}, false)
	f(both, Machine{Host: "a"}, false)
	two := Bindings{{Nodes: []string{"a"}}, {Nodes: []string{"b"}}}
	f(two, Machine{Host: "b"}, true)
	f(two, Machine{Host: "a", Node: "b"}, false)
}
