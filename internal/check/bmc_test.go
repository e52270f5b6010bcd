//go:build linux

package check

import (
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/ata"
	"github.com/gpumeter/gpumeter/internal/check/ipmi"
)

// controller answers by the net function and the command.
type controller map[[2]byte][]byte

func (c controller) Command(netfn, cmd byte, _ []byte) ([]byte, error) {
	if b, ok := c[[2]byte{netfn, cmd}]; ok {
		if b == nil {
			return nil, unix.ETIMEDOUT
		}
		return b, nil
	}
	return []byte{0xc1}, nil
}

func TestBMC(t *testing.T) {
	f := func(c controller, err error, want Status, words ...string) {
		t.Helper()
		env := node(t, nil)
		env.BMC = func(string) (ipmi.Transport, error) { return c, err }
		expect(t, env, "bmc", want, words...)
	}
	chassis, info, entry, clock := [2]byte{0, 1}, [2]byte{0x0a, 0x40}, [2]byte{0x0a, 0x43}, [2]byte{0x0a, 0x48}
	well := []byte{0, 1, 0, 0}
	logged := func(n byte) []byte { return []byte{0, 0x51, n, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 2} }
	// Record 7: an uncorrected error of memory at 0x60000000, of sensor 0x31.
	memory := []byte{0, 0xff, 0xff, 7, 0, 2, 0, 0, 0, 0x60, 0x20, 0, 4, 0x0c, 0x31, 0x6f, 0xa1, 0xff, 0xff}
	soon, later := []byte{0, 60, 0, 0, 0x60}, []byte{0, 0, 0, 2, 0x60} // a minute, and 36 hours
	f(nil, &fs.PathError{Op: "open", Path: "/dev/ipmi0", Err: unix.ENOENT}, Skipped, "no device")
	f(nil, &fs.PathError{Op: "open", Path: "/dev/ipmi0", Err: unix.ENXIO}, Skipped, "no device")
	f(nil, &fs.PathError{Op: "open", Path: "/dev/ipmi0", Err: unix.EACCES}, Skipped, "/dev/ipmi0: permission denied")
	f(nil, errors.New("odd"), Unknown, "odd")
	f(controller{chassis: well, info: logged(0)}, nil, OK, "0 of 0 events")
	f(controller{chassis: well, info: logged(1), entry: memory, clock: soon}, nil, Warning, "sensor 0x31: memory: uncorrected", "record 7", "last 24 h")
	f(controller{chassis: well, info: logged(1), entry: memory, clock: later}, nil, OK, "1 of 1 events")
	f(controller{chassis: {0, 0x09, 0, 0x08}, info: logged(0)}, nil, Warning, "cooling", "main power")
	f(controller{chassis: {0, 0x01, 0, 0x04}}, nil, Warning, "a drive has a fault") // without a log
	f(controller{info: logged(1), entry: memory, clock: soon}, nil, Warning, "memory")
	f(controller{chassis: well}, nil, OK)
	f(controller{}, nil, Skipped, "neither")
	f(controller{chassis: nil}, nil, Unknown, "timed out")
	f(controller{chassis: {0, 0x01, 0, 0x08}, info: nil}, nil, Warning, "cooling", "timed out")
	f(controller{chassis: {}, info: {}}, nil, Unknown, "empty")
	f(controller{chassis: {0, 1}, info: {0, 1}}, nil, Unknown, "bytes")

	env := node(t, files{"proc/uptime": "30.00 1.00\n"}) // an event of before the boot
	env.BMC = func(string) (ipmi.Transport, error) {
		return controller{chassis: well, info: logged(1), entry: memory, clock: soon}, nil
	}
	expect(t, env, "bmc", OK)
	expect(t, node(t, nil), "bmc", Skipped, "no device")                       // the machine's own way
	expect(t, node(t, files{"dev/ipmi0": "no device"}), "bmc", Unknown, "ask") // a file in its place
	if !closes(t) {
		t.Error("the device stays open")
	}
}

type closing struct {
	controller
	closed *bool
}

func (c closing) Close() error { *c.closed = true; return nil }

func closes(t *testing.T) (closed bool) {
	t.Helper()
	env := node(t, nil)
	env.BMC = func(string) (ipmi.Transport, error) { return closing{nil, &closed}, nil }
	expect(t, env, "bmc", Skipped)
	return closed
}

func TestSATA(t *testing.T) {
	const disk = "sys/block/sda/"
	f := func(removable, vendor string, h ata.Health, err error, want Status, words ...string) {
		t.Helper()
		env := node(t, files{disk + "removable": removable, disk + "device/vendor": vendor})
		env.ATA = func(string) (ata.Health, error) { return h, err }
		expect(t, env, "disk.smart", want, words...)
	}
	f("0\n", "ATA     \n", ata.Health{}, nil, OK, "1 of 1 disks")
	f("0\n", "ATA     \n", ata.Health{Failing: true}, nil, Warning, "sda: it says that it will fail soon")
	f("1\n", "ATA     \n", ata.Health{Failing: true}, nil, Skipped, "no NVMe or SATA disk")
	f("0\n", "SEAGATE \n", ata.Health{Failing: true}, nil, Skipped, "no NVMe or SATA disk") // SAS
	f("-", "ATA     \n", ata.Health{Failing: true}, nil, Skipped)
	f("0\n", "ATA     \n", ata.Health{}, unix.EPERM, Skipped, "1 disks, none could be asked")
}
