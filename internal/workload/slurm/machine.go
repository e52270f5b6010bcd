package slurm

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// machine locates the kernel's files and knows the kernel drivers of each vendor.
type machine struct {
	root    string     // "/" or where the host's file system is mounted
	drivers [][]string // as in Config
}

// device returns the names of the device with these files. An NVIDIA partition has the file
// of the GPU plus those of its capabilities; it is never mistaken for the whole GPU.
func (m machine) device(files []string) device {
	var d device
	var caps []string
	for _, f := range files {
		folder, base := filepath.Base(filepath.Dir(f)), filepath.Base(f)
		switch minor, ok := strings.CutPrefix(base, "nvidia-cap"); {
		case ok:
			caps = append(caps, minor)
		case folder == "dri": // card0, renderD128
			d = append(d, m.address("drm", base)...)
		case folder == "accel":
			d = append(d, m.address("accel", base)...)
		case slurm.IsNumber(base): // the directory has the name, as in /dev/tenstorrent/0
			d = append(d, folder+"/"+base)
		default:
			d = append(d, base)
		}
	}
	if len(caps) == 0 {
		return d
	}
	for _, p := range m.partitions() {
		if len(d) > 0 && p.gpu == d[0] && slices.Contains(caps, p.minor) {
			return device{p.gpu + "/" + p.gi}
		}
	}
	return nil
}

// address returns the bus address of a device in a kernel class, and its name.
func (m machine) address(class, name string) device {
	link, err := os.Readlink(filepath.Join(m.root, "sys/class", class, name, "device"))
	if err != nil {
		return device{name}
	}
	return device{strings.ToLower(filepath.Base(link)), name}
}

// found returns the GPUs and partitions that the drivers provide, in order.
func (m machine) found() []device {
	if list := m.nvidia(); len(list) > 0 {
		return list
	}
	names, _ := filepath.Glob(filepath.Join(m.root, "sys/class/drm/renderD*")) // the only error is a bad pattern
	for _, drivers := range m.drivers {
		var out []device
		for _, n := range names {
			if driver, err := os.Readlink(filepath.Join(n, "device/driver")); err == nil && slices.Contains(drivers, filepath.Base(driver)) {
				out = append(out, m.address("drm", filepath.Base(n)))
			}
		}
		if len(out) > 0 {
			slices.SortFunc(out, func(a, b device) int { return natural.Compare(a[0], b[0]) })
			return out
		}
	}
	return nil
}

// nvidia returns the NVIDIA GPUs by bus address; a partitioned GPU is replaced by its
// partitions.
func (m machine) nvidia() []device {
	folders, _ := filepath.Glob(filepath.Join(m.root, "proc/driver/nvidia/gpus/*"))
	slices.Sort(folders) // addresses have a fixed number of digits
	parts := m.partitions()
	var out []device
	for _, f := range folders {
		b, err := slurm.ReadFile(filepath.Join(f, "information"), 1<<16)
		if err != nil {
			continue
		}
		minor := field(b, "Device Minor:")
		if minor == "" {
			continue
		}
		gpu := "nvidia" + minor
		whole := true
		for _, p := range parts {
			if p.gpu == gpu {
				out, whole = append(out, device{gpu + "/" + p.gi}), false
			}
		}
		if whole {
			out = append(out, device{gpu, strings.ToLower(filepath.Base(f))})
		}
	}
	return out
}

// partition is a GPU instance, and the minor number of the device file that grants access
// to it.
type partition struct{ gpu, gi, minor string }

// partitions returns the GPU instances of all GPUs, by number.
func (m machine) partitions() []partition {
	files, _ := filepath.Glob(filepath.Join(m.root, "proc/driver/nvidia/capabilities/gpu*/mig/gi*/access"))
	slices.SortFunc(files, natural.Compare)
	var out []partition
	for _, f := range files {
		b, err := slurm.ReadFile(f, 1<<12)
		if err != nil {
			continue
		}
		gi := filepath.Dir(f)
		gpu := filepath.Base(filepath.Dir(filepath.Dir(gi)))
		out = append(out, partition{"nvidia" + strings.TrimPrefix(gpu, "gpu"), filepath.Base(gi), field(b, "DeviceFileMinor:")})
	}
	return out
}

// field returns the text after a key at the beginning of a line.
func field(b []byte, key string) string {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return string(bytes.TrimSpace(rest))
		}
	}
	return ""
}
