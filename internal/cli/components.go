//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
)

func newComponents() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "components",
		Short: "List the components that a configuration file may use",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			names, err := agent.Components()
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
