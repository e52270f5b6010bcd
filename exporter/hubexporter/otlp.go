package hubexporter

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpumeter/gpumeter/internal/hub"
	"github.com/gpumeter/gpumeter/internal/hub/peer"
)

const (
	// MaxBody bounds one decompressed request. An agent with eight GPUs sends half a megabyte.
	MaxBody = 16 << 20
	// maxRequests bounds the decompressed requests in memory; further ones wait.
	maxRequests = 8
	// maxWaiting bounds the requests in memory as they were sent: those that arrive or wait.
	// 2,000 agents at once send 100 MiB.
	maxWaiting = 256 << 20
	// maxWaitingOfPeer leaves room for others.
	maxWaitingOfPeer = maxWaiting * 3 / 4
)

// OTLP accepts metrics and logs over HTTP and gRPC. A response without an error means that
// the data is on disk; data that can never be stored is reported as partial success. It is
// safe for concurrent use.
type OTLP struct {
	w       *Writer
	refused *hub.Refusals
	turns   *peer.Turns
	room    *peer.Room // for requests as they were sent
	pace    peer.Pace  // of their arrival
}

// NewOTLP returns an OTLP that writes with w and counts refusals.
func NewOTLP(w *Writer, refused *hub.Refusals) *OTLP {
	return &OTLP{
		w: w, refused: refused, pace: peer.DefaultPace,
		turns: peer.NewTurns(maxRequests, maxRequests), // a turn never waits for a sender
		room:  peer.NewRoom(maxWaiting, maxWaitingOfPeer),
	}
}

// errBusy is a retryable error.
var errBusy = errors.New("the hub is busy")

// turn waits for capacity for one more request.
func (o *OTLP) turn(ctx context.Context, from string) (done func(), err error) {
	done, err = o.turns.Take(ctx, from)
	if err != nil {
		o.refused.Add(hub.Unavailable, 1)
		return nil, errBusy
	}
	return done, nil
}

func (o *OTLP) metrics(ctx context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	answer := pmetricotlp.NewExportResponse()
	result, err := o.w.Metrics(ctx, r.Metrics())
	if err != nil {
		o.refused.Add(hub.Unavailable, 1)
		return answer, err
	}
	if result.Refused > 0 {
		answer.PartialSuccess().SetRejectedDataPoints(int64(min(result.Points, r.Metrics().DataPointCount())))
		answer.PartialSuccess().SetErrorMessage(cut(result.Why, maxMessage))
	}
	return answer, nil
}

func (o *OTLP) logs(ctx context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	answer := plogotlp.NewExportResponse()
	result, err := o.w.logs(ctx, r.Logs())
	if err != nil {
		o.refused.Add(hub.Unavailable, 1)
		return answer, err
	}
	if result.Refused > 0 {
		answer.PartialSuccess().SetRejectedLogRecords(int64(result.Refused))
		answer.PartialSuccess().SetErrorMessage(cut(result.Why, maxMessage))
	}
	return answer, nil
}

// maxMessage bounds error messages to senders, in bytes.
const maxMessage = 1024

// Handler serves POST /v1/metrics and /v1/logs.
func (o *OTLP) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		q := pmetricotlp.NewExportRequest()
		o.serve(w, r, q, func(ctx context.Context) (message, error) { return o.metrics(ctx, q) })
	})
	mux.HandleFunc("POST /v1/logs", func(w http.ResponseWriter, r *http.Request) {
		q := plogotlp.NewExportRequest()
		o.serve(w, r, q, func(ctx context.Context) (message, error) { return o.logs(ctx, q) })
	})
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		o.fail(w, r, http.StatusNotFound, hub.Invalid, errors.New("the hub accepts metrics and logs, not traces"))
	})
	return mux
}

// message is an OTLP message in both encodings.
type message interface {
	MarshalProto() ([]byte, error)
	MarshalJSON() ([]byte, error)
}

type request interface {
	UnmarshalProto([]byte) error
	UnmarshalJSON([]byte) error
}

const (
	protobuf = "application/x-protobuf"
	jsonType = "application/json"
)

func (o *OTLP) serve(w http.ResponseWriter, r *http.Request, q request, export func(context.Context) (message, error)) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != protobuf && kind != jsonType {
		o.fail(w, r, http.StatusUnsupportedMediaType, hub.Malformed, fmt.Errorf("Content-Type must be %s or %s", protobuf, jsonType))
		return
	}
	body, free, err := peer.ReadBody(w, r, MaxBody, o.room, o.pace)
	defer free()
	switch {
	case err == nil:
	case errors.Is(err, peer.ErrShare), errors.Is(err, peer.ErrFull):
		o.refused.Add(hub.PeerLimit, 1)
		o.retry(w, r, err)
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		o.refused.Add(hub.BodyTimeout, 1)
		o.retry(w, r, errors.New("the request took too long to arrive"))
		return
	default:
		o.reject(w, r, err)
		return
	}
	done, err := o.turn(r.Context(), peer.Of(r.RemoteAddr))
	if err != nil {
		o.retry(w, r, err)
		return
	}
	defer done()
	if err := decode(q, kind, r.Header.Get("Content-Encoding"), body); err != nil {
		o.reject(w, r, err)
		return
	}
	answer, err := export(r.Context())
	done() // before the sender reads the answer
	if err != nil {
		o.retry(w, r, err)
		return
	}
	text, err := answer.MarshalProto()
	if kind == jsonType {
		text, err = answer.MarshalJSON()
	}
	if err != nil {
		o.retry(w, r, err)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text) // a disconnected sender retries
}

// decode decompresses and parses a request.
func decode(q request, kind, coding string, body []byte) error {
	switch coding {
	case "", "identity":
	case "gzip":
		var err error
		if body, err = unzip(body); err != nil {
			return err
		}
	default:
		return fmt.Errorf("Content-Encoding is %q, must be gzip or none", coding)
	}
	if kind == protobuf {
		if err := checkProto(body); err != nil {
			return err
		}
		return q.UnmarshalProto(body)
	}
	if err := checkJSON(body); err != nil {
		return err
	}
	return q.UnmarshalJSON(body)
}

// unzip returns decompressed data, at most MaxBody bytes.
func unzip(body []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(http.MaxBytesReader(nil, z, MaxBody))
}

// reject answers a request that cannot be read.
func (o *OTLP) reject(w http.ResponseWriter, r *http.Request, err error) {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		o.fail(w, r, http.StatusRequestEntityTooLarge, hub.BodySize, fmt.Errorf("request exceeds %d bytes", MaxBody))
		return
	}
	o.fail(w, r, http.StatusBadRequest, hub.Malformed, fmt.Errorf("request is not OTLP: %w", err))
}

// retry answers with a retryable error.
func (*OTLP) retry(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Retry-After", "5")
	status(w, r, http.StatusServiceUnavailable, err)
}

// fail answers with a permanent error.
func (o *OTLP) fail(w http.ResponseWriter, r *http.Request, code int, why hub.Reason, err error) {
	o.refused.Add(why, 1)
	status(w, r, code, err)
}

// status writes an OTLP error, a google.rpc.Status in the encoding of the request.
func status(w http.ResponseWriter, r *http.Request, code int, err error) {
	text := cut(err.Error(), maxMessage)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == protobuf {
		w.Header().Set("Content-Type", protobuf)
		w.WriteHeader(code)
		_, _ = w.Write(appendBytes(nil, 2, text)) // Status{message: 2}
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(code)
	_, _ = io.WriteString(w, `{"message":`+strconv.QuoteToASCII(text)+`}`)
}

// appendBytes appends a protobuf bytes field.
func appendBytes(b []byte, field byte, text string) []byte {
	b = append(b, field<<3|2)
	n := uint(len(text))
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), text...)
}
