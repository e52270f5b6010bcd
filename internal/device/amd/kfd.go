//go:build linux

package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/sysfs"
)

const kfdDir = "class/kfd/kfd"

// node is one GPU or partition in the compute driver's topology.
type node struct {
	dir    sysfs.Dir
	gpuID  uint64
	pci    string // with function 0
	unique string
	render string
	part   uint64 // function digit or partition number, whichever the kernel provides
	cus    int
	gfx    int
}

// topology returns the GPUs that KFD knows, by node number, which is the order of a GPU's
// partitions. It returns none if there is no KFD.
func topology(sys sysfs.Dir) ([]node, error) {
	var list []node
	var errs []error
	for _, d := range sys.Glob(kfdDir + "/topology/nodes/[0-9]*") {
		text, err := d.Text("properties")
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("cannot read the topology of KFD: %w", err))
			}
			continue
		}
		n, ok := parseNode(text)
		if !ok {
			continue
		}
		n.dir = d
		n.gpuID, _ = d.Uint("gpu_id") // without it only processes are missing
		list = append(list, n)
	}
	return list, errors.Join(errs...)
}

// parseNode parses a node's properties: lines of a name and a decimal number. It reports
// false for a CPU.
func parseNode(text string) (node, bool) {
	p := parseProperties(text)
	if p["simd_count"] == 0 || p["vendor_id"] != 0x1002 {
		return node{}, false
	}
	// Bus, device and function, plus the partition above them on newer kernels. Older
	// kernels put the partition in place of the function.
	const partition = 28
	at := p["location_id"]
	n := node{
		pci:  fmt.Sprintf("%04x:%02x:%02x.0", p["domain"]&0xffffffff, at>>8&0xff, at>>3&0x1f),
		part: at&7 | at>>partition&0xf,
		gfx:  int(min(p["gfx_target_version"], 1<<24)),
	}
	if per := p["simd_per_cu"]; per > 0 {
		n.cus = int(min(p["simd_count"]/per, 1<<16))
	}
	if v := p["unique_id"]; v != 0 {
		n.unique = fmt.Sprintf("%016x", v)
	}
	if v := p["drm_render_minor"]; v != 0 {
		n.render = fmt.Sprintf("renderD%d", v)
	}
	return n, true
}

func parseProperties(text string) map[string]uint64 {
	p := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, number, ok := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64); ok && err == nil {
			p[name] = v
		}
	}
	return p
}

// nodes returns the nodes that belong to GPU s: those at its address and, where both have
// one, with its unique id. Without ids, the partitions of a GPU and the functions of its
// slot look the same; a GPU at a function other than 0 is taken as unpartitioned.
func (s *sighting) nodes(all []node) []node {
	slot, function, _ := strings.Cut(s.id.PCI, ".")
	var own []node
	for _, n := range all {
		same := n.pci == slot+".0"
		switch {
		case s.unique != "" && n.unique != "":
			same = same && n.unique == s.unique
		case function != "0":
			same = same && strconv.FormatUint(n.part, 10) == function
		}
		if same {
			own = append(own, n)
		}
	}
	return own
}

// architecture returns the compiler's name for a gfx_target_version: 90402 is gfx942. The
// last digit is hexadecimal, as in gfx90a.
func architecture(gfx int) string {
	if gfx <= 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%d%x", gfx/10000, gfx/100%100, gfx%100)
}

// memorySize returns the size of a node's own memory in bytes. The neighboring file
// used_memory is for the whole GPU, even in a partition's node.
func memorySize(node sysfs.Dir) (size uint64, err error) {
	const public, private = 1, 2 // heap types of GPU memory: host-visible and not
	for _, bank := range node.Glob("mem_banks/[0-9]*") {
		text, err := bank.Text("properties")
		if err != nil {
			return 0, err
		}
		p := parseProperties(text)
		if heap := p["heap_type"]; heap == public || heap == private {
			size += p["size_in_bytes"]
		}
	}
	return size, nil
}
