package hub

import (
	"context"
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/gpumeter/gpumeter/internal/hub/access"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

const (
	// maxAnswers bounds the answers in memory that clients have not read yet, in bytes. The
	// largest answer, of DefaultMaxSamples, fits.
	maxAnswers = 1 << 30
	// maxAnswersOfPeer leaves room for others.
	maxAnswersOfPeer = maxAnswers * 3 / 4
)

// answering is the capacity for queries and their answers.
type answering struct {
	// turns limits concurrent API requests, each of which may take timeout.
	turns   *peer.Turns
	timeout time.Duration
	room    *peer.Room // for answers that clients have not read yet
	pace    peer.Pace  // at which they must read
}

// newAnswering returns the capacity for a store.
func newAnswering(store any, pace peer.Pace) answering {
	if pace == (peer.Pace{}) {
		pace = peer.DefaultPace
	}
	n, timeout := DefaultQueries, DefaultQueryTimeout
	if s, ok := store.(*Store); ok {
		n, timeout = s.opt.Queries, s.opt.QueryTimeout
	}
	return answering{peer.NewTurns(n, ofPeer(n)), timeout, peer.NewRoom(maxAnswers, maxAnswersOfPeer), pace}
}

// peerOf returns who asks: the token of a request, whose users may have many addresses, or the
// address.
func (h *handler) peerOf(r *http.Request) string {
	if secret := access.Bearer(r); h.opt.Tokens != nil && secret != "" {
		sum := sha256.Sum256([]byte(secret))
		return string(sum[:])
	}
	return peer.Of(r.RemoteAddr)
}

// paced returns a writer that cuts off a client that does not read.
func (h *handler) paced(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	return &peer.Writer{
		ResponseWriter: w, Peer: h.peerOf(r), Room: h.room, Pace: h.pace,
		Cut: func() { h.opt.Refusals.Add(SlowReader, 1) }, Full: func(error) { h.opt.Refusals.Add(PeerLimit, 1) },
	}
}

// inTurn limits concurrent requests until their answers begin. Waiting counts toward the
// request's timeout.
func (h *handler) inTurn(next func(http.ResponseWriter, *http.Request, Grant)) func(http.ResponseWriter, *http.Request, Grant) {
	return func(w http.ResponseWriter, r *http.Request, g Grant) {
		ctx, cancel := context.WithTimeout(r.Context(), h.timeout)
		defer cancel()
		done, err := h.turns.Take(ctx, h.peerOf(r))
		if err != nil {
			h.late(err)
			w.Header().Set("Retry-After", "5")
			h.failed(w, err)
			return
		}
		defer done()
		next(&turnWriter{w, done}, r.WithContext(ctx), g)
	}
}

// turnWriter ends a turn when the answer begins: the client may take its time to read.
type turnWriter struct {
	http.ResponseWriter

	done func()
}

// Unwrap returns the writer for http.ResponseController.
func (w *turnWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *turnWriter) WriteHeader(code int) {
	w.done()
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *turnWriter) Write(p []byte) (int, error) {
	w.done()
	return w.ResponseWriter.Write(p)
}

// hold accounts for a result until the client has read it.
func (h *handler) hold(r *http.Request, result *promql.Result) (free func(), err error) {
	who, n := h.peerOf(r), resultSize(result)
	if err := h.room.Take(who, n); err != nil {
		h.opt.Refusals.Add(PeerLimit, 1)
		return nil, err
	}
	return func() { h.room.Give(who, n) }, nil
}

// resultSize returns the approximate bytes of a result. Native histograms count as 1 KiB.
func resultSize(r *promql.Result) int64 {
	const each, point, histogram = 64, 16, 1 << 10
	n := int64(each)
	switch v := r.Value.(type) {
	case promql.Vector:
		for i := range v {
			if n += each + int64(v[i].Metric.ByteSize()); v[i].H != nil {
				n += histogram
			}
		}
	case promql.Matrix:
		for i := range v {
			n += each + int64(v[i].Metric.ByteSize()) + point*int64(len(v[i].Floats)) + histogram*int64(len(v[i].Histograms))
		}
	}
	return n
}
