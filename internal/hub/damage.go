package hub

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumeter/gpumeter/internal/hub/disk"
)

// Damaged returns the parts of the store that could not be read and were set aside, oldest
// first, as long as they are in the folder disk.Damaged.
func (s *Store) Damaged() []disk.Damage {
	s.damagedMu.Lock()
	defer s.damagedMu.Unlock()
	return slices.Clone(s.damaged)
}

// State returns lines for everyone about what is wrong with the store; none if it is well.
func (s *Store) State() []string {
	var out []string
	if full, ok := errors.AsType[*disk.RoomError](s.room()); ok {
		out = append(out, fmt.Sprintf("no samples are accepted: the disk has %s free, and %s are needed", disk.Bytes(full.Free), disk.Bytes(full.Need)))
	}
	if n := len(s.Damaged()); n > 0 {
		out = append(out, fmt.Sprintf("damaged parts of the store that were set aside: %d; gpumeter hub check lists them", n))
	}
	return out
}

func (s *Store) damageGauges() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_damaged_parts", Help: "Parts of the store that could not be read and were set aside."},
			func() float64 { return float64(len(s.Damaged())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpumeter_hub_disk_free_bytes", Help: "Free space on the disk of the store."},
			func() float64 {
				free, err := disk.Free(s.dir)
				if err != nil {
					return 0
				}
				return float64(free)
			}),
	}
}
