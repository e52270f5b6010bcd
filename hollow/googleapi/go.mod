// The parts of this module that Prometheus names and a hub never calls: see hollow/README.md.
module google.golang.org/api

go 1.26
