package hub

import "time"

// Alert is something that a fleet rule found and that still holds, as in Prometheus' API.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"` // firing
	ActiveAt    time.Time         `json:"activeAt"`
	Value       string            `json:"value"`
}
