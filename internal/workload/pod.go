package workload

// grantsOn returns the holdings by allocation of a device, or of the device that it is a
// partition of.
func grantsOn(all []Holding, d Device) []Holding {
	var list []Holding
	for _, h := range all {
		if (h.Device == d.ID.UUID || h.Device == d.ID.Parent) && h.Evidence != ByProcess {
			list = append(list, h)
		}
	}
	return list
}

// ofPod returns the workload to which a process of w on a device belongs, given the grants of
// that device.
//
// An init container runs on the devices of its pod, but the kubelet lists only the container
// that keeps them: the process belongs to the latter.
//
// Without the API server and the log directories, a control group has the UID of a pod and no
// name, and a grant has the name and no UID. The process then belongs to the only pod that was
// granted the device. If there are several, it belongs to one of them, and it is unknown which.
func ofPod(w Workload, granted []Holding) (Workload, bool) {
	uid, named := w.Attributes["k8s.pod.uid"], w.Attributes["k8s.pod.name"] != ""
	var own, unidentified []Workload
	for _, h := range granted {
		switch {
		case h.Workload.ID == w.ID:
			return w, true
		case samePod(h.Workload, w):
			own = append(own, h.Workload)
		case h.Workload.Attributes["k8s.pod.name"] != "" && h.Workload.Attributes["k8s.pod.uid"] == "":
			unidentified = append(unidentified, h.Workload)
		}
	}
	switch {
	case len(own) == 1:
		return own[0], true
	case len(own) > 1 || uid == "" || named || len(unidentified) == 0:
		return w, true
	case len(unidentified) == 1:
		return unidentified[0], true
	}
	return Workload{}, false
}

// samePod reports whether two workloads are containers of one pod.
func samePod(a, b Workload) bool {
	x, y := a.Attributes, b.Attributes
	if x["k8s.pod.uid"] != "" && y["k8s.pod.uid"] != "" {
		return x["k8s.pod.uid"] == y["k8s.pod.uid"]
	}
	return x["k8s.pod.name"] != "" && x["k8s.pod.name"] == y["k8s.pod.name"] && x["k8s.namespace.name"] == y["k8s.namespace.name"]
}
