//go:build linux

package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumeter/gpumeter/internal/query"
)

// storeFlags holds the flags of every command that queries a store: top, report, hub and slurm
// jobs. Each command names the flag of the URL itself.
type storeFlags struct {
	url     string
	token   string
	ca      string
	headers []string
	tenant  string

	flag string // the flag of the URL, with its dashes
}

// tenantHeader selects a tenant of Mimir, Cortex, Loki and Thanos.
const tenantHeader = "X-Scope-OrgID"

// storeFlagNames are the flags that need a URL.
var storeFlagNames = []string{"token-file", "ca-file", "header", "tenant"}

// register adds the flags. url is the name of the flag of the URL, and usage its help.
func (s *storeFlags) register(cmd *cobra.Command, url, value, usage string) {
	s.flag = "--" + url
	f := cmd.Flags()
	f.StringVar(&s.url, url, value, usage)
	f.StringVar(&s.token, "token-file", "", "`FILE` with a bearer token for "+s.flag+"; read for every query")
	f.StringVar(&s.ca, "ca-file", "", "`FILE` with CA certificates to trust for "+s.flag+" in addition to the system's, PEM")
	f.StringArrayVar(&s.headers, "header", nil, "`KEY=VALUE` sent to "+s.flag+" with each query; may be repeated. Visible in the process list")
	f.StringVar(&s.tenant, "tenant", "", "`ID` of the tenant to query, sent to "+s.flag+" as "+tenantHeader)
}

// check rejects flags that would be silently ignored.
func (s *storeFlags) check(cmd *cobra.Command) error {
	if s.url != "" {
		return nil
	}
	for _, name := range storeFlagNames {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s has no effect without %s", name, s.flag)
		}
	}
	return nil
}

// config returns the configuration of the store's client.
func (s *storeFlags) config(timeout time.Duration) (query.Config, error) {
	c := query.Config{URL: s.url, TokenFile: s.token, CAFile: s.ca, Headers: map[string]string{}, Timeout: timeout}
	for _, h := range s.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return c, errors.New("--header must be like " + tenantHeader + "=fleet") // the value may be a secret
		}
		name = http.CanonicalHeaderKey(strings.TrimSpace(name))
		if _, twice := c.Headers[name]; twice {
			return c, fmt.Errorf("--header sets %s twice", name)
		}
		c.Headers[name] = strings.TrimSpace(value)
	}
	if s.tenant != "" {
		name := http.CanonicalHeaderKey(tenantHeader)
		if _, twice := c.Headers[name]; twice {
			return c, fmt.Errorf("--tenant and --header both set %s", tenantHeader)
		}
		c.Headers[name] = s.tenant
	}
	return c, nil
}

// open returns a client of the store. It sends no request.
func (s *storeFlags) open(timeout time.Duration) (*query.Client, error) {
	c, err := s.config(timeout)
	if err != nil {
		return nil, err
	}
	store, err := query.Open(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.flag, err)
	}
	return store, nil
}
