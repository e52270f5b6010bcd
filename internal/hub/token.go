package hub

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

var errReadOnly = errors.New("event log is read-only")

// Grant is a set of permissions.
type Grant struct {
	Read  bool
	Write bool   // send OTLP
	Team  string // team whose series and events may be read; empty: all
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
//	read   SECRET
//	write  SECRET
//	team   SECRET  NAME
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
		kind, rest, _ := strings.Cut(line, " ")
		secret, name, _ := strings.Cut(strings.TrimSpace(rest), " ")
		name = strings.TrimSpace(name)
		var g Grant
		switch kind {
		case "read":
			g.Read = true
		case "write":
			g.Write = true
		case "team":
			if g = (Grant{Read: true, Team: name}); name == "" {
				return nil, fmt.Errorf("line %d: a team token needs a name: team SECRET NAME", n)
			}
		default:
			return nil, fmt.Errorf("line %d: must start with read, write or team", n)
		}
		if kind != "team" && name != "" {
			return nil, fmt.Errorf("line %d: %s takes one secret", n, kind)
		}
		h, err := parseSecret(secret)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = append(list, token{h, g})
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
// reading and for writing. The comparison runs in constant time.
func (t *Tokens) Grant(secret string) (Grant, bool) {
	h := sha256.Sum256([]byte(secret))
	var g Grant
	found := false
	for _, x := range *t.list.Load() {
		if subtle.ConstantTimeCompare(h[:], x.hash[:]) == 1 {
			// Permission to read all teams overrides a team restriction.
			if x.grant.Read && (!g.Read || x.grant.Team == "") {
				g.Read, g.Team = true, x.grant.Team
			}
			g.Write = g.Write || x.grant.Write
			found = true
		}
	}
	return g, found
}
