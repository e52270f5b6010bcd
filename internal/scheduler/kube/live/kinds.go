package live

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
)

// kinds are the errors of the last requests for further kinds of objects, by group and kind.
type kinds map[string]error

// errors returns what may not be watched, and what cannot be at the moment, in an order that does not change.
func (k kinds) errors() (missing, ill error) {
	for _, key := range slices.Sorted(maps.Keys(k)) {
		if err := k[key]; kubeapi.Denied(err) {
			missing = errors.Join(missing, err)
		} else {
			ill = errors.Join(ill, err)
		}
	}
	return missing, ill
}

// kindsWait bounds how long the pods wait for the first answers about further kinds.
const kindsWait = 20 * time.Second

// followKinds follows further kinds of objects. known returns when each of them has been answered once, or soon.
func (w *Watcher) followKinds(ctx context.Context, wg *sync.WaitGroup, cluster *kube.Cluster) (known func()) {
	var answers []<-chan struct{}
	for _, k := range cluster.Kinds() {
		answered := make(chan struct{})
		answers = append(answers, answered)
		var once sync.Once
		wg.Go(func() {
			w.api.FollowOptional(ctx, optional(&k), k.Sink, func(err error) {
				k.Lost(err != nil)
				w.set(func() {
					if w.cluster == cluster {
						w.kinds[k.Group+" "+k.Kind] = err
					}
				})
				once.Do(func() { close(answered) })
			})
		})
	}
	return func() {
		ctx, cancel := context.WithTimeout(ctx, kindsWait)
		defer cancel()
		for _, a := range answers {
			select {
			case <-a:
			case <-ctx.Done():
			}
		}
	}
}

func optional(k *kube.Kind) kubeapi.Optional {
	return kubeapi.Optional{Group: k.Group, Versions: k.Versions, Kind: k.Kind}
}
