//go:build linux

// Package profiling is gpumeter trace --profile: its flags, and who takes the profile.
package profiling

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/encode"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/sampler"
)

// Flags are those of a profile.
type Flags struct {
	length time.Duration
	output string
	rate   int
}

// Names lists them.
var Names = []string{"profile", "output", "rate"}

// Register adds the flags to a command.
func (p *Flags) Register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&p.length, "profile", 0, "profile the code that launches kernels for this time, at most 10m, and write it to --output")
	f.StringVarP(&p.output, "output", "o", "", "`FILE` of the profile: .pb.gz (pprof), .otlp, .otlp.json, .folded or .json")
	f.IntVar(&p.rate, "rate", sampler.DefaultRate, "stacks sampled per second and thread, for --profile")
}

// asked reports whether a command is to take a profile. Flags that have no effect are an error.
func (p *Flags) asked(cmd *cobra.Command) (bool, error) {
	changed, others, why := cmd.Flags().Changed, Names[1:], "without --profile"
	if changed("profile") {
		others, why = []string{"duration", "interval", "json", "perfetto"}, "with --profile"
	}
	for _, name := range others {
		if changed(name) {
			return false, fmt.Errorf("--%s has no effect %s", name, why)
		}
	}
	return changed("profile"), nil
}

func (p *Flags) check() error {
	if p.length <= 0 || p.length > agent.MaxProfile {
		return fmt.Errorf("--profile must be above 0 and at most %s, is %s", agent.MaxProfile, p.length)
	}
	if p.output == "" {
		return errors.New("--profile needs --output FILE")
	}
	if p.rate < 1 || p.rate > sampler.MaxRate {
		return fmt.Errorf("--rate must be 1 to %d, is %d", sampler.MaxRate, p.rate)
	}
	_, err := encode.FormatOf(p.output)
	return err
}

// Run takes a profile of the chosen processes if the command is to, and reports whether it is; invalid is what is
// wrong with its other flags. The agent at the socket takes it, if it traces: it has seen the names of kernels that
// were loaded before. Otherwise a session that open opens does, with the processes in proc.
func (p *Flags) Run(cmd *cobra.Command, invalid error, choice *inspect.Choice, socket, proc string, open func(context.Context) (*inspect.Session, error)) (asked bool, err error) {
	if asked, err = p.asked(cmd); !asked || err != nil {
		return asked, err
	}
	if err := errors.Join(p.check(), invalid); err != nil {
		return true, err
	}
	return true, p.write(cmd, choice, socket, proc, open)
}

func (p *Flags) write(cmd *cobra.Command, choice *inspect.Choice, socket, proc string, open func(context.Context) (*inspect.Session, error)) error {
	format, err := encode.FormatOf(p.output)
	if err != nil {
		return err
	}
	by := "the agent"
	data, err := agent.Profile(cmd.Context(), socket, agent.ProfileRequest{Choice: *choice, For: p.length, Rate: p.rate, Format: format})
	if errors.Is(err, agent.ErrNoProfiler) {
		by = "this command, because no agent traces: names of kernels that were loaded earlier are unknown"
		data, err = p.own(cmd.Context(), choice, proc, format, open)
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.output, data, 0o600); err != nil {
		return fmt.Errorf("cannot write the profile: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "A profile of %s is in %s. It was taken by %s.\n", p.length, p.output, by)
	return nil
}

// own takes a profile without an agent.
func (p *Flags) own(ctx context.Context, choice *inspect.Choice, proc string, format encode.Format, open func(context.Context) (*inspect.Session, error)) (data []byte, err error) {
	s, err := open(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	taken, err := s.Profile(ctx, choice, sampler.Options{Proc: proc, For: p.length, Rate: p.rate})
	if err != nil {
		return nil, err
	}
	if len(taken.Samples) == 0 {
		return nil, fmt.Errorf("nothing was profiled: %s launched nothing within %s", choice, p.length)
	}
	var out bytes.Buffer
	err = encode.Write(&out, format, &taken)
	return out.Bytes(), err
}
