package tui

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/gpumeter/gpumeter/internal/await"
)

// screen is what a program has written.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// A terminal gets only the colors it supports, and its screen is restored at the end.
func TestProgram(t *testing.T) {
	many, few := regexp.MustCompile(`\x1b\[[0-9;]*38;5;`), regexp.MustCompile(`\x1b\[(\d+;)*(3|9)[0-7]m`)
	for name, c := range map[string]struct {
		profile   colorprofile.Profile
		many, few bool
	}{
		"256":  {colorprofile.ANSI256, true, false},
		"16":   {colorprofile.ANSI, false, true},
		"none": {colorprofile.Ascii, false, false}, // NO_COLOR
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys, typist := io.Pipe()
			defer typist.Close()
			var out screen
			p := tea.NewProgram(New(Options{}), tea.WithContext(t.Context()), tea.WithInput(keys), tea.WithOutput(&out),
				tea.WithColorProfile(c.profile), tea.WithWindowSize(100, 30), tea.WithoutSignalHandler(), tea.WithEnvironment([]string{"TERM=xterm-256color"}))
			done := make(chan error, 1)
			go func() {
				_, err := p.Run()
				done <- err
			}()
			p.Send(sample(1))
			await.NoError(t, func() error {
				if !strings.Contains(out.String(), "segmentation-dev") {
					return fmt.Errorf("the devices are not shown: %q", out.String())
				}
				return nil
			})
			if _, err := typist.Write([]byte("q")); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			text := out.String()
			if many.MatchString(text) != c.many || few.MatchString(text) != c.few {
				t.Errorf("256 colours %v, 16 colours %v", many.MatchString(text), few.MatchString(text))
			}
			if strings.Count(text, "\x1b[?1049h") != 1 || strings.Count(text, "\x1b[?1049l") != 1 {
				t.Error("the screen from before is not given back")
			}
		})
	}
}
