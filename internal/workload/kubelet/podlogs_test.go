package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	uid = "3f1c9a52-7d4e-4b60-9c1a-52e8d07b6f11"
	cid = "0d6e4079e36703ebd37c00722f5891d28b0e2811dc114b129215123adcce3605"
)

func TestParseLogs(t *testing.T) {
	type answer struct {
		Name LogName
		Key  string
	}
	f := func(parse func(string) (LogName, string, bool), name string, want answer) {
		t.Helper()
		n, key, ok := parse(name)
		if diff := cmp.Diff(want, answer{n, key}); diff != "" || ok != (want.Key != "") {
			t.Errorf("%q gives %v (-want +got):\n%s", name, ok, diff)
		}
	}
	f(parsePodLog, "ml_train-0_"+uid, answer{LogName{"ml", "train-0", ""}, uid})
	f(parsePodLog, "kube-system_etcd-node1_a81259cef8e959c624df1d456e5d3297", answer{LogName{"kube-system", "etcd-node1", ""}, "a81259cef8e959c624df1d456e5d3297"}) // static
	f(parsePodLog, "ml_train.example.com_"+uid, answer{LogName{"ml", "train.example.com", ""}, uid})
	f(parsePodLog, "ml_train-0", answer{})
	f(parsePodLog, "ml__"+uid, answer{})
	f(parsePodLog, "a_b_c_d", answer{})
	f(parsePodLog, "ml_\xff_"+uid, answer{})
	f(parsePodLog, "ml_"+strings.Repeat("x", 600)+"_"+uid, answer{})

	f(parseContainerLog, "train-0_ml_my-main-"+cid+".log", answer{LogName{"ml", "train-0", "my-main"}, cid})
	f(parseContainerLog, "train-0_ml_my-main-"+cid, answer{})
	f(parseContainerLog, "train-0_ml_"+cid+".log", answer{})
	f(parseContainerLog, "train-0_ml_-"+cid+".log", answer{})
	f(parseContainerLog, "train-0_ml_main-.log", answer{})
	f(parseContainerLog, ".log", answer{})
}

func mkdir(t *testing.T, root, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestLogs(t *testing.T) {
	root := t.TempDir()
	l := NewLogs(root)
	now := time.Unix(1000, 0)
	l.now = func() time.Time { return now }
	f := func(wantPod, wantContainer LogName) {
		t.Helper()
		pod, okPod := l.Pod(uid)
		container, okContainer := l.Container(cid)
		if diff := cmp.Diff([]LogName{wantPod, wantContainer}, []LogName{pod, container}); diff != "" || okPod != (pod != LogName{}) || okContainer != (container != LogName{}) {
			t.Errorf("%v, %v (-want +got):\n%s", okPod, okContainer, diff)
		}
	}
	none := LogName{}
	pod, container := LogName{"ml", "train-0", ""}, LogName{"ml", "train-0", "main"}

	f(none, none)
	if _, err := l.Problem(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the folders the problem is %v", err)
	}
	mkdir(t, root, "var/log/pods/ml_train-0_"+uid)
	mkdir(t, root, "var/log/pods/not a pod")
	f(none, none) // it was read just now
	now = now.Add(readAgain)
	f(pod, none) // one directory is enough
	mkdir(t, root, "var/log/containers/train-0_ml_main-"+cid+".log")
	now = now.Add(readAgain)
	f(pod, container)
	if refused, err := l.Problem(); refused != 0 || err != nil {
		t.Errorf("problem: %d, %v", refused, err)
	}
	if err := os.RemoveAll(filepath.Join(root, "var")); err != nil {
		t.Fatal(err)
	}
	now = now.Add(readAgain)
	if _, ok := l.Pod("another"); ok {
		t.Error("found what is not there")
	}
	f(pod, container) // an unreadable directory does not invalidate known names
}

func TestLogsBounded(t *testing.T) {
	root := t.TempDir()
	for i := range 7 {
		mkdir(t, root, fmt.Sprintf("var/log/pods/ml_p_%d", i))
		mkdir(t, root, fmt.Sprintf("var/log/containers/p_ml_c-%d.log", i))
	}
	l := NewLogs(root)
	l.max = 4
	l.Pod("none")
	if refused, err := l.Problem(); refused != 6 || err != nil || len(l.pods) != 4 || len(l.containers) != 4 {
		t.Errorf("%d and %d kept, %d refused, %v", len(l.pods), len(l.containers), refused, err)
	}
}

func FuzzParseLogs(f *testing.F) {
	f.Add("ml_train-0_" + uid)
	f.Add("train-0_ml_my-main-" + cid + ".log")
	f.Fuzz(func(t *testing.T, s string) {
		if n, uid, ok := parsePodLog(s); ok && n.Namespace+"_"+n.Pod+"_"+uid != s {
			t.Errorf("%q gives %v, %q", s, n, uid)
		}
		if n, id, ok := parseContainerLog(s); ok && n.Pod+"_"+n.Namespace+"_"+n.Container+"-"+id+".log" != s {
			t.Errorf("%q gives %v, %q", s, n, id)
		}
	})
}
