package workload

// overfull is how much more than the whole the limits on a device may add up to: schedulers count its memory in whole MiB.
const overfull = 1.001

// divideLimited sets the parts of the holdings that have a limit; limits has one for each. It returns the number of devices whose limits cannot be true.
//
// A workload has the part of the memory that it may use. If it may use more of the compute units than that, it has
// more, as far as the memory of others leaves room. So parts add up to at most 1, and no limit takes from the memory
// that another workload has, nor from a workload without a limit.
//
// Limits are claims of the workloads. A scheduler gives away no more than the device has: if they add up to more, by memory or by
// compute units, one of them is not true, and nobody knows which. All of them then count as the replicas that were
// allocated, as they do while the memory of the device is not known.
func divideLimited(list []Holding, limits []Limit, devices []Device) (untrue int) {
	on := map[string][]int{}       // holdings with a limit, by device
	others := map[string]float64{} // the parts of the rest
	for i, l := range limits {
		if l.Memory > 0 {
			on[list[i].Device] = append(on[list[i].Device], i)
		} else {
			others[list[i].Device] += list[i].Part
		}
	}
	for _, d := range devices {
		holders := on[d.ID.UUID]
		if len(holders) == 0 || !(d.Memory > 0) {
			continue
		}
		part := func(i int) float64 { return float64(limits[i].Memory) / d.Memory }
		more := func(i int) float64 { return max(0, limits[i].Compute-part(i)) }
		memory, compute, excess := others[d.ID.UUID], others[d.ID.UUID], 0.0
		for _, i := range holders {
			memory, compute, excess = memory+part(i), compute+limits[i].Compute, excess+more(i)
		}
		if !(memory <= overfull && compute <= overfull) {
			untrue++
			continue
		}
		scale := 1.0
		if room := max(0, 1-memory); excess > room {
			scale = room / excess
		}
		for _, i := range holders {
			list[i].Part, list[i].Limited = min(1, part(i)+scale*more(i)), true
		}
	}
	return untrue
}
