package kubeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// selector selects this node, URL-encoded.
const selector = "fieldSelector=spec.nodeName%3Dnode1"

// podRequests returns the lists and watches of pods so far, without their random parts.
func podRequests(s *kubeapitest.Server) (out []string) {
	for _, r := range s.Requests() {
		if q, ok := strings.CutPrefix(r, "GET /api/v1/pods?"); ok {
			q = strings.Replace(q, selector, "", 1)
			if i := strings.Index(q, "&timeoutSeconds="); i >= 0 {
				q = strings.Replace(q[:i], "allowWatchBookmarks=true&", "bookmarks", 1) + q[i+len("&timeoutSeconds=123"):]
			}
			out = append(out, strings.Trim(q, "&"))
		}
	}
	return out
}

func held(c *Client) int {
	c.pods.mu.RLock()
	defer c.pods.mu.RUnlock()
	return len(c.pods.byName)
}

// Catches a first list that is expensive for the server, a node with more than one page of
// pods, a list that expires on the way, and one that loses pods of an earlier page.
func TestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		for i := range 1200 {
			s.PutPod(kubeapitest.Pod("node1", "ml", fmt.Sprintf("p%04d", i), fmt.Sprint("u", i)))
		}
		h := &handler{next: s}
		c := startAt(t, h, Config{})
		if n := held(c); n != 1200 {
			t.Errorf("%d pods, want 1200", n)
		}
		want := []string{
			"limit=500&resourceVersion=0", "continue=1201-500&&limit=500", "continue=1201-1000&&limit=500",
			"bookmarks&resourceVersion=1201&watch=true",
		}
		if diff := cmp.Diff(want, podRequests(s)); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		// The second page of the next list is rejected.
		before := len(podRequests(s))
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("continue") == "" {
				return false
			}
			s.DeletePod("ml", "p0001") // on the first page
			w.WriteHeader(http.StatusGone)
			return true
		})
		s.DeletePod("ml", "p0000")
		synctest.Wait()
		s.DropWatches(true)
		time.Sleep(time.Minute)
		if n := held(c); n != 1198 {
			t.Errorf("%d pods, want 1198", n)
		}
		want = []string{"bookmarks&resourceVersion=1202&watch=true", "limit=500", "", "bookmarks&resourceVersion=1204&watch=true"}
		if diff := cmp.Diff(want, podRequests(s)[before:]); diff != "" {
			t.Errorf("requests after 410 (-want +got):\n%s", diff)
		}
		if got := problems(c); len(got) != 1 { // only that there is no node
			t.Errorf("problems = %v", got)
		}
	})
}

// Pods beyond the limit are counted, and no longer counted when there are fewer.
func TestTooManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		for i := range maxPods + 3 {
			s.PutPod(kubeapitest.Pod("node1", "ml", fmt.Sprintf("p%05d", i), fmt.Sprint("u", i)))
		}
		c := start(t, s, Config{})
		s.PutPod(kubeapitest.Pod("node1", "ml", "late", "late"))
		synctest.Wait()
		if n := held(c); n != maxPods || c.State().Refused != 4 {
			t.Errorf("%d pods and %d refused, want %d and 4", n, c.State().Refused, maxPods)
		}
		for i := range 10 {
			s.DeletePod("ml", fmt.Sprintf("p%05d", i))
		}
		s.DropWatches(true)
		time.Sleep(time.Minute)
		if c.State().Refused != 0 || held(c) != maxPods-6 {
			t.Errorf("%d pods and %d refused", held(c), c.State().Refused)
		}
	})
}

// Each possible answer of a watch, and what follows: whether the pods are listed again or
// the watch continues, from where, and whether it is reported.
func TestWatchAnswers(t *testing.T) {
	const again, list = "bookmarks&resourceVersion=7&watch=true", "resourceVersion=7"
	mark := `{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"7"}}}` + "\n"
	f := func(name string, answer http.HandlerFunc, next, problem string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := kubeapitest.New()
				s.PutPod(kubeapitest.Pod("node1", "ml", "a", "u"))
				h := &handler{next: s}
				var watched atomic.Bool
				h.set(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("watch") == "" || watched.Swap(true) {
						return false
					}
					s.Note(r)
					answer(w, r)
					return true
				})
				c := startAt(t, h, Config{})
				got := ""
				if p, ok := c.State().Problem(Pods); ok {
					got = p.Err.Error()
				}
				if !strings.Contains(got, problem) || problem == "" && got != "" {
					t.Errorf("problem = %q, want %q", got, problem)
				}
				if n := c.State().Refused; n > 0 != (problem == "too long") {
					t.Errorf("%d pods were refused", n)
				}
				time.Sleep(20 * time.Minute)
				if all := podRequests(s); len(all) < 3 || all[2] != next {
					t.Errorf("then %q, want %q", all, next)
				}
				if _, ok := c.State().Problem(Pods); ok {
					t.Error("the client has not recovered")
				}
				if _, ok := c.PodByUID("u"); !ok {
					t.Error("the pod is gone")
				}
			})
		})
	}
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
	}
	f("ends at once", body(mark), again, "")
	f("ends in the middle", body(mark+`{"type":"ADDED","obj`), again, "")
	f("breaks", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, mark)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, again, "")
	f("hangs", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, mark)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, again, "")
	f("garbage", body(mark+`<html>`), list, "not a valid Kubernetes")
	f("unknown type", body(mark+`{"type":"NEWS","object":{}}`), list, `type is "NEWS"`)
	f("nobody", body(mark+`{"type":"ADDED","object":{"kind":"Pod"}}`), list, "no UID")
	f("another shape", body(mark+`{"type":"ADDED","object":{"metadata":{"name":7}}}`), list, "cannot unmarshal")
	f("endless", body(mark+`{"type":"ADDED","object":{"x":"`+strings.Repeat("x", maxObject+1<<20)), list, "too long")
	f("error", body(mark+`{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}}`), list, "etcd")
	f("expired", body(mark+`{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}`), "limit=500", "")
	f("expired at once", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }, "limit=500", "")
	f("redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"resourceVersion=2", "302 Found")
	f("overloaded", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		strings.Replace(again, "7", "2", 1), "502 Bad Gateway")
}

// A server that ends every watch at once, with or without an event of another node's pod,
// must not be queried all the time, and none of its events may be kept.
func TestWatchNeverLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		h := &handler{next: s}
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" {
				return false
			}
			s.Note(r)
			io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"uid":"u2","name":"n"},"spec":{"nodeName":"node2"}}}`)
			return true
		})
		c := startAt(t, h, Config{})
		time.Sleep(time.Hour)
		if n := len(podRequests(s)); n < 50 || n > 130 {
			t.Errorf("%d requests in an hour", n)
		}
		if _, ok := c.PodByUID("u2"); ok {
			t.Error("the pod of another node is kept")
		}
	})
}

// An overloaded server says when to retry, and every kind of request obeys.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withEverything()
		s.Fail("/", kubeapitest.Fault{Status: http.StatusTooManyRequests, After: 300})
		c := start(t, s, Config{})
		for range 59 {
			c.PodByName("ml", "web")
			c.Claimed("gpu.nvidia.com", "node1", "gpu-0")
			c.Access("ml", "claim", "gpu.nvidia.com", "node1", "gpu-0")
			time.Sleep(time.Minute)
		}
		for _, path := range []string{"/api/v1/pods", "/api/v1/nodes", "/apis/resource.k8s.io"} {
			if n := count(s, path); n < 10 || n > 26 { // claims and slices both request the versions
				t.Errorf("%d requests for %s in an hour, want one every 5 minutes", n, path)
			}
		}
	})
}

// The agents of a cluster must not return all at once, and must not wait forever.
func TestBackoff(t *testing.T) {
	var b backoff
	most := time.Second
	for range 20 {
		if d := b.next(io.EOF); d < most/2 || d > most {
			t.Errorf("%v, want between %v and %v", d, most/2, most)
		}
		most = min(2*most, time.Minute)
	}
	b.next(nil)
	if d := b.next(io.EOF); d > time.Second {
		t.Errorf("%v after a success", d)
	}
	if d := b.next(&statusError{code: 429, retryAfter: 2 * time.Minute}); d != 2*time.Minute {
		t.Errorf("%v, and the server said 2 minutes", d)
	}
}

// The limits of how long a server can make a client wait, and of what it can make it hold.
func TestParseStatus(t *testing.T) {
	f := func(body, header, text string, wait time.Duration) {
		t.Helper()
		e := parseStatus([]byte(body), 503, header)
		if e.Error() != text || e.retryAfter != wait {
			t.Errorf("%s: %q after %v, want %q after %v", body, e, e.retryAfter, text, wait)
		}
	}
	f(``, "", "server answers 503 Service Unavailable", 0)
	f(`<html>`, "7", "server answers 503 Service Unavailable", 7*time.Second)
	f(`{"kind":"Status","message":"busy","details":{"retryAfterSeconds":3}}`, "", "busy", 3*time.Second)
	f(`{"kind":"Secret","message":"x"}`, "-3", "server answers 503 Service Unavailable", 0)
	f(``, "Fri, 31 Dec 1999 23:59:59 GMT", "server answers 503 Service Unavailable", 0)
	f(``, "9999999999", "server answers 503 Service Unavailable", maxRetryAfter)
	if e := parseStatus([]byte(`{"kind":"Status","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}`), 504, ""); !expired(e) {
		t.Error("a version that the server does not know yet is requested forever")
	}
}

// decodePage decodes a page of pods.
func decodePage(r io.Reader, each func(*podObject)) (listMeta, error) {
	of := podsOf("node1")
	return decodeList(r, &of, eachPod(each))
}

// An incomplete page, or anything else, must not be mistaken for a node without pods.
func TestDecodePods(t *testing.T) {
	f := func(text string, want int, wrong string) {
		t.Helper()
		n := 0
		page, err := decodePage(strings.NewReader(text), func(*podObject) { n++ })
		if wrong == "" && (err != nil || page.ResourceVersion != "5") || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) || n != want {
			t.Errorf("%.60s: %d pods, %v; want %d, %q", text, n, err, want, wrong)
		}
	}
	const pod = `{"metadata":{"uid":"u","name":"n"},"spec":{"volumes":[1,{}]}}`
	const head, tail = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":`, `}`
	f(head+`[`+pod+`,`+pod+`]`+tail, 2, "")
	f(head+`[]`+tail, 0, "")
	f(head+`null`+tail, 0, "")
	f(`{"items":[`+pod+`],"extra":{"a":[1]},"metadata":{"resourceVersion":"5"},"kind":"PodList"}`, 1, "")
	f(head+`[`+pod+`,`, 1, "EOF")
	f(head+`[`+pod, 1, "EOF")
	f(head+`{}`+tail, 0, "not a valid Kubernetes")
	f(head+`[{}]`+tail, 0, "no UID")
	f(head+`[7]`+tail, 0, "cannot unmarshal")
	f(head+`[{"x":"`+strings.Repeat("x", maxObject+1<<20)+`"}]`+tail, 0, "too long")
	f(`{"kind":"PodList","items":[]}`, 0, `version ""`)
	f(`{"kind":"Status","metadata":{"resourceVersion":"5"}}`, 0, `a "Status"`)
	f(`[]`, 0, "not a valid Kubernetes")
	f(``, 0, "EOF")
	f(`{}`, 0, "not a valid Kubernetes")
}

func FuzzDecodePods(f *testing.F) {
	b, err := json.Marshal(kubeapitest.Pod("node1", "ml", "a", "u", kubeapitest.Containers("main", "id"), object{"metadata": kubeapitest.Owned("v1", "Job", "j", "x")}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"x"},"items":[` + string(b) + `]}`))
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":null}`))
	c, err := newClient(Config{Node: "node1", Labels: []string{"a"}, TeamLabel: "b"}, newREST(server{}, nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		page, err := decodePage(bytes.NewReader(b), func(p *podObject) {
			if s := c.pods.strip(p); s.UID == "" || s.Name == "" {
				t.Error("a pod without a name")
			}
		})
		if (err == nil) == (page.ResourceVersion == "") {
			t.Errorf("version %q beside %v", page.ResourceVersion, err)
		}
	})
}

func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"kind":"Pod","metadata":{"uid":"u","name":"n","resourceVersion":"7"}}}`))
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"kind":"Status","code":410,"details":{"retryAfterSeconds":3}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, object, err := parseFrame(b)
		var p *podObject
		switch {
		case err == nil && kind == bookmark:
			_, err = versionOf(object)
		case err == nil:
			p, err = parsePod(object)
		}
		if err != nil && !errors.Is(err, errNonsense) && code(err) == 0 {
			t.Errorf("the watch would go on at the same place after %v", err)
		}
		if d := retryAfter(err); d < 0 || d > maxRetryAfter {
			t.Errorf("waits for %v", d)
		}
		if err == nil && kind != bookmark && p.Metadata.UID == "" {
			t.Error("a pod without a uid")
		}
	})
}
