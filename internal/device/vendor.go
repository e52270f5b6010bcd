package device

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Vendor is everything that is true of all devices of one vendor and that other packages
// need: node checks, quotas, the support bundle, Slurm, Kubernetes, the terminal and the
// page. Each vendor's package exports its own as Facts, and internal/local lists them.
type Vendor struct {
	Name  string // ID.Vendor, and the name of the package
	Title string // for people
	PCI   string // vendor ID as sysfs writes it: 0x10de

	// DeviceFiles are prefixes of the paths of device files that a process has open while
	// it uses a device.
	DeviceFiles []string
	// Minors are prefixes of the aliases that end in the minor number of a device, below
	// /dev: "nvidia" of nvidia3. Empty if no file is numbered from 0.
	Minors []string
	// Modules are the kernel modules of the driver, with underscores as in /sys/module.
	Modules []string
	// LogWords are further words that the driver's lines in the kernel log have.
	LogWords []string
	// Messages are lines in the kernel log that report trouble.
	Messages []Message
	// VersionFiles are files below the root, besides those of the modules, that contain
	// the version of the driver.
	VersionFiles []string
	// Services are systemd units that usually run beside the driver.
	Services []string

	// Resources are the names by which Kubernetes gives out devices.
	Resources []Resource

	// ModelPrefixes and ModelSuffixes are the parts of model names that a short name
	// omits, such as "NVIDIA ".
	ModelPrefixes, ModelSuffixes []string

	// ListsProcesses says that the driver lists every process on a device, so that memory
	// without a process is orphaned.
	ListsProcesses bool
}

// Message is a kind of line in the kernel log.
type Message struct {
	Contains string // a word that every such line contains; quick to search for
	Pattern  string // regular expression
	Critical bool   // else a warning
	Action   string // what to do, in a sentence
}

// Unit is what one of a resource is.
type Unit string

// The units of resources.
const (
	Whole    Unit = "device"
	Part     Unit = "partition" // a MIG instance, an XCP, a virtual function
	Core     Unit = "core"
	Share    Unit = "share"     // of a device that several containers use
	Claim    Unit = "claim"     // a DRA driver: devices or partitions, as the claim says
	NoDevice Unit = "no device" // access to something else, such as monitoring
)

// Resource is an extended resource of Kubernetes, or a DRA driver.
type Resource struct {
	Name string // a path.Match pattern: nvidia.com/mig-*
	Unit Unit
	// Replica separates the ID of a device from the number of its replica, where the
	// vendor's plugin shares devices: "-" of card0-3.
	Replica string
}

// Vendors are the vendors that can be read.
type Vendors []Vendor

// ByName returns the vendor with a name, the zero Vendor if there is none.
func (v Vendors) ByName(name string) Vendor {
	if i := slices.IndexFunc(v, func(o Vendor) bool { return o.Name == name }); i >= 0 {
		return v[i]
	}
	return Vendor{}
}

// Resource returns the resource with a name, the zero Resource if no vendor has it. The
// first match of a vendor decides.
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

// CountsDevices reports whether one of the resource with a name is a whole device.
func (v Vendors) CountsDevices(name string) bool { return v.Resource(name).Unit == Whole }

// DeviceFiles returns the device files of all vendors.
func (v Vendors) DeviceFiles() []string {
	return v.all(func(o *Vendor) []string { return o.DeviceFiles })
}

// Minors returns the prefixes of aliases with a minor number of all vendors.
func (v Vendors) Minors() []string { return v.all(func(o *Vendor) []string { return o.Minors }) }

// Modules returns the kernel modules of all vendors.
func (v Vendors) Modules() []string { return v.all(func(o *Vendor) []string { return o.Modules }) }

// LogLine returns a regular expression for lines of the vendors' drivers in the kernel log,
// where the name of a module may have dashes.
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
			if !slices.Contains(list, s) { // two vendors may share one
				list = append(list, s)
			}
		}
	}
	return list
}

// ShortModel returns the name of a product without the words that its vendor adds to all
// of them. A name that consists of such words alone stays as it is.
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
