package tracer

// The kinds of libraries that are probed.
const (
	LibraryCUDA  = "cuda"  // libcuda.so, the driver's
	LibraryNCCL  = "nccl"  // libnccl.so, or a binary with NCCL linked in
	LibraryTorch = "torch" // libc10.so
)

// Op is one traced operation, a row of the table from which everything else follows. The
// kernel receives the row packed into 64 bits with each probe, so tracing another function
// takes just another row.
type Op struct {
	ID      uint8 // the kernel's key, from 1
	Library string
	Name    string // the symbol without its version suffixes
	Class   Class
	Symbols []string // all symbols of this operation; each one present in a library is probed
	// Quiet calls are observed for their arguments but not counted.
	Quiet bool
	// Entry probes only the function entry, at half the cost.
	Entry bool
	Body  Body
	Args  Args
}

// Body selects what the kernel does at a call.
type Body uint8

// The bodies. bpf/tracer.h has the same numbers.
const (
	BodyCall       Body = iota + 1 // counts and times the call
	BodyLaunch                     // launches a kernel; dimensions are arguments
	BodyLaunchEx                   // launches a kernel; dimensions are in a struct
	BodyWork                       // submits other work on Stream
	BodyCapture                    // stream capture: Variant 1 begins, 2 ends
	BodyCopy                       // copies Bytes in direction Kind
	BodyCopyStruct                 // copy described by a struct; Variant is the number of dimensions
	BodyCopyBatch                  // copies whose sizes are in an array
	BodySet                        // sets Bytes times Times, shifted left by Shift
	BodyAlloc                      // allocates Bytes and stores the address at Pointer; Variant is the kind of memory
	BodyFree                       // frees Pointer
	BodySync                       // synchronizes; Variant says with what
	BodyStreamEnd                  // destroys Stream
	BodyName                       // returns a handle at Pointer; Aux is its name
	BodyNameOf                     // returns the name of Aux; its address is stored at Pointer
	BodyAlias                      // returns a handle at Pointer that is equivalent to Aux
	BodyUUID                       // returns the UUID of device Aux at Pointer
	BodyContext                    // returns a context on device Aux at Pointer
	BodyCurrent                    // sets the thread's context to Pointer
	BodyPush                       // pushes the context Pointer
	BodyPop
	BodyColl       // a collective on communicator Aux; see CollPair for Variant
	BodyInit       // creates a communicator
	BodyInitAll    // creates one communicator per device
	BodySplit      // splits a communicator
	BodyCommEnd    // ends a communicator; Variant 2: abort
	BodyCommAsk    // queries a communicator into Pointer; Variant 1: rank, 2: size, 3: device
	BodyTorch      // PyTorch's allocator reports its memory
	BodyScalable   // creates a communicator from an array of unique ids
	BodyReset      // frees all memory of device Aux
	BodyMark       // records the event Pointer in Stream
	BodyAfter      // makes Stream wait for the event Pointer
	BodyMap        // maps memory of the handle Aux at Pointer
	BodyUnmap      // ends the mappings of Bytes at Pointer
	BodyPool       // Variant 1: sets attribute Aux of a pool to the value at Pointer; 2: trims it to Pointer bytes
	BodyContextEnd // destroys the context Pointer with its memory
	bodyEnd
)

// Values of Variant for allocations, synchronizations and collectives.
const (
	MemoryDevice  = 1
	MemoryManaged = 2
	MemoryHost    = 3
	MemoryHandle  = 4 // physical memory, mapped later
	MemoryPitch   = 5
	MemoryPool    = 6 // from a pool of the driver, to which it returns

	SyncContext = 1
	SyncStream  = 2
	SyncEvent   = 3

	// CollPair is a point-to-point operation between two ranks. It does not count toward a
	// rank's sequence number.
	CollPair = 1
)

// Args gives the positions of a body's arguments: 1 is the first, 0 means none.
type Args struct {
	Bytes, Times    uint8
	Stream, Pointer uint8
	Aux             uint8
	Type, Reduce    uint8 // NCCL only
	Peer            uint8 // peer or root
	Shift           uint8 // log2 of the element size, at most 7
	Variant         uint8 // at most 7
	Kind            Kind
}

// Kind is the direction of a copy.
type Kind uint8

// The kinds.
const (
	KindNone Kind = iota
	HtoD
	DtoH
	DtoD
	HtoH
	Peer
	Default // inferred by the driver from the addresses
)

// String returns the kind as used in OpStat.
func (k Kind) String() string {
	names := [...]string{"", "htod", "dtoh", "dtod", "htoh", "peer", "default"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Bit positions in a cookie; bpf/tracer.h has the same.
const (
	shiftBody    = 8
	shiftKind    = 14
	shiftQuiet   = 17
	shiftEntry   = 18
	shiftPending = 19
	shiftBytes   = 20
	shiftTimes   = 24
	shiftStream  = 28
	shiftPointer = 32
	shiftAux     = 36
	shiftType    = 40
	shiftReduce  = 44
	shiftPeer    = 48
	shiftShift   = 52
	shiftVariant = 55
)

// Cookie returns the row in the packed form that the kernel receives with each probe.
func (o *Op) Cookie() uint64 {
	c := uint64(o.ID) | uint64(o.Body)<<shiftBody | uint64(o.Args.Kind)<<shiftKind
	if o.Quiet {
		c |= 1 << shiftQuiet
	}
	if o.Entry {
		c |= 1 << shiftEntry
	}
	if o.Library == LibraryNCCL {
		c |= 1 << shiftPending // ncclInProgress is not an error
	}
	for _, a := range []struct{ value, shift uint8 }{
		{o.Args.Bytes, shiftBytes},
		{o.Args.Times, shiftTimes},
		{o.Args.Stream, shiftStream},
		{o.Args.Pointer, shiftPointer},
		{o.Args.Aux, shiftAux},
		{o.Args.Type, shiftType},
		{o.Args.Reduce, shiftReduce},
		{o.Args.Peer, shiftPeer},
		{o.Args.Shift, shiftShift},
		{o.Args.Variant, shiftVariant},
	} {
		c |= uint64(a.value) << a.shift
	}
	return c
}

// OpByID returns the operation with the kernel's id, or nil.
func OpByID(id uint8) *Op {
	if id == 0 || int(id) > len(Ops) {
		return nil
	}
	return &Ops[id-1]
}

// DataType returns NCCL's name of a data type.
func DataType(n uint8) string {
	names := [...]string{
		"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
		"bfloat16", "float8e4m3", "float8e5m2",
	}
	if int(n) >= len(names) {
		return "unknown"
	}
	return names[n]
}

// Reduction returns NCCL's name of a reduction; user-defined reductions are custom.
func Reduction(n uint8) string {
	names := [...]string{"sum", "prod", "max", "min", "avg"}
	if n == noReduction {
		return ""
	}
	if int(n) >= len(names) {
		return "custom"
	}
	return names[n]
}

const noReduction = 255 // not a reducing collective

// Placeholder names of kernels.
const (
	KernelUnknown = "unknown" // the name was looked up before tracing started
	KernelOther   = "other"   // the sum of the kernels that are not listed
)
