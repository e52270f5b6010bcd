package events

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// maxKinds bounds the kinds of events by node that a segment counts separately.
const maxKinds = 16_384

// kindOf returns the node and the kind of an event. Attributes have their OTLP names.
func kindOf(e *Event) share.Kind {
	return share.Kind{
		Node: share.Node{Cluster: e.Attributes["k8s.cluster.name"], Name: cmp.Or(e.Attributes["host.name"], e.Attributes["k8s.node.name"])},
		Name: e.Name,
	}
}

// count adds an event to the sizes of a segment.
func (s *segment) count(e *Event, line []byte) { s.add(kindOf(e), int64(len(line)+1)) }

func (s *segment) add(k share.Kind, n int64) {
	if s.by == nil {
		s.by = map[share.Kind]int64{}
	}
	if _, ok := s.by[k]; !ok {
		if len(s.by) >= maxKinds {
			k = share.Kind{}
		}
		k.Node.Cluster, k.Node.Name, k.Name = strings.Clone(k.Node.Cluster), strings.Clone(k.Node.Name), strings.Clone(k.Name)
	}
	s.by[k] += n
}

// evict deletes events of the nodes that have most, oldest first, to free need bytes, so that no
// node pushes out the events of others. It returns the bytes freed, which are fewer if the disk is
// full. The last file stays.
func (f *File) evict(need int64) (freed int64) {
	if need <= 0 {
		return 0
	}
	sizes, nodes := map[share.Kind]int64{}, map[share.Node]bool{}
	for _, s := range f.files[:len(f.files)-1] {
		for k, n := range s.by {
			sizes[k] += n
			nodes[k.Node] = true
		}
	}
	plan := share.Evict(sizes, need, f.opt.MaxBytes)
	gone := map[share.Node]int{}
	for i := 0; i < len(f.files)-1 && len(plan) > 0; i++ {
		touched := false
		for k := range plan {
			touched = touched || f.files[i].by[k] > 0
		}
		if !touched {
			continue
		}
		n, merged, err := f.thin(i, plan, gone)
		if err != nil {
			break
		}
		if freed += n; merged {
			i--
		}
	}
	for node, n := range gone {
		f.opt.Evicted(node, n, len(nodes) == 1)
	}
	return freed
}

// thin removes the planned events from a file, and merges the rest with the file before it if
// they fit into one: otherwise the number of files would grow.
func (f *File) thin(i int, plan map[share.Kind]int64, gone map[share.Node]int) (freed int64, merged bool, err error) {
	old := f.files[i]
	text, err := readFirst(f.path(old), old.size)
	if err != nil {
		return 0, false, err
	}
	s := segment{number: old.number}
	var kept []byte
	each(text, func(e *Event, line []byte) {
		k, n := kindOf(e), int64(len(line)+1)
		if left, ok := plan[k]; ok {
			if gone[k.Node]++; left <= n {
				delete(plan, k)
			} else {
				plan[k] = left - n
			}
			return
		}
		s.stretch(e.Time)
		s.count(e, line)
		kept = append(append(kept, line...), '\n')
	})
	freed = old.size - int64(len(kept))
	if merged = i > 0 && f.files[i-1].size+int64(len(kept)) <= f.opt.MaxBytes/segments; merged {
		before := f.files[i-1]
		text, err := readFirst(f.path(before), before.size)
		if err != nil {
			return 0, false, err
		}
		kept = append(text, kept...) // in order of time
		for k, n := range before.by {
			s.add(k, n)
		}
		if before.size > 0 {
			s.stretch(before.first)
			s.stretch(before.last)
		}
	}
	s.size = int64(len(kept))
	if err := replaceFile(f.path(old), kept); err != nil {
		return 0, false, err
	}
	f.files[i] = s
	f.changes++
	if merged {
		_ = os.Remove(f.path(f.files[i-1])) // otherwise finishMerge removes it
		f.files = append(f.files[:i-1:i-1], f.files[i:]...)
	}
	return freed, merged, nil
}

// tmpExt marks a file that was not completed.
const tmpExt = ".tmp"

func replaceFile(path string, text []byte) error {
	out, err := os.OpenFile(path+tmpExt, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	if err == nil {
		err = out.Sync()
	}
	if other := out.Close(); err == nil {
		err = other
	}
	if err == nil {
		err = os.Rename(path+tmpExt, path)
	}
	if err != nil {
		_ = os.Remove(path + tmpExt) // it may not exist
	}
	return err
}

// finishMerge removes a file whose events are also in the next one, and incomplete files, which a
// kill left behind.
func (f *File) finishMerge() error {
	for i := 0; i < len(f.files); i++ {
		if err := os.Remove(f.path(f.files[i]) + tmpExt); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("cannot remove an incomplete event file: %w", err)
		}
		if i+1 == len(f.files) {
			break
		}
		text, err := os.ReadFile(f.path(f.files[i]))
		if err != nil {
			return fmt.Errorf("cannot read events: %w", err)
		}
		next, err := readFirst(f.path(f.files[i+1]), int64(len(text)))
		if err != nil {
			return fmt.Errorf("cannot read events: %w", err)
		}
		if len(text) > 0 && bytes.Equal(text, next) {
			if err := os.Remove(f.path(f.files[i])); err != nil {
				return fmt.Errorf("cannot remove an old event file: %w", err)
			}
			f.files = append(f.files[:i:i], f.files[i+1:]...)
			i--
		}
	}
	return nil
}
