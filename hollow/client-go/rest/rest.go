// Package rest is what prometheus/util/logging names of Kubernetes' client.
package rest

import "context"

// WarningHandlerWithContext hears the warnings of an API server.
type WarningHandlerWithContext interface {
	HandleWarningHeaderWithContext(ctx context.Context, code int, agent, text string)
}

// WarningLogger hears nothing: no API server is asked.
type WarningLogger struct{}

// HandleWarningHeaderWithContext does nothing.
func (WarningLogger) HandleWarningHeaderWithContext(context.Context, int, string, string) {}
