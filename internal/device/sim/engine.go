package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Engine is a simulated inference engine: a process that serves a model on the devices of one
// tenant, and has a metrics page. What the page says follows from what the devices do, so tokens
// agree with utilization and power, and the cache with used memory.
//
// Like a reading, a page is a pure function of Config and time, so several readers may ask at once.
type Engine struct {
	ID      string   // unique on the node
	Kind    string   // "vllm" or "sglang"
	Model   string   // the name of the model that it serves
	PID     uint32   // its process on the first device
	Port    int      // where it has its page, at /metrics
	Devices []string // UUIDs
	Stay             // when it runs, and for whom

	start   time.Time // of the process
	boot    time.Time // of the node
	gpus    []*gpu
	service *service
	network *network
	table   *table
	rates   rates
	shapes  shapes
	page    page
}

// page writes a metrics page.
type page interface{ write(s *state) []byte }

// kinds are the engines that can be simulated, with the ports that they listen on by default.
var kinds = map[string]int{"vllm": 8000, "sglang": 30000}

// checkEngine returns an error unless devices with role r can have the engine of a group.
func checkEngine(g *Group, r *role) error {
	if g.Serves == "" {
		return nil
	}
	if r == nil || r.service == nil {
		return fmt.Errorf("%s devices with role %s cannot serve a model", g.Model, g.Role)
	}
	if networks[g.Serves] == nil {
		return fmt.Errorf("unknown model %q of a simulated inference engine, want one of %s", g.Serves, strings.Join(slices.Sorted(maps.Keys(networks)), ", "))
	}
	for _, s := range g.Stays {
		if kinds[s.Pod.Container] == 0 {
			return fmt.Errorf("unknown simulated inference engine %q, want one of %s", s.Pod.Container, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		}
	}
	return nil
}

// host is the devices that an engine spans: those of one model that the same pod holds at the same time.
type host struct {
	model       string // of the devices
	serves      string
	container   string
	pod         string
	from, until time.Duration
}

// Engines returns the inference engines of a simulated node. Devices that one pod holds have one
// engine, with a part of the model on each.
func Engines(cfg Config) ([]*Engine, error) {
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	n := r.(*node)
	var list []*Engine
	at := map[host]*Engine{}
	ports := map[string]int{}
	add := func(g *gpu, serves string, pid int, s Stay) {
		kind := s.Pod.Container
		h := host{g.id.Model, serves, kind, s.Pod.UID, s.From, s.Until}
		e := at[h]
		if e == nil {
			port := kinds[kind] + ports[kind]
			ports[kind]++
			e = &Engine{
				ID: fmt.Sprintf("%s-%d", kind, port), Kind: kind, Model: serves, PID: uint32(pid), Port: port, Stay: s,
				start: n.start.Add(s.From), boot: n.start, service: g.role.service, network: networks[serves],
			}
			at[h] = e
			list = append(list, e)
		}
		e.Devices = append(e.Devices, g.id.UUID)
		e.gpus = append(e.gpus, g)
	}
	groups := cfg.Groups
	if groups == nil { // each device has a tenant of its own
		for _, g := range n.gpus {
			if g.partitions == nil && g.role.service != nil {
				add(g, defaultNetwork, g.pid(), Stay{Pod: podOf(g.role, g.id.Vendor, g.slot)})
			}
		}
	}
	slot := 0
	for _, group := range groups {
		for range group.Devices {
			g := n.gpus[slot]
			slot++
			if group.Serves == "" {
				continue
			}
			for i, s := range g.stays {
				add(g, group.Serves, g.pid()+i, s)
			}
		}
	}
	for _, e := range list {
		e.prepare()
	}
	return list, nil
}

func (e *Engine) prepare() {
	e.shapes = e.service.shapes()
	e.rates = e.service.rates(e.network, e.gpus)
	e.table = newTable(e.gpus, e.service)
	if e.Kind == "sglang" {
		e.page = newSGLang(e)
		return
	}
	e.page = newVLLM(e)
}

// Page returns the metrics page at a moment, in the text format of Prometheus, or nil if the engine
// does not run then.
func (e *Engine) Page(at time.Time) []byte {
	up := at.Sub(e.boot)
	if up < 0 || !e.There(up) {
		return nil
	}
	return e.page.write(e.state(up))
}

// network is a model that an engine serves.
type network struct {
	parameters float64
	weights    float64 // bytes
	cache      float64 // bytes of the key-value cache per token
	context    int     // most tokens of a request
}

// defaultNetwork fits on every device.
const defaultNetwork = "meta-llama/Llama-3.1-8B-Instruct"

// networks are from the configuration files of the models. The weights have 16 bits, those of the
// model with 70 billion parameters have 8.
var networks = map[string]*network{
	defaultNetwork:                          {parameters: 8.03e9, weights: 16.06e9, cache: 131072, context: 131072},
	"meta-llama/Llama-3.3-70B-Instruct":     {parameters: 70.55e9, weights: 72.7e9, cache: 327680, context: 131072},
	"mistralai/Mistral-Large-Instruct-2411": {parameters: 122.6e9, weights: 245.2e9, cache: 360448, context: 131072},
}

// speeds are the operations per second that an engine gets out of a device, by the device's model:
// around 40 percent of what the tensor cores can do with 16 bits.
var speeds = map[string]float64{
	"NVIDIA A100-SXM4-80GB":          125e12,
	"NVIDIA B200":                    900e12,
	"NVIDIA GH200 480GB":             400e12,
	"NVIDIA H100 80GB HBM3":          400e12,
	"NVIDIA H200":                    400e12,
	"NVIDIA L40S":                    145e12,
	"AMD Instinct MI300X":            600e12,
	"Intel Gaudi3 HL-325L":           700e12,
	"Intel Data Center GPU Max 1550": 300e12,
	"Tenstorrent Blackhole p150a":    150e12,
	"TPU v6e":                        370e12,
}

// capacity returns the tokens per second, of prompts and outputs, of a device that is always busy. A
// token takes two operations per parameter.
func capacity(device string, n *network) float64 {
	return cmp.Or(speeds[device], 100e12) / (2 * n.parameters)
}
