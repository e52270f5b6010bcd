// Package cloud names the clouds of Azure.
package cloud

// Configuration is one of them.
type Configuration struct{}

// The clouds.
var AzureChina, AzureGovernment, AzurePublic Configuration
