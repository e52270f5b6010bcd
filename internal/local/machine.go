//go:build linux

package local

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"regexp"
	"strings"

	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Machine returns 16 hexadecimal digits that identify this machine in the UUIDs of devices
// whose vendor gives them none. They are the same after restarts and reboots, for agents on
// the host and in containers, and differ between clones of an image. docs/architecture.md
// has the sources, in the order tried here. The digits are a hash: neither the machine-id nor the
// UUID of the board leaves the machine.
func (c Config) Machine() string {
	kind, id := c.machine()
	sum := sha256.Sum256([]byte(kind + "\x00" + id))
	return hex.EncodeToString(sum[:8])
}

func (c Config) machine() (kind, id string) {
	root := sysfs.Dir(cmp.Or(c.Root, "/"))
	dmi := func(name string) string {
		text, _ := root.Join("sys/class/dmi/id").Text(name) // absent without firmware tables, unreadable without root
		return strings.ToLower(strings.TrimSpace(text))
	}
	if id := c.Resource["host.id"]; id != "" {
		return "host.id", id
	}
	if tag := dmi("board_asset_tag"); instanceID.MatchString(tag) { // readable without root, unlike product_uuid
		return "instance", tag
	}
	if uuid := dmi("product_uuid"); plausible(uuid) {
		return "product_uuid", uuid
	}
	// Clones of an image have the same machine-id, and a container may have none.
	machine, _ := root.Join("etc").Text("machine-id")
	host := cmp.Or(c.Workloads.Node, c.Resource["k8s.node.name"], c.Host)
	if host == "" {
		host, _ = os.Hostname()
	}
	return "machine-id", machine + "\x00" + host
}

var (
	// instanceID is how AWS names instances.
	instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)
	uuidForm   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// placeholders are UUIDs that vendors of boards forgot to replace.
var placeholders = map[string]bool{
	"03000200-0400-0500-0006-000700080009": true, // AMI
	"00020003-0004-0005-0006-000700080009": true, // AMI, with the other byte order
	"12345678-1234-5678-90ab-cddeefaabbcc": true,
	"12345678-1234-5678-1234-567812345678": true,
	"4c4c4544-0000-2010-8020-80c04f202020": true, // Dell, without a service tag
}

// plausible reports whether uuid is that of one board.
func plausible(uuid string) bool {
	if !uuidForm.MatchString(uuid) || placeholders[uuid] {
		return false
	}
	digits := strings.ReplaceAll(uuid, "-", "")
	return strings.ReplaceAll(digits, digits[:2], "") != "" // not 0000..., ffff..., fefe...
}
