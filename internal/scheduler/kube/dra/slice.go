package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"unique"
)

// Slice is a ResourceSlice: some of the devices that a driver offers.
type Slice struct {
	Name, Driver, Pool string
	Generation         int64 // of the pool; a driver replaces the slices of older ones
	Devices            []Device
	// Sets are the counters that devices consume, as one number for the names and values of each set.
	Sets map[string]uint64
}

// Device is a device that a driver offers, or a part of one.
type Device struct {
	Name string
	Node string // empty: it is not on one node
	// Type and Model are attributes, in the words of the driver. Empty: there are none.
	Type, Model string
	Parent      bool // it says that it is a part of another
	Shared      bool // claims take parts of it
	Tainted     bool // nobody gets it without tolerating that: it is broken, or somebody drains it
	// Sets are the sets of counters that it takes from, and how much. Devices with a set in common exclude each other.
	Sets []Consumption
}

// Consumption is what a device takes from a set of counters, as one number for all of them.
type Consumption struct {
	Set    string
	Amount uint64
}

type counters map[string]struct {
	Value json.RawMessage `json:"value"`
}

// number returns a number for names and values: equal for equal counters.
func (c counters) number() uint64 {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(h, "%q=%q;", name, c[name].Value)
	}
	return h.Sum64()
}

type deviceObject struct {
	Attributes map[string]struct {
		String *string `json:"string"`
	} `json:"attributes"`
	Consumes []struct {
		Set      string   `json:"counterSet"`
		Counters counters `json:"counters"`
	} `json:"consumesCounters"`
	Node   string `json:"nodeName"`
	Shared bool   `json:"allowMultipleAllocations"`
	Taints []struct {
		Effect string `json:"effect"`
	} `json:"taints"`
}

type sliceObject struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Driver string `json:"driver"`
		Pool   struct {
			Name       string `json:"name"`
			Generation int64  `json:"generation"`
		} `json:"pool"`
		Node    string `json:"nodeName"`
		Devices []struct {
			Name         string        `json:"name"`
			deviceObject               // inline since v1beta2
			Basic        *deviceObject `json:"basic"`
		} `json:"devices"`
		Sets []struct {
			Name     string   `json:"name"`
			Counters counters `json:"counters"`
		} `json:"sharedCounters"`
	} `json:"spec"`
}

// ParseSlice reads a ResourceSlice. model is the name of the attribute that names the model, by driver.
func ParseSlice(b []byte, model func(driver string) string) (Slice, error) {
	var o sliceObject
	if err := json.Unmarshal(b, &o); err != nil {
		return Slice{}, fmt.Errorf("slice cannot be parsed: %w", err)
	}
	if o.Metadata.Name == "" {
		return Slice{}, errors.New("slice cannot be parsed: no name")
	}
	if n := len(o.Spec.Devices); n > maxDevices {
		return Slice{}, fmt.Errorf("slice %s has %d devices", o.Metadata.Name, n)
	}
	s := Slice{Name: o.Metadata.Name, Driver: o.Spec.Driver, Pool: o.Spec.Pool.Name, Generation: o.Spec.Pool.Generation}
	for _, set := range o.Spec.Sets {
		if s.Sets == nil {
			s.Sets = map[string]uint64{}
		}
		s.Sets[set.Name] = set.Counters.number()
	}
	attribute := model(s.Driver)
	for _, d := range o.Spec.Devices {
		from := &d.deviceObject
		if d.Basic != nil {
			from = d.Basic
		}
		device := Device{Name: d.Name, Node: from.Node, Shared: from.Shared, Type: from.text(s.Driver, "type"), Model: from.text(s.Driver, attribute)}
		if device.Node == "" {
			device.Node = o.Spec.Node
		}
		for name := range from.Attributes {
			_, own, _ := strings.Cut(name, "/")
			// As the drivers of NVIDIA and AMD call it: parentUUID, parentPciAddr.
			device.Parent = device.Parent || strings.HasPrefix(name, "parent") || strings.HasPrefix(own, "parent")
		}
		for _, t := range from.Taints {
			device.Tainted = device.Tainted || t.Effect == "NoSchedule" || t.Effect == "NoExecute"
		}
		for _, c := range from.Consumes {
			device.Sets = append(device.Sets, Consumption{unique.Make(c.Set).Value(), c.Counters.number()})
		}
		s.Devices = append(s.Devices, device)
	}
	return s, nil
}

// maxText bounds an attribute. The API allows 64 characters.
const maxText = 256

// text returns an attribute of the driver. A name without a domain is the driver's own. Thousands of devices have the same.
func (o *deviceObject) text(driver, name string) string {
	for _, key := range []string{name, driver + "/" + name} {
		if v := o.Attributes[key].String; name != "" && v != nil && len(*v) <= maxText {
			return unique.Make(strings.ToValidUTF8(*v, "")).Value()
		}
	}
	return ""
}
