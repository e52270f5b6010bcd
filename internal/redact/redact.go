// Package redact keeps secrets out of gpumeter's output. A Redactor learns secrets from a
// configuration and removes them from every line written through it; Config removes them from
// a configuration for display.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Text replaces a secret, as in the Collector.
const Text = "[REDACTED]"

// minSecret is the minimum length of a secret in bytes. Redacting a one-letter header would
// make the log unreadable and protect nothing.
const minSecret = 8

// Redactor removes secrets from text. gpumeter itself logs no secrets, but backends and proxies
// may echo part of a request in their response, and exporters log the response. The zero value
// has no secrets and is ready to use. A Redactor is safe for concurrent use.
type Redactor struct {
	mu      sync.RWMutex
	secrets [][]byte // longest first
}

// Hide adds secret and each of its words, so that of "Bearer x" also x alone is removed.
func (r *Redactor) Hide(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range append(strings.Fields(secret), secret) {
		quoted := strconv.Quote(text)
		for _, form := range []string{text, quoted[1 : len(quoted)-1]} {
			known := func(b []byte) bool { return string(b) == form }
			if len(text) >= minSecret && !slices.ContainsFunc(r.secrets, known) {
				r.secrets = append(r.secrets, []byte(form))
			}
		}
	}
	slices.SortStableFunc(r.secrets, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
}

// Learn adds the headers in a configuration, and the passwords and query values in its URLs.
func (r *Redactor) Learn(conf any) { r.learn(conf, false) }

func (r *Redactor) learn(conf any, header bool) {
	switch v := conf.(type) {
	case map[string]any:
		for key, value := range v {
			r.learn(value, header || strings.EqualFold(key, "headers"))
		}
	case []any:
		for _, value := range v {
			r.learn(value, header)
		}
	case string:
		if header {
			r.Hide(v)
		}
		u, err := url.Parse(v)
		if err != nil {
			return
		}
		if strings.Contains(v, "://") {
			for _, values := range u.Query() {
				for _, value := range values {
					r.Hide(value)
					r.Hide(url.QueryEscape(value))
				}
			}
		}
		if u.User == nil {
			return
		}
		if password, ok := u.User.Password(); ok {
			r.Hide(password)
			r.Hide(base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password)))
		}
	}
}

// Bytes returns text with the secrets replaced. It may return text itself.
func (r *Redactor) Bytes(text []byte) []byte {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, secret := range r.secrets {
		if bytes.Contains(text, secret) {
			text = bytes.ReplaceAll(text, secret, []byte(Text))
		}
	}
	return text
}

// Writer returns a writer that removes secrets and writes to w. Each Write must consist of
// whole lines, as from a logger: a secret split over two writes is not found.
func (r *Redactor) Writer(w io.Writer) io.Writer { return redacting{w, r} }

type redacting struct {
	to     io.Writer
	hidden *Redactor
}

// Write implements io.Writer.
func (w redacting) Write(line []byte) (int, error) {
	if _, err := w.to.Write(w.hidden.Bytes(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Config returns conf with its headers, and the passwords and query values in its URLs, redacted.
// Every query value is redacted: no list of names has all those that carry a token.
func Config(conf any) any { return redact(conf, false) }

func redact(value any, secret bool) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = redact(x, secret || strings.EqualFold(key, "headers"))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = redact(x, secret)
		}
		return out
	case string:
		if secret {
			return Text
		}
		if u, err := url.Parse(v); err == nil && strings.Contains(v, "://") && (u.User != nil || u.RawQuery != "") {
			return hideQuery(u).Redacted()
		}
	}
	return value
}

// hideQuery replaces the values in the query of u. Their names and order stay.
func hideQuery(u *url.URL) *url.URL {
	if u.RawQuery == "" {
		return u
	}
	parts := strings.Split(u.RawQuery, "&")
	for i, part := range parts {
		if name, _, ok := strings.Cut(part, "="); ok {
			parts[i] = name + "=" + Text
		} else {
			parts[i] = Text // a query without a name may be the token itself
		}
	}
	u.RawQuery = strings.Join(parts, "&")
	return u
}
