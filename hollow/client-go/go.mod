// The parts of this module that Prometheus names and a hub never calls: see hollow/README.md.
module k8s.io/client-go

go 1.26
