package requeue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

var (
	storageType = filestorage.NewFactory().Type()
	storageID   = component.NewID(storageType)
)

// process is one lifetime of a process with a queue. After the given number of storage operations it
// is killed: nothing it does later is stored, accepted or delivered.
type process struct {
	storage.Extension
	component.Host
	t   *testing.T
	dir string

	mu        sync.Mutex
	left      int // operations until the kill
	killed    bool
	image     string // the storage as the kill left it
	ops       int
	accepted  []string
	delivered []string
	back      chan struct{} // closed: the endpoint answers
}

// start starts a process on a storage folder. wrap goes between the queue and the file.
func start(t *testing.T, dir string, consumers, killAfter int, wrap func(extension.Factory) extension.Factory) (*process, exporter.Metrics) {
	t.Helper()
	p := &process{t: t, dir: dir, left: killAfter, Host: componenttest.NewNopHost(), back: make(chan struct{})}
	factory := wrap(extension.NewFactory(storageType, filestorage.NewFactory().CreateDefaultConfig, func(ctx context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
		ext, err := filestorage.NewFactory().Create(ctx, set, cfg)
		if err == nil {
			p.Extension = ext.(storage.Extension)
		}
		return &mortal{p.Extension, p}, err
	}, component.StabilityLevelBeta))
	cfg := factory.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory, cfg.Compaction.Directory = dir, dir
	ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(storageType), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Extension = ext.(storage.Extension)

	q := exporterhelper.NewDefaultQueueConfig()
	q.StorageID, q.NumConsumers, q.Batch = &storageID, consumers, configoptional.None[exporterhelper.BatchConfig]()
	set := exportertest.NewNopSettings(component.MustNewType("test"))
	set.ID = component.MustNewID("test") // the default is random, and so is its file
	e, err := exporterhelper.NewMetrics(t.Context(), set, struct{}{}, p.push,
		exporterhelper.WithQueue(configoptional.Some(q)))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p, e
}

// GetExtensions is the part of a host that the queue uses.
func (p *process) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{storageID: p.Extension}
}

// push is the endpoint: it does not answer until it is back.
func (p *process) push(ctx context.Context, md pmetric.Metrics) error {
	select {
	case <-p.back:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		return errors.New("killed")
	}
	p.delivered = append(p.delivered, name(md))
	return nil
}

// offer offers a request to the queue.
func (p *process) offer(e exporter.Metrics, request string) {
	md := pmetric.NewMetrics()
	md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetName(request)
	err := e.ConsumeMetrics(p.t.Context(), md)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && !p.killed {
		p.accepted = append(p.accepted, request)
	}
}

func name(md pmetric.Metrics) string {
	return md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Name()
}

// kill ends the process, unless it is dead already, and returns what it leaves on disk.
func (p *process) kill(e exporter.Metrics) (dir string) {
	p.mu.Lock()
	if !p.killed {
		p.die()
	}
	p.mu.Unlock()
	p.end(e)
	return p.image
}

// end stops the goroutines.
func (p *process) end(e exporter.Metrics) {
	select {
	case <-p.back:
	default:
		close(p.back)
	}
	if err := e.Shutdown(context.Background()); err != nil && !p.killed {
		p.t.Error(err)
	}
}

// die captures the storage at this moment: everything written is in the file, synced or not.
func (p *process) die() {
	p.killed = true
	p.image = p.t.TempDir()
	if err := os.CopyFS(p.image, os.DirFS(p.dir)); err != nil {
		p.t.Error(err)
	}
}

// mortal is a storage that dies with its process.
type mortal struct {
	storage.Extension
	p *process
}

func (m *mortal) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	c, err := m.Extension.GetClient(ctx, kind, id, name)
	return &mortalClient{c, m.p}, err
}

type mortalClient struct {
	storage.Client
	p *process
}

func (c *mortalClient) Get(ctx context.Context, key string) ([]byte, error) {
	op := storage.GetOperation(key)
	err := c.Batch(ctx, op)
	return op.Value, err
}

func (c *mortalClient) Set(ctx context.Context, key string, value []byte) error {
	return c.Batch(ctx, storage.SetOperation(key, value))
}

func (c *mortalClient) Delete(ctx context.Context, key string) error {
	return c.Batch(ctx, storage.DeleteOperation(key))
}

func (c *mortalClient) Batch(ctx context.Context, ops ...*storage.Operation) error {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.left == 0 && !c.p.killed {
		c.p.die()
	}
	if c.p.killed {
		return errors.New("killed")
	}
	c.p.left--
	c.p.ops++
	return c.Client.Batch(ctx, ops...)
}

const never = -1

// life runs three processes on one storage: the first is killed with requests in flight, the second
// after the given number of storage operations, the third delivers the rest. It returns what was
// accepted, how often each request was delivered, and whether the second process reached that
// number.
func life(t *testing.T, consumers, killAfter int, up bool, wrap func(extension.Factory) extension.Factory) (accepted []string, delivered map[string]int, hit bool) {
	synctest.Test(t, func(t *testing.T) {
		delivered = map[string]int{}
		count := func(p *process) {
			accepted = append(accepted, p.accepted...)
			for _, request := range p.delivered {
				delivered[request]++
			}
		}
		first, e := start(t, t.TempDir(), consumers, never, wrap)
		for i := range 5 {
			first.offer(e, fmt.Sprint("first ", i))
		}
		synctest.Wait() // every consumer has a request in flight
		dir := first.kill(e)
		count(first)

		second, e := start(t, dir, consumers, killAfter, wrap)
		if up {
			close(second.back)
		}
		second.offer(e, "second")
		synctest.Wait()
		hit = second.killed
		dir = second.kill(e)
		count(second)

		third, e := start(t, dir, consumers, never, wrap)
		third.offer(e, "third")
		close(third.back)
		synctest.Wait()
		third.end(e)
		count(third)
		if left := leftovers(t, third.dir); len(left) > 0 {
			t.Errorf("an empty queue leaves %q in its storage", left)
		}
	})
	return accepted, delivered, hit
}

// leftovers returns the keys of requests in the storage.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	f := filestorage.NewFactory()
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory = dir
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(storageType), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ext.(storage.Extension).GetClient(t.Context(), component.KindExporter, component.MustNewID("test"), "metrics")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	if err := c.(storage.Walker).Walk(t.Context(), func(key string, _ []byte) ([]*storage.Operation, error) {
		if key != "qmv0" { // the queue's metadata
			found = append(found, key)
		}
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return found
}

// everyKill kills the second process after each of its storage operations and returns the losses.
func everyKill(t *testing.T, wrap func(extension.Factory) extension.Factory) (lost []string) {
	t.Helper()
	for _, consumers := range []int{1, 3} {
		for _, up := range []bool{false, true} {
			for k := 0; ; k++ {
				when := fmt.Sprintf("%d consumers, endpoint up: %v, killed after operation %d", consumers, up, k)
				accepted, delivered, hit := life(t, consumers, k, up, wrap)
				for _, request := range accepted {
					if delivered[request] == 0 {
						lost = append(lost, fmt.Sprintf("%s: %q", when, request))
					}
				}
				// Only requests in flight when the process is killed may be delivered again.
				again := 0
				for _, n := range delivered {
					again += n - 1
				}
				if again > consumers {
					t.Errorf("%s: %d requests were delivered again: %v", when, again, delivered)
				}
				if !hit {
					if k < 5 {
						t.Fatalf("%s: the process has only %d operations", when, k)
					}
					break
				}
			}
		}
	}
	return lost
}

// Catches an accepted request lost by a kill during the start of the queue. Without this package,
// requests in flight at the previous kill are lost.
func TestKillAtEveryOperation(t *testing.T) {
	if lost := everyKill(t, NewFactory); len(lost) > 0 {
		t.Errorf("%d requests were accepted and lost, the first:\n%s", len(lost), lost[0])
	}
}

// Catches the Collector's own queue becoming safe: then this package can be deleted.
func TestCollectorLoses(t *testing.T) {
	lost := everyKill(t, func(f extension.Factory) extension.Factory { return f })
	if len(lost) == 0 {
		t.Error("the Collector's queue survives every kill: delete internal/requeue")
	}
	t.Logf("without this package %d requests are lost, the first: %s", len(lost), lost[0])
}

// Catches a leftover deletion of an undecodable request, and one that also deletes a decodable
// request.
func TestUndecodable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := start(t, t.TempDir(), 3, never, NewFactory)
		for i := range 3 {
			p.offer(e, fmt.Sprint(i))
		}
		synctest.Wait()
		dir := p.kill(e)
		spoil(t, dir, "1")

		p, e = start(t, dir, 3, never, NewFactory)
		close(p.back)
		synctest.Wait()
		p.end(e)
		slices.Sort(p.delivered)
		if diff := cmp.Diff([]string{"0", "2"}, p.delivered); diff != "" {
			t.Errorf("other deliveries (-want +got):\n%s", diff)
		}
		if left := leftovers(t, dir); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
	})
}

// spoil overwrites a request in the storage.
func spoil(t *testing.T, dir, key string) {
	t.Helper()
	f := filestorage.NewFactory()
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory = dir
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(storageType), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ext.(storage.Extension).GetClient(t.Context(), component.KindExporter, component.MustNewID("test"), "metrics")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Set(t.Context(), key, []byte("spoiled")), c.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// Catches deferred deletions for other components, whose deletions must be immediate.
func TestOthers(t *testing.T) {
	f := NewFactory(filestorage.NewFactory())
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory = t.TempDir()
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(storageType), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ext.(storage.Extension).GetClient(t.Context(), component.KindReceiver, component.MustNewID("test"), "")
	if err != nil {
		t.Fatal(err)
	}
	get := storage.GetOperation("a")
	if err := errors.Join(
		c.Set(t.Context(), "a", []byte("1")),
		c.Batch(t.Context(), storage.GetOperation("a")),
		c.Batch(t.Context(), storage.DeleteOperation("a")),
		c.Batch(t.Context(), get),
		c.Close(t.Context()),
	); err != nil {
		t.Fatal(err)
	}
	if get.Value != nil {
		t.Errorf("still has %q", get.Value)
	}
}
