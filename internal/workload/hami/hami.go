// Package hami reads which slices of GPUs HAMi gave to the containers of a pod, from the annotation in which its scheduler
// and its device plugin tell each other.
//
// HAMi's device plugin offers every GPU several times over, and the kubelet picks any of the replicas: neither the device nor the part of
// it follows from what the kubelet says. The plugin gives the container the devices of the annotation.
//
// Whoever may change a pod may change its annotations. A slice is therefore a claim, to be believed only as far as what the
// kubelet gave and the other claims on the device allow: see the packages kubernetes and workload.
package hami

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Annotation has the slices that the pod has. Pods of other vendors' devices have others, in other units.
const Annotation = "hami.io/vgpu-devices-allocated"

// Slice is a part of a device that a container may use.
type Slice struct {
	Device  string  // its UUID
	Memory  uint64  // bytes
	Compute float64 // part of the compute units, from 0 to 1; 0: as much as is free
}

const (
	maxText   = 16 << 10 // bytes
	maxSlices = 256      // of a pod
	maxDevice = 128      // bytes of a UUID
	maxMemory = 1 << 24  // MiB: 16 TiB
)

var errMalformed = errors.New("malformed")

// Parse parses an annotation: the slices of each container, in its order. The text is UUID,TYPE,MEMORY,CORES: for each device and a
// semicolon after each container; the memory is in MiB, the cores are in percent.
func Parse(text string) ([][]Slice, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("slices: %w: longer than %d bytes", errMalformed, maxText)
	}
	var out [][]Slice
	n := 0
	for container := range strings.SplitSeq(strings.TrimSuffix(text, ";"), ";") {
		var list []Slice
		for entry := range strings.SplitSeq(container, ":") {
			s, ok, err := slice(entry)
			if err != nil {
				return nil, err
			}
			if n++; n > maxSlices {
				return nil, fmt.Errorf("slices: %w: more than %d", errMalformed, maxSlices)
			}
			if ok {
				list = append(list, s)
			}
		}
		out = append(out, list)
	}
	return out, nil
}

// slice parses one device. A container without one has an empty text, or fields without values.
func slice(text string) (s Slice, ok bool, err error) {
	if text == "" {
		return s, false, nil
	}
	fields := strings.Split(text, ",")
	if len(fields) < 4 {
		return s, false, fmt.Errorf("slices: %w: %d fields", errMalformed, len(fields))
	}
	memory, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil || memory > maxMemory {
		return s, false, fmt.Errorf("slices: %w: the memory", errMalformed)
	}
	cores, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil || cores > 100 {
		return s, false, fmt.Errorf("slices: %w: the cores", errMalformed)
	}
	if fields[0] == "" && memory == 0 && cores == 0 {
		return s, false, nil
	}
	device, _, _ := strings.Cut(fields[0], "[") // older versions append which partition of the device it is
	if device == "" || len(device) > maxDevice || memory == 0 {
		return s, false, fmt.Errorf("slices: %w: no device or no memory", errMalformed)
	}
	return Slice{Device: device, Memory: memory << 20, Compute: float64(cores) / 100}, true, nil
}

// replica is the ID of a replica: a UUID with its prefix, and a number.
var replica = regexp.MustCompile(`^(.*[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-[0-9]{1,4}$`)

// Base returns the device that a replica of HAMi's plugin is of: that of GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71-3 has no 3. Replicas of
// other plugins have other forms.
func Base(id string) (device string, ok bool) {
	m := replica.FindStringSubmatch(id)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// Of returns the slices of a pod by the names of its containers. Newer versions of HAMi list init containers first, older ones leave
// them out.
func Of(text string, initContainers, containers []string) (map[string][]Slice, error) {
	list, err := Parse(text)
	if err != nil {
		return nil, err
	}
	var names []string
	switch len(list) {
	case len(containers):
		names = containers
	case len(initContainers) + len(containers):
		names = slices.Concat(initContainers, containers)
	default:
		return nil, fmt.Errorf("slices: %w: of %d containers, and the pod has %d", errMalformed, len(list), len(initContainers)+len(containers))
	}
	out := map[string][]Slice{}
	for i, own := range list {
		if len(own) > 0 {
			out[names[i]] = own
		}
	}
	return out, nil
}
