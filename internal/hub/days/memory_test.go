package days

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// Catches rows that are twice in memory, in their key and in their labels: the rows of a year of 10,000
// GPUs would take a gigabyte more.
func TestRowsAreInMemoryOnce(t *testing.T) {
	t.Parallel()
	d := openDays(t, t.TempDir(), &store{})
	r := d.intern([]byte(query.Labels{fleet.LabelUUID: "GPU-1", fleet.LabelTeam: strings.Repeat("a", 100)}.Key()))
	key := r.key.Value()
	begin := uintptr(unsafe.Pointer(unsafe.StringData(key)))
	for name, value := range r.labels {
		for _, s := range []string{name, value} {
			if at := uintptr(unsafe.Pointer(unsafe.StringData(s))); at < begin || at+uintptr(len(s)) > begin+uintptr(len(key)) {
				t.Errorf("%q is not part of the key", s)
			}
		}
	}
}
