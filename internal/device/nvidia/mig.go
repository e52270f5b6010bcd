//go:build linux

package nvidia

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
)

// migInstance is one MIG device: a compute instance on a GPU instance.
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
	return c.do("nvmlDeviceGetMigMode", 0, c.handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending))) &&
		current == 1
}

// maxMIG bounds the slots looked at; today's GPUs have seven.
const maxMIG = 64

// migInstances returns the MIG devices of a GPU. Empty slots are normal.
func (c *caller) migInstances() []migInstance {
	slots, _ := c.u32("nvmlDeviceGetMaxMigDeviceCount").Get()
	var list []migInstance
	for i := range min(uint32(slots), maxMIG) {
		m := &caller{lib: c.lib}
		if !c.do("nvmlDeviceGetMigDeviceHandleByIndex", 0, c.handle, uintptr(i), uintptr(unsafe.Pointer(&m.handle))) {
			continue
		}
		uuid := m.text("nvmlDeviceGetUUID")
		gi, ok := m.u32("nvmlDeviceGetGpuInstanceId").Get()
		if uuid == "" || !ok {
			continue // taken down while we looked
		}
		list = append(list, migInstance{handle: m.handle, uuid: uuid, gi: uint32(gi), profile: m.migProfile()})
	}
	return list
}

// migProfile returns the name users make an instance by, such as 1g.18gb: the driver
// puts it at the end of the device's name, and older ones leave it to be put together.
func (c *caller) migProfile() string {
	if _, profile, ok := strings.Cut(c.text("nvmlDeviceGetName"), " MIG "); ok {
		return profile
	}
	var a migAttributes
	if !c.do("nvmlDeviceGetAttributes_v2", 0, c.handle, uintptr(unsafe.Pointer(&a))) {
		return ""
	}
	profile := fmt.Sprintf("%dg.%dgb", a.gpuSlices, int(math.Ceil(float64(a.memoryMiB)/1024)))
	if a.computeSlices != a.gpuSlices {
		profile = fmt.Sprintf("%dc.%s", a.computeSlices, profile)
	}
	return profile
}
