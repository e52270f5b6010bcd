// Definitions of the profiler that user space shares. Go gets the types through bpf2go.
#pragma once

#include "tracer.h"

#define PYTHON_FRAMES 128
#define NATIVE_FRAMES 24

enum profile_kind { PROFILE_LAUNCH = 1, PROFILE_WAIT };

// What is odd about a stack.
enum profile_flag {
	STACK_PYTHON_CUT = 1,	// it has more Python frames than fit
	STACK_PYTHON_BROKEN = 2, // a Python frame could not be read
	STACK_BACKWARD = 4,	// Python frames are those of the thread that runs the backward pass
	STACK_NO_THREAD = 8,	// the thread is none of Python's
	STACK_NO_PYTHON = 16,	// the process's Python is unknown, or it has none
};

// Where CPython keeps its frames in a process. Offsets are in bytes.
struct profile_target {
	__u64 stamp;   // of the program that runs, set by the kernel; 0: not seen yet
	__u64 heads;   // address of the pointer to the first interpreter; 0: no Python is known
	__u64 code;    // address of the type of code objects
	__u32 interp_next, interp_threads;
	__u32 thread_next, thread_id, thread_frame, frame_of; // frame_of: indirection, plus 1; 0: none
	__u32 frame_code, frame_previous, frame_instr, code_start; // code_start 0: frame_instr is a number
	__u32 code_name, object_type;
	__u64 backward, backward_frame, backward_instr; // the thread that called the backward pass last, and from where
};

struct profile_count_key {
	__u32 tgid;
	__u8 op, pad[3];
	__u64 handle;
};

struct profile_sample_key {
	__u32 tgid;
	__u8 kind, op, pad[2];
	__u64 handle; // of the kernel
	__u64 stack;  // hash of its frames
};
struct profile_sample {
	__u64 samples, calls; // calls that the samples stand for
	__u64 ns;	      // of the waits that these stand for
	__u64 threads;	      // of the launches that these stand for, on the device
};

struct profile_python {
	__u64 code;
	__u32 instr, check; // check: tells the code object from a later one at its address
};
struct profile_stack {
	__u16 pythons, natives, flags, turn; // turn: where the frames of the backward pass begin
	__u32 tgid, pad;
	__u64 native[NATIVE_FRAMES]; // the innermost first
	struct profile_python python[PYTHON_FRAMES];
};

enum profile_loss {
	PROFILE_FULL_COUNTS,
	PROFILE_FULL_SAMPLES,
	PROFILE_FULL_STACKS,
	PROFILE_FULL_THREADS,
	PROFILE_LOSSES,
};
