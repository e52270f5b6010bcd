//go:build linux

package amd

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// sighting is the result of a discovery for one GPU or partition. The Device is kept as
// long as its sighting is unchanged.
type sighting struct {
	id     device.ID
	unique string    // 16 hexadecimal digits; empty: the GPU has none
	die    bool      // one die of a package with two
	dir    sysfs.Dir // of the PCI device; a partition has its parent's
	card   string    // card3
	render string    // renderD131
	node   sysfs.Dir // KFD topology node; empty: none
	gpuID  uint64    // id in KFD's process files; 0: unknown
	cus    int       // compute units
	gfx    int       // gfx_target_version, such as 90402
	// A partition is number k of n. n is 1 for an unpartitioned GPU, and 0 for a GPU with
	// partitions.
	k, n int
	xcp  sysfs.Dir // directory of the partition's own metrics
	name string    // the partition's platform device, such as amdgpu_xcp_3
}

// part reports whether s is a partition.
func (s *sighting) part() bool { return s.id.Parent != "" }

var cardName = regexp.MustCompile(`^card[0-9]+$`) // not card0-DP-1, which is a connector

// cards returns the directories of the GPUs bound to amdgpu, by number. The numbers have
// gaps, because other GPUs and Instinct partitions take some.
func cards(sys sysfs.Dir) []sysfs.Dir {
	var list []sysfs.Dir
	for _, c := range sys.Glob("class/drm/card[0-9]*") {
		if !cardName.MatchString(c.Base()) {
			continue
		}
		d := c.Join("device")
		text, err := d.Text("uevent")
		if err != nil {
			continue // not bound to a driver
		}
		// A partition's card is a platform device without a PCI address.
		if env := parseUevent(text); env["DRIVER"] == "amdgpu" && env["PCI_SLOT_NAME"] != "" {
			list = append(list, c)
		}
	}
	return list
}

// discover returns every GPU and its partitions, in card order.
func discover(o Options) ([]sighting, error) {
	sys := o.sys()
	nodes, err := topology(sys)
	platform := platformCards(sys)
	var found []sighting
	var errs []error
	if err != nil {
		errs = append(errs, err)
	}
	taken := map[string]bool{}
	for i, c := range cards(sys) {
		s, err := identify(c, i, o.Machine, taken)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		taken[s.id.UUID] = true
		found = append(found, s.partitions(nodes, platform)...)
	}
	return found, errors.Join(errs...)
}

// identify returns the GPU behind a card.
func identify(card sysfs.Dir, index int, machine string, taken map[string]bool) (sighting, error) {
	d := card.Join("device")
	text, err := d.Text("uevent")
	if err != nil {
		return sighting{}, fmt.Errorf("cannot identify %s: %w", card.Base(), err)
	}
	env := parseUevent(text)
	s := sighting{dir: d, card: card.Base(), n: 1}
	for _, r := range d.Glob("drm/renderD*") {
		s.render = r.Base()
	}
	s.id = device.ID{Vendor: Facts.Name, Index: index, PCI: strings.ToLower(env["PCI_SLOT_NAME"])}
	product, _ := d.Text("product_name") // empty on Radeon
	s.id.Model = cmp.Or(product, modelOf(env["PCI_ID"]))
	s.die = dieOfTwo(env["PCI_ID"])
	unique, _ := d.Text("unique_id")
	serial, _ := d.Text("serial_number")
	s.unique = hexID(unique)
	for _, name := range []string{s.unique, device.Serial(serial)} {
		if uuid := Facts.Name + "-" + name; name != "" && !taken[uuid] {
			s.id.UUID = uuid
			return s, nil
		}
	}
	s.id.UUID = device.Derive(Facts.Name, machine, s.id.PCI)
	return s, nil
}

// hexID normalizes a unique_id. It returns "" for an empty id and for 0.
func hexID(s string) string {
	v, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(s), "0x"), 16, 64)
	if err != nil || v == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", v)
}

// partitions returns the GPU, followed by its partitions if KFD lists more than one.
func (s sighting) partitions(nodes []node, platform map[string]platformCard) []sighting {
	own := s.nodes(nodes)
	if len(own) == 0 {
		return []sighting{s}
	}
	whole := s
	whole.gfx = own[0].gfx
	for _, n := range own {
		whole.cus += n.cus
	}
	if len(own) == 1 {
		whole.node, whole.gpuID = own[0].dir, own[0].gpuID
		whole.render = cmp.Or(whole.render, own[0].render)
		return []sighting{whole}
	}
	whole.n = 0
	list := []sighting{whole}
	numbers, count := numbering(own)
	for i, n := range own {
		k := numbers[i]
		p := s
		p.id.Parent = s.id.UUID
		p.id.UUID = fmt.Sprintf("%s-xcp%d", s.id.UUID, k)
		p.id.Profile = s.mode()
		p.node, p.gpuID, p.cus, p.gfx = n.dir, n.gpuID, n.cus, n.gfx
		p.k, p.n, p.xcp = k, count, s.dir.Join("xcp")
		if c, ok := platform[n.render]; ok {
			p.card, p.name, p.xcp = c.card, c.dir.Base(), c.dir.Join("xcp")
		} else if n.render != "" && n.render != s.render {
			p.card, p.xcp = "", "" // this partition has no files of its own, and the first partition's are not shared
		}
		p.render = cmp.Or(n.render, p.render)
		list = append(list, p)
	}
	return list
}

// numbering returns the number of each partition and how many there are. It uses the
// kernel's own numbers, which may have gaps, or else their order.
func numbering(own []node) (numbers []int, count int) {
	seen := map[uint64]bool{}
	for i, n := range own {
		seen[n.part] = true
		numbers = append(numbers, i)
	}
	if len(seen) < len(own) {
		return numbers, len(own) // this kernel does not number them
	}
	for i, n := range own {
		numbers[i] = int(n.part)
		count = max(count, numbers[i]+1)
	}
	return numbers, count
}

// mode returns the partitioning mode as AMD's device plugin names it, such as cpx_nps4.
func (s sighting) mode() string {
	compute, _ := s.dir.Text("current_compute_partition") // drivers before 6.9 have neither file
	memory, _ := s.dir.Text("current_memory_partition")
	return strings.ToLower(strings.Trim(compute+"_"+memory, "_"))
}

// platformCard is the DRM device of any partition but the first.
type platformCard struct {
	dir  sysfs.Dir // devices/platform/amdgpu_xcp_3
	card string
}

// platformCards returns the platform cards by render node.
func platformCards(sys sysfs.Dir) map[string]platformCard {
	found := map[string]platformCard{}
	for _, d := range sys.Glob("devices/platform/amdgpu_xcp*") {
		c := platformCard{dir: d}
		for _, n := range d.Glob("drm/card[0-9]*") {
			c.card = n.Base()
		}
		for _, n := range d.Glob("drm/renderD*") {
			found[n.Base()] = c
		}
	}
	return found
}

// aliases returns the device's other names: those of Kubernetes' device plugin and DRA
// driver, of Slurm's device files, and of ROCR_VISIBLE_DEVICES. The files and the address
// of a partitioned GPU belong to its first partition.
func (s *sighting) aliases() []string {
	var list []string
	add := func(name string) {
		if name != "" {
			list = append(list, name)
		}
	}
	if !s.part() {
		if s.unique != "" {
			add("GPU-" + s.unique)
		}
		if s.n == 0 {
			return list
		}
	}
	if s.part() && s.k == 0 {
		add(s.id.PCI)
	}
	add(s.name)
	add(s.render)
	add(s.card)
	if s.card != "" && s.render != "" {
		add("gpu-" + strings.TrimPrefix(s.card, "card") + "-" + strings.TrimPrefix(s.render, "renderD"))
	}
	return list
}

func parseUevent(s string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	return env
}
