// Command gpumeter reads the accelerators of this machine and exports what they do,
// and for whom, as OpenTelemetry and Prometheus metrics.
package main

import (
	"os"

	"github.com/gpumeter/gpumeter/internal/cli"
)

// version is set by the linker, see the Makefile.
var version = "dev"

func main() { os.Exit(cli.Main(version, os.Args[1:])) }
