// Package http is what prometheus/storage/remote/googleiam names of Google's transport.
package http

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/api/option"
)

// NewTransport returns an error.
func NewTransport(context.Context, http.RoundTripper, ...option.ClientOption) (http.RoundTripper, error) {
	return nil, errors.New("google_iam is not in this build")
}
