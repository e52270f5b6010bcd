package fleettest

import (
	"encoding/binary"
	"io"
	"math"
	"net/http"
	"path"
	"time"
)

// TPU returns a server with libtpu's runtime metric service for a process that uses a number
// of chips. The protocol is gRPC: HTTP/2 with five bytes before each message and the status in
// a trailer.
func TPU(chips int) *http.Server {
	answers := runtimeAnswers(chips)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := io.ReadAll(r.Body)
		const frame = 5
		if err != nil || len(request) < frame {
			http.Error(w, "no message", http.StatusBadRequest)
			return
		}
		var reply []byte
		status := "0"
		switch path.Base(r.URL.Path) {
		case "ListSupportedMetrics":
			for name := range answers {
				reply = append(reply, text(1, text(1, name))...)
			}
		default:
			var ok bool
			if request = request[frame:]; len(request) > 2 { // a tag and the length of the name
				reply, ok = answers[string(request[2:])]
			}
			if !ok {
				status = "3" // invalid argument
			}
		}
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(reply))), reply...)) // the client may have disconnected
		h.Set("Grpc-Status", status)
	})}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// runtimeAnswers returns the responses of the runtime by metric. Each chip is one device.
func runtimeAnswers(chips int) map[string][]byte {
	const gib = 1 << 30
	var total, used, duty, bandwidth, idle, queue []byte
	for i := range uint64(chips) {
		total = append(total, measured(i, varint(2, 32*gib))...)
		used = append(used, measured(i, varint(2, (18+i%8)*gib))...)
		duty = append(duty, measured(i, double(1, 75/float64(i+1)))...)
		bandwidth = append(bandwidth, measured(i, double(1, 25/float64(i+1)))...)
		idle = append(idle, measured(i, double(1, float64(i)/2))...)
		queue = append(queue, measured(i, varint(2, 3+i))...)
	}
	all := map[string][]byte{}
	for name, metrics := range map[string][]byte{
		"tpu.runtime.hbm.memory.total.bytes": total, "tpu.runtime.hbm.memory.usage.bytes": used,
		"tpu.runtime.tensorcore.dutycycle.percent": duty, "tpu.runtime.hbm.utilization.percent": bandwidth,
		"tpu.runtime.tensorcore.idle_duration.seconds": idle, "hlo.queue.size.gauge": queue,
	} {
		all[name] = text(1, append(text(1, name), metrics...))
	}
	return all
}

// measured returns a Metric of one device: its attribute and its gauge.
func measured(id uint64, value []byte) []byte {
	attribute := text(1, append(text(1, "device-id"), text(2, varint(3, id))...))
	return text(3, append(attribute, text(3, value)...))
}

// Message fields by wire type: varint, fixed64 and bytes.

func varint(id int, v uint64) []byte {
	return binary.AppendUvarint([]byte{byte(id << 3)}, v)
}

func double(id int, v float64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{byte(id<<3 | 1)}, math.Float64bits(v))
}

func text[T string | []byte](id int, v T) []byte {
	return append(binary.AppendUvarint([]byte{byte(id<<3 | 2)}, uint64(len(v))), v...)
}
