//go:build linux

package agent

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// The OTLP signals, by their names in the Collector.
const (
	metrics = "metrics"
	logs    = "logs"
	traces  = "traces"
)

// OTLPProtocols returns the values of OTLP.Protocol.
func OTLPProtocols() []string { return []string{"http/protobuf", "http/json", "grpc"} }

// OTLP configures the OTLP exporters. Its fields take precedence over the variables of the
// OpenTelemetry specification, OTEL_EXPORTER_OTLP_*.
type OTLP struct {
	Endpoint string   // URL, or host and port
	Protocol string   // one of OTLPProtocols; empty: http/protobuf
	Headers  []string // KEY=VALUE
	Insecure bool     // no TLS to an endpoint without a scheme
	CA       string   // file with the CA certificates to trust, PEM
	Cert     string   // file with the client certificate, PEM
	Key      string   // file with its private key, PEM
}

// setting is a value and the flag or variable that set it, for error messages.
type setting struct{ value, from string }

func (s setting) bad(format string, args ...any) error {
	return fmt.Errorf("%s "+format, append([]any{s.from}, args...)...)
}

// lookup returns the value of a flag, or else of the signal's variable, or else of the common
// variable. By the specification an empty variable counts as unset.
func lookup(env func(string) string, signal, flag, value, name string) setting {
	if value != "" {
		return setting{value, "--" + flag}
	}
	own := "OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_" + name
	for _, variable := range []string{own, "OTEL_EXPORTER_OTLP_" + name} {
		if v := env(variable); v != "" {
			return setting{v, variable}
		}
	}
	return setting{}
}

// exporter returns the type of the exporter for a signal and its configuration. The type is
// empty if no endpoint is set.
func (o *OTLP) exporter(signal string, env func(string) string) (kind string, conf map[string]any, err error) {
	get := func(flag, value, name string) setting { return lookup(env, signal, flag, value, name) }
	endpoint := get("otlp-endpoint", o.Endpoint, "ENDPOINT")
	if endpoint.value == "" {
		return "", nil, nil
	}
	headers, err := o.header(get("otlp-header", "", "HEADERS"))
	if err != nil {
		return "", nil, err
	}
	tls, err := clientTLS(get("otlp-ca", o.CA, "CERTIFICATE"), get("otlp-cert", o.Cert, "CLIENT_CERTIFICATE"), get("otlp-key", o.Key, "CLIENT_KEY"))
	if err != nil {
		return "", nil, err
	}
	insecure, err := o.plain(get("", "", "INSECURE"))
	if err != nil {
		return "", nil, err
	}
	u, err := parseEndpoint(endpoint, insecure, headers)
	if err != nil {
		return "", nil, err
	}
	if o.Insecure && u.Scheme == "https" {
		return "", nil, endpoint.bad("begins with https:// and contradicts --otlp-insecure")
	}
	conf = map[string]any{"headers": headers, "tls": tls}
	if err := tune(conf, get("", "", "TIMEOUT"), get("", "", "COMPRESSION")); err != nil {
		return "", nil, err
	}
	switch protocol := get("otlp-protocol", o.Protocol, "PROTOCOL"); protocol.value {
	case "grpc":
		conf["endpoint"] = u.Host
		tls["insecure"] = u.Scheme == "http"
		return "otlp_grpc", conf, nil
	case "http/json":
		conf["encoding"] = "json"
	case "", "http/protobuf":
	default:
		return "", nil, protocol.bad("is %q, must be %s", protocol.value, strings.Join(OTLPProtocols(), ", "))
	}
	// By the specification a per-signal endpoint is used as is, the common one is a base URL.
	if !strings.HasSuffix(endpoint.from, "_"+strings.ToUpper(signal)+"_ENDPOINT") {
		u = u.JoinPath("v1", signal)
	}
	conf[signal+"_endpoint"] = u.String()
	return "otlp_http", conf, nil
}

// parseEndpoint returns the endpoint as a URL. It moves a password from the URL to headers, so
// that the URL may be logged.
func parseEndpoint(s setting, insecure bool, headers map[string]any) (*url.URL, error) {
	text := s.value
	if !strings.Contains(text, "://") {
		text = map[bool]string{true: "http://", false: "https://"}[insecure] + text
	}
	u, err := url.Parse(text)
	if err != nil { // not wrapped: its text includes the password
		return nil, s.bad("must be a URL such as http://localhost:4318")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, s.bad("must be an http:// or https:// URL with a host")
	}
	if u.User != nil {
		password, _ := u.User.Password()
		if _, ok := headers["authorization"]; !ok {
			headers["authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
		}
		u.User = nil
	}
	return u, nil
}

// plain reports whether to use no TLS for an endpoint without a scheme.
func (o *OTLP) plain(s setting) (bool, error) {
	if o.Insecure || s.value == "" {
		return o.Insecure, nil
	}
	insecure, err := strconv.ParseBool(strings.ToLower(s.value))
	if err != nil {
		return false, s.bad("is %q, must be true or false", s.value)
	}
	return insecure, nil
}

// header returns the headers from the flags, or else from a variable. The values are secrets
// and must not appear in errors.
func (o *OTLP) header(s setting) (map[string]any, error) {
	all := map[string]any{}
	list, err := parsePairs(s)
	for i, h := range o.Headers {
		key, value, ok := strings.Cut(h, "=")
		if !ok {
			return nil, fmt.Errorf("--otlp-header number %d is not KEY=VALUE", i+1)
		}
		if i == 0 {
			list, err, s.from = map[string]string{}, nil, "--otlp-header"
		}
		list[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	for key, value := range list {
		if key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			return nil, s.bad("has an invalid header name")
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, s.bad("has a control character in the value of %s", key)
		}
		all[strings.ToLower(key)] = value
	}
	return all, err
}

// parsePairs parses k=v,k=v with percent-encoded values, as in the baggage header.
func parsePairs(s setting) (map[string]string, error) {
	all := map[string]string{}
	n := 0
	for pair := range strings.SplitSeq(s.value, ",") {
		if n++; strings.TrimSpace(pair) == "" {
			continue // a stray comma
		}
		key, value, ok := strings.Cut(pair, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, s.bad("must be key=value,key=value: pair %d is not", n)
		}
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil { // not wrapped: its text includes the value
			return nil, s.bad("has a bad %%-escape in the value of %s", key)
		}
		all[key] = value
	}
	return all, nil
}

func clientTLS(ca, cert, key setting) (map[string]any, error) {
	if (cert.value == "") != (key.value == "") {
		return nil, fmt.Errorf("%s needs both a certificate and its key", cert.from+key.from)
	}
	tls := map[string]any{"ca_file": ca.value, "cert_file": cert.value, "key_file": key.value}
	maps.DeleteFunc(tls, func(_ string, v any) bool { return v == "" })
	if cert.value != "" {
		tls["reload_interval"] = "1m" // certificates are short-lived, agents are not
	}
	return tls, nil
}

// tune sets the timeout and the compression.
func tune(conf map[string]any, timeout, compression setting) error {
	if timeout.value != "" {
		ms, err := strconv.ParseUint(timeout.value, 10, 31)
		if err != nil || ms == 0 {
			return timeout.bad("is %q, must be a number of milliseconds above 0", timeout.value)
		}
		conf["timeout"] = (time.Duration(ms) * time.Millisecond).String()
	}
	switch compression.value {
	case "", "gzip": // which every OTLP server must support
		conf["compression"] = "gzip"
	case "none":
		conf["compression"] = "none"
	default:
		return compression.bad("is %q, must be gzip or none", compression.value)
	}
	return nil
}

// Default queue sizes in bytes: memory is scarcer than disk.
const (
	diskQueue   = 256 << 20
	memoryQueue = 32 << 20
)

// queued configures the send queue and the retries of an exporter. The queue is on disk in
// storage, or in memory if storage is empty. size 0 is the default.
func queued(conf map[string]any, storage string, size int64) {
	queue := map[string]any{
		"enabled":           true,
		"sizer":             "bytes",
		"queue_size":        int64(memoryQueue),
		"num_consumers":     1, // preserves the order
		"block_on_overflow": false,
	}
	if storage != "" {
		queue["storage"], queue["queue_size"] = storage, int64(diskQueue)
	}
	if size > 0 {
		queue["queue_size"] = size
	}
	conf["sending_queue"] = queue
	conf["retry_on_failure"] = map[string]any{"enabled": true, "initial_interval": "1s", "max_interval": "30s", "max_elapsed_time": "0s"}
}

// pushes reports whether any signal has an OTLP endpoint.
func (o *OTLP) pushes(env func(string) string) (bool, error) {
	for _, signal := range []string{metrics, logs, traces} {
		if kind, _, err := o.exporter(signal, env); err != nil || kind != "" {
			return kind != "", err
		}
	}
	return false, nil
}

// readable checks that the certificate files are readable. Otherwise an exporter would fail
// after other components have started.
func (o *OTLP) readable(env func(string) string) error {
	for _, signal := range []string{metrics, logs, traces} {
		_, conf, err := o.exporter(signal, env)
		if err != nil {
			return err
		}
		files, _ := conf["tls"].(map[string]any)
		for _, key := range []string{"ca_file", "cert_file", "key_file"} {
			path, ok := files[key].(string)
			if !ok {
				continue
			}
			f, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("cannot read the %s for OTLP: %w", map[string]string{
					"ca_file": "CA certificates", "cert_file": "certificate", "key_file": "key",
				}[key], err)
			}
			f.Close()
		}
	}
	return nil
}
