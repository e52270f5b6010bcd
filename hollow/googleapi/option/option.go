// Package option is what prometheus/storage/remote/googleiam names of the options of Google's clients.
package option

// ClientOption is an option that nobody reads.
type ClientOption struct{}

// ServiceAccount is a kind of credentials.
const ServiceAccount = "service_account"

// WithScopes says what a token is for.
func WithScopes(...string) ClientOption { return ClientOption{} }

// WithAuthCredentialsFile names a file with credentials.
func WithAuthCredentialsFile(_, _ string) ClientOption { return ClientOption{} }

// WithCredentials has credentials.
func WithCredentials(any) ClientOption { return ClientOption{} }
