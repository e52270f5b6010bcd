package kube

import "testing"

// Catches an object that a fuzzer finds and that crashes the agent or yields an impossible number.
func FuzzObjects(f *testing.F) {
	f.Add(raw(f, pod("a", "", 1, "100m", gates("x"), refused(lacksGPUAndCPU))))
	f.Add(raw(f, node("gn1", "64")))
	f.Add(raw(f, merge(claims("c", "gn1", "g=c"), claim("c", 2, "gn1", []string{"0"}, "c"), annotations("pod-group-name", "c"))))
	f.Add(raw(f, offered("gn1", 2)))
	f.Add([]byte(`{"metadata":{"uid":"u","name":"n"},"spec":{"nodeName":"n","initContainers":[{"restartPolicy":"Always","resources":{"limits":{"nvidia.com/gpu":9223372036854775807,"cpu":"1e30"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := NewCluster(claiming, "team", nil)
		NodeSink{c}.Put(b)
		for _, k := range c.Kinds() {
			set(t, k.Sink)
			k.Sink.Put(b)
		}
		add, commit := at(c, epoch).Begin()
		add(b)
		commit()
		s := c.Snapshot(epoch)
		for _, p := range s.Pods {
			if p.Whole(claiming) < 0 || p.CPU < 0 || p.Memory < 0 || p.Name == "" || len(s.Why(p)) == 0 {
				t.Errorf("%+v", p)
			}
		}
		for _, pool := range s.Room(s.Reference()).Pools {
			for state, n := range pool.Devices {
				if n < 0 {
					t.Errorf("%d devices are %s", n, state)
				}
			}
		}
		at(c, epoch).Delete(b)
		NodeSink{c}.Delete(b)
		for _, k := range c.Kinds() {
			k.Sink.Delete(b)
		}
		if s := c.Snapshot(epoch); len(s.Nodes)+len(s.Claims)+len(s.Groups) > 0 {
			t.Error("a node that cannot be deleted")
		}
	})
}
