//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newComponents(string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "components",
		Short: "List what a configuration file may use",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			names, err := componentNames()
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(names)
			}
			for _, kind := range []string{"extensions", "receivers", "processors", "exporters"} {
				fmt.Printf("%-11s %s\n", kind, strings.Join(names[kind], ", "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

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
