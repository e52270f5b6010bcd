//go:build linux

package agent

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
	f := func(o OTLP, signal string, env []string, kind string, want map[string]any) {
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
	f(OTLP{}, metrics, nil, "", nil)
	f(OTLP{}, metrics, env(all+"ENDPOINT=", all+"PROTOCOL=nonsense"), "", nil)
	f(OTLP{}, metrics, env(all+"LOGS_ENDPOINT=http://logs"), "", nil)
	// A base gets a path; the endpoint of a signal is taken as it is.
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a:4318"), "otlp_http", conf{"metrics_endpoint": "http://a:4318/v1/metrics"})
	f(OTLP{}, logs, env(all+"ENDPOINT=http://a:4318/"), "otlp_http", conf{"logs_endpoint": "http://a:4318/v1/logs"})
	f(OTLP{}, traces, env(all+"ENDPOINT=https://a/otlp/?x=1"), "otlp_http", conf{"traces_endpoint": "https://a/otlp/v1/traces?x=1"})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"metrics_endpoint": "http://b/in"})
	f(OTLP{}, logs, env(all+"ENDPOINT=http://a", all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"logs_endpoint": "http://a/v1/logs"})
	f(OTLP{Endpoint: "http://c"}, metrics, env(all+"METRICS_ENDPOINT=http://b/in"), "otlp_http", conf{"metrics_endpoint": "http://c/v1/metrics"})
	// Protocols.
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"PROTOCOL=http/protobuf"), "otlp_http", conf{"metrics_endpoint": "http://a/v1/metrics"})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"PROTOCOL=http/json"), "otlp_http", conf{"metrics_endpoint": "http://a/v1/metrics", "encoding": "json"})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a:4317", all+"PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:4317", "tls": conf{"insecure": true}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=https://a:4317/path", all+"METRICS_PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:4317", "tls": conf{"insecure": false}})
	f(OTLP{}, logs, env(all+"ENDPOINT=http://a", all+"METRICS_PROTOCOL=grpc"), "otlp_http", conf{"logs_endpoint": "http://a/v1/logs"})
	f(OTLP{Protocol: "grpc"}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=http/json"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": false}})
	// Without a scheme.
	f(OTLP{Insecure: true}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=grpc"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": true}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=a:1", all+"PROTOCOL=grpc", all+"INSECURE=True"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": true}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=https://a:1", all+"PROTOCOL=grpc", all+"INSECURE=true"), "otlp_grpc", conf{"endpoint": "a:1", "tls": conf{"insecure": false}})
	f(OTLP{Endpoint: "a:1"}, metrics, nil, "otlp_http", conf{"metrics_endpoint": "https://a:1/v1/metrics"})
	// Headers.
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=Api-Key=a%20b%3D, x = y=z ,"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"api-key": "a b=", "x": "y=z"}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=a=1,b=2", all+"METRICS_HEADERS=c=3"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"c": "3"}})
	f(OTLP{Headers: []string{"A=1%20,2", "b=3"}}, metrics, env(all+"ENDPOINT=http://a", all+"HEADERS=c=3"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"a": "1%20,2", "b": "3"}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://me:secret@a"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "headers": conf{"authorization": "Basic bWU6c2VjcmV0"}})
	// The rest.
	f(OTLP{CA: "/ca"}, metrics, env(all+"ENDPOINT=https://a", all+"CERTIFICATE=/x", all+"CLIENT_CERTIFICATE=/c", all+"METRICS_CLIENT_KEY=/k"), "otlp_http",
		conf{"metrics_endpoint": "https://a/v1/metrics", "tls": conf{"ca_file": "/ca", "cert_file": "/c", "key_file": "/k", "reload_interval": "1m"}})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"TIMEOUT=1500", all+"COMPRESSION=none"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "timeout": "1.5s", "compression": "none"})
	f(OTLP{}, metrics, env(all+"ENDPOINT=http://a", all+"TIMEOUT=1", all+"METRICS_TIMEOUT=2000"), "otlp_http",
		conf{"metrics_endpoint": "http://a/v1/metrics", "timeout": "2s"})
}

// A bad value gives an error that names who said it, and never a secret.
func TestExporterErrors(t *testing.T) {
	f := func(o OTLP, want string, env ...string) {
		t.Helper()
		if o.Endpoint == "" {
			env = append(env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://a")
		}
		_, _, err := o.exporter(metrics, environment(env...))
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	f(OTLP{}, `OTEL_EXPORTER_OTLP_PROTOCOL is "http", must be http/protobuf, http/json, grpc`, "OTEL_EXPORTER_OTLP_PROTOCOL=http")
	f(OTLP{Protocol: "tcp"}, `--otlp-protocol is "tcp", must be http/protobuf, http/json, grpc`)
	f(OTLP{}, `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT must be an http:// or https:// URL with a host`, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=ftp://me:secret@a")
	f(OTLP{Endpoint: "http://"}, `--otlp-endpoint must be an http:// or https:// URL with a host`)
	f(OTLP{Endpoint: "http://me:secret@a:port"}, `--otlp-endpoint must be a URL such as http://localhost:4318`)
	f(OTLP{Endpoint: "https://a", Insecure: true}, `--otlp-endpoint begins with https:// and contradicts --otlp-insecure`)
	f(OTLP{}, `OTEL_EXPORTER_OTLP_HEADERS must be key=value,key=value: pair 2 is not`, "OTEL_EXPORTER_OTLP_HEADERS=a=secret,secret")
	f(OTLP{}, `OTEL_EXPORTER_OTLP_METRICS_HEADERS has a bad %-escape in the value of a`, "OTEL_EXPORTER_OTLP_METRICS_HEADERS=a=secret%zz")
	f(OTLP{}, `OTEL_EXPORTER_OTLP_HEADERS has an invalid header name`, "OTEL_EXPORTER_OTLP_HEADERS=a secret=b")
	f(OTLP{}, `OTEL_EXPORTER_OTLP_HEADERS has a control character in the value of a`, "OTEL_EXPORTER_OTLP_HEADERS=a=secret%0Ab")
	f(OTLP{Headers: []string{"a=b", "secret"}}, `--otlp-header number 2 is not KEY=VALUE`)
	f(OTLP{}, `OTEL_EXPORTER_OTLP_TIMEOUT is "10s", must be a number of milliseconds above 0`, "OTEL_EXPORTER_OTLP_TIMEOUT=10s")
	f(OTLP{}, `OTEL_EXPORTER_OTLP_COMPRESSION is "zip", must be gzip or none`, "OTEL_EXPORTER_OTLP_COMPRESSION=zip")
	f(OTLP{}, `OTEL_EXPORTER_OTLP_INSECURE is "maybe", must be true or false`, "OTEL_EXPORTER_OTLP_INSECURE=maybe")
	f(OTLP{Cert: "/c"}, `--otlp-cert needs both a certificate and its key`)
	f(OTLP{}, `OTEL_EXPORTER_OTLP_CLIENT_KEY needs both a certificate and its key`, "OTEL_EXPORTER_OTLP_CLIENT_KEY=/k")
}

func TestResource(t *testing.T) {
	f := func(i Identity, want map[string]string, env ...string) {
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
	f(Identity{}, attributes{})
	f(Identity{Cluster: "c", Node: "n"}, attributes{"k8s.cluster.name": "c", "k8s.node.name": "n"}, "K8S_NODE_NAME=x", "OTEL_RESOURCE_ATTRIBUTES=k8s.cluster.name=y")
	f(Identity{}, attributes{"k8s.node.name": "a"}, "NODE_NAME=b", "K8S_NODE_NAME=a")
	f(Identity{}, attributes{"k8s.node.name": "c"}, "NODE_NAME=b", "OTEL_RESOURCE_ATTRIBUTES=k8s.node.name=c")
	f(Identity{}, attributes{"k8s.node.name": "b"}, "NODE_NAME=b")
	f(Identity{}, attributes{"service.name": "mine", "team": "a,b"}, "OTEL_RESOURCE_ATTRIBUTES=service.name=other,team=a%2Cb", "OTEL_SERVICE_NAME=mine")
	bad := func(value, want string) {
		t.Helper()
		if _, err := new(Identity).resource(environment("OTEL_RESOURCE_ATTRIBUTES=" + value)); err == nil || err.Error() != "OTEL_RESOURCE_ATTRIBUTES "+want {
			t.Errorf("%s: error %v", value, err)
		}
	}
	bad("team", "must be key=value,key=value: pair 1 is not")
	bad("a=b,team=%zz", "has a bad %-escape in the value of team")
	bad("gpumeter.simulated=false", `must not set the attribute "gpumeter.simulated"`)
	bad("a::b=c", `must not set the attribute "a::b"`)
}

// What flags and variables say is no template: the Collector would put the environment in.
func TestLiteral(t *testing.T) {
	a, err := New(Options{Env: environment("OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_RESOURCE_ATTRIBUTES=x=${env:HOME}$$y")})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := a.WriteConfig(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if want := "x: $${env:HOME}$$$$y\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}
