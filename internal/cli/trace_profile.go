//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/agent"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/encode"
	"github.com/gpumeter/gpumeter/internal/tracer/profile/sampler"
)

// profiling holds the flags of gpumeter trace --profile.
type profiling struct {
	length time.Duration // 0: none
	output string
	rate   int
}

func (p *profiling) check() error {
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

// takeProfile is gpumeter trace --profile.
func (c *traceCommand) takeProfile(cmd *cobra.Command) error {
	for _, name := range []string{"duration", "interval", "json", "perfetto"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s has no effect with --profile", name)
		}
	}
	if err := errors.Join(c.profiling.check(), c.choice.check(), c.config().Validate()); err != nil {
		return err
	}
	return c.profile(cmd.Context(), cmd.OutOrStdout())
}

// profile writes a profile of the chosen processes. The agent of this machine takes it, if it traces: it has
// seen the names of kernels that were loaded before.
func (c *traceCommand) profile(ctx context.Context, w io.Writer) error {
	format, err := encode.FormatOf(c.output)
	if err != nil {
		return err
	}
	by := "the agent"
	data, err := agent.Profile(ctx, c.socket, agent.ProfileRequest{Choice: c.Choice, For: c.length, Rate: c.rate, Format: format})
	if errors.Is(err, agent.ErrNoProfiler) {
		by = "this command, because no agent traces: names of kernels that were loaded earlier are unknown"
		data, err = c.own(ctx, format)
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.output, data, 0o600); err != nil {
		return fmt.Errorf("cannot write the profile: %w", err)
	}
	fmt.Fprintf(w, "A profile of %s is in %s. It was taken by %s.\n", c.length, c.output, by)
	return nil
}

// own takes a profile without an agent.
func (c *traceCommand) own(ctx context.Context, format encode.Format) (data []byte, err error) {
	s, err := c.open(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, err := s.Profile(ctx, &c.Choice, sampler.Options{Proc: c.proc(), For: c.length, Rate: c.rate})
	if err != nil {
		return nil, err
	}
	if p.Launches() == 0 && len(p.Samples) == 0 {
		return nil, fmt.Errorf("nothing was profiled: %s launched nothing within %s", &c.Choice, c.length)
	}
	var out bytes.Buffer
	err = encode.Write(&out, format, &p)
	return out.Bytes(), err
}
