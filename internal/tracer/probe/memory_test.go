package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reserved reads what a program has from the driver at each of its steps.
func reserved(m *machine, program string, steps ...string) map[string]uint64 {
	m.t.Helper()
	r := m.start(program)
	got := map[string]uint64{}
	for _, step := range steps {
		r.reaches(step)
		got[step] = m.read(r.pid).Devices[0].Memory.Reserved
		r.goOn()
	}
	r.ends()
	m.lossless()
	return got
}

// Defects: memory counted as returned although it is still mapped, or is in a pool of the driver; and as
// held although its context is gone.
func TestMemoryIsHeld(t *testing.T) {
	t.Parallel()
	uses := []string{"cuMem", "cuStreamSync", "cuCtx"}
	for program, want := range map[string]map[string]uint64{
		"mapped":   {"released": 1200, "unmapped": 200, "again": 30, "none": 0},
		"pools":    {"freed": 1300, "used again": 1300, "synchronized": 300, "kept": 500, "trimmed": 350},
		"contexts": {"made": 1030, "destroyed": 1000, "left": 7},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			inModes(t, Options{}, uses, func(t *testing.T, m *machine) {
				steps := map[string][]string{
					"mapped":   {"released", "unmapped", "again", "none"},
					"pools":    {"freed", "used again", "synchronized", "kept", "trimmed"},
					"contexts": {"made", "destroyed", "left"},
				}[program]
				if diff := cmp.Diff(want, reserved(m, program, steps...)); diff != "" {
					t.Errorf("bytes from the driver (-want +got):\n%s", diff)
				}
			})
		})
	}
}
