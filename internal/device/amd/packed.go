//go:build linux

package amd

import (
	"encoding/binary"
	"fmt"
)

// packedNames are the attribute names of packed tables, by number.
var packedNames = []string{
	"temperature_hotspot",
	"temperature_mem",
	"temperature_vrsoc",
	"curr_socket_power",
	"average_gfx_activity",
	"average_umc_activity",
	"mem_max_bandwidth",
	"energy_accumulator",
	"system_clock_counter",
	"accumulation_counter",
	"prochot_residency_acc",
	"ppt_residency_acc",
	"socket_thm_residency_acc",
	"vr_thm_residency_acc",
	"hbm_thm_residency_acc",
	"gfxclk_lock_status",
	"pcie_link_width",
	"pcie_link_speed",
	"xgmi_link_width",
	"xgmi_link_speed",
	"gfx_activity_acc",
	"mem_activity_acc",
	"pcie_bandwidth_acc",
	"pcie_bandwidth_inst",
	"pcie_l0_to_recov_count_acc",
	"pcie_replay_count_acc",
	"pcie_replay_rover_count_acc",
	"pcie_nak_sent_count_acc",
	"pcie_nak_rcvd_count_acc",
	"xgmi_read_data_acc",
	"xgmi_write_data_acc",
	"xgmi_link_status",
	"firmware_timestamp",
	"current_gfxclk",
	"current_socclk",
	"current_vclk0",
	"current_dclk0",
	"current_uclk",
	"num_partition",
	"pcie_lc_perf_other_end_recovery",
	"gfx_busy_inst",
	"jpeg_busy",
	"vcn_busy",
	"gfx_busy_acc",
	"gfx_below_host_limit_ppt_acc",
	"gfx_below_host_limit_thm_acc",
	"gfx_low_utilization_acc",
	"gfx_below_host_limit_total_acc",
	"temperature_hbm",
	"temperature_mid",
	"temperature_aid",
	"temperature_xcd",
}

// Kernels since March 2026 have temperature_mid before the temperatures of AIDs and XCDs.
// Before, and in the driver outside the kernel, these two have the numbers midNumber and
// midNumber+1. A table has all temperatures or none, so a table with the last number is of
// the new kind.
const midNumber = 49

// packedName returns the name of an attribute, or "" if the number is unknown.
func packedName(id int, mid bool) string {
	if id >= midNumber && !mid {
		id++
	}
	if id >= len(packedNames) {
		return ""
	}
	return packedNames[id]
}

// decodePacked decodes a self-describing table: after the header an i32 count of
// attributes, each a u64 descriptor followed by its values, without padding. Unknown
// attributes are skipped.
func decodePacked(v version, blob []byte) (*metrics, error) {
	if len(blob) < headerSize+4 {
		return nil, fmt.Errorf("%s: %w: no count of attributes", v, errTruncated)
	}
	n := int(int32(binary.LittleEndian.Uint32(blob[headerSize:])))
	m := &metrics{version: v, columns: map[string]column{}, blob: blob, flat: true}
	at := headerSize + 4
	found := map[int]column{}
	for i := range n {
		if len(blob)-at < 8 {
			return nil, fmt.Errorf("%s: %w: attribute %d of %d is missing", v, errTruncated, i, n)
		}
		code := binary.LittleEndian.Uint64(blob[at:])
		at += 8
		count, id, k := int(code&0x3ff), int(code>>10&0x3ff), kind(code>>20&0xf)
		if k >= kinds {
			return nil, fmt.Errorf("%s: attribute %d (number %d) has the unknown type %d", v, i, id, k)
		}
		if len(blob)-at < count*k.size() {
			return nil, fmt.Errorf("%s: %w: attribute %d of %d (number %d) has %d values", v, errTruncated, i, n, id, count)
		}
		found[id] = column{kind: k, offset: at, count: count, rows: 1}
		at += count * k.size()
	}
	// The compiler may pad the end.
	if n < 0 || len(blob)-at >= 8 {
		return nil, fmt.Errorf("%s: %w: %d attributes end at byte %d of %d", v, errOversized, n, at, len(blob))
	}
	_, mid := found[len(packedNames)-1]
	for id, c := range found {
		if name := packedName(id, mid); name != "" {
			m.columns[name] = c
		}
	}
	return m, nil
}
