// Package policy is what a request for a token says.
package policy

import "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"

// ClientOptions say which cloud is asked.
type ClientOptions struct{ Cloud cloud.Configuration }

// TokenRequestOptions say what the token is for.
type TokenRequestOptions struct{ Scopes []string }
