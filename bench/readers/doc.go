// Package readers measures the cost of reading one device with each vendor's reader, in one run with merely
// reading the files that it opens and making the calls that it makes. make bench runs it.
package readers
