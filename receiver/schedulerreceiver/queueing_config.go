package schedulerreceiver

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler/queueing"
	"github.com/gpumeter/gpumeter/internal/scheduler/queueing/pages"
)

// QueueingConfig configures which metrics pages of queueing systems are read.
type QueueingConfig struct {
	// Interval is how often the pages are read. With kubernetes it is that of Kubernetes.
	Interval time.Duration `mapstructure:"interval"`
	// Timeout is how long one page may take.
	Timeout time.Duration `mapstructure:"timeout"`
	// Cluster is the value of scheduler.cluster. With kubernetes it is that of Kubernetes.
	Cluster string `mapstructure:"cluster"`
	// Discover looks for the Services of systems that are not in Pages, with kubernetes.
	Discover bool `mapstructure:"discover"`
	// CAFile, TokenFile and InsecureSkipVerify are for pages that are found, as those of PageConfig: but without
	// verification nothing found gets the token.
	CAFile             string `mapstructure:"ca_file"`
	TokenFile          string `mapstructure:"token_file"`
	InsecureSkipVerify bool   `mapstructure:"insecure_skip_verify"`
	// Pages are the metrics pages to read.
	Pages []PageConfig `mapstructure:"pages"`
}

// PageConfig is a metrics page of a queueing system.
type PageConfig struct {
	// URL is its address, such as http://volcano-scheduler-service.volcano-system:8080/metrics. Each replica needs its own.
	URL string `mapstructure:"url"`
	// Type is the system, as scheduler.type has it. Empty: it is recognized.
	Type string `mapstructure:"type"`
	// CAFile has the certificates to trust, PEM. Empty: those of the machine.
	CAFile string `mapstructure:"ca_file"`
	// TokenFile has a token, which is read for each request.
	TokenFile string `mapstructure:"token_file"`
	// ServerName is the name in the certificate, if it is not that in URL.
	ServerName string `mapstructure:"server_name"`
	// InsecureSkipVerify trusts any certificate, also with the token.
	InsecureSkipVerify bool `mapstructure:"insecure_skip_verify"`
	// Parents are queues that have others below them, where the page does not tell: they do not count.
	Parents []string `mapstructure:"parents"`
}

// maxPages bounds the pages of the list.
const maxPages = 32

// Validate implements component.ConfigValidator.
func (c *QueueingConfig) Validate() error {
	var errs []error
	if c.Interval < time.Second {
		errs = append(errs, fmt.Errorf("interval must be at least 1s, is %s", c.Interval))
	}
	if c.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("timeout must be at least 1ms, is %s", c.Timeout))
	}
	if len(c.Pages) > maxPages {
		errs = append(errs, fmt.Errorf("pages has %d pages, at most %d are read", len(c.Pages), maxPages))
	}
	known := map[string]bool{}
	for i := range c.Pages {
		p := &c.Pages[i]
		if known[p.URL] {
			errs = append(errs, fmt.Errorf("pages::%d: %s is listed twice", i, p.URL))
		}
		known[p.URL] = true
		if err := p.check(); err != nil {
			errs = append(errs, fmt.Errorf("pages::%d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (c *PageConfig) check() error {
	u, err := url.Parse(c.URL)
	switch systems := queueing.Systems(); {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("url is not an http:// or https:// address") // it may have a password
	case u.User != nil:
		return errors.New("url has a user or a password: use token_file")
	case u.Path == "" || u.Path == "/":
		return fmt.Errorf("%s has no path, such as /metrics", c.URL)
	case c.TokenFile != "" && u.Scheme != "https":
		return fmt.Errorf("token_file needs an https:// address: %s would show the token to everybody on the way", c.URL)
	case c.Type != "" && !slices.Contains(systems, c.Type):
		return fmt.Errorf("type %q is not known, must be one of %s", c.Type, strings.Join(systems, ", "))
	}
	return nil
}

// targets returns the pages of the list, which is valid.
func (c *QueueingConfig) targets() []pages.Target {
	out := make([]pages.Target, 0, len(c.Pages))
	for _, p := range c.Pages {
		u, err := url.Parse(p.URL)
		if err != nil {
			continue // see Validate
		}
		out = append(out, pages.Target{
			URL: u, System: p.Type, Parents: p.Parents,
			CAFile: p.CAFile, TokenFile: p.TokenFile, ServerName: p.ServerName, Insecure: p.InsecureSkipVerify,
		})
	}
	return out
}
