//go:build linux

package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/cli/tui"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// topSeries are what the view is made of, in one question.
var topSeries = []string{
	"gpu_up", "gpu_utilization_ratio", "gpu_sm_active_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes",
	"gpu_power_draw_watts", "gpu_power_limit_watts", "gpu_temperature_celsius", "gpu_health_ratio",
	"gpu_allocation_ratio", "gpu_workload_utilization_ratio", "gpu_workload_memory_used_bytes", "gpu_workload_power_draw_watts",
	"gpu_throttle_thermal_active", "gpu_throttle_power_active", "gpu_recovery_action", "gpu_row_remap_pending",
	"gpu_xid_errors_total", "gpumeter_attribution_status",
}

// askStore returns the fleet as a store knows it.
func askStore(ctx context.Context, store query.Store, now time.Time, price pricing) (tui.Snapshot, error) {
	samples, err := store.Instant(ctx, `{__name__=~"`+strings.Join(topSeries, "|")+`"}`, now)
	if err != nil {
		return tui.Snapshot{}, err
	}
	return snapshotFrom(samples, now, price), nil
}

// snapshotFrom puts the devices of a fleet together from their series.
func snapshotFrom(samples []query.Sample, now time.Time, price pricing) tui.Snapshot {
	s := tui.Snapshot{
		Time: now, Currency: price.currency, Simulated: true,
		Empty: "The store knows no device: no agent has sent anything in the last minutes, or under another name.",
	}
	f := fleet{devices: map[string]*fleetDevice{}}
	for _, x := range samples {
		if x.Labels["__name__"] == "gpumeter_attribution_status" {
			f.status(&s, x)
			continue
		}
		f.add(x)
	}
	for _, d := range f.devices {
		if !d.seen {
			continue // parts of a device that is gone
		}
		d.finish(&s, price, now)
		s.Devices = append(s.Devices, d.Device)
		s.Simulated = s.Simulated && d.Simulated
	}
	s.Simulated = s.Simulated && len(s.Devices) > 0
	slices.SortFunc(s.Devices, func(a, b tui.Device) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Index, b.Index),
			cmp.Compare(min(1, len(a.Profile)), min(1, len(b.Profile))), cmp.Compare(a.UUID, b.UUID)) // partitions below their device
	})
	sortFindings(s.Findings)
	return s
}

// fleet collects series by device.
type fleet struct {
	devices map[string]*fleetDevice // by host and UUID
}

type fleetDevice struct {
	tui.Device
	seen    bool // its gpu_up is there
	labels  query.Labels
	health  device.Value
	owners  map[string]*tui.Owner
	thermal bool
	capped  bool
	reset   bool
	remap   bool
	xids    []string // codes
	sensor  string
}

// device returns that of the labels, of a partition if they name one.
func (f *fleet) device(l query.Labels, whole bool) *fleetDevice {
	uuid := l["gpu_uuid"]
	if p := l["gpu_partition_id"]; p != "" && !whole {
		uuid = p
	}
	key := l["host_name"] + "/" + uuid
	d := f.devices[key]
	if d == nil {
		d = &fleetDevice{labels: l, owners: map[string]*tui.Owner{}}
		d.Host, d.UUID, d.Vendor, d.Model = l["host_name"], uuid, l["gpu_vendor"], l["gpu_model"]
		d.Index, _ = strconv.Atoi(l["gpu_index"])
		d.Simulated = l["gpumeter_simulated"] == "true"
		if !whole {
			d.Profile = l["gpu_partition_profile"]
		}
		f.devices[key] = d
	}
	return d
}

// add puts one value where it belongs.
func (f *fleet) add(x query.Sample) {
	l, v := x.Labels, device.Of(x.Value)
	d := f.device(l, false)
	switch l["__name__"] {
	case "gpu_up":
		d.seen, d.Up = true, x.Value > 0
	case "gpu_utilization_ratio":
		if l["gpu_task"] == "compute" {
			d.Utilization = v
		}
	case "gpu_sm_active_ratio":
		d.SM = v
	case "gpu_memory_used_bytes":
		d.Memory = v
	case "gpu_memory_total_bytes":
		d.MemoryTotal = v
	case "gpu_power_draw_watts":
		if scope := l["gpu_power_scope"]; (scope == "gpu" || scope == "module" || scope == "") && (l["gpu_power_window"] == "instant" || !d.Power.OK()) {
			d.Power = v
		}
	case "gpu_power_limit_watts":
		if scope := l["gpu_power_scope"]; scope != "memory" {
			d.PowerLimit = v
		}
	case "gpu_temperature_celsius":
		// The die's own sensor has one of the first names.
		if sensor := l["gpu_temperature_sensor"]; !d.Celsius.OK() || sensorRank(sensor) < sensorRank(d.sensor) {
			d.Celsius, d.sensor = v, sensor
		}
	case "gpu_health_ratio":
		d.health = v
	case "gpu_throttle_thermal_active":
		d.thermal = x.Value > 0
	case "gpu_throttle_power_active":
		d.capped = x.Value > 0
	case "gpu_recovery_action":
		d.reset = x.Value > 0
	case "gpu_row_remap_pending":
		d.remap = x.Value > 0
	case "gpu_xid_errors_total":
		d.xids = append(d.xids, l["gpu_xid_code"])
	default:
		f.own(x)
	}
}

func sensorRank(name string) int {
	if i := slices.Index([]string{"edge", "hotspot", "asic", "junction"}, name); i >= 0 {
		return i
	}
	return 10
}

// own notes what a workload has of a device, and of the partition it is in.
func (f *fleet) own(x query.Sample) {
	if x.Labels["gpu_workload_kind"] == workload.Unallocated {
		return
	}
	note(f.device(x.Labels, true), x)
	if x.Labels["gpu_partition_id"] != "" {
		note(f.device(x.Labels, false), x)
	}
}

func note(d *fleetDevice, x query.Sample) {
	l := x.Labels
	key := strings.Join([]string{l["gpu_workload_kind"], l["gpu_workload_name"], l["k8s_pod_uid"], l["k8s_container_name"], l["slurm_job_id"], l["container_id"], l["gpu_partition_id"]}, "\x00")
	o := d.owners[key]
	if o == nil {
		o = &tui.Owner{Kind: l["gpu_workload_kind"], Name: l["gpu_workload_name"], Namespace: placeOf(l["k8s_namespace_name"], l["slurm_account"]), Team: l["gpu_workload_team"]}
		o.Uninvited = o.Kind != workload.Unattributed && o.Kind != workload.Other // unless something was given
		d.owners[key] = o
	}
	v := device.Of(x.Value)
	switch l["__name__"] {
	case "gpu_allocation_ratio":
		o.Share = x.Value
		o.Uninvited = o.Uninvited && x.Value == 0
	case "gpu_workload_utilization_ratio":
		o.Utilization = v
	case "gpu_workload_memory_used_bytes":
		o.Memory = v
	case "gpu_workload_power_draw_watts":
		o.Power = v
	}
}

// finish says what state a device is in, and adds what is wrong to the findings.
func (d *fleetDevice) finish(s *tui.Snapshot, price pricing, now time.Time) {
	for _, o := range d.owners {
		d.Owners = append(d.Owners, *o)
	}
	slices.SortFunc(d.Owners, func(a, b tui.Owner) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if d.Profile == "" {
		d.Cost = price.of(d.labels, now, d.Power)
	}
	health, judged := d.health.Get()
	switch {
	case !d.Up:
		d.State, d.Severity = "DOWN", tui.Critical
	case d.reset:
		d.State = "needs reset"
	case d.thermal:
		d.State = "too hot"
	case d.capped:
		d.State = "power cap"
	default:
		d.State = "ok"
	}
	switch {
	case judged && health <= 0:
		d.Severity = tui.Critical
	case judged && health < 1:
		d.Severity = max(d.Severity, tui.Warning)
	}
	if d.Severity >= tui.Warning && d.State == "ok" {
		d.State = d.Severity.String()
	}
	if d.Severity >= tui.Warning {
		s.Findings = append(s.Findings, tui.Finding{
			Severity: d.Severity, Host: d.Host, UUID: d.UUID, Of: d.Vendor + " " + strconv.Itoa(d.Index), Reason: d.reason(),
			Action: "See its page at the hub, or gpumeter top on " + d.Host + ".",
		})
	}
	if len(d.xids) > 0 {
		slices.Sort(d.xids)
		d.More = append(d.More, "xids so far: "+strings.Join(d.xids, ", "))
	}
	s.Findings = append(s.Findings, uninvited(&d.Device)...)
}

// reason says why a device is not well, as far as series tell.
func (d *fleetDevice) reason() string {
	var words []string
	for _, r := range []struct {
		is   bool
		text string
	}{
		{!d.Up, "it does not answer"},
		{d.reset, "the driver requests a reset of the device"},
		{d.remap, "row remapping is pending"},
		{d.thermal, "its clocks are held down by heat"},
		{len(d.xids) > 0, "its driver reported XIDs"},
	} {
		if r.is {
			words = append(words, r.text)
		}
	}
	if len(words) == 0 {
		return "its agent judges it " + d.Severity.String()
	}
	return strings.Join(words, ", ")
}

// status adds what an agent misses of who holds its devices.
func (*fleet) status(s *tui.Snapshot, x query.Sample) {
	reason := x.Labels["gpumeter_attribution_reason"]
	if x.Value == 0 || reason == string(workload.OK) || reason == string(workload.Absent) {
		return
	}
	s.Findings = append(s.Findings, tui.Finding{
		Severity: tui.Info, Host: x.Labels["host_name"], Of: "workloads",
		Reason: x.Labels["gpumeter_attribution_source"] + ": " + strings.ReplaceAll(reason, "_", " "), Action: "gpumeter doctor on the node says more.",
	})
}
