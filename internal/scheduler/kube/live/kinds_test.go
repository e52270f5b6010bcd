package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

const resourceAPI, volcanoAPI = "resource.k8s.io/v1", "scheduling.volcano.sh/v1beta1"

// installClaims gives a server the kinds of claims and one that is pending, and installGroups PodGroups and one.
func installClaims(s *kubeapitest.Server, version string) {
	api := "resource.k8s.io/" + version
	s.Install(api, kubeapitest.Resource{Name: "resourceclaims", Kind: "ResourceClaim", Namespaced: true},
		kubeapitest.Resource{Name: "resourceslices", Kind: "ResourceSlice"}, kubeapitest.Resource{Name: "deviceclasses", Kind: "DeviceClass"})
	request := object{"name": "r", "exactly": object{"deviceClassName": "gpu.nvidia.com", "count": 2}}
	if version == "v1beta1" {
		request = object{"name": "r", "deviceClassName": "gpu.nvidia.com", "count": 2}
	}
	s.PutObject(object{
		"apiVersion": api, "kind": "ResourceClaim", "metadata": object{"namespace": "ml", "name": "c", "uid": "u-c"},
		"spec": object{"devices": object{"requests": []object{request}}},
	})
}

func installGroups(s *kubeapitest.Server) {
	s.Install(volcanoAPI, kubeapitest.Resource{Name: "podgroups", Kind: "PodGroup", Namespaced: true})
	s.PutObject(object{"apiVersion": volcanoAPI, "kind": "PodGroup", "metadata": object{"namespace": "ml", "name": "g", "uid": "u-g"}, "spec": object{"minMember": 4}})
}

// known describes a View: pods, nodes, claims, groups, and what is wrong.
func known(v View) string {
	if v.Snapshot == nil {
		return fmt.Sprintf("nothing; %v", v.Err)
	}
	s := v.Snapshot
	text := fmt.Sprintf("%d pods, %d nodes, ", len(s.Pods), len(s.Nodes))
	if s.Claims == nil {
		text += "no claims"
	} else {
		text += fmt.Sprint(s.Claims[dra.Group{State: dra.Pending, Class: "gpu.nvidia.com", Driver: "gpu.nvidia.com"}], " claims")
	}
	text += fmt.Sprintf(", %d groups", len(s.Groups))
	if v.Err != nil {
		text += "; " + strings.ReplaceAll(v.Err.Error(), "\n", "; ")
	}
	if v.Denied != nil {
		text += "; denied: " + strings.ReplaceAll(v.Denied.Error(), "\n", "; ")
	}
	return text
}

// A server that changes under a Watcher. Catches a missing permission, a kind that comes later or goes, an old version of the
// server, 410 and a server that is away for ten minutes, each of which costs more than itself or for longer than it lasts, or
// is said more than once.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutNode(kubeapitest.Node("gn1", offers("8")))
		s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("5"), object{"metadata": object{"annotations": object{"scheduling.k8s.io/group-name": "g"}}}))
		s.PutPod(kubeapitest.Pod("", "ml", "c", "uc", object{"status": object{"phase": "Pending"}, "spec": object{"resourceClaims": []object{{"name": "c", "resourceClaimName": "c"}}}}))
		installClaims(s, "v1")
		s.Fail("/apis/resource.k8s.io/v1/resourceclaims", kubeapitest.Fault{Status: 403})
		dial, stop := kubeapitest.Pipe(s)
		defer stop()
		w := NewWatcher(kubeapi.Dial(dial), Config{Vendors: claiming, Lease: kubeapi.Lease{Name: "scheduler", Identity: "first"}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		said, last := 0, ""
		after := func(what string, d time.Duration, want string) {
			t.Helper()
			for range d / time.Second {
				time.Sleep(time.Second)
				v := w.View(time.Now())
				if text := fmt.Sprint(v.Err, v.Denied); text != last && v.Leads {
					said, last = said+1, text
				}
			}
			synctest.Wait()
			if got := known(w.View(time.Now())); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		const denied = "; denied: cannot watch the resourceclaims: the test says 403"
		after("no permission for claims", time.Minute, "1 pods, 1 nodes, no claims, 0 groups"+denied)
		installGroups(s)
		after("groups were installed", 11*time.Minute, "1 pods, 1 nodes, no claims, 1 groups"+denied)
		s.Heal()
		after("claims may be watched", 3*time.Minute, "2 pods, 1 nodes, 1 claims, 1 groups")
		s.DropWatches(true)
		after("410", time.Minute, "2 pods, 1 nodes, 1 claims, 1 groups")
		s.Uninstall(volcanoAPI)
		after("groups were removed", 2*time.Minute, "2 pods, 1 nodes, 1 claims, 0 groups")
		s.Uninstall(resourceAPI)
		installClaims(s, "v1beta1")
		after("an older version", 12*time.Minute, "2 pods, 1 nodes, 1 claims, 0 groups")
		if said != 2 {
			t.Errorf("%d changes were said, want 2: no permission, and permission", said)
		}
		s.Fail("/apis/resource.k8s.io/v1beta1/resourceclaims", kubeapitest.Fault{Status: 503})
		s.DropWatches(false)
		after("only claims fail", time.Minute, "2 pods, 1 nodes, no claims, 0 groups; cannot watch the resourceclaims: the test says 503")
		s.Fail("/", kubeapitest.Fault{Status: 503})
		s.DropWatches(false)
		after("the server is away", 10*time.Minute, "nothing; cannot read the Lease default/scheduler: the test says 503")
		s.Heal()
		after("it is back", 3*time.Minute, "2 pods, 1 nodes, 1 claims, 0 groups")
	})
}

// Catches a kind that never answers and keeps pods from being watched.
func TestKindsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.PutNode(kubeapitest.Node("gn1", offers("8")))
		s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("5")))
		installClaims(s, "v1")
		s.Fail("/apis/resource.k8s.io/v1/resourceslices", kubeapitest.Fault{Hang: true})
		dial, stop := kubeapitest.Pipe(s)
		defer stop()
		w := NewWatcher(kubeapi.Dial(dial), Config{Vendors: claiming, Lease: kubeapi.Lease{Name: "scheduler", Identity: "first"}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		time.Sleep(kindsWait + time.Second)
		synctest.Wait()
		if v := w.View(time.Now()); v.Snapshot == nil || len(v.Snapshot.Pods) != 1 || len(v.Snapshot.Nodes) != 1 {
			t.Error(known(v))
		}
		cancel()
		<-done
	})
}

// Catches a reader of claims that is asked to name what it may not read, for pods that have none.
func TestWhy(t *testing.T) {
	s := kubeapitest.New()
	s.PutNode(kubeapitest.Node("gn1", offers("8")))
	s.PutPod(kubeapitest.Pod("", "ml", "plain", "up", asks("16"), object{"status": object{"phase": "Pending"}}))
	s.PutPod(kubeapitest.Pod("", "ml", "claims", "uc", object{"status": object{"phase": "Pending"}, "spec": object{"resourceClaims": []object{{"name": "c", "resourceClaimName": "c"}}}}))
	s.PutPod(kubeapitest.Pod("", "ml", "nothing", "un", object{"status": object{"phase": "Pending"}}))
	installClaims(s, "v1")
	dial, stop := kubeapitest.Pipe(s)
	defer stop()
	api := kubeapi.Dial(dial)
	defer api.Close()
	f := func(name, want string) {
		t.Helper()
		lines, err := Why(t.Context(), api, claiming, "ml", name, time.Now)
		got := strings.Join(lines, "\n")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
		}
	}
	f("claims", "ml/claims waits for 2 gpu.nvidia.com: the scheduler has not looked at it yet.\nNone of 0 gpu.nvidia.com is free.\nClaims: c waits for 2 of gpu.nvidia.com.\nThe scheduler has said nothing about it.")
	f("nothing", "pod ml/nothing asks for no accelerator")
	s.Fail("/apis/resource.k8s.io/v1/resourceclaims", kubeapitest.Fault{Status: 403})
	f("plain", "ml/plain waits for 16 nvidia.com/gpu: the scheduler has not looked at it yet.\n8 of 8 nvidia.com/gpu are free: gn1 (8 free) has 8 of 16 nvidia.com/gpu free.\nThe scheduler has said nothing about it.")
	f("claims", "ml/claims waits for its claims: the scheduler has not looked at it yet.\nClaims: c is not known.\nThe scheduler has said nothing about it.\nMore is not known: cannot list the resourceclaims: the test says 403.")
}
