package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpumeter/gpumeter/internal/slurm"
)

const (
	maxConf  = 8 << 20 // bytes of a configuration file; that of a large cluster has hundreds of KiB
	maxDepth = 4       // nesting of include files
)

// setting is one line of a configuration file: the values by key. Keys are in lower case,
// because Slurm ignores case.
type setting map[string]string

// parseConf parses the lines of slurm.conf and gres.conf: key=value pairs, quoted values,
// lines continued after a backslash, comments after #.
func parseConf(b []byte) []setting {
	var out []setting
	var whole []byte
	for line := range bytes.Lines(b) {
		line = bytes.TrimRight(line, "\r\n")
		if i := comment(line); i >= 0 {
			line = line[:i]
		}
		line = bytes.TrimRight(line, " \t")
		if more, ok := bytes.CutSuffix(line, []byte(`\`)); ok {
			whole = append(append(whole, more...), ' ')
			continue
		}
		if s := parseSetting(string(append(whole, line...))); len(s) > 0 {
			out = append(out, s)
		}
		whole = whole[:0]
	}
	if s := parseSetting(string(whole)); len(s) > 0 {
		out = append(out, s)
	}
	return out
}

// comment returns the start of a comment: a # without a backslash before it.
func comment(line []byte) int {
	for i, c := range line {
		if c == '#' && (i == 0 || line[i-1] != '\\') {
			return i
		}
	}
	return -1
}

func parseSetting(line string) setting {
	s := setting{}
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimLeft(line, " \t") {
		i := strings.IndexAny(line, "= \t")
		if i < 0 {
			break
		}
		key := strings.ToLower(line[:i])
		if line[i] != '=' {
			line = strings.TrimSpace(line[i:])
			if key == "include" {
				s[key], line, _ = strings.Cut(line, " ")
			}
			continue
		}
		line = line[i+1:]
		var value string
		if quoted, ok := strings.CutPrefix(line, `"`); ok {
			value, line, _ = strings.Cut(quoted, `"`)
		} else if i := strings.IndexAny(line, " \t"); i >= 0 {
			value, line = line[:i], line[i:]
		} else {
			value, line = line, ""
		}
		if _, twice := s[key]; !twice && key != "" {
			s[key] = value
		}
	}
	return s
}

// readConf reads a configuration file and its includes. Settings that could be read are
// returned even when err is non-nil.
func readConf(path string) ([]setting, error) { return readConfAt(path, 0) }

func readConfAt(path string, depth int) ([]setting, error) {
	b, err := slurm.ReadFile(path, maxConf)
	if err != nil {
		return nil, err
	}
	var out []setting
	var errs []error
	for _, s := range parseConf(b) {
		file := s["include"]
		if file == "" {
			out = append(out, s)
			continue
		}
		if depth >= maxDepth {
			errs = append(errs, fmt.Errorf("%s: includes are nested too deeply", path))
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		more, err := readConfAt(file, depth+1)
		out, errs = append(out, more...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// cluster is the part of slurm.conf that is used.
type cluster struct {
	Name  string
	Nodes []nodeConf
}

// nodeConf is a NodeName line.
type nodeConf struct{ Names, Hosts, GRES string }

func parseCluster(lines []setting) cluster {
	var c cluster
	var gres string // from NodeName=DEFAULT, applies to the lines below
	for _, s := range lines {
		if name := s["clustername"]; name != "" {
			c.Name = slurm.Text(strings.ToLower(name)) // Slurm itself uses it in lower case
		}
		names := s["nodename"]
		switch {
		case strings.EqualFold(names, "DEFAULT"):
			gres = s["gres"]
		case names != "":
			n := nodeConf{Names: names, Hosts: s["nodehostname"], GRES: s["gres"]}
			if n.GRES == "" {
				n.GRES = gres
			}
			c.Nodes = append(c.Nodes, n)
		}
	}
	return c
}

// node returns the names of the nodes on this machine, normally one.
func (c cluster) node(host string) []string {
	short, _, _ := strings.Cut(host, ".")
	var out []string
	for _, n := range c.Nodes {
		hosts := n.Hosts
		if hosts == "" {
			hosts = n.Names
		}
		if hosts == short || hosts == host { // one machine may be several nodes: gn[1-2] on h
			_ = slurm.Hosts(n.Names, func(name string) bool { out = append(out, name); return len(out) < slurm.MaxIndex })
			continue
		}
		at := max(slurm.HostIndex(hosts, short), slurm.HostIndex(hosts, host))
		i := 0
		_ = slurm.Hosts(n.Names, func(name string) bool {
			if i == at {
				out = append(out, name)
			}
			i++
			return i <= at
		})
	}
	return out
}

// gres returns the GRES of a node according to slurm.conf.
func (c cluster) gres(node string) []slurm.GRES {
	for _, n := range c.Nodes {
		if slurm.HostIndex(n.Names, node) >= 0 {
			list, _ := slurm.ParseGRES(n.GRES) // the controller would not have started with an invalid one
			return list
		}
	}
	return nil
}
