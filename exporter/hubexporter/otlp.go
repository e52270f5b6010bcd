package hubexporter

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpumeter/gpumeter/internal/hub"
)

const (
	// MaxBody bounds one decompressed request. An agent with eight GPUs sends half a megabyte.
	MaxBody = 16 << 20
	// maxRequests bounds the requests in memory; further ones wait.
	maxRequests = 8
)

// OTLP accepts metrics and logs over HTTP and gRPC. A response without an error means that
// the data is on disk; data that can never be stored is reported as partial success. It is
// safe for concurrent use.
type OTLP struct {
	w        *Writer
	refused  *hub.Refusals
	turns    chan struct{}
	bodyTime time.Duration // for gRPC; HTTP uses the server's timeout
}

// NewOTLP returns an OTLP that writes with w and counts refusals.
func NewOTLP(w *Writer, refused *hub.Refusals) *OTLP {
	return &OTLP{w: w, refused: refused, turns: make(chan struct{}, maxRequests), bodyTime: bodyTime}
}

// errBusy is a retryable error.
var errBusy = errors.New("the hub is busy")

// turn waits for capacity for one more request.
func (o *OTLP) turn(ctx context.Context) (done func(), err error) {
	select {
	case o.turns <- struct{}{}:
		return func() { <-o.turns }, nil
	case <-ctx.Done():
		o.refused.Add(hub.Unavailable, 1)
		return nil, errBusy
	}
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
	done, err := o.turn(r.Context())
	if err != nil {
		o.retry(w, r, err)
		return
	}
	defer done()
	body, err := read(w, r)
	var size *http.MaxBytesError
	switch {
	case errors.As(err, &size):
		o.fail(w, r, http.StatusRequestEntityTooLarge, hub.BodySize, fmt.Errorf("request exceeds %d bytes", MaxBody))
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		o.refused.Add(hub.BodyTimeout, 1)
		o.retry(w, r, errors.New("the request took too long to arrive"))
		return
	case err == nil && kind == protobuf:
		if err = checkProto(body); err == nil {
			err = q.UnmarshalProto(body)
		}
	case err == nil:
		if err = checkJSON(body); err == nil {
			err = q.UnmarshalJSON(body)
		}
	}
	if err != nil {
		o.fail(w, r, http.StatusBadRequest, hub.Malformed, fmt.Errorf("request is not OTLP: %w", err))
		return
	}
	answer, err := export(r.Context())
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

// read returns the decompressed body.
func read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body := http.MaxBytesReader(w, r.Body, MaxBody)
	switch coding := r.Header.Get("Content-Encoding"); coding {
	case "", "identity":
		return io.ReadAll(body)
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(http.MaxBytesReader(w, z, MaxBody))
	default:
		return nil, fmt.Errorf("Content-Encoding is %q, must be gzip or none", coding)
	}
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
