package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// readComms reads communicators. An ended one is returned once and then dropped, because its
// address may be reused.
func (r *reading) readComms(p *Probe) {
	type id struct {
		pid, gen uint32
		comm     uint64
	}
	comms := map[id]*tracer.Comm{}
	var ended []kernelHandleKey
	r.add(each(p.maps.Comms, func(k kernelHandleKey, v *kernelCommVal) {
		c := &tracer.Comm{
			Key: fmt.Sprintf("%x.%x", k.Handle, v.Gen), Address: k.Handle, ID: commID(v.Hash), Rank: int(v.Rank), Size: int(v.Size), Device: int(v.Dev),
			Sequence: v.Seq, LastEnter: r.time(v.LastEnter), LastOp: collName(v.LastOp),
			BarrierWait: tracer.NewHistogram(float64(v.BarrierNs)/1e9, tracer.TimeOffset, v.Barrier[:]),
			Ended:       v.Ended > 0, Aborted: v.Aborted > 0,
		}
		comms[id{k.Tgid, v.Gen, k.Handle}] = c
		if c.Ended {
			ended = append(ended, k)
		}
	}))
	var gone []kernelCollKey
	r.add(each(p.maps.Colls, func(k kernelCollKey, v *kernelCollVal) {
		c := comms[id{k.Tgid, k.Gen, k.Comm}]
		if c == nil || c.Ended {
			gone = append(gone, k)
		}
		if c == nil {
			return
		}
		c.Ops = append(c.Ops, tracer.CollOp{
			Op: collName(k.Op), Type: tracer.DataType(k.Type), Reduce: tracer.Reduction(k.Reduce), Peer: int(k.Peer),
			Time:   tracer.NewHistogram(float64(v.Ns)/1e9, tracer.TimeOffset, v.Time[:]),
			Size:   tracer.NewHistogram(float64(v.Bytes), tracer.SizeOffset, v.Size[:]),
			Errors: v.Errors,
		})
	}))
	for at, c := range comms {
		slices.SortFunc(c.Ops, func(a, b tracer.CollOp) int {
			return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Reduce, b.Reduce), cmp.Compare(a.Peer, b.Peer))
		})
		if proc := r.procs[at.pid]; proc != nil {
			proc.Comms = append(proc.Comms, *c)
		}
	}
	for _, proc := range r.procs {
		slices.SortFunc(proc.Comms, func(a, b tracer.Comm) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Key, b.Key))
		})
	}
	for i := range ended {
		_ = p.maps.Comms.Delete(&ended[i])
	}
	for i := range gone {
		_ = p.maps.Colls.Delete(&gone[i])
	}
}

// commID formats a communicator's hash as NCCL does; empty if created before tracing. A split
// communicator, or one created by ncclCommInitAll, has a hash of our own.
func commID(hash uint64) string {
	if hash == 0 {
		return ""
	}
	return fmt.Sprintf("%#x", hash)
}

// collName returns the collective of an operation, such as AllReduce.
func collName(op uint8) string {
	if o := tracer.OpByID(op); o != nil {
		return strings.TrimPrefix(o.Name, "nccl")
	}
	return ""
}
