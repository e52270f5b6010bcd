// A libnccl.so.2 without communication. Its collectives launch a kernel, like the real ones.
#include "stub.h"

typedef struct {
	char internal[128];
} id;
typedef struct {
	unsigned gx, gy, gz, bx, by, bz, shared;
	void *stream, *attrs;
	unsigned n;
} config;

int fake_done(void);
int cuLaunchKernelEx(const config *c, void *f, void **params, void **extra);

static uint64_t comm = 0xabc000;

static int make(void **out)
{
	int code = fake_done();

	if (!code || code == 7)
		*out = (void *)__atomic_fetch_add(&comm, 4096, __ATOMIC_RELAXED);
	return code;
}

static int run(void *stream)
{
	config c = { 4, 1, 1, 512, 1, 1, 82240, stream };

	cuLaunchKernelEx(&c, (void *)0x99, NULL, NULL);
	return fake_done();
}

FN(ncclAllReduce, (const void *s, void *r, size_t n, int type, int op, void *comm, void *stream), { return run(stream); })
FN(ncclBroadcast, (const void *s, void *r, size_t n, int type, int root, void *comm, void *stream), { return fake_done(); })
int ncclBroadcast(const void *s, void *r, size_t n, int type, int root, void *comm, void *stream);
FN(ncclBcast, (void *b, size_t n, int type, int root, void *comm, void *stream), { return ncclBroadcast(b, b, n, type, root, comm, stream); })
FN(ncclReduce, (const void *s, void *r, size_t n, int type, int op, int root, void *comm, void *stream), { return fake_done(); })
FN(ncclAllGather, (const void *s, void *r, size_t n, int type, void *comm, void *stream), { return fake_done(); })
FN(ncclReduceScatter, (const void *s, void *r, size_t n, int type, int op, void *comm, void *stream), { return fake_done(); })
FN(ncclAlltoAll, (const void *s, void *r, size_t n, int type, void *comm, void *stream), { return fake_done(); })
FN(ncclGather, (const void *s, void *r, size_t n, int type, int root, void *comm, void *stream), { return fake_done(); })
FN(ncclScatter, (const void *s, void *r, size_t n, int type, int root, void *comm, void *stream), { return fake_done(); })
FN(ncclSend, (const void *b, size_t n, int type, int peer, void *comm, void *stream), { return fake_done(); })
FN(ncclRecv, (void *b, size_t n, int type, int peer, void *comm, void *stream), { return fake_done(); })
FN(ncclGroupEnd, (void), { return fake_done(); })
FN(ncclCommInitRank, (void **c, int n, id i, int rank), { return make(c); })
FN(ncclCommInitRankConfig, (void **c, int n, id i, int rank, void *config), { return make(c); })
FN(ncclCommInitRankScalable, (void **c, int n, int rank, int ids, id *i, void *config), { return make(c); })
FN(ncclCommInitAll, (void **c, int n, const int *devices), {
	for (int i = 0; i < n; i++)
		make(c + i);
	return fake_done();
})
FN(ncclCommSplit, (void *c, int color, int key, void **out, void *config), { return make(out); })
FN(ncclCommDestroy, (void *c), { return fake_done(); })
FN(ncclCommFinalize, (void *c), { return fake_done(); })
FN(ncclCommAbort, (void *c), { return fake_done(); })
FN(ncclCommUserRank, (void *c, int *rank), {
	*rank = 1;
	return fake_done();
})
FN(ncclCommCount, (void *c, int *n), {
	*n = 2;
	return fake_done();
})
FN(ncclCommCuDevice, (void *c, int *dev), {
	*dev = 1;
	return fake_done();
})

// PyTorch has this in its own library; it is here to save a file. The device is two
// bytes, by value.
typedef struct {
	int8_t type, index;
} device;
FN(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, (void *p, int64_t n, size_t allocated, size_t reserved, device d), { return 0; })
