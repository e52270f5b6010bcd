package discover

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// stat has the used fields of /proc/PID/stat.
type stat struct {
	name            string
	parent, session uint32
	terminal        bool   // it has a controlling terminal
	start           uint64 // in clock ticks since boot
	ended           bool   // it has exited, and its parent does not know yet
}

// parseStat parses /proc/PID/stat; see proc_pid_stat(5). The name is in parentheses and may contain any
// byte.
func parseStat(file []byte) (stat, error) {
	begin, end := bytes.IndexByte(file, '('), bytes.LastIndexByte(file, ')')
	if begin < 0 || end < begin {
		return stat{}, errors.New("no process name")
	}
	fields := strings.Fields(string(file[end+1:]))
	const first = 3 // number of the field after the name
	if len(fields) <= 22-first {
		return stat{}, errors.New("no field 22")
	}
	s := stat{name: string(file[begin+1 : end]), ended: fields[0] == "Z" || fields[0] == "X"}
	var errs []error
	number := func(n, bits int) uint64 {
		v, err := strconv.ParseInt(fields[n-first], 10, bits)
		if err != nil || v < 0 {
			errs = append(errs, fmt.Errorf("field %d is %q", n, fields[n-first]))
		}
		return uint64(max(0, v))
	}
	s.parent, s.session, s.start = uint32(number(4, 32)), uint32(number(6, 32)), number(22, 64)
	s.terminal = fields[7-first] != "0"
	return s, errors.Join(errs...)
}

// parseBoot parses /proc/stat and returns when the machine was booted, in seconds since 1970.
func parseBoot(file []byte) (int64, error) {
	for line := range strings.Lines(string(file)) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		}
	}
	return 0, errors.New("no line btime")
}

// parseRange parses ip_local_port_range: the first and the last of the ports that the kernel chooses.
func parseRange(file []byte) (first, last uint16, err error) {
	fields := strings.Fields(string(file))
	if len(fields) != 2 {
		return 0, 0, errors.New("not two ports")
	}
	var ports [2]uint16
	for i := range ports {
		v, err := strconv.ParseUint(fields[i], 10, 16)
		if err != nil {
			return 0, 0, err
		}
		ports[i] = uint16(v)
	}
	return ports[0], ports[1], nil
}

// parseSocket parses the target of a link in /proc/PID/fd, and returns false if it is no socket.
func parseSocket(link string) (inode uint64, ok bool) {
	return parseLink(link, "socket:[")
}

// parseNamespace parses the target of the link /proc/PID/ns/net.
func parseNamespace(link string) (inode uint64, ok bool) {
	return parseLink(link, "net:[")
}

func parseLink(link, prefix string) (uint64, bool) {
	text, ok := strings.CutPrefix(link, prefix)
	text, closed := strings.CutSuffix(text, "]")
	if !ok || !closed {
		return 0, false
	}
	inode, err := strconv.ParseUint(text, 10, 64)
	return inode, err == nil
}

// listener is a listening socket in a network namespace.
type listener struct {
	address netip.AddrPort
	inode   uint64
}

// parseListeners parses /proc/PID/net/tcp or tcp6 and returns the sockets that listen. A row that cannot be
// read costs only itself, and so does the last, which a limit may have cut off.
func parseListeners(file []byte) (list []listener, bad int) {
	for line := range bytes.Lines(file) {
		if line[len(line)-1] != '\n' {
			break
		}
		fields := strings.Fields(string(line))
		const address, state, inode = 1, 3, 9
		if len(fields) <= inode || fields[state] != "0A" { // TCP_LISTEN; the first line is a title
			continue
		}
		at, err := parseAddress(fields[address])
		if err != nil {
			bad++
			continue
		}
		n, err := strconv.ParseUint(fields[inode], 10, 64)
		if err != nil || n == 0 {
			bad++
			continue
		}
		list = append(list, listener{at, n})
	}
	return list, bad
}

// parseAddress parses an address of /proc/net/tcp: words of 32 bits in the byte order of the machine, and
// the port.
func parseAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("the address has %d bytes", len(b))
	}
	for word := range slices.Chunk(b, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(p)), nil
}

// parseTrie parses /proc/PID/net/fib_trie and returns the IPv4 addresses of the namespace's own, without
// loopback.
func parseTrie(file []byte) []netip.Addr {
	var list []netip.Addr
	var last netip.Addr
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "|-- "); ok {
			last, _ = netip.ParseAddr(text) // invalid: the next line is of no address
			continue
		}
		if line == "/32 host LOCAL" && last.Is4() && !last.IsLoopback() && !slices.Contains(list, last) && len(list) < maxAddresses {
			list = append(list, last)
		}
	}
	return list
}

// parseInet6 parses /proc/PID/net/if_inet6 and returns the global addresses that can be used.
func parseInet6(file []byte) []netip.Addr {
	var list []netip.Addr
	for line := range strings.Lines(string(file)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[3] != "00" || len(list) == maxAddresses {
			continue
		}
		b, err := hex.DecodeString(fields[0])
		if err != nil {
			continue
		}
		flags, err := strconv.ParseUint(fields[4], 16, 32)
		const duplicate, tentative = 0x08, 0x40
		if ip, ok := netip.AddrFromSlice(b); err == nil && ok && ip.Is6() && flags&(duplicate|tentative) == 0 {
			list = append(list, ip)
		}
	}
	return list
}

// maxAddresses bounds the addresses of a namespace, of each kind. A node of Kubernetes has dozens, of its bridges; a pod has few.
const maxAddresses = 64
