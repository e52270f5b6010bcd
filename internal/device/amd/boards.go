//go:build linux

package amd

import (
	"fmt"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// boardTables are temperature tables of MI350 and later: the module that a GPU is mounted
// on, and the baseboard that carries all modules. A value holds the sensor number in the
// top byte and degrees Celsius in the rest.
var boardTables = []struct {
	file    string
	layouts layouts
	columns map[string][]string
}{
	{"board/gpuboard_temp", gpuBoardLayouts, map[string][]string{
		"node_temp": strings.Fields(`retimer ibc ibc_2 vdd18_vr hbm_b_vr hbm_d_vr`),
		"vr_temp": strings.Fields(`vr_vdd0 vr_vdd1 vr_vdd2 vr_vdd3 vr_soc_a vr_soc_c vr_socio_a vr_socio_c
			vr_085_hbm vr_11_hbm_b vr_11_hbm_d vr_usr vr_vddio_11_e32`),
	}},
	{"board/baseboard_temp", baseBoardLayouts, map[string][]string{
		"system_temp": strings.Fields(`ubb_fpga ubb_front ubb_back ubb_oam7 ubb_ibc ubb_ufpga ubb_oam1
			ubb_oam_0_1_hsc ubb_oam_2_3_hsc ubb_oam_4_5_hsc ubb_oam_6_7_hsc ubb_fpga_0v72_vr ubb_fpga_3v3_vr
			ubb_retimer_0_1_2_3_1v2_vr ubb_retimer_4_5_6_7_1v2_vr ubb_retimer_0_1_0v9_vr ubb_retimer_4_5_0v9_vr
			ubb_retimer_2_3_0v9_vr ubb_retimer_6_7_0v9_vr ubb_oam_0_1_2_3_3v3_vr ubb_oam_4_5_6_7_3v3_vr
			ubb_ibc_hsc ubb_ibc_out`),
	}},
}

// boardColumns is the order in which columns are reported.
var boardColumns = []string{"vr_temp", "node_temp", "system_temp"}

func (g *gpu) readBoards() {
	g.boards = nil
	for _, t := range boardTables {
		if !g.dir.Join(t.file).Exists() {
			continue
		}
		m := g.table(g.dir, t.file, t.layouts, notPacked)
		for _, column := range boardColumns {
			g.boards = append(g.boards, boardTemperatures(m, column, t.columns[column])...)
		}
	}
}

// boardTemperatures returns the sensors in one column.
func boardTemperatures(m *metrics, column string, names []string) []device.Temperature {
	const idShift, degrees = 24, 1<<24 - 1
	var list []device.Temperature
	for i := range m.count(column) {
		v, ok := m.raw(column, 0, i)
		if !ok || v == 0 {
			continue
		}
		sensor := fmt.Sprintf("%s_%d", strings.TrimSuffix(column, "_temp"), v>>idShift)
		if id := int(v >> idShift); id < len(names) {
			sensor = names[id]
		}
		list = append(list, device.Temperature{Sensor: sensor, Value: device.Of(float64(v & degrees))})
	}
	return list
}
