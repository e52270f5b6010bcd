// The parts of this module that Prometheus names and a hub never calls: see hollow/README.md.
module github.com/Azure/azure-sdk-for-go/sdk/azidentity

go 1.26

require github.com/Azure/azure-sdk-for-go/sdk/azcore v1.22.0
