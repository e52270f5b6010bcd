//go:build linux

// Package cli implements the gpumeter command, one file per subcommand. No other package
// reads the environment, exits the process or writes to the terminal.
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

// Main runs the command and returns its exit code: 0, or 1 after printing the error on one
// line to standard error. Only check uses other codes.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process even if it hangs in a driver
	limitRuntime(4)
	noCoreDump()
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

// limitRuntime makes the Go runtime use procs cores and collect garbage twice as often as by
// default, unless GOMAXPROCS or GOGC is set: cores and memory belong to the jobs. On a host
// with 192 cores the runtime would keep memory per core and wake several threads for work
// that one can do. Calls into a driver do not count against the limit. bench/agent measures
// the savings.
func limitRuntime(procs int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(procs, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// noCoreDump keeps tokens and headers, which are in memory, out of core files, unless
// GOTRACEBACK=crash asks for one. The hard limit stays, so that others can raise it. The process
// stays dumpable: otherwise its own files below /proc would belong to root.
func noCoreDump() {
	if os.Getenv("GOTRACEBACK") == "crash" {
		return
	}
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_CORE, &limit) == nil {
		limit.Cur = 0
		_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &limit) // lowering the soft limit is always allowed
	}
}

// noArgs rejects arguments without echoing them: the word after a header with missing quotes
// is a secret.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes only flags, got %d arguments: quote values that contain spaces", cmd.CommandPath(), len(args))
	}
	return nil
}

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "gpumeter",
		Short: "Whose work is on the GPU, and what does it cost",
		Long: `gpumeter reads the accelerators of this machine, of any vendor, and exports their
state and usage as OpenTelemetry and Prometheus metrics.

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
		newAgent(version), newCheck(), newDemo(version), newDevices(), newDoctor(), newExplain(), newHub(version), newPause(), newReport(), newSLO(), newSlurm(), newTop(), newTrace(), newUp(version),
		newValidate(version), newComponents(), newVersion(version), newWhy(),
	)
	return root
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string { return logging.OneLine(err) }

// isTerminal reports whether f is a terminal.
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

// newLogger returns a logger that writes to standard error and redacts the secrets of hide:
// short lines on a terminal, JSON otherwise.
func newLogger(level string, hide *redact.Redactor) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("unknown --log-level %q, must be one of %s", level, strings.Join(logLevels, ", "))
	}
	return logging.New(os.Stderr, l, isTerminal(os.Stderr), hide), nil
}
