package cgroup_test

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/workload/cgroup"
)

// The file has one line for cgroup version 2, and one per hierarchy for version 1. With the
// systemd driver, the dashes of a pod's UID are underscores.
func ExampleParse() {
	file := "0::/kubepods.slice/kubepods-burstable.slice/" +
		"kubepods-burstable-pod0d1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice/" +
		"cri-containerd-1f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a79881f2e3d4c5b6a7988.scope\n"
	c, ok := cgroup.Parse([]byte(file))
	fmt.Println(ok, c.Runtime)
	fmt.Println("pod", c.PodUID)
	fmt.Printf("container %.12s\n", c.ID)

	_, ok = cgroup.Parse([]byte("0::/system.slice/sshd.service\n"))
	fmt.Println(ok)
	// Output:
	// true containerd
	// pod 0d1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9
	// container 1f2e3d4c5b6a
	// false
}
