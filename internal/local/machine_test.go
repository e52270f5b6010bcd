//go:build linux

package local

import (
	"os"
	"path/filepath"
	"testing"
)

// Catches machines that share an identity: clones of an image, boards with a placeholder for a
// UUID, containers without a machine-id. Catches an identity that depends on whether the
// agent runs in a container or on its name, although the firmware has one.
func TestMachine(t *testing.T) {
	type files map[string]string
	const golden = "0123456789abcdef0123456789abcdef\n"
	at := func(c Config, f files) Config {
		c.Root = t.TempDir()
		for name, text := range f {
			path := filepath.Join(c.Root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	const machineID, uuid, tag = "etc/machine-id", "sys/class/dmi/id/product_uuid", "sys/class/dmi/id/board_asset_tag"
	f := func(name string, same bool, a, b Config) {
		t.Helper()
		x, y := a.Machine(), b.Machine()
		if len(x) != 16 || (x == y) != same {
			t.Errorf("%s: %s and %s, same: want %v", name, x, y, same)
		}
	}
	a, b := Config{Host: "a"}, Config{Host: "b"}
	board := files{machineID: golden, uuid: "4C4C4544-0036-4610-8052-B5C04F4E3132\n"}
	f("clones of a virtual machine", false, at(a, board), at(a, files{machineID: golden, uuid: "4C4C4544-0036-4610-8052-B5C04F4E3133\n"}))
	f("clones with a placeholder for a UUID", false,
		at(a, files{machineID: golden, uuid: "03000200-0400-0500-0006-000700080009"}), at(b, files{machineID: golden, uuid: "03000200-0400-0500-0006-000700080009"}))
	f("clones with blank firmware", false, at(a, files{machineID: golden, uuid: "ffffffff-ffff-ffff-ffff-ffffffffffff"}), at(b, files{machineID: golden, uuid: "fefefefe-fefe-fefe-fefe-fefefefefefe"}))
	f("containers without a machine-id", false, at(a, nil), at(b, nil))
	f("machines that the user tells apart", false,
		at(Config{Resource: map[string]string{"host.id": "1"}}, board), at(Config{Resource: map[string]string{"host.id": "2"}}, board))
	f("an agent on the host and one in a container", true, at(a, board), at(b, files{uuid: board[uuid]}))
	f("a machine that is renamed", true, at(a, board), at(b, board))
	f("an agent without root on AWS", true, at(a, files{tag: "i-0abc123def4567890", uuid: board[uuid]}), at(b, files{tag: "i-0abc123def4567890"}))
	f("an asset tag that is not an instance", true, at(a, files{tag: "None", uuid: board[uuid]}), at(b, board))
	f("the same machine without firmware", true, at(a, files{machineID: golden}), at(a, files{machineID: golden}))
	f("a pod with the name of its node", true,
		at(Config{Host: "gpumeter-x7k2p", Workloads: Workloads{Node: "node-1"}}, nil), at(Config{Host: "gpumeter-9qzlw", Workloads: Workloads{Node: "node-1"}}, nil))
}
