package hub

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/gpumeter/gpumeter/internal/query"
)

// writeResult writes a PromQL result, byte for byte as Prometheus would. Results have up to
// millions of points, for which encoding/json is too slow.
func writeResult(w http.ResponseWriter, r *promql.Result, expr string) {
	b := []byte(`{"status":"success","data":{"resultType":`)
	b = strconv.AppendQuote(b, string(r.Value.Type()))
	b = append(b, `,"result":`...)
	w.Header().Set("Content-Type", "application/json")
	switch v := r.Value.(type) {
	case promql.Vector:
		b = append(b, '[')
		for i, s := range v {
			b = appendComma(b, i)
			b = append(appendLabels(append(b, `{"metric":`...), s.Metric), ',')
			if s.H == nil {
				b = appendPoint(append(b, `"value":`...), s.T, s.F)
			} else {
				b = appendJSON(append(b, `"histogram":`...), promql.HPoint{T: s.T, H: s.H})
			}
			b = flush(w, append(b, '}'))
		}
		b = append(b, ']')
	case promql.Matrix:
		b = append(b, '[')
		for i, s := range v {
			b = appendLabels(append(appendComma(b, i), `{"metric":`...), s.Metric)
			if len(s.Floats) > 0 {
				b = append(b, `,"values":[`...)
				for j, p := range s.Floats {
					b = appendPoint(appendComma(b, j), p.T, p.F)
				}
				b = append(b, ']')
			}
			if len(s.Histograms) > 0 {
				b = appendJSON(append(b, `,"histograms":`...), s.Histograms)
			}
			b = flush(w, append(b, '}'))
		}
		b = append(b, ']')
	case promql.Scalar:
		b = appendPoint(b, v.T, v.V)
	default:
		b = appendJSON(b, r.Value)
	}
	b = append(b, '}')
	warnings, infos := r.Warnings.AsStrings(expr, 10, 10)
	if len(warnings) > 0 {
		b = appendJSON(append(b, `,"warnings":`...), warnings)
	}
	if len(infos) > 0 {
		b = appendJSON(append(b, `,"infos":`...), infos)
	}
	_, _ = w.Write(append(b, '}')) // a client that disconnected is not an error
}

// flush writes b if it is long, and returns the remaining buffer.
func flush(w http.ResponseWriter, b []byte) []byte {
	if len(b) < 64<<10 {
		return b
	}
	_, _ = w.Write(b)
	return b[:0]
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

func appendJSON(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		text = []byte("null")
	}
	return append(b, text...)
}

func appendLabels(b []byte, l labels.Labels) []byte {
	b = append(b, '{')
	i := 0
	l.Range(func(x labels.Label) {
		b = appendString(appendComma(b, i), x.Name)
		b = appendString(append(b, ':'), x.Value)
		i++
	})
	return append(b, '}')
}

// appendString appends a JSON string, with a fast path for text without escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f || c == '<' || c == '>' || c == '&' {
			return appendJSON(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendPoint appends [seconds,"value"].
func appendPoint(b []byte, ms int64, v float64) []byte {
	b = append(b, '[')
	if ms < 0 {
		b = append(b, '-')
		ms = -ms
	}
	b = strconv.AppendInt(b, ms/1000, 10)
	if part := ms % 1000; part != 0 {
		b = append(b, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
	}
	b = append(b, `,"`...)
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return append(strconv.AppendFloat(b, v, format, -1, 64), `"]`...)
}

// vectorOf and matrixOf convert answers of a foreign store to Prometheus' form.
func vectorOf(samples []query.Sample) any {
	type sample struct {
		Metric query.Labels    `json:"metric"`
		Value  json.RawMessage `json:"value"`
	}
	out := make([]sample, len(samples))
	for i, s := range samples {
		out[i] = sample{s.Labels, appendPoint(nil, s.Time.UnixMilli(), s.Value)}
	}
	return map[string]any{"resultType": "vector", "result": out}
}

// scalarOf converts a one-element vector to a scalar.
func scalarOf(samples []query.Sample) any {
	var value json.RawMessage
	if len(samples) == 1 {
		value = appendPoint(nil, samples[0].Time.UnixMilli(), samples[0].Value)
	}
	return map[string]any{"resultType": "scalar", "result": value}
}

func matrixOf(series []query.Series) any {
	type line struct {
		Metric query.Labels      `json:"metric"`
		Values []json.RawMessage `json:"values"`
	}
	out := make([]line, len(series))
	for i, s := range series {
		out[i].Metric = s.Labels
		for _, p := range s.Points {
			out[i].Values = append(out[i].Values, appendPoint(nil, p.Time.UnixMilli(), p.Value))
		}
	}
	return map[string]any{"resultType": "matrix", "result": out}
}
