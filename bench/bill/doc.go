// Package bill measures what bills of large fleets cost: from samples, from kept days after a restart, and
// once they are in memory; with quotas; and the whole Cost page of the shipped binary in Chromium. A
// history that is longer than samples are kept is made as in the life of a hub.
//
//	go test -tags bench -count 1 -v -timeout 60m ./bench/bill -fleets 1000x30@1m,10000x30@5m -chromium
package bill
