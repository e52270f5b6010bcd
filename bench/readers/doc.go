// Package readers measures what reading one device costs each vendor's reader, side by side
// in one run with just reading the files that it opens and making the calls that it makes.
// make bench runs it.
package readers
