// The parts of this module that Prometheus names and a hub never calls: see hollow/README.md.
module github.com/prometheus/sigv4

go 1.26
