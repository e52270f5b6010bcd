package cloud

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// machine creates a sysfs whose DMI strings are files.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	sys := t.TempDir()
	dir := filepath.Join(sys, "class/dmi/id")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

var (
	onAWS   = map[string]string{"sys_vendor": "Amazon EC2"}
	onGCE   = map[string]string{"sys_vendor": "Google", "product_name": "Google Compute Engine"}
	onAzure = map[string]string{"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}
)

func TestFirmware(t *testing.T) {
	f := func(want string, files map[string]string) {
		t.Helper()
		if got := firmware(machine(t, files)); got != want {
			t.Errorf("%v is %q, want %q", files, got, want)
		}
	}
	f("aws", onAWS)
	f("aws", map[string]string{"sys_vendor": "Xen", "bios_version": "4.11.amazon"})
	f("gcp", onGCE)
	f("azure", onAzure)
	f("", map[string]string{"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "None"})
	f("", map[string]string{"sys_vendor": "Supermicro"})
	f("", nil)
	if got := firmware(t.TempDir()); got != "" {
		t.Errorf("a machine without DMI strings: got %q, want none", got)
	}
}

// fakeAWS answers like IMDSv2, which rejects requests without a token.
func fakeAWS(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/latest/api/token" && r.Method == http.MethodPut && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
		_, _ = w.Write([]byte("AQAEAExample=="))
	case r.Header.Get("X-aws-ec2-metadata-token") != "AQAEAExample==":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/latest/dynamic/instance-identity/document":
		_, _ = w.Write([]byte(`{"accountId":"123456789012","architecture":"x86_64","availabilityZone":"us-west-2b",
			"imageId":"ami-5fb8c835","instanceId":"i-1234567890abcdef0","instanceType":"p5en.48xlarge","kernelId":null,"region":"us-west-2"}`))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func fakeGCE(w http.ResponseWriter, r *http.Request) {
	answer, ok := map[string]string{
		"/computeMetadata/v1/instance/zone":         "projects/123/zones/us-central1-a",
		"/computeMetadata/v1/instance/machine-type": "projects/123/machineTypes/a3-highgpu-8g",
		"/computeMetadata/v1/instance/id":           "4567890123456789012",
		"/computeMetadata/v1/project/project-id":    "my-project",
	}[r.URL.Path]
	if !ok || r.Header.Get("Metadata-Flavor") != "Google" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	_, _ = w.Write([]byte(answer))
}

func fakeAzure(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata") != "true" || r.URL.Path != "/metadata/instance/compute" || r.FormValue("api-version") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = w.Write([]byte(`{"location":"westeurope","zone":"2","vmSize":"Standard_ND96isr_H100_v5",
		"vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6","subscriptionId":"8d10da13-8125-4ba9-a717-bf7490507b3d","osProfile":{"adminUsername":"admin"}}`))
}

func TestDetect(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := func(files map[string]string, answer http.HandlerFunc, want map[string]string) {
		t.Helper()
		srv := httptest.NewServer(answer)
		defer srv.Close()
		d := New(machine(t, files))
		d.base = srv.URL
		got, _ := d.detect(ctx)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
	}
	f(onAWS, fakeAWS, map[string]string{
		"cloud.provider": "aws", "cloud.platform": "aws_ec2", "cloud.region": "us-west-2", "cloud.availability_zone": "us-west-2b",
		"cloud.account.id": "123456789012", "host.type": "p5en.48xlarge", "host.id": "i-1234567890abcdef0",
	})
	f(onGCE, fakeGCE, map[string]string{
		"cloud.provider": "gcp", "cloud.platform": "gcp_compute_engine", "cloud.region": "us-central1", "cloud.availability_zone": "us-central1-a",
		"cloud.account.id": "my-project", "host.type": "a3-highgpu-8g", "host.id": "4567890123456789012",
	})
	f(onAzure, fakeAzure, map[string]string{
		"cloud.provider": "azure", "cloud.platform": "azure.vm", "cloud.region": "westeurope", "cloud.availability_zone": "westeurope-2",
		"cloud.account.id": "8d10da13-8125-4ba9-a717-bf7490507b3d", "host.type": "Standard_ND96isr_H100_v5", "host.id": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
	})
	// Nothing but a real metadata server is believed.
	for _, files := range []map[string]string{onAWS, onGCE, onAzure} {
		for _, body := range []string{"", "{", "null", "[]", "<html>login</html>", `{"region": 5}`, `{"location":"<b>","zone":"two words"}`} {
			f(files, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }, nil)
		}
		f(files, http.NotFound, nil)
		f(files, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, nil)
	}
	// A machine outside any cloud sends no request.
	f(nil, func(http.ResponseWriter, *http.Request) { t.Error("a machine outside any cloud sent a request") }, nil)
	// A server that hangs is not waited for once the context is canceled.
	f(onAWS, func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }, nil)
}

// Attributes never blocks, and gives up after maxTry attempts.
func TestAttributes(t *testing.T) {
	wait := func(d *Detector) {
		for busy := true; busy; time.Sleep(time.Millisecond) {
			d.mu.Lock()
			busy = d.busy
			d.mu.Unlock()
		}
	}
	var asked atomic.Int64
	var up atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fakeAzure(w, r)
	}))
	defer srv.Close()
	now := time.Now()
	newDetector := func(files map[string]string) *Detector {
		d := New(machine(t, files))
		d.base, d.now = srv.URL, func() time.Time { return now }
		return d
	}
	d := newDetector(onAzure)
	for range 10 { // ten hours of ticks
		for range 3 {
			if got := d.Attributes(); got != nil {
				t.Errorf("attributes of a server that is down: %v", got)
			}
			wait(d)
		}
		now = now.Add(time.Hour)
	}
	if n := asked.Load(); n != maxTry {
		t.Errorf("asked %d times, want %d", n, maxTry)
	}

	d = newDetector(onAzure)
	d.Attributes()
	wait(d)
	up.Store(true)
	now = now.Add(again)
	d.Attributes()
	wait(d)
	if got := d.Attributes()["host.type"]; got != "Standard_ND96isr_H100_v5" {
		t.Errorf("host.type is %q at the second try", got)
	}

	asked.Store(0)
	d = newDetector(nil)
	for range 3 {
		d.Attributes()
		wait(d)
		now = now.Add(time.Hour)
	}
	if d.tries != maxTry || asked.Load() != 0 {
		t.Errorf("a machine outside any cloud tried %d times and sent %d requests", d.tries, asked.Load())
	}
}

// An unreachable metadata server must not delay a tick: the deadline covers all requests
// together.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		start := time.Now()
		s := &server{base: "http://slow", client: &http.Client{Transport: slow{}}}
		for name, p := range providers {
			if _, err := p.ask(ctx, s); err == nil {
				t.Errorf("%s: no error from a server that never answers", name)
			}
		}
		if took := time.Since(start); took > limit {
			t.Errorf("all providers together took %s", took)
		}
	})
}

type slow struct{}

func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}
