package peer

import (
	"errors"
	"net/http"
	"os"
	"time"
)

// piece is how much of an answer a client must read within the grace of a Pace.
const piece = 64 << 10

// Writer writes the answer to one request. A client that does not read at pace is cut off. An
// answer for which there is no room becomes a 503.
type Writer struct {
	http.ResponseWriter

	Peer string
	Room *Room
	Pace Pace
	Cut  func()      // called once when the client was cut off
	Full func(error) // called once when there was no room

	began bool
	err   error
}

// Unwrap returns the writer for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *Writer) WriteHeader(code int) {
	w.began = true
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter. It holds room for p until the client has taken it.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if n := int64(len(p)); n > piece {
		if w.err = w.Room.Take(w.Peer, n); w.err != nil {
			w.refuse()
			return 0, w.err
		}
		defer w.Room.Give(w.Peer, n)
	}
	control, written := http.NewResponseController(w.ResponseWriter), 0
	for first := true; first || len(p) > 0; first = false {
		next := p[:min(len(p), piece)]
		due := time.Now().Add(w.Pace.Grace)
		_ = control.SetWriteDeadline(due) // the transport may have no deadlines
		w.began = true
		n, err := w.ResponseWriter.Write(next)
		written += n
		if err != nil {
			// HTTP/2 reports a closed stream.
			if w.err = err; errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(due) {
				w.Cut()
			}
			return written, err
		}
		p = p[len(next):]
	}
	return written, nil
}

// refuse answers with an error if the answer has not begun.
func (w *Writer) refuse() {
	w.Full(w.err)
	if w.began {
		return
	}
	h := w.Header()
	h.Del("Content-Encoding")
	h.Del("Content-Length")
	h.Set("Content-Type", "application/json")
	h.Set("Retry-After", "5")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.ResponseWriter.Write([]byte(`{"error":"` + w.err.Error() + `","errorType":"unavailable","status":"error"}` + "\n")) // the client may be gone
}
