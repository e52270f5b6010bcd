package hub

import "time"

// Alert is an active finding of a fleet rule, in the form of Prometheus' API.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"` // firing, or suppressed if somebody acknowledged or silenced the finding
	ActiveAt    time.Time         `json:"activeAt"`
	Value       string            `json:"value"`
}
