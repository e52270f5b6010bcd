// Package requeue keeps the Collector's persistent queue from losing the requests that were being
// sent when the process was killed.
//
// A request in flight stays in the queue's storage. On startup the queue moves such requests to its
// end, in three steps (exporterhelper v0.159, enqueueNotDispatchedReqs): one transaction reads them,
// a second deletes them, and one more per request appends it. A process that is killed after the
// second step has lost all of them, although each was accepted.
//
// The storage of this package defers the deletions of the second step. Each takes effect in the
// transaction that appends the request again, so at every moment each request is in the storage
// exactly once. Neither the queue nor the format on disk changes.
package requeue

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

// NewFactory returns a factory of the same storage extension as inner, with the same name and
// configuration, whose clients for exporters defer deletions as the package describes.
func NewFactory(inner extension.Factory) extension.Factory {
	return extension.NewFactory(inner.Type(), inner.CreateDefaultConfig,
		func(ctx context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			ext, err := inner.Create(ctx, set, cfg)
			if err != nil {
				return nil, err
			}
			s, ok := ext.(storage.Extension)
			if !ok {
				return nil, fmt.Errorf("extension %s is not a storage extension", set.ID)
			}
			return &store{s}, nil
		}, inner.Stability())
}

type store struct{ storage.Extension }

// GetClient wraps only the clients of exporters: nothing but the queue uses them.
func (s *store) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	c, err := s.Extension.GetClient(ctx, kind, id, name)
	if err != nil || kind != component.KindExporter {
		return c, err
	}
	return &client{Client: c}, nil
}

// client defers the deletions of a queue that is starting.
type client struct {
	storage.Client

	mu      sync.Mutex
	began   bool                 // the queue has written: recovery is over or has appended the first request
	read    []string             // the keys of the last batch, if it only read
	pending []*storage.Operation // deferred deletions, in the order in which requests are appended
}

// Batch defers a batch that deletes exactly what the batch before read, if nothing was written
// before them. The queue then appends the requests in the same order and skips those that it cannot
// decode. One deferred deletion joins each batch that writes: the i-th append is never of a request
// before the i-th, so a deleted request was either appended or cannot be decoded. The first batch
// that also reads takes a request out of the queue; by then all were appended, and the remaining
// deletions join it.
func (c *client) Batch(ctx context.Context, ops ...*storage.Operation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	reads, writes, deletes := kinds(ops)
	switch {
	case reads > 0 && writes+deletes == 0:
		err := c.Client.Batch(ctx, ops...)
		if c.read = nil; err == nil {
			c.read = keys(ops)
		}
		return err
	case deletes > 0 && reads+writes == 0 && !c.began && slices.Equal(keys(ops), c.read):
		c.pending = slices.Clone(ops)
		return nil
	}
	c.began, c.read = true, nil
	n := min(1, len(c.pending))
	switch {
	case reads > 0:
		n = len(c.pending)
	case writes == 0:
		n = 0
	}
	if err := c.Client.Batch(ctx, append(slices.Clip(ops), c.pending[:n]...)...); err != nil {
		return err
	}
	c.pending = c.pending[n:]
	return nil
}

// Close applies the deferred deletions: a queue that closes has appended every request.
func (c *client) Close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if len(c.pending) > 0 {
		err = c.Client.Batch(ctx, c.pending...)
		c.pending = nil
	}
	if closeErr := c.Client.Close(ctx); closeErr != nil {
		return closeErr
	}
	return err
}

func kinds(ops []*storage.Operation) (reads, writes, deletes int) {
	for _, op := range ops {
		switch op.Type {
		case storage.Get:
			reads++
		case storage.Set:
			writes++
		case storage.Delete:
			deletes++
		}
	}
	return reads, writes, deletes
}

func keys(ops []*storage.Operation) []string {
	list := make([]string, len(ops))
	for i, op := range ops {
		list[i] = op.Key
	}
	return list
}
