package device

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Vendor holds the facts about all devices of one vendor that other packages need: node
// checks, quotas, the support bundle, Slurm, Kubernetes, the terminal and the page. Each
// vendor's package exports its Vendor as Facts, and internal/local lists them.
type Vendor struct {
	Name  string // ID.Vendor, also the name of the package
	Title string // for display
	PCI   string // vendor ID as sysfs writes it: 0x10de

	// DeviceFiles are path prefixes of the device files that a process has open while it
	// uses a device.
	DeviceFiles []string
	// Minors are prefixes, below /dev, of the aliases that end in the minor number of a
	// device: "nvidia" for nvidia3. Empty if no file is numbered from 0.
	Minors []string
	// Modules are the kernel modules of the driver, with underscores as in /sys/module.
	Modules []string
	// LogWords are further words that identify the driver's lines in the kernel log.
	LogWords []string
	// Messages are kinds of kernel log lines that report a problem.
	Messages []Message
	// VersionFiles are files below the root that contain the version of the driver, in
	// addition to those of the modules.
	VersionFiles []string
	// Services are systemd units that usually run next to the driver.
	Services []string

	// Resources are the Kubernetes resources that stand for devices.
	Resources []Resource
	// ModelLabels are the labels of Kubernetes nodes that name the model of the devices, the best first.
	// Empty: nobody sets one.
	ModelLabels []string

	// ModelPrefixes and ModelSuffixes are the parts of model names that a short name
	// omits, such as "NVIDIA ".
	ModelPrefixes, ModelSuffixes []string
	// Models are known beyond what the driver reports of a device.
	Models []Model

	// ListsProcesses reports whether the driver lists every process on a device. If it does,
	// memory without a process is orphaned.
	ListsProcesses bool
}

// Message is a kind of kernel log line.
type Message struct {
	Contains string // a word that every such line contains; quick to search for
	Pattern  string // regular expression
	Critical bool   // else a warning
	Action   string // what to do, in a sentence
}

// Unit is what one unit of a resource stands for.
type Unit string

// The units of resources.
const (
	Whole    Unit = "device"
	Part     Unit = "partition" // a MIG instance, an XCP, a virtual function
	Core     Unit = "core"
	Share    Unit = "share"     // a share of a device that several containers use
	Claim    Unit = "claim"     // a DRA driver: devices or partitions, depending on the claim
	NoDevice Unit = "no device" // access to something else, such as monitoring
)

// Resource is a Kubernetes extended resource, or a DRA driver.
type Resource struct {
	Name string // a path.Match pattern: nvidia.com/mig-*
	Unit Unit
	// Replica separates the ID of a device from the number of its replica if the vendor's
	// plugin shares devices: "-" in card0-3.
	Replica string
	// WholeTypes are the values that a DRA driver has in the attribute type of whole devices: others are of parts of
	// devices, or offer a device in another way once more. Empty: the driver has no such attribute.
	WholeTypes []string
	// ModelAttribute is the attribute in which a DRA driver names the model.
	ModelAttribute string
}

// Vendors is a list of vendors.
type Vendors []Vendor

// ByName returns the vendor called name, or the zero Vendor.
func (v Vendors) ByName(name string) Vendor {
	if i := slices.IndexFunc(v, func(o Vendor) bool { return o.Name == name }); i >= 0 {
		return v[i]
	}
	return Vendor{}
}

// Resource returns the first resource whose pattern matches name, or the zero Resource.
func (v Vendors) Resource(name string) Resource {
	for i := range v {
		for _, r := range v[i].Resources {
			if ok, err := path.Match(r.Name, name); ok && err == nil {
				return r
			}
		}
	}
	return Resource{}
}

// Of returns the name of the vendor of a resource, empty if it is of none.
func (v Vendors) Of(resource string) string {
	for i := range v {
		if v[i:i+1].Resource(resource).Name != "" {
			return v[i].Name
		}
	}
	return ""
}

// CountsDevices reports whether one unit of the resource called name is a whole device.
func (v Vendors) CountsDevices(name string) bool { return v.Resource(name).Unit == Whole }

// ModelLabels returns the labels of Kubernetes nodes that name the model of their devices.
func (v Vendors) ModelLabels() []string {
	return v.all(func(o *Vendor) []string { return o.ModelLabels })
}

// DeviceFiles returns the device files of all vendors.
func (v Vendors) DeviceFiles() []string {
	return v.all(func(o *Vendor) []string { return o.DeviceFiles })
}

// Minors returns the alias prefixes of all vendors that precede a minor number.
func (v Vendors) Minors() []string { return v.all(func(o *Vendor) []string { return o.Minors }) }

// Modules returns the kernel modules of all vendors.
func (v Vendors) Modules() []string { return v.all(func(o *Vendor) []string { return o.Modules }) }

// LogLine returns a regular expression that matches the kernel log lines of the vendors'
// drivers. The name of a module may be written with dashes there.
func (v Vendors) LogLine() *regexp.Regexp {
	words := v.all(func(o *Vendor) []string { return slices.Concat(o.Modules, o.LogWords) })
	for i, w := range words {
		words[i] = strings.ReplaceAll(regexp.QuoteMeta(w), "_", "[-_]")
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(words, "|") + `)\b`)
}

func (v Vendors) all(of func(*Vendor) []string) []string {
	var list []string
	for i := range v {
		for _, s := range of(&v[i]) {
			if !slices.Contains(list, s) { // vendors may have an entry in common
				list = append(list, s)
			}
		}
	}
	return list
}

// ShortModel returns the name of a model without the prefixes and suffixes that vendors add
// to most of their models. A name that consists of nothing else is returned unchanged.
func (v Vendors) ShortModel(model string) string {
	short := model
	for again := true; again; {
		again = false
		for i := range v {
			for _, p := range v[i].ModelPrefixes {
				if rest, ok := strings.CutPrefix(short, p); ok && rest != "" {
					short, again = rest, true
				}
			}
		}
	}
	for i := range v {
		for _, s := range v[i].ModelSuffixes {
			if rest, ok := strings.CutSuffix(short, s); ok && rest != "" {
				return rest
			}
		}
	}
	return short
}
