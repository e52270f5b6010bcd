package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// names is a Sink that knows the names of the objects, and what was reported.
type names struct {
	mu   sync.Mutex
	all  []string
	said []string // without repetitions
}

func nameOf(b []byte) string {
	var o struct{ Metadata struct{ Name string } }
	_ = json.Unmarshal(b, &o) // "" fails the test
	return o.Metadata.Name
}

func (n *names) Begin() (add func([]byte), commit func()) {
	list := []string{}
	return func(b []byte) { list = append(list, nameOf(b)) }, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.all = list
	}
}

func (n *names) Put(b []byte) {
	n.Delete(b)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, nameOf(b))
}

func (n *names) Delete(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = slices.DeleteFunc(n.all, func(name string) bool { return name == nameOf(b) })
}

func (n *names) report(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text := fmt.Sprint(err); len(n.said) == 0 || n.said[len(n.said)-1] != text {
		n.said = append(n.said, text)
	}
}

func (n *names) state() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("%q %s", n.all, n.said[len(n.said)-1])
}

var widgets = Optional{Group: "example.com", Versions: []string{"v2", "v1"}, Kind: "Widget"}

func widget(name string) kubeapitest.Object {
	return kubeapitest.Object{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": kubeapitest.Object{"name": name, "uid": "u-" + name}}
}

// piped returns an API of s in a synctest bubble.
func piped(t *testing.T, s *kubeapitest.Server) *API {
	t.Helper()
	dial, stop := kubeapitest.Pipe(s)
	t.Cleanup(stop)
	a := &API{newREST(server{url: &url.URL{Scheme: "http", Host: "api"}}, dial)}
	t.Cleanup(a.Close)
	return a
}

// Catches a kind that is installed later and never found, one that is removed and keeps its objects, a server that is asked
// too often for what it does not have, and a missing permission that ends it all.
func TestFollowOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		a, n := piped(t, s), &names{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.FollowOptional(ctx, widgets, n, n.report)
		}()
		defer func() { cancel(); <-done }()
		after := func(what string, d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := n.state(); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		after("no such group", time.Second, `[] <nil>`)
		time.Sleep(time.Hour)
		if asked := len(s.Requests()); asked > 14 {
			t.Errorf("%d requests in an hour for a group that does not exist", asked)
		}
		s.Install("example.com/v1", kubeapitest.Resource{Name: "widgets", Kind: "Widget"})
		s.PutObject(widget("a"))
		after("installed", 2*optionalEvery, `["a"] <nil>`)
		s.PutObject(widget("b"))
		after("another one", time.Second, `["a" "b"] <nil>`)
		s.Uninstall("example.com/v1")
		after("removed", time.Minute, `[] <nil>`)
		s.Install("example.com/v1", kubeapitest.Resource{Name: "gadgets", Kind: "Gadget"})
		after("only another kind of the group", 2*optionalEvery, `[] <nil>`)
		s.Install("example.com/v1", kubeapitest.Resource{Name: "widgets", Kind: "Widget"})
		s.PutObject(widget("c"))
		s.Fail("/apis/example.com/v1/widgets", kubeapitest.Fault{Status: 403})
		after("no permission", 2*optionalEvery, `[] cannot watch the widgets: the test says 403`)
		s.Heal()
		after("permission", 2*time.Minute, `["c"] <nil>`)
		s.Fail("/apis/example.com", kubeapitest.Fault{Status: 503})
		s.DropWatches(true)
		after("the server is ill", time.Minute, `["c"] cannot watch the widgets: the test says 503`)
		s.Heal()
		s.DeleteObject(widget("c"))
		after("it is well", 2*time.Minute, `[] <nil>`)
		if len(n.said) != 5 {
			t.Errorf("%q was reported", n.said)
		}
	})
}

// Catches a list that fails where there is nothing to list, and one that hides a failure.
func TestListOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		a := piped(t, s)
		f := func(wantErr string, want ...string) {
			t.Helper()
			n := &names{}
			err := a.ListOptional(t.Context(), widgets, n)
			if fmt.Sprint(err) != wantErr {
				t.Errorf("%v, want %s", err, wantErr)
			}
			if diff := cmp.Diff(strings.Join(want, " "), strings.Join(n.all, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		f("<nil>")
		s.Install("example.com/v1", kubeapitest.Resource{Name: "widgets", Kind: "Widget"})
		s.PutObject(widget("a"))
		f("<nil>", "a")
		s.Fail("/apis/example.com/v1/widgets", kubeapitest.Fault{Status: 403})
		f("cannot list the widgets: the test says 403")
		s.Fail("/apis/example.com", kubeapitest.Fault{Status: 503})
		f("cannot find the Widget of example.com: the test says 503")
	})
}
