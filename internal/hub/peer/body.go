package peer

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// requestCost is the memory of a request with an empty body: its goroutine and buffers.
const requestCost = 16 << 10

// ReadBody returns the body of a request, at most limit bytes. The client must keep up with
// pace; otherwise the error is os.ErrDeadlineExceeded. free returns the memory to room and must
// be called, also after an error.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, room *Room, pace Pace) (body []byte, free func(), err error) {
	peer, held := Of(r.RemoteAddr), int64(0)
	free = func() {
		room.Give(peer, held)
		held = 0
	}
	take := func(n int64) error {
		if err := room.Take(peer, n); err != nil {
			return err
		}
		held += n
		return nil
	}
	if err := take(requestCost); err != nil {
		return nil, free, err
	}
	from, control, start := http.MaxBytesReader(w, r.Body, limit), http.NewResponseController(w), time.Now()
	buf := make([]byte, 0, requestCost/2)
	for {
		if len(buf) == cap(buf) {
			more := int64(cap(buf))
			if err := take(more); err != nil {
				return nil, free, err
			}
			buf = append(make([]byte, 0, int64(cap(buf))+more), buf...)
		}
		_ = control.SetReadDeadline(pace.Due(start, int64(len(buf)))) // the transport may have no deadlines
		n, err := from.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			// A deadline that expires while the request is processed would cancel it. After an
			// error the deadline stays: the server reads the rest of the body.
			_ = control.SetReadDeadline(time.Time{})
			return buf, free, nil
		}
		if err != nil {
			return nil, free, err
		}
	}
}
