// Package azidentity is what prometheus/storage/remote/azuread names of Azure's identities.
package azidentity

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
)

var errHollow = errors.New("azuread is not in this build")

// Credential is of each kind: none can be made.
type Credential struct{}

// GetToken returns an error.
func (*Credential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, errHollow
}

// ClientID names an identity.
type ClientID string

// ManagedIdentityCredentialOptions are those of a managed identity.
type ManagedIdentityCredentialOptions struct {
	azcore.ClientOptions
	ID ClientID
}

// WorkloadIdentityCredentialOptions are those of a workload.
type WorkloadIdentityCredentialOptions struct {
	azcore.ClientOptions
	ClientID, TenantID, TokenFilePath string
}

// ClientSecretCredentialOptions are those of a secret.
type ClientSecretCredentialOptions struct{ azcore.ClientOptions }

// DefaultAzureCredentialOptions are those of whatever is found.
type DefaultAzureCredentialOptions struct {
	azcore.ClientOptions
	TenantID string
}

// ClientCertificateCredentialOptions are those of a certificate.
type ClientCertificateCredentialOptions struct {
	azcore.ClientOptions
	SendCertificateChain bool
}

// NewManagedIdentityCredential returns an error.
func NewManagedIdentityCredential(*ManagedIdentityCredentialOptions) (*Credential, error) {
	return nil, errHollow
}

// NewWorkloadIdentityCredential returns an error.
func NewWorkloadIdentityCredential(*WorkloadIdentityCredentialOptions) (*Credential, error) {
	return nil, errHollow
}

// NewClientSecretCredential returns an error.
func NewClientSecretCredential(_, _, _ string, _ *ClientSecretCredentialOptions) (*Credential, error) {
	return nil, errHollow
}

// NewDefaultAzureCredential returns an error.
func NewDefaultAzureCredential(*DefaultAzureCredentialOptions) (*Credential, error) {
	return nil, errHollow
}

// ParseCertificates returns an error.
func ParseCertificates(_, _ []byte) ([]*x509.Certificate, crypto.PrivateKey, error) {
	return nil, nil, errHollow
}

// NewClientCertificateCredential returns an error.
func NewClientCertificateCredential(_, _ string, _ []*x509.Certificate, _ crypto.PrivateKey, _ *ClientCertificateCredentialOptions) (*Credential, error) {
	return nil, errHollow
}
