package sampler

// The objects are committed, as those of package probe are, and built with the same compiler.
//go:generate go tool -modfile=../../../../tools.mod bpf2go -go-package sampler -tags linux -target amd64,arm64 -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3" -type profile_target -type profile_count_key -type profile_sample_key -type profile_sample -type profile_stack -type profile_flag -type profile_kind -type profile_loss kernel ../../../../bpf/profile.bpf.c
