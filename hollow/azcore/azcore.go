// Package azcore is what prometheus/storage/remote/azuread names of Azure's SDK.
package azcore

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

// ClientOptions say which cloud is asked.
type ClientOptions = policy.ClientOptions

// AccessToken is a token that nobody issues.
type AccessToken struct {
	Token     string
	ExpiresOn time.Time
}

// TokenCredential issues tokens.
type TokenCredential interface {
	GetToken(ctx context.Context, options policy.TokenRequestOptions) (AccessToken, error)
}
