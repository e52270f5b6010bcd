// Package spans measures what it costs the agent to say on each span what its GPU did: 50,000 spans a second
// through the agent with and without, on a scripted GPU. h200.sh does it with a real one.
//
//	CGO_ENABLED=0 go test -tags bench -count 1 -v ./bench/spans
package spans
