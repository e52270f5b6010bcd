//go:build linux

// Package bundle writes the support archive of gpumeter doctor --bundle: the state of a machine
// and its gpumeter, without secrets and serial numbers. It collects the secrets from the
// environment, the configuration and the firmware before it writes the first file.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/kmsg"
	"github.com/gpumeter/gpumeter/internal/logging"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/redact"
)

// Options configures the content of an archive.
type Options struct {
	Version string
	Root    string         // where the host's file system is mounted
	Environ []string       // KEY=VALUE, the source of secrets to remove
	Doctor  []device.Check // results of gpumeter doctor
	Vendors device.Vendors // whose modules and log lines are collected
	Limit   time.Duration  // timeout of Devices

	// Devices reads the devices, Checks runs gpumeter check.
	Devices func(context.Context) (node.Tick, error)
	Checks  func(context.Context) (any, error)
	// Config writes the effective configuration of the agent as YAML. ConfigFile is its
	// configuration file; empty: none.
	Config     func(context.Context, io.Writer) error
	ConfigFile string
}

// bundle is the state of writing an archive.
type bundle struct {
	Options

	hide  redact.Redactor
	names *strings.Replacer // replaces device names that contain serial numbers
}

// Write writes the archive to path, which must not exist. A file whose content is unavailable
// contains the reason.
func Write(ctx context.Context, path string, o Options) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the bundle: %w", err)
	}
	defer f.Close()
	b := &bundle{Options: o}
	b.learn()
	tick, tickErr := b.devices(ctx)
	b.learnDevices(tick)
	files := []struct {
		name string
		text func() (string, error)
	}{
		{"README.txt", func() (string, error) { return readme, nil }},
		{"versions.json", func() (string, error) { return indented(b.versions()) }},
		{"doctor.json", func() (string, error) { return indented(o.Doctor) }},
		{"devices.json", func() (string, error) { return either(tick, tickErr) }},
		{"findings.json", func() (string, error) { return either(tick.Findings, tickErr) }},
		{"check.json", func() (string, error) { return either(o.Checks(ctx)) }},
		{"config.yaml", func() (string, error) { return b.effective(ctx) }},
		{"kernel.log", b.kernel},
	}
	texts := make([]string, len(files))
	for i, file := range files { // collect all before writing any: each may reveal secrets of others
		text, err := file.text()
		if err != nil {
			text += "unavailable: " + logging.OneLine(err) + "\n"
		}
		texts[i] = text
	}
	zip := gzip.NewWriter(f)
	archive := tar.NewWriter(zip)
	now := time.Now()
	for i, file := range files {
		clean := b.scrub(texts[i])
		head := &tar.Header{Name: "gpumeter-bundle/" + file.name, Mode: 0o600, Size: int64(len(clean)), ModTime: now}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(clean); err != nil {
			return fmt.Errorf("cannot write the bundle: %w", err)
		}
	}
	return errors.Join(archive.Close(), zip.Close(), f.Close())
}

const readme = `Support archive of this machine, written by gpumeter doctor --bundle.

versions.json  gpumeter, kernel and drivers
doctor.json    results of gpumeter doctor
devices.json   all readings of the devices, with their workloads
findings.json  problems of the devices
check.json     results of gpumeter check
config.yaml    configuration of an agent with the flags and variables given to doctor
kernel.log     kernel log lines of accelerator drivers

Removed: headers, tokens, passwords and other secrets of the configuration and the
environment, and serial numbers. Not removed: device UUIDs, and names of hosts, pods, jobs,
users and processes. Review the archive before you send it.
`

func indented(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text) + "\n", err
}

func either(v any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return indented(v)
}

// devices reads the devices with a timeout: a hung driver must not block the bundle.
func (b *bundle) devices(ctx context.Context) (node.Tick, error) {
	type answer struct {
		tick node.Tick
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		t, err := b.Devices(ctx)
		done <- answer{t, err}
	}()
	select {
	case a := <-done:
		return a.tick, a.err
	case <-time.After(b.Limit):
		return node.Tick{}, fmt.Errorf("the devices were not read within %s", b.Limit)
	}
}

func (b *bundle) versions() map[string]string {
	out := map[string]string{"gpumeter": b.Version, "go": runtime.Version(), "architecture": runtime.GOARCH}
	root := func(path string) string { return filepath.Join("/", b.Root, path) }
	files := map[string]string{
		"kernel": root("proc/sys/kernel/osrelease"), "os": root("etc/os-release"),
	}
	for _, module := range b.Vendors.Modules() {
		files["module "+module] = root("sys/module/" + module + "/version")
	}
	for i := range b.Vendors {
		for _, file := range b.Vendors[i].VersionFiles {
			files["/"+file] = root(file)
		}
	}
	for name, path := range files {
		if text, err := os.ReadFile(path); err == nil {
			out[name] = strings.TrimSpace(string(text[:min(len(text), 4096)]))
		}
	}
	return out
}

// effective returns the effective configuration of an agent.
func (b *bundle) effective(ctx context.Context) (string, error) {
	if b.ConfigFile != "" {
		text, err := os.ReadFile(b.ConfigFile)
		if err != nil {
			return "", fmt.Errorf("cannot read the configuration: %w", err)
		}
		var raw any
		if err := yaml.Unmarshal(text, &raw); err == nil {
			b.hide.Learn(raw)
			b.learnSecrets(raw, false)
		}
	}
	var out bytes.Buffer
	if err := b.Config(ctx, &out); err != nil {
		return "", err
	}
	var conf any
	if err := yaml.Unmarshal(out.Bytes(), &conf); err != nil {
		return "", err
	}
	text, err := yaml.Marshal(b.learnSecrets(conf, false))
	return string(text), err
}

// maxKernelLines is the number of kernel log lines in a bundle: the newest of the drivers.
const maxKernelLines = 5000

func (b *bundle) kernel() (string, error) {
	var lines []string
	driver := b.Vendors.LogLine()
	err := kmsg.Each(filepath.Join("/", b.Root, "dev/kmsg"), func(r kmsg.Record) {
		if !r.Kernel() || !driver.MatchString(r.Text) {
			return
		}
		if len(lines) == 2*maxKernelLines {
			lines = append(lines[:0], lines[maxKernelLines:]...)
		}
		lines = append(lines, fmt.Sprintf("[%12.6f] %s\n", r.Time.Seconds(), strings.ReplaceAll(r.Text, "\n", " ")))
	})
	return strings.Join(lines[max(0, len(lines)-maxKernelLines):], ""), err
}

// secretName matches names of variables and keys whose values are secrets. The path of a file
// with a secret is not a secret, see isSecret.
var secretName = regexp.MustCompile(`(?i)(?:passw|passphrase|token|secret|api_?-?key|credential|authorization|private_?key|access_?key|headers|_pem$)`)

func isSecret(name string) bool {
	return secretName.MatchString(name) && !strings.HasSuffix(strings.ToLower(name), "file")
}

// learn hides the secrets in the environment and the serial numbers in the firmware tables.
func (b *bundle) learn() {
	for _, v := range b.Environ {
		key, value, _ := strings.Cut(v, "=")
		if !isSecret(key) {
			continue
		}
		b.hide.Hide(value)
		for pair := range strings.SplitSeq(value, ",") { // OTEL_EXPORTER_OTLP_HEADERS
			if _, secret, ok := strings.Cut(pair, "="); ok {
				b.hide.Hide(strings.TrimSpace(secret))
			}
		}
	}
	list, _ := filepath.Glob(filepath.Join("/", b.Root, "sys/class/dmi/id/*_serial")) // the only error is a bad pattern
	for _, path := range list {
		if text, err := os.ReadFile(path); err == nil {
			b.hide.Hide(strings.TrimSpace(string(text)))
		}
	}
}

// learnSecrets hides every string below a key with the name of a secret in all files, and
// returns value with those strings redacted, whatever their length.
func (b *bundle) learnSecrets(value any, secret bool) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = b.learnSecrets(x, secret || isSecret(key))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = b.learnSecrets(x, secret)
		}
		return out
	case string:
		if secret && v != "" && v != redact.Text {
			b.hide.Hide(v)
			return redact.Text
		}
	}
	return value
}

// learnDevices pseudonymizes devices whose ID is derived from their serial number. A device has
// the same pseudonym in all bundles.
func (b *bundle) learnDevices(t node.Tick) {
	var pairs []string
	for i := range t.Readings {
		id := t.Readings[i].ID
		if serial, ok := strings.CutPrefix(id.UUID, id.Vendor+"-"); ok && serial != "" {
			sum := sha256.Sum256([]byte(id.UUID))
			pairs = append(pairs, id.UUID, fmt.Sprintf("%s-%x", id.Vendor, sum[:8]))
			b.hide.Hide(serial)
		}
	}
	b.names = strings.NewReplacer(pairs...)
}

var (
	serialText = regexp.MustCompile(`(?i)(serial(?:[ _-]?(?:number|num|no))?"?\s*[:=#]+\s*"?|serial[ _-](?:number|num|no)\s+)([A-Za-z0-9][A-Za-z0-9._-]*)`)
	secretText = regexp.MustCompile(`(?i)((?:bearer|basic)\s+|(?:api_?-?key|token|secret|password)=)[^\s"'&,;]+`)
	urlUser    = regexp.MustCompile(`(://[^/\s:@"]*:)[^/\s@"]+@`)
)

// scrub removes secrets and serial numbers from text.
func (b *bundle) scrub(text string) []byte {
	if b.names != nil {
		text = b.names.Replace(text)
	}
	text = serialText.ReplaceAllString(text, "${1}"+redact.Text)
	text = secretText.ReplaceAllString(text, "${1}"+redact.Text)
	text = urlUser.ReplaceAllString(text, "${1}"+redact.Text+"@")
	return b.hide.Bytes([]byte(text))
}
