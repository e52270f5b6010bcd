package node

import (
	"slices"
	"time"
)

// seek discovers devices again if a scheduler allocated one that no reader knows and that was
// not allocated before: partitions are created while the agent runs. The result is applied at
// the next tick. A device that stays unknown, such as an FPGA, is sought once.
func (v *View) seek(unknown []string, now time.Time) {
	fresh := slices.ContainsFunc(unknown, func(id string) bool { return !slices.Contains(v.unknown, id) })
	v.unknown = unknown
	if !fresh {
		return
	}
	for _, s := range v.sources {
		if s.reader == nil || s.running {
			continue
		}
		if s.due = true; s.isDue(now, v.cfg.Rediscover) && !v.hangs(s) {
			s.start(now)
		}
	}
}
