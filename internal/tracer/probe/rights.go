package probe

import (
	"strings"

	"golang.org/x/sys/unix"
)

// capability is a Linux capability and what its absence costs.
type capability struct {
	name string
	bits []uint // any of them suffices
	cost string
}

// required are the capabilities without which nothing can be traced; wanted are needed only
// for some processes.
var (
	required = []capability{
		{"CAP_BPF", []uint{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "programs cannot be loaded"},
		{"CAP_PERFMON", []uint{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}, "functions cannot be probed"},
	}
	// perfRequired is what mode perf needs where CAP_PERFMON does not suffice, as on Debian's Linux 6.1.
	perfRequired = []capability{
		{"CAP_SYS_ADMIN", []uint{unix.CAP_SYS_ADMIN}, "this kernel does not let functions be probed with less"},
	}
	wanted = []capability{
		{"CAP_SYS_PTRACE", []uint{unix.CAP_SYS_PTRACE}, "libraries of other users' processes are not found"},
		{
			"CAP_CHECKPOINT_RESTORE",
			[]uint{unix.CAP_CHECKPOINT_RESTORE, unix.CAP_SYS_ADMIN},
			"libraries are found by path only, not if replaced on disk",
		},
	}
)

// effective returns the effective capabilities of this process as a bit set.
func effective() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
}

// lacking returns the capabilities that a set lacks.
func lacking(set uint64, all []capability) []capability {
	var lack []capability
	for _, c := range all {
		have := false
		for _, bit := range c.bits {
			have = have || set&(1<<bit) != 0
		}
		if !have {
			lack = append(lack, c)
		}
	}
	return lack
}

func describe(lack []capability) string {
	var parts []string
	for _, c := range lack {
		parts = append(parts, c.name+" is missing: "+c.cost)
	}
	return strings.Join(parts, "; ")
}
