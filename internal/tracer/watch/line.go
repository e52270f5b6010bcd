package watch

import "github.com/gpumeter/gpumeter/internal/tracer/anomaly"

// Line is one anomaly as it is kept for gpumeter explain.
type Line struct {
	anomaly.Anomaly
	// Attributes are those of the series that it counts in: workload and device.
	Attributes map[string]string `json:"attributes,omitempty"`
	Words      string            `json:"text"` // the whole of it
}
