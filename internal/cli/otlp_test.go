//go:build linux

package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// environment returns a lookup of variables given as name=value.
func environment(list ...string) func(string) string {
	return func(name string) string {
		for _, v := range list {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestExporter(t *testing.T) {
	const all = "OTEL_EXPORTER_OTLP_"
	f := func(o otlp, signal string, env []string, kind string, want map[string]any) {
		t.Helper()
		for key, value := range map[string]any{"headers": map[string]any{}, "tls": map[string]any{}, "compression": "gzip"} {
			if _, ok := want[key]; want != nil && !ok {
				want[key] = value
			}
		}
		got, conf, err := o.exporter(signal, environment(env...))
		if err != nil {
			t.Errorf("%v %v: %v", o, env, err)
			return
		}
		if got != kind {
			t.Errorf("%v %v: exporter %q, want %q", o, env, got, kind)
		}
		if diff := cmp.Diff(want, conf); diff != "" {
			t.Errorf("%v %v (-want +got):\n%s", o, env, diff)
		}
	}
	type conf = map[string]any
	env := func(list ...string) []string { return list }

	// Nobody names an endpoint, or not for this signal.
	f(otlp{}, metrics, nil, "", nil)
	f(otlp{}, metrics, env(all+"ENDPOINT=", all+"PROTOCOL=nonsense"), "", nil)
	f(otlp{}, metrics, env(all+"LOGS_ENDPOINT=http://logs"), "", nil)
	// A base gets a path; the endpoint of a signal is taken as it is.
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a:4318"), "otlp_http", conf{"metrics_endpoint": "http://a:4318/v1/metrics"})
	f(otlp{}, logs, env(all+"ENDPOINT=http://a:4318/"), "otlp_http", conf{"logs_endpoint": "http://a:4318/v1/logs"})
	f(otlp{}, traces, env(all+"ENDPOINT=https://a/otlp/?x=1"), "otlp_http", conf{"traces_endpoint": "https://a/otlp/v1/traces?x=1"})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"metrics_endpoint": "http://b/in"})
	f(otlp{}, logs, env(all+"ENDPOINT=http://a", all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"logs_endpoint": "http://a/v1/logs"})
	f(otlp{endpoint: "http://c"}, metrics, env(all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"metrics_endpoint": "http://c/v1/metrics"})
	// Protocols.
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"PROTOCOL=http/protobuf"), "otlp_http", conf{"metrics_endpoint": "http://a/v1/metrics"})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"PROTOCOL=http/json"), "otlp_http", conf{"metrics_endpoint": "http://a/v1/metrics", "encoding": "json"})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a:4317", all+"PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:4317", "tls": conf{"insecure": true}})
	f(otlp{}, metrics, env(all+"ENDPOINT=https://a:4317/path", all+"METRICS_PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:4317", "tls": conf{"insecure": false}})
	f(otlp{}, logs, env(all+"ENDPOINT=http://a", all+"METRICS_PROTOCOL=grpc"), "otlp_http", conf{"logs_endpoint": "http://a/v1/logs"})
	f(otlp{protocol: "grpc"}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=http/json"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": false}})
	// Without a scheme.
	f(otlp{insecure: true}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": true}})
	f(otlp{}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=grpc", all+"INSECURE=True"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": true}})
	f(otlp{}, metrics, env(all+"ENDPOINT=https://a:1", all+"PROTOCOL=grpc", all+"INSECURE=true"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": false}})
	f(otlp{endpoint: "a:1"}, metrics, nil, "otlp_http", conf{"metrics_endpoint": "https://a:1/v1/metrics"})
	// Headers.
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=Api-Key=a%20b%3D, x = y=z ,"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"api-key": "a b=", "x": "y=z"}})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=a=1,b=2", all+"METRICS_HEADERS=c=3"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"c": "3"}})
	f(otlp{headers: []string{"A=1%20,2", "b=3"}}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=c=3"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"a": "1%20,2", "b": "3"}})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://me:secret@a"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"authorization": "Basic bWU6c2VjcmV0"}})
	// The rest.
	f(otlp{ca: "/ca"}, metrics, env(all+"ENDPOINT=https://a", all+"CERTIFICATE=/x", all+"CLIENT_CERTIFICATE=/c", all+"METRICS_CLIENT_KEY=/k"), "otlp_http",
		conf{"metrics_endpoint": "https://a/v1/metrics", "tls": conf{"ca_file": "/ca", "cert_file": "/c", "key_file": "/k"}})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"TIMEOUT=1500", all+"COMPRESSION=none"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "timeout": "1.5s", "compression": "none"})
	f(otlp{}, metrics, env(all+"ENDPOINT=http://a", all+"TIMEOUT=1", all+"METRICS_TIMEOUT=2000"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "timeout": "2s"})
}

// A bad value gives an error that names who said it, and never a secret.
func TestExporterErrors(t *testing.T) {
	f := func(o otlp, want string, env ...string) {
		t.Helper()
		if o.endpoint == "" {
			env = append(env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://a")
		}
		_, _, err := o.exporter(metrics, environment(env...))
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	f(otlp{}, `OTEL_EXPORTER_OTLP_PROTOCOL is "http", must be http/protobuf, http/json, grpc`, "OTEL_EXPORTER_OTLP_PROTOCOL=http")
	f(otlp{protocol: "tcp"}, `--otlp-protocol is "tcp", must be http/protobuf, http/json, grpc`)
	f(otlp{}, `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT must be a URL that begins with http:// or https://, and name a host`, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=ftp://me:secret@a")
	f(otlp{endpoint: "http://"}, `--otlp-endpoint must be a URL that begins with http:// or https://, and name a host`)
	f(otlp{endpoint: "http://me:secret@a:port"}, `--otlp-endpoint is not a URL, such as http://localhost:4318`)
	f(otlp{endpoint: "https://a", insecure: true}, `--otlp-endpoint begins with https://, which --otlp-insecure contradicts`)
	f(otlp{}, `OTEL_EXPORTER_OTLP_HEADERS is not key=value,key=value: see number 2`, "OTEL_EXPORTER_OTLP_HEADERS=a=secret,secret")
	f(otlp{}, `OTEL_EXPORTER_OTLP_METRICS_HEADERS has a bad %-escape in the value of a`, "OTEL_EXPORTER_OTLP_METRICS_HEADERS=a=secret%zz")
	f(otlp{}, `OTEL_EXPORTER_OTLP_HEADERS has a name that is none for a header`, "OTEL_EXPORTER_OTLP_HEADERS=a secret=b")
	f(otlp{}, `OTEL_EXPORTER_OTLP_HEADERS has a control character in the value of a`, "OTEL_EXPORTER_OTLP_HEADERS=a=secret%0Ab")
	f(otlp{headers: []string{"a=b", "secret"}}, `--otlp-header number 2 is not KEY=VALUE`)
	f(otlp{}, `OTEL_EXPORTER_OTLP_TIMEOUT is "10s", must be a number of milliseconds above 0`, "OTEL_EXPORTER_OTLP_TIMEOUT=10s")
	f(otlp{}, `OTEL_EXPORTER_OTLP_COMPRESSION is "zip", must be gzip or none`, "OTEL_EXPORTER_OTLP_COMPRESSION=zip")
	f(otlp{}, `OTEL_EXPORTER_OTLP_INSECURE is "maybe", must be true or false`, "OTEL_EXPORTER_OTLP_INSECURE=maybe")
	f(otlp{cert: "/c"}, `--otlp-cert names half of a certificate and its key: set both`)
	f(otlp{}, `OTEL_EXPORTER_OTLP_CLIENT_KEY names half of a certificate and its key: set both`, "OTEL_EXPORTER_OTLP_CLIENT_KEY=/k")
}

func TestResource(t *testing.T) {
	f := func(i identity, want map[string]string, env ...string) {
		t.Helper()
		got, err := i.resource(environment(env...))
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v %v (-want +got):\n%s", i, env, diff)
		}
	}
	type attributes = map[string]string
	f(identity{}, attributes{})
	f(identity{cluster: "c", node: "n"}, attributes{"k8s.cluster.name": "c", "k8s.node.name": "n"}, "K8S_NODE_NAME=x", "OTEL_RESOURCE_ATTRIBUTES=k8s.cluster.name=y")
	f(identity{}, attributes{"k8s.node.name": "a"}, "NODE_NAME=b", "K8S_NODE_NAME=a")
	f(identity{}, attributes{"k8s.node.name": "c"}, "NODE_NAME=b", "OTEL_RESOURCE_ATTRIBUTES=k8s.node.name=c")
	f(identity{}, attributes{"k8s.node.name": "b"}, "NODE_NAME=b")
	f(identity{}, attributes{"service.name": "mine", "team": "a,b"}, "OTEL_RESOURCE_ATTRIBUTES=service.name=other,team=a%2Cb", "OTEL_SERVICE_NAME=mine")
	bad := func(value, want string) {
		t.Helper()
		if _, err := new(identity).resource(environment("OTEL_RESOURCE_ATTRIBUTES=" + value)); err == nil || err.Error() != "OTEL_RESOURCE_ATTRIBUTES "+want {
			t.Errorf("%s: error %v", value, err)
		}
	}
	bad("team", "is not key=value,key=value: see number 1")
	bad("a=b,team=%zz", "has a bad %-escape in the value of team")
	bad("gpumeter.simulated=false", `must not have the attribute "gpumeter.simulated"`)
	bad("a::b=c", `must not have the attribute "a::b"`)
}

func TestParseSize(t *testing.T) {
	f := func(text string, want int64) {
		t.Helper()
		got, err := parseSize(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d (%v), want %d", text, got, err, want)
		}
	}
	f("1", 1)
	f("4KiB", 4096)
	f("256MiB", 256<<20)
	f("2 GiB", 2<<30)
	f("1024GiB", 1<<40)
	for _, bad := range []string{"", "0", "-1", "1MB", "MiB", "1.5GiB", "1025GiB", "9223372036854775807", "9000000000GiB"} {
		f(bad, 0)
	}
}

// What flags and variables say is no template: the Collector would put the environment in.
func TestLiteral(t *testing.T) {
	a := &agent{env: environment("OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_RESOURCE_ATTRIBUTES=x=${env:HOME}$$y")}
	if err := a.identify(a.env); err != nil {
		t.Fatal(err)
	}
	conf, err := a.defaults(a.env, "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := printConfig(t.Context(), &b, fromMap(conf), false); err != nil {
		t.Fatal(err)
	}
	if want := "x: ${env:HOME}$$y\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}
