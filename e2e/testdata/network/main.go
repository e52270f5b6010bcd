// Network is the network plugin of the containers of e2e, see https://www.cni.dev/docs/spec: a pod has a
// network namespace of its own with nothing but loopback in it. The machine's network stays as it is, and all
// pods can use the same ports.
package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if os.Getenv("CNI_COMMAND") != "ADD" {
		return nil // nothing is left behind: the kernel removes the namespace
	}
	var config struct {
		Version string `json:"cniVersion"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return err
	}
	namespace, device := os.Getenv("CNI_NETNS"), os.Getenv("CNI_IFNAME")
	if err := up(namespace); err != nil {
		return fmt.Errorf("cannot set up loopback in %s: %w", namespace, err)
	}
	address := "127.0.0.1/8"
	if device != "lo" { // a pod must have an address; no interface has this one
		h := fnv.New32a()
		fmt.Fprint(h, os.Getenv("CNI_CONTAINERID"))
		n := h.Sum32()
		address = fmt.Sprintf("198.18.%d.%d/32", n>>8&0xff, n&0xff)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"cniVersion": config.Version,
		"interfaces": []any{map[string]any{"name": device, "sandbox": namespace}},
		"ips":        []any{map[string]any{"version": "4", "address": address, "interface": 0}},
	})
}

// up enables loopback in a network namespace.
func up(namespace string) error {
	runtime.LockOSThread() // until the program ends
	f, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}
