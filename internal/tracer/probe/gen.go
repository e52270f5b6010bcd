package probe

// The objects are committed, so only changes of bpf/ need clang. They are built with clang 14,
// which Debian 12 and Ubuntu 22.04 and 24.04 have: other versions produce other bytes. Each
// object is for the registers of one architecture.
//go:generate go tool -modfile=../../../tools.mod bpf2go -go-package probe -tags linux -target amd64,arm64 -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3" -type proc_key -type proc_val -type op_key -type op_val -type error_key -type kernel_key -type kernel_val -type handle_key -type name -type alloc_key -type alloc_val -type context_val -type dev_key -type dev_val -type uuid -type stream_key -type stream_val -type mark_val -type comm_val -type coll_key -type coll_val -type watch_key -type event -type loss -type body -type type kernel ../../../bpf/tracer.bpf.c
