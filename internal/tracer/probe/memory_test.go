package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// held is what a program has from the driver at one of its steps.
type held struct {
	step  string
	bytes uint64
}

// Defects: memory counted as returned although it is still mapped, or is in a pool of the driver; and as
// held although its context is gone.
func TestMemoryIsHeld(t *testing.T) {
	t.Parallel()
	for program, want := range map[string][]held{
		"mapped":   {{"released", 1200}, {"unmapped", 200}, {"again", 30}, {"none", 0}},
		"pools":    {{"freed", 1300}, {"used again", 1300}, {"synchronized", 300}, {"kept", 500}, {"trimmed", 350}},
		"contexts": {{"made", 1030}, {"destroyed", 1000}, {"left", 7}},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			inModes(t, Options{}, []string{"cuMem", "cuStreamSync", "cuCtx"}, func(t *testing.T, m *machine) {
				r := m.start(program)
				var got []held
				for _, w := range want {
					r.reaches(w.step)
					got = append(got, held{w.step, m.read(r.pid).Devices[0].Memory.Reserved})
					r.goOn()
				}
				r.ends()
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(held{})); diff != "" {
					t.Errorf("bytes from the driver (-want +got):\n%s", diff)
				}
				m.lossless()
			})
		})
	}
}
