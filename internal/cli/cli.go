//go:build linux

// Package cli is the gpumeter command, one file a subcommand. It alone reads the
// environment, ends the process and writes to the terminal.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// Main runs the command and returns its exit code: 0, or 1 after one line on standard
// error that says what went wrong. Only check has other codes.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends even a process that hangs in a driver
	beGuest(4)
	root := newRoot(version)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil || errors.Is(err, context.Canceled) {
		return 0
	}
	if e, ok := errors.AsType[exitError](err); ok {
		if e.err != nil {
			fmt.Fprintln(os.Stderr, "gpumeter: "+oneLine(e.err))
		}
		return e.code
	}
	fmt.Fprintln(os.Stderr, "gpumeter: "+oneLine(err))
	return 1
}

// beGuest takes less of the machine than Go would, unless Go's own variables say
// otherwise: the cores and the memory belong to the jobs. For a host of 192 cores the
// runtime would keep memory for each, and wake several threads for what one can do; calls
// into a driver do not count. bench/agent measured what that and half the garbage save.
func beGuest(procs int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(procs, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// noArgs refuses arguments without repeating them: what follows a header whose quotes
// were forgotten is a secret.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes flags only, and got %d words more: a value with blanks needs quotes", cmd.CommandPath(), len(args))
	}
	return nil
}

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "gpumeter",
		Short: "Whose work is on the GPU, and what does it cost",
		Long: `gpumeter reads the accelerators of this machine, of any vendor, and exports what
they do as OpenTelemetry and Prometheus metrics.

  gpumeter demo      see it work, with or without a GPU
  gpumeter agent     run it for real
  gpumeter doctor    find out what is missing`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(
		newAgent(version), newCheck(), newDemo(version), newDevices(), newDoctor(), newExplain(), newHub(version), newPause(), newReport(), newSlurm(), newTop(), newTrace(), newUp(version),
		newValidate(version), newComponents(), newVersion(version),
	)
	return root
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string { return logging.OneLine(err) }

// isTerminal reports whether f is one, where people read.
func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// logLevels are the values of --log-level.
var logLevels = []string{"debug", "info", "warn", "error"}

func registerLogLevel(cmd *cobra.Command, level *string) {
	cmd.Flags().StringVar(level, "log-level", "info", strings.Join(logLevels, ", "))
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(logLevels, cobra.ShellCompDirectiveNoFileComp))
}

// newLogger returns a logger to standard error without what hide hides: short lines for
// people at a terminal, JSON for whatever collects them elsewhere.
func newLogger(level string, hide *redact.Redactor) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("unknown --log-level %q, known are %s", level, strings.Join(logLevels, ", "))
	}
	return logging.New(os.Stderr, l, isTerminal(os.Stderr), hide), nil
}
