package tracer

// The kinds of libraries that have operations.
const (
	LibraryCUDA  = "cuda"  // libcuda.so, the driver's
	LibraryNCCL  = "nccl"  // libnccl.so, or what has it linked in
	LibraryTorch = "torch" // libc10.so
)

// Op is one operation: the row of the table that all else follows from. The kernel gets it
// packed into 64 bits, so a row is all that one more function costs.
type Op struct {
	ID      uint8 // what the kernel counts it by, from 1
	Library string
	Name    string // the symbol without its version suffixes
	Class   Class
	Symbols []string // all that are this operation; each that a library has is probed
	// Quiet: what it says is kept, the call itself is not counted.
	Quiet bool
	// Entry: only its entry is probed, which is half the cost.
	Entry bool
	Body  Body
	Args  Args
}

// Body is what the kernel does at a call.
type Body uint8

// The bodies. bpf/tracer.h has them with the same numbers.
const (
	BodyCall       Body = iota + 1 // counts and times it
	BodyLaunch                     // a kernel with its dimensions as arguments
	BodyLaunchEx                   // a kernel with its dimensions in a struct
	BodyWork                       // other work on Stream
	BodyCapture                    // Variant 1: launches are recorded from here on; 2: no more
	BodyCopy                       // Bytes of Kind
	BodyCopyStruct                 // described by a struct; Variant is its dimensions
	BodyCopyBatch                  // sums the sizes in an array
	BodySet                        // Bytes times Times, shifted by Shift
	BodyAlloc                      // Bytes, to be found at the address Pointer; Variant is the kind of memory
	BodyFree                       // of Pointer
	BodySync                       // Variant: what it waits for
	BodyStreamEnd                  // Stream is no more
	BodyName                       // names the handle at the address Pointer; Aux has the name
	BodyNameOf                     // asks for the name of Aux; its address is at the address Pointer
	BodyAlias                      // the handle at the address Pointer is as good as Aux
	BodyUUID                       // of device Aux, at the address Pointer
	BodyContext                    // the context at the address Pointer is on device Aux
	BodyCurrent                    // Pointer is the thread's context
	BodyPush                       // the same, until it is popped
	BodyPop
	BodyColl     // a collective on the communicator Aux; Variant: of whom
	BodyInit     // makes a communicator
	BodyInitAll  // makes one for each device
	BodySplit    // makes one from another
	BodyCommEnd  // Variant 2: aborted
	BodyCommAsk  // Variant 1: its rank, 2: its size, 3: its device, to the address Pointer
	BodyTorch    // what PyTorch's allocator says to hold
	BodyScalable // makes a communicator, with the unique ids in an array
	BodyReset    // all memory of device Aux is freed
	bodyEnd
)

// What Variant says of an allocation, of a synchronisation and of a collective.
const (
	MemoryDevice  = 1
	MemoryManaged = 2
	MemoryHost    = 3
	MemoryHandle  = 4 // physical memory that is mapped later
	MemoryPitch   = 5

	SyncContext = 1
	SyncStream  = 2
	SyncEvent   = 3

	// CollPair is between two ranks: the others do not come, so it does not say how far a
	// rank is.
	CollPair = 1
)

// Args says where a body finds its arguments: 1 is the first, 0 is none.
type Args struct {
	Bytes, Times    uint8
	Stream, Pointer uint8
	Aux             uint8
	Type, Reduce    uint8 // of NCCL
	Peer            uint8 // or the root
	Shift           uint8 // log2 of the size of an element, up to 7
	Variant         uint8 // up to 7
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
	Default // the driver finds out by the addresses
)

// String is the kind as OpStat has it.
func (k Kind) String() string {
	names := [...]string{"", "htod", "dtoh", "dtod", "htoh", "peer", "default"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Where in a cookie what is. bpf/tracer.h has the same.
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

// Cookie is the row as the kernel gets it with each probe.
func (o *Op) Cookie() uint64 {
	c := uint64(o.ID) | uint64(o.Body)<<shiftBody | uint64(o.Args.Kind)<<shiftKind
	if o.Quiet {
		c |= 1 << shiftQuiet
	}
	if o.Entry {
		c |= 1 << shiftEntry
	}
	if o.Library == LibraryNCCL {
		c |= 1 << shiftPending // ncclInProgress is no error
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

// OpByID returns the operation the kernel counts by id, or nil.
func OpByID(id uint8) *Op {
	if id == 0 || int(id) > len(Ops) {
		return nil
	}
	return &Ops[id-1]
}

// DataType is NCCL's name of a datatype, and Reduction that of a reduction.
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

// Reduction is NCCL's name of a reduction; what a program made itself is custom.
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

const noReduction = 255 // the collective does not reduce

// Names of kernels that are none.
const (
	KernelUnknown = "unknown" // its name was asked for before us
	KernelOther   = "other"   // many, together
)
