//go:build linux

package tpu

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/openfiles"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// holder is a process that has chips open.
type holder struct {
	pid     uint32
	name    string
	chips   []string // PCI addresses, in chip order
	file    openfiles.File
	service *service // nil: no metric service was found
	problem error    // why service is nil
}

// alive reports whether the process still has its chip open. Its PID may have been reused.
func (h holder) alive(root string) bool {
	to, err := os.Readlink(procPath(root, h.pid, "fd", strconv.Itoa(h.file.FD)))
	return err == nil && to == h.file.Path
}

func procPath(root string, pid uint32, name ...string) string {
	return filepath.Join(append([]string{root, "proc", strconv.FormatUint(uint64(pid), 10)}, name...)...)
}

// maxHolders bounds the number of processes examined. A chip is owned by one process, and
// its children may have inherited the file.
const maxHolders = 256

// findHolders returns the processes that use chips, by PID, with their services.
func findHolders(root string, chips []*chip) machine {
	byNode := map[string]*chip{}
	for _, c := range chips {
		for _, n := range c.nodes {
			byNode[n] = c
		}
	}
	files, denied, err := openfiles.Below(filepath.Join(root, "proc"), Facts.DeviceFiles...)
	m := machine{denied: denied}
	if err != nil {
		m.err = fmt.Errorf("cannot find the processes on the TPUs: %w", err)
	}
	byPID := map[uint32][]openfiles.File{}
	for _, f := range files {
		if byNode[f.Path] != nil {
			byPID[f.PID] = append(byPID[f.PID], f)
		}
	}
	for pid, files := range byPID {
		h := holder{pid: pid, file: files[0]}
		for _, c := range chips { // in chip order
			if slices.ContainsFunc(files, func(f openfiles.File) bool { return byNode[f.Path] == c }) {
				h.chips = append(h.chips, c.id.PCI)
			}
		}
		m.holders = append(m.holders, h)
	}
	slices.SortFunc(m.holders, func(a, b holder) int { return cmp.Compare(a.pid, b.pid) })
	if len(m.holders) > maxHolders {
		m.err = errors.Join(m.err, fmt.Errorf("%d processes have TPUs open: only the first %d are examined", len(m.holders), maxHolders))
		m.holders = m.holders[:maxHolders]
	}
	for i := range m.holders {
		h := &m.holders[i]
		h.name, _ = sysfs.Dir(procPath(root, h.pid)).Text("comm") // the process may have exited
		perChip := byNode[h.file.Path].gen.perChip
		h.service, h.problem = findService(root, h.pid, len(h.chips), perChip)
	}
	m.onlyOwners()
	return m
}

// onlyOwners removes the service from processes that do not listen themselves if another
// process with open chips listens in the same network namespace: the service belongs to
// that process.
func (m *machine) onlyOwners() {
	for i := range m.holders {
		h := &m.holders[i]
		if h.service == nil || h.service.owned {
			continue
		}
		for j, o := range m.holders {
			if o.service != nil && (o.service.owned || j < i) && os.SameFile(h.service.net, o.service.net) {
				h.service, h.problem = nil, errNotListening
				break
			}
		}
	}
}

var errNotListening = errors.New("the process runs no metric service")

// portsVariable tells libtpu, in a workload with several processes, at which port each
// process serves its metrics. It is the only environment variable of the workload that is
// read.
const portsVariable = "TPU_RUNTIME_METRICS_PORTS"

const defaultPort = 8431

// findService returns the metric service of a process: at the configured port, or at the
// default port if the process listens there.
func findService(root string, pid uint32, chips, perChip int) (*service, error) {
	ports := []uint16{defaultPort}
	if f, err := os.Open(procPath(root, pid, "environ")); err == nil { // on failure, use the default port
		if told := metricPorts(f); len(told) > 0 {
			ports = told
		}
		f.Close()
	}
	listening := map[uint64]uint16{}
	known := false
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		f, err := os.Open(procPath(root, pid, table))
		if err != nil {
			continue // no IPv6, or the process exited
		}
		known = true
		listeners(f, ports, listening)
		f.Close()
	}
	if known && len(listening) == 0 {
		return nil, errNotListening
	}
	path := procPath(root, pid, "ns/net")
	net, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot stat its network namespace: %w", err)
	}
	s := &service{netns: path, net: net, chips: chips, perChip: perChip}
	port, owned := ownPort(root, pid, listening)
	switch {
	case owned:
	case len(ports) == 1:
		port = ports[0]
	default:
		return nil, errNotListening // the mapping of ports to processes is unknown
	}
	s.owned = owned
	s.key = serviceKey{pid: pid, port: port, chips: chips, inode: inode(net)}
	return s, nil
}

// ownPort returns the port of a listening socket that the process itself has open.
func ownPort(root string, pid uint32, listening map[uint64]uint16) (port uint16, ok bool) {
	dir := procPath(root, pid, "fd")
	fds, _ := os.ReadDir(dir) // the process may have exited
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue
		}
		number, isSocket := strings.CutPrefix(to, "socket:[")
		n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
		if !isSocket || err != nil {
			continue
		}
		if p := listening[n]; p != 0 && (!ok || p < port) {
			port, ok = p, true
		}
	}
	return port, ok
}

const (
	maxEnviron = 4 << 20
	maxTable   = 1 << 20
	maxPorts   = 64
)

// metricPorts returns the ports listed in portsVariable. Nothing else of the environment is
// kept, because it may hold secrets.
func metricPorts(environ io.Reader) []uint16 {
	buf := make([]byte, 4096)
	defer clear(buf)
	begin := []byte(portsVariable + "=")
	var value []byte
	matched, skip := 0, false // bytes of begin matched; skipping to the next variable
	left := maxEnviron
	for left > 0 {
		n, err := environ.Read(buf[:min(len(buf), left)])
		left -= n
		for _, b := range buf[:n] {
			switch {
			case b == 0:
				if matched == len(begin) {
					return parsePorts(string(value))
				}
				matched, skip = 0, false
			case skip:
			case matched < len(begin):
				if b == begin[matched] {
					matched++
				} else {
					skip = true
				}
			case len(value) < 8*maxPorts:
				value = append(value, b)
			}
		}
		if err != nil {
			break
		}
	}
	if matched == len(begin) {
		return parsePorts(string(value))
	}
	return nil
}

func parsePorts(s string) []uint16 {
	var ports []uint16
	for p := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(p), 10, 16)
		if err == nil && n != 0 && len(ports) < maxPorts {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// listeners adds to found the sockets in a table such as /proc/net/tcp that listen at one
// of ports, by inode. The kernel lists listening sockets first, so the limit drops only
// connections.
func listeners(table io.Reader, ports []uint16, found map[uint64]uint16) {
	lines := bufio.NewScanner(io.LimitReader(table, maxTable))
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := bytes.Fields(lines.Bytes())
		const listen = "0A"
		if len(f) < 10 || string(f[3]) != listen {
			continue
		}
		_, hexPort, ok := bytes.Cut(f[1], []byte(":"))
		if !ok || len(hexPort) != 4 {
			continue
		}
		var port [2]byte
		if _, err := hex.Decode(port[:], hexPort); err != nil {
			continue
		}
		n, err := strconv.ParseUint(string(f[9]), 10, 64)
		p := uint16(port[0])<<8 | uint16(port[1])
		if err == nil && slices.Contains(ports, p) {
			found[n] = p
		}
	}
}
