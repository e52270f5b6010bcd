// The parts of this module that Prometheus names and a hub never calls: see hollow/README.md.
module github.com/mwitkow/go-conntrack

go 1.26
