//go:build linux

package amd

import (
	"strconv"
	"strings"
)

// layout is one revision of a table, which is a C struct in the kernel.
type layout struct {
	size    int
	columns map[string]column
}

// layouts are the tables of one file, by version. Version 1.6 has two lengths.
type layouts map[version][]*layout

// The tables as the kernel declares them (drivers/gpu/drm/amd/include/kgd_pp_interface.h):
// a type followed by the names of that type. Each value is aligned to its own size.
const (
	temperatures1 = `
u16 temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc temperature_vrmem
u16 average_gfx_activity average_umc_activity average_mm_activity average_socket_power`
	clocks1 = `
u16 average_gfxclk_frequency average_socclk_frequency average_uclk_frequency
u16 average_vclk0_frequency average_dclk0_frequency average_vclk1_frequency average_dclk1_frequency
u16 current_gfxclk current_socclk current_uclk current_vclk0 current_dclk0 current_vclk1 current_dclk1
u32 throttle_status
u16 current_fan_speed`
	metrics10 = `u64 system_clock_counter` + temperatures1 + `
u32 energy_accumulator` + clocks1 + `
u8 pcie_link_width pcie_link_speed`
	metrics11 = temperatures1 + `
u64 energy_accumulator system_clock_counter` + clocks1 + `
u16 pcie_link_width pcie_link_speed padding
u32 gfx_activity_acc mem_activity_acc
u16 temperature_hbm[4]`
	metrics12 = metrics11 + `
u64 firmware_timestamp`
	metrics13 = metrics12 + `
u16 voltage_soc voltage_gfx voltage_mem padding1
u64 indep_throttle_status`

	socket4 = `
u16 temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity average_umc_activity`
	links4 = `
u32 gfxclk_lock_status
u16 pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed
u32 gfx_activity_acc mem_activity_acc
u64 pcie_bandwidth_acc pcie_bandwidth_inst
u64 pcie_l0_to_recov_count_acc pcie_replay_count_acc pcie_replay_rover_count_acc`
	naks5 = `
u32 pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc`
	xgmi4 = `
u64 xgmi_read_data_acc[8] xgmi_write_data_acc[8]`
	clocks4 = `
u64 firmware_timestamp
u16 current_gfxclk[8] current_socclk[4] current_vclk0[4] current_dclk0[4] current_uclk`
	residency6 = `
u64 energy_accumulator system_clock_counter
u32 accumulation_counter prochot_residency_acc ppt_residency_acc
u32 socket_thm_residency_acc vr_thm_residency_acc hbm_thm_residency_acc`
	metrics14 = socket4 + `
u16 vcn_activity[4]
u64 energy_accumulator system_clock_counter
u32 throttle_status` + links4 + xgmi4 + clocks4 + `
u16 padding`
	metrics15 = socket4 + `
u16 vcn_activity[4] jpeg_activity[32]
u64 energy_accumulator system_clock_counter
u32 throttle_status` + links4 + naks5 + xgmi4 + clocks4 + `
u16 padding`
	head7 = socket4 + `
u64 mem_max_bandwidth` + residency6 + links4 + naks5 + xgmi4 + `
u16 xgmi_link_status[8] padding` + clocks4 + `
u16 num_partition`
	recovery6 = `
u32 pcie_lc_perf_other_end_recovery`
	metrics16short = socket4 + residency6 + links4 + naks5 + xgmi4 + clocks4 // the kernel's first revision of v1.6
	metrics16      = metrics16short + `
u16 num_partition
xcp[8]
u32 gfx_busy_inst[8]
u16 jpeg_busy[32] vcn_busy[4]
u64 gfx_busy_acc[8]
end` + recovery6
	metrics17 = head7 + `
xcp[8]
u32 gfx_busy_inst[8]
u16 jpeg_busy[32] vcn_busy[4]
u64 gfx_busy_acc[8] gfx_below_host_limit_acc[8]
end` + recovery6
	partitionBusy = `
u32 gfx_busy_inst[8]
u16 jpeg_busy[40] vcn_busy[4]
u64 gfx_busy_acc[8] gfx_below_host_limit_ppt_acc[8] gfx_below_host_limit_thm_acc[8]
u64 gfx_low_utilization_acc[8] gfx_below_host_limit_total_acc[8]`
	metrics18 = head7 + `
xcp[8]` + partitionBusy + `
end` + recovery6

	temperatures2 = `
u16 temperature_gfx temperature_soc temperature_core[8] temperature_l3[2] average_gfx_activity average_mm_activity`
	clocks2 = `
u16 average_socket_power average_cpu_power average_soc_power average_gfx_power average_core_power[8]
u16 average_gfxclk_frequency average_socclk_frequency average_uclk_frequency
u16 average_fclk_frequency average_vclk_frequency average_dclk_frequency
u16 current_gfxclk current_socclk current_uclk current_fclk current_vclk current_dclk
u16 current_coreclk[8] current_l3clk[2]
u32 throttle_status
u16 fan_pwm`
	metrics20 = `u64 system_clock_counter` + temperatures2 + clocks2 + `
u16 padding`
	metrics21 = temperatures2 + `
u64 system_clock_counter` + clocks2 + `
u16 padding[3]`
	metrics22 = metrics21 + `
u64 indep_throttle_status`
	metrics23 = metrics22 + `
u16 average_temperature_gfx average_temperature_soc average_temperature_core[8] average_temperature_l3[2]`
	metrics24 = metrics23 + `
u16 average_cpu_voltage average_soc_voltage average_gfx_voltage
u16 average_cpu_current average_soc_current average_gfx_current`
	metrics30 = `
u16 temperature_gfx temperature_soc temperature_core[16] temperature_skin
u16 average_gfx_activity average_vcn_activity average_ipu_activity[8] average_core_c0_activity[16]
u16 average_dram_reads average_dram_writes average_ipu_reads average_ipu_writes
u64 system_clock_counter
u32 average_socket_power
u16 average_ipu_power
u32 average_apu_power average_gfx_power average_dgpu_power average_all_core_power
u16 average_core_power[16] average_sys_power stapm_power_limit current_stapm_power_limit
u16 average_gfxclk_frequency average_socclk_frequency average_vpeclk_frequency average_ipuclk_frequency
u16 average_fclk_frequency average_vclk_frequency average_uclk_frequency average_mpipu_frequency
u16 current_coreclk[16] current_core_maxfreq current_gfx_maxfreq
u32 throttle_residency_prochot throttle_residency_spl throttle_residency_fppt throttle_residency_sppt
u32 throttle_residency_thm_core throttle_residency_thm_gfx throttle_residency_thm_soc time_filter_alphavalue`

	partition10 = `
u16 current_gfxclk[8] current_socclk[4] current_vclk0[4] current_dclk0[4] current_uclk padding` + partitionBusy
	boardHead = `
u16 label_version node_id
u64 accumulation_counter`
)

// The fixed layouts of each file, and the version of its packed table.
var (
	gpuLayouts = layouts{
		{1, 0}: {layoutOf(metrics10)},
		{1, 1}: {layoutOf(metrics11)},
		{1, 2}: {layoutOf(metrics12)},
		{1, 3}: {layoutOf(metrics13)},
		{1, 4}: {layoutOf(metrics14)},
		{1, 5}: {layoutOf(metrics15)},
		{1, 6}: {layoutOf(metrics16short), layoutOf(metrics16)},
		{1, 7}: {layoutOf(metrics17)},
		{1, 8}: {layoutOf(metrics18)},
		{2, 0}: {layoutOf(metrics20)},
		{2, 1}: {layoutOf(metrics21)},
		{2, 2}: {layoutOf(metrics22)},
		{2, 3}: {layoutOf(metrics23)},
		{2, 4}: {layoutOf(metrics24)},
		{3, 0}: {layoutOf(metrics30)},
	}
	gpuPacked = version{1, 9}

	partitionLayouts = layouts{{1, 0}: {layoutOf(partition10)}}
	partitionPacked  = version{1, 1}

	// The boards also have packed tables, but their sensors are not published.
	gpuBoardLayouts  = layouts{{1, 0}: {layoutOf(boardHead + "\nu32 node_temp[12] vr_temp[13]")}}
	baseBoardLayouts = layouts{{1, 0}: {layoutOf(boardHead + "\nu32 system_temp[32]")}}
	notPacked        = version{}
)

var kindNames = map[string]kind{"u8": u8, "u16": u16, "u32": u32, "u64": u64}

// layoutOf lays out a declaration as a C compiler does.
func layoutOf(declaration string) *layout {
	l := &layout{size: headerSize, columns: map[string]column{}}
	align := 2 // alignment of the header
	var repeated []string
	rows, begin := 1, 0
	for line := range strings.Lines(declaration) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		k, isKind := kindNames[words[0]]
		switch {
		case isKind:
			align = max(align, k.size())
			for _, word := range words[1:] {
				name, count := dimension(word)
				l.size = roundUp(l.size, k.size())
				l.columns[name] = column{kind: k, offset: l.size, count: count, rows: 1}
				l.size += count * k.size()
				if rows > 1 {
					repeated = append(repeated, name)
				}
			}
		case words[0] == "end":
			l.size = roundUp(l.size, align)
			stride := l.size - begin
			for _, name := range repeated {
				c := l.columns[name]
				c.rows, c.stride = rows, stride
				l.columns[name] = c
			}
			l.size += (rows - 1) * stride
			rows = 1
		default: // start of the per-partition section, which contains 64-bit values
			_, rows = dimension(words[0])
			l.size = roundUp(l.size, u64.size())
			begin = l.size
		}
	}
	l.size = roundUp(l.size, align)
	return l
}

// dimension splits name[count].
func dimension(word string) (name string, count int) {
	name, rest, ok := strings.Cut(word, "[")
	if !ok {
		return name, 1
	}
	count, _ = strconv.Atoi(strings.TrimSuffix(rest, "]")) // declarations are constants
	return name, count
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
