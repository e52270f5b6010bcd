//go:build linux

package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/check/nvme"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// mount is a line of /proc/<pid>/mountinfo.
type mount struct {
	device string // major:minor
	root   string // mounted subtree of the file system
	path   string
	kind   string
	source string
	write  bool
}

var (
	localKinds  = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "bcachefs"}
	remoteKinds = []string{"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "cifs", "smb3", "glusterfs", "fuse.glusterfs", "pvfs2", "virtiofs", "9p", "afs", "panfs"}
)

func (m mount) local() bool {
	return slices.Contains(localKinds, m.kind) && m.root == "/" && m.write && !m.passing()
}

func (m mount) remote() bool { return slices.Contains(remoteKinds, m.kind) && !m.passing() }

// passing reports whether a mount belongs to a pod, a container or a user. If it is full,
// that is the owner's problem.
func (m mount) passing() bool {
	return slices.ContainsFunc([]string{"/var/lib/kubelet/", "/var/lib/docker/", "/var/lib/containers/", "/var/lib/containerd/", "/run/", "/media/"},
		func(p string) bool { return strings.HasPrefix(m.path, p) })
}

// unescape decodes the kernel's octal escapes, such as \040 for a blank.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseMounts parses mountinfo lines such as "36 35 98:0 /root /path rw,noatime shared:1 -
// ext4 /dev/sda1 rw". A mount that hides another one follows it in the list.
func parseMounts(text []byte) []mount {
	var out []mount
	for line := range bytes.Lines(text) {
		head, tail, ok := strings.Cut(string(line), " - ")
		f, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(f) < 6 || len(t) < 2 {
			continue
		}
		m := mount{f[2], unescape(f[3]), unescape(f[4]), t[0], unescape(t[1]), slices.Contains(strings.Split(f[5], ","), "rw")}
		if len(t) > 2 && slices.Contains(strings.Split(t[2], ","), "ro") {
			m.write = false
		}
		out = append(out, m)
	}
	return out
}

// maxText bounds files of /proc and /etc that have no natural limit.
const maxText = 8 << 20

func readText(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a pipe
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 0, 64<<10)
	for len(b) < maxText {
		b = slices.Grow(b, 32<<10)
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil || n == 0 {
			break // end of file
		}
	}
	return b, nil
}

// mounts returns the mounts of process 1, which are the host's, or else our own.
func (h *host) mounts() ([]mount, error) {
	text, err := readText(string(h.proc("1/mountinfo")))
	if err != nil || len(text) == 0 {
		text, err = readText(string(h.proc("self/mountinfo")))
	}
	if err != nil {
		return nil, err
	}
	list := parseMounts(text)
	if len(list) == 0 {
		return nil, errors.New("no valid line in the list of mounts")
	}
	return list, nil
}

// Thresholds for full file systems. On a large one a few percent are plenty, so both the
// ratio and the remaining bytes count.
const (
	fullWarning, fullCritical = 0.90, 0.97
	restWarning, restCritical = 50 << 30, 5 << 30
	inodeWarning              = 0.90
	inodeCritical             = 0.98
)

// diskSpace examines local, writable file systems. A shared file system is not this node's
// problem, and read-only images are full by design.
func diskSpace(ctx context.Context, h *host) outcome {
	list, err := h.mounts()
	if err != nil {
		return unknown(err, "")
	}
	seen := map[string]bool{}
	var bad []Problem
	n := 0
	for _, m := range list {
		tmp := m.kind == "tmpfs" && (m.path == "/tmp" || m.path == "/dev/shm" || m.path == "/run")
		root := m.path == "/" && m.write
		if !m.local() && !tmp && !root || seen[m.device] || ctx.Err() != nil {
			continue
		}
		seen[m.device] = true
		st, err := h.Statfs(filepath.Join(h.Root, m.path))
		if err != nil {
			if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) { // in another mount namespace
				bad = append(bad, Problem{Unknown, m.path, err.Error(), ""})
			}
			continue
		}
		n++
		bad = append(bad, judgeSpace(m.path, st)...)
	}
	if n == 0 && len(bad) == 0 {
		return skip("no local file system")
	}
	return found(capped(bad), "%d file systems", n)
}

func judgeSpace(path string, st unix.Statfs_t) []Problem {
	var bad []Problem
	const action = "Delete what is not needed, such as old logs, images and files of finished jobs."
	used := st.Blocks - min(st.Bfree, st.Blocks)
	rest := st.Bavail * uint64(max(st.Bsize, 0)) // blocks reserved for root do not help jobs
	boot := path == "/boot" || strings.HasPrefix(path, "/boot/")
	if ratio := float64(used) / float64(max(used+st.Bavail, 1)); st.Blocks > 0 {
		p := Problem{"", path, fmt.Sprintf("%.1f %% in use, %s left", 100*ratio, gib(rest)), action}
		switch {
		case ratio >= fullCritical && rest < restCritical && !boot: // no job writes to the boot partition
			p.Status = Critical
		case ratio >= fullWarning && rest < restWarning:
			p.Status = Warning
		}
		if p.Status != "" {
			bad = append(bad, p)
		}
	}
	if st.Files == 0 { // inodes are allocated dynamically
		return bad
	}
	ratio := 1 - float64(st.Ffree)/float64(st.Files)
	p := Problem{Warning, path, fmt.Sprintf("%.1f %% of the inodes in use, %d left", 100*ratio, st.Ffree), "Delete small files that are not needed."}
	if ratio >= inodeCritical && !boot {
		p.Status = Critical
	}
	if ratio >= inodeWarning {
		bad = append(bad, p)
	}
	return bad
}

// entry is an fstab line that should be mounted at boot.
type entry struct {
	path   string
	nofail bool
}

func parseFstab(text []byte) []entry {
	var out []entry
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 4 || strings.HasPrefix(f[0], "#") || !strings.HasPrefix(f[1], "/") || f[2] == "swap" {
			continue
		}
		options := strings.Split(f[3], ",")
		if slices.Contains(options, "noauto") {
			continue
		}
		out = append(out, entry{filepath.Clean(unescape(f[1])), slices.Contains(options, "nofail")})
	}
	return out
}

// answerWithin is the time limit for a mount to answer.
const answerWithin = 3 * time.Second

// mounted compares fstab and the manifest with the actual mounts, and queries each mount,
// because a dead file server blocks every access. A dead server is reported as unknown
// rather than critical: it may not be this node's fault, and a restarting server must not
// drain the cluster.
func mounted(ctx context.Context, h *host) outcome {
	list, err := h.mounts()
	if err != nil {
		return unknown(err, "")
	}
	want := map[string]Status{}
	text, err := readText(filepath.Join(h.Root, "etc/fstab"))
	if err == nil {
		for _, e := range parseFstab(text) {
			want[e.path] = Critical
			if e.nofail {
				want[e.path] = Warning
			}
		}
	}
	if h.Manifest != nil {
		for _, path := range h.Manifest.Mounts {
			want[filepath.Clean(path)] = Critical
		}
	}
	there := map[string]bool{}
	ask := map[string]bool{}
	for _, m := range list {
		there[m.path] = true
		if m.remote() || want[m.path] != "" {
			ask[m.path] = true
		}
	}
	var bad []Problem
	for _, path := range sortedKeys(want) {
		if !there[path] {
			bad = append(bad, Problem{want[path], path, "not mounted", "Mount the file system; see the kernel log if that fails."})
		}
	}
	if len(want)+len(ask) == 0 {
		return skip("neither fstab nor the manifest names a mount")
	}
	bad = append(bad, h.deaf(ctx, sortedKeys(ask))...)
	return found(capped(bad), "%d of %d mounted, %d answer", len(want), len(want), len(ask))
}

// deaf returns the mounts that do not answer. Each is queried by its own goroutine.
func (h *host) deaf(ctx context.Context, paths []string) []Problem {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	paths = paths[:min(len(paths), maxProblems)]
	answers := make([]chan error, len(paths))
	for i, path := range paths {
		answers[i] = make(chan error, 1)
		go func() {
			_, err := h.Statfs(filepath.Join(h.Root, path))
			answers[i] <- err
		}()
	}
	var bad []Problem
	for i, path := range paths {
		var err error
		select {
		case err = <-answers[i]:
		case <-ctx.Done():
			select {
			case err = <-answers[i]:
			default:
				err = fmt.Errorf("no answer within %s", answerWithin)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			bad = append(bad, Problem{Unknown, path, err.Error(), "Check the file server and the network to it; processes that use it cannot exit."})
		}
	}
	return bad
}

func (h *host) nvmes() []sysfs.Dir { return h.sys("class/nvme").Glob("nvme[0-9]*") }

// satas returns the SATA disks. Other SCSI devices, such as card readers, are left out
// because some do not tolerate the command.
func (h *host) satas() []sysfs.Dir {
	return slices.DeleteFunc(h.sys("block").Glob("sd[a-z]*"), func(d sysfs.Dir) bool {
		removable, err := d.Uint("removable")
		vendor, _ := d.Join("device").Text("vendor")
		return err != nil || removable != 0 || strings.TrimSpace(vendor) != "ATA"
	})
}

// smart queries NVMe and SATA disks. A disk beyond its rated life still works, so that is a
// warning. Counters that mean nothing without their history, such as media errors, are
// ignored.
func smart(_ context.Context, h *host) outcome {
	disks, satas := h.nvmes(), h.satas()
	var bad []Problem
	if h.Manifest != nil && len(disks) < h.Manifest.NVMe {
		bad = append(bad, Problem{Critical, "", fmt.Sprintf("%d NVMe disks found, the manifest says %d", len(disks), h.Manifest.NVMe), "Check the kernel log for the disk, and check its slot."})
	}
	if len(disks)+len(satas) == 0 && len(bad) == 0 {
		return skip("no NVMe or SATA disk")
	}
	asked, denied := 0, error(nil)
	for _, d := range disks {
		// The kernel's own state can be read without privileges.
		if state, err := d.Text("state"); err == nil && (state == "dead" || state == "deleting (no IO)") {
			bad = append(bad, Problem{Critical, d.Base(), "the kernel has given up the disk: its state is " + state, "Replace the disk."})
			continue
		}
		s, err := h.NVMe(filepath.Join(h.Root, "dev", d.Base()))
		if err != nil {
			denied = err
			continue
		}
		asked++
		bad = append(bad, judgeNVMe(d.Base(), s)...)
	}
	for _, d := range satas {
		s, err := h.ATA(filepath.Join(h.Root, "dev", d.Base()))
		if err != nil {
			denied = err
			continue
		}
		asked++
		if s.Failing { // predicted failure; the disk still works
			bad = append(bad, Problem{Warning, d.Base(), "the disk predicts its failure (SMART)", "Back up its data and replace the disk."})
		}
	}
	all := len(disks) + len(satas)
	if asked == 0 && len(bad) == 0 {
		return skip("%d disks, none could be queried: %v", all, denied)
	}
	return found(bad, "%d of %d disks report good health", asked, all)
}

func judgeNVMe(disk string, s nvme.Health) []Problem {
	var bad []Problem
	for _, w := range []struct {
		bit    byte
		status Status
		text   string
	}{
		{nvme.Unreliable, Critical, "the disk reports degraded reliability"},
		{nvme.ReadOnly, Critical, "the disk has become read-only"},
		{nvme.SpareLow, Warning, fmt.Sprintf("%d %% of the spare blocks left, the threshold is %d %%", s.Spare, s.SpareThreshold)},
		{nvme.TooHotOrCold, Warning, fmt.Sprintf("temperature out of range, at %d °C", s.Celsius)},
		{nvme.BackupFailed, Warning, "volatile memory backup failed: a power loss would lose cached data"},
		{nvme.PersistentReadOnly, Warning, "the persistent memory region has become read-only"},
	} {
		if s.Warning&w.bit != 0 {
			bad = append(bad, Problem{w.status, disk, w.text, "Replace the disk soon; check its cooling if it is hot."})
		}
	}
	if s.Used >= 100 {
		bad = append(bad, Problem{Warning, disk, fmt.Sprintf("%d %% of the rated life used", s.Used), "Schedule a replacement of the disk."})
	}
	return bad
}
