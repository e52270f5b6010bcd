//go:build linux

package nvidia

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// migInstance is one MIG device: a compute instance within a GPU instance.
type migInstance struct {
	handle  uintptr
	uuid    string
	gi      uint32
	profile string
}

// id returns the identity of the instance on the given GPU.
func (m migInstance) id(gpu device.ID) device.ID {
	gpu.Parent, gpu.UUID, gpu.Profile = gpu.UUID, m.uuid, m.profile
	return gpu
}

func (c *caller) migEnabled() bool {
	var current, pending uint32
	return c.Do("nvmlDeviceGetMigMode", 0, c.Handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending))) &&
		current == 1
}

// maxMIG bounds the number of slots examined; current GPUs have seven.
const maxMIG = 64

// migInstances returns the MIG devices of a GPU. Empty slots are normal.
func (c *caller) migInstances() []migInstance {
	slots, _ := c.U32("nvmlDeviceGetMaxMigDeviceCount").Get()
	var list []migInstance
	for i := range min(uint32(slots), maxMIG) {
		m := newCaller(c.Lib, 0)
		if !c.Do("nvmlDeviceGetMigDeviceHandleByIndex", 0, c.Handle, uintptr(i), uintptr(unsafe.Pointer(&m.Handle))) {
			continue
		}
		uuid := m.Text("nvmlDeviceGetUUID")
		gi, ok := m.U32("nvmlDeviceGetGpuInstanceId").Get()
		if uuid == "" || !ok {
			continue // removed during discovery
		}
		list = append(list, migInstance{handle: m.Handle, uuid: uuid, gi: uint32(gi), profile: m.migProfile()})
	}
	return list
}

// migProfile returns the name that users create an instance by, such as 1g.18gb. Newer
// drivers append it to the device name; for older ones it is derived from the attributes.
func (c *caller) migProfile() string {
	if _, profile, ok := strings.Cut(c.Text("nvmlDeviceGetName"), " MIG "); ok {
		return profile
	}
	var a migAttributes
	if !c.Do("nvmlDeviceGetAttributes_v2", 0, c.Handle, uintptr(unsafe.Pointer(&a))) {
		return ""
	}
	profile := fmt.Sprintf("%dg.%dgb", a.gpuSlices, int(math.Ceil(float64(a.memoryMiB)/1024)))
	if a.computeSlices != a.gpuSlices {
		profile = fmt.Sprintf("%dc.%s", a.computeSlices, profile)
	}
	return profile
}

// readNames reads the other names by which a scheduler may refer to the device, and the
// size of a MIG instance.
func (g *gpu) readNames() {
	physical := newCaller(g.Lib, g.Handle)
	if g.parent != 0 {
		physical.Handle = g.parent
	}
	minor := ""
	if n, ok := physical.U32("nvmlDeviceGetMinorNumber").Get(); ok {
		minor = fmt.Sprint(int(n))
	}
	g.sample.Aliases, g.sample.Slice = nil, device.Slice{}
	if g.parent == 0 {
		if minor != "" {
			g.sample.Aliases = []string{"nvidia" + minor, "gpu-" + minor} // as on GKE; as in the DRA driver
		}
		return
	}
	if ci, ok := g.U32("nvmlDeviceGetComputeInstanceId").Get(); ok { // the name used by drivers before R470
		g.sample.Aliases = append(g.sample.Aliases, fmt.Sprintf("MIG-%s/%d/%d", g.id.Parent, g.gi, int(ci)))
	}
	if minor != "" {
		g.sample.Aliases = append(g.sample.Aliases, fmt.Sprintf("nvidia%s/gi%d", minor, g.gi))
	}
	var a migAttributes
	slots, ok := physical.U32("nvmlDeviceGetMaxMigDeviceCount").Get()
	if ok && g.Do("nvmlDeviceGetAttributes_v2", 0, g.Handle, uintptr(unsafe.Pointer(&a))) {
		g.sample.Slice = device.Slice{Held: int(a.computeSlices), Of: int(slots)}
	}
}
