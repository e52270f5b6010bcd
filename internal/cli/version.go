//go:build linux

package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run: func(*cobra.Command, []string) {
			line := "gpumeter " + version
			if info, ok := debug.ReadBuildInfo(); ok {
				line += ", " + info.GoVersion
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						line += ", commit " + s.Value
					}
				}
			}
			fmt.Println(line)
		},
	}
}
