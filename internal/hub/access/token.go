// Package access says who may do what with a hub: the token file, the part of the data that a
// token may read, and the nodes for which a token may write.
package access

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Grant is a set of permissions.
type Grant struct {
	// Name identifies the token in the audit log. It is not secret: a name from the token file,
	// or the beginning of the hash of the secret.
	Name  string
	Read  bool
	Write bool // send OTLP
	Admin bool // acknowledge and silence findings
	// Scope is the part of the data that may be read.
	Scope Scope
	// Bound are the nodes and clusters for which Write holds; empty: all.
	Bound Bindings
}

// Role returns the name of the most powerful permission, for the audit log.
func (g *Grant) Role() string {
	switch {
	case g.Admin:
		return "admin"
	case g.Scope.Team != "":
		return "team"
	case g.Read:
		return "read"
	case g.Write:
		return "write"
	default:
		return ""
	}
}

// Tokens maps secrets to permissions. Only hashes of the secrets are kept. It is safe for
// concurrent use.
type Tokens struct{ list atomic.Pointer[[]token] }

// Replace replaces all tokens by those of another file; removed tokens lose access at once.
func (t *Tokens) Replace(by *Tokens) { t.list.Store(by.list.Load()) }

type token struct {
	hash  [sha256.Size]byte
	grant Grant
}

// minToken is the minimum length of a secret.
const minToken = 16

// ParseTokens parses a token file with one token per line:
//
//	read   SECRET  [namespace=NAME] [cluster=NAME] [name=NAME]
//	write  SECRET  [node=NAME]... [cluster=NAME]... [name=NAME]
//	team   SECRET  NAME
//	admin  SECRET  [name=NAME]
//
// SECRET has at least 16 characters, or is sha256:HEX, its hash. Lines that start with # are
// comments. Errors never contain a secret.
func ParseTokens(text []byte) (*Tokens, error) {
	var list []token
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		t, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = append(list, t)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("file contains no token")
	}
	t := &Tokens{}
	t.list.Store(&list)
	return t, nil
}

func parseLine(line string) (token, error) {
	kind, rest, _ := strings.Cut(line, " ")
	secret, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	rest = strings.TrimSpace(rest)
	var g Grant
	var err error
	switch kind {
	case "read":
		g.Read = true
		err = options(rest, kind, map[string]func(string){"namespace": set(&g.Scope.Namespace), "cluster": set(&g.Scope.Cluster), "name": set(&g.Name)})
	case "write":
		g.Write = true
		var b Binding
		err = options(rest, kind, map[string]func(string){"node": add(&b.Nodes), "cluster": add(&b.Clusters), "name": set(&g.Name)})
		if len(b.Nodes)+len(b.Clusters) > 0 {
			g.Bound = Bindings{b}
		}
	case "team": // a team's name may have spaces
		if g = (Grant{Read: true, Scope: Scope{Team: rest}, Name: rest}); rest == "" {
			err = errors.New("a team token needs a name: team SECRET NAME")
		}
	case "admin":
		g.Read, g.Admin = true, true
		err = options(rest, kind, map[string]func(string){"name": set(&g.Name)})
	default:
		err = errors.New("must start with read, write, team or admin")
	}
	if err != nil {
		return token{}, err
	}
	hash, err := parseSecret(secret)
	g.Name = cmp.Or(g.Name, "sha256:"+hex.EncodeToString(hash[:4]))
	return token{hash, g}, err
}

func set(to *string) func(string)   { return func(v string) { *to = v } }
func add(to *[]string) func(string) { return func(v string) { *to = append(*to, v) } }

// options parses KEY=VALUE words. Errors contain neither keys nor values: a secret may have been
// written in the wrong place.
func options(text, kind string, known map[string]func(string)) error {
	for word := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(word, "=")
		put := known[key]
		if put == nil || value == "" {
			keys := make([]string, 0, len(known))
			for k := range known {
				keys = append(keys, k+"=NAME")
			}
			slices.Sort(keys)
			return fmt.Errorf("%s takes one secret and %s", kind, strings.Join(keys, ", "))
		}
		put(value)
	}
	return nil
}

func parseSecret(secret string) (hash [sha256.Size]byte, err error) {
	if text, ok := strings.CutPrefix(secret, "sha256:"); ok {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != sha256.Size {
			return hash, errors.New("sha256: must be followed by 64 hexadecimal digits")
		}
		return [sha256.Size]byte(b), nil
	}
	if len(secret) < minToken {
		return hash, fmt.Errorf("a secret needs at least %d characters", minToken)
	}
	return sha256.Sum256([]byte(secret)), nil
}

// Grant returns the permissions of a secret. A secret may occur more than once, such as for
// reading and for writing: the wider permission counts. The comparison runs in constant time.
func (t *Tokens) Grant(secret string) (Grant, bool) {
	h := sha256.Sum256([]byte(secret))
	var g Grant
	found := false
	for _, x := range *t.list.Load() {
		if subtle.ConstantTimeCompare(h[:], x.hash[:]) != 1 {
			continue
		}
		if x.grant.Read && (!g.Read || x.grant.Scope.All()) {
			g.Read, g.Scope = true, x.grant.Scope
		}
		switch {
		case !x.grant.Write:
		case g.Write && g.Bound == nil, x.grant.Bound == nil:
			g.Bound = nil
		default:
			g.Bound = append(g.Bound, x.grant.Bound...)
		}
		g.Write, g.Admin = g.Write || x.grant.Write, g.Admin || x.grant.Admin
		g.Name = cmp.Or(g.Name, x.grant.Name)
		found = true
	}
	return g, found
}

// Bearer returns the secret of a request: a bearer token, or the password of basic
// authentication for clients that support nothing else.
func Bearer(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(secret)
	}
	return ""
}
