// Package triage remembers what people said about findings: acknowledged, or silenced until a
// time. A finding with such a mark stays on the page and in the event log, and is not alerted on.
package triage

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// identity lists the attributes of a finding's event that tell one finding from another.
var identity = []string{"gpu.finding.rule", "gpu.finding.key", "k8s.cluster.name", "host.name", "gpu.uuid", "gpu.partition.id"}

// ID returns the identifier of a finding from the attributes of its event. It survives the end
// of the finding: the same problem has the same identifier when it returns.
func ID(attributes map[string]string) string {
	var b strings.Builder
	for _, key := range identity {
		fmt.Fprintf(&b, "%q,", attributes[key])
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:8])
}

// Open returns the events of the findings that are open according to list, whose events are ordered
// from new to old.
func Open(list []events.Event) []events.Event {
	var open []events.Event
	seen := map[string]bool{}
	for i := range list { // the latest state counts
		id := ID(list[i].Attributes)
		if seen[id] {
			continue
		}
		seen[id] = true
		if list[i].Attributes["gpu.finding.state"] == "open" {
			open = append(open, list[i])
		}
	}
	return open
}

// Mark is what somebody said about a finding.
type Mark struct {
	Finding string `json:"finding"` // ID
	// Since is when the acknowledged occurrence of the finding began: an acknowledgment ends with
	// the occurrence. It is empty for a silence.
	Since   string    `json:"since,omitempty"`
	Until   time.Time `json:"until,omitzero"` // end of a silence; zero for an acknowledgment
	By      string    `json:"by"`             // name of the token
	At      time.Time `json:"at"`
	Comment string    `json:"comment,omitempty"`
}

const (
	// maxMarks bounds the file.
	maxMarks = 10_000
	// maxComment bounds a comment in bytes.
	maxComment = 1024
	// maxSilence keeps a forgotten silence from lasting forever.
	maxSilence = 366 * 24 * time.Hour
	// maxAge is how long an acknowledgment is kept.
	maxAge = 2 * 366 * 24 * time.Hour
)

// Marks are the marks of a hub, kept in a file. They are safe for concurrent use. A nil *Marks has
// none.
type Marks struct {
	path string
	now  func() time.Time

	mu  sync.Mutex
	all map[string]Mark // by finding
}

// Load returns the marks in a file, which need not exist yet.
func Load(path string, now func() time.Time) (*Marks, error) {
	m := &Marks{path: path, now: now, all: map[string]Mark{}}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the acknowledged findings: %w", err)
	}
	defer f.Close()
	var list []Mark
	if err := json.NewDecoder(f).Decode(&list); err != nil {
		return nil, fmt.Errorf("cannot read the acknowledged findings in %s: %w", path, err)
	}
	for _, x := range list {
		m.all[x.Finding] = x
	}
	return m, nil
}

// Of returns the mark that applies to the occurrence of a finding that began at since.
func (m *Marks) Of(id, since string) (Mark, bool) {
	if m == nil {
		return Mark{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	x, ok := m.all[id]
	if !ok || x.Until.IsZero() && x.Since != since || x.ended(m.now()) {
		return Mark{}, false
	}
	return x, true
}

// ended reports whether a silence is over.
func (x *Mark) ended(now time.Time) bool { return !x.Until.IsZero() && !now.Before(x.Until) }

// set adds, replaces or, with remove, removes a mark, and writes the file. If that fails nothing
// changes.
func (m *Marks) set(x Mark, remove bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.all)
	now := m.now()
	maps.DeleteFunc(all, func(_ string, x Mark) bool { return x.ended(now) || now.Sub(x.At) > maxAge })
	if remove {
		delete(all, x.Finding)
	} else {
		all[x.Finding] = x
	}
	if len(all) > maxMarks {
		return fmt.Errorf("more than %d findings are acknowledged or silenced", maxMarks)
	}
	list := slices.SortedFunc(maps.Values(all), func(a, b Mark) int { return cmp.Compare(a.Finding, b.Finding) })
	text, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		return err
	}
	if err := replace(m.path, text); err != nil {
		return fmt.Errorf("cannot write the acknowledged findings: %w", err)
	}
	m.all = all
	return nil
}

// replace writes a file so that a crash leaves the old or the new one. The temporary file is
// created exclusively, and rename replaces a link instead of following it.
func replace(path string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
