// A libcuda.so.1 without a device. Each call returns the result set by fake_next, once.
#include "stub.h"

#include <pthread.h>
#include <setjmp.h>
#include <string.h>
#include <time.h>

static __thread int next_code;
static __thread long next_us;
static __thread int next_exit;
static __thread int next_deep;
static __thread jmp_buf *next_jump;
static uint64_t address = 0x7f0000000000;
static uint64_t handle = 0x1000;

void fake_next(int code, long us)
{
	next_code = code;
	next_us = us;
}
void fake_exit(void) { next_exit = 1; }
void fake_deep(int n) { next_deep = n; }
void fake_jump(jmp_buf *to) { next_jump = to; }

int cuStreamSynchronize(void *stream);

int fake_done(void)
{
	int code = next_code;

	if (next_deep > 0) {
		next_deep--;
		cuStreamSynchronize(NULL);
	}

	if (next_us) {
		struct timespec t = { next_us / 1000000, next_us % 1000000 * 1000 };
		nanosleep(&t, NULL);
	}
	next_code = 0;
	next_us = 0;
	if (next_exit)
		pthread_exit(NULL);
	if (next_jump) {
		jmp_buf *to = next_jump;
		next_jump = NULL;
		longjmp(*to, 1);
	}
	return code;
}

typedef struct {
	unsigned gx, gy, gz, bx, by, bz, shared;
	void *stream, *attrs;
	unsigned n;
} config;

static int put(void **out, uint64_t *from, uint64_t step)
{
	int code = fake_done();

	if (!code)
		*out = (void *)__atomic_fetch_add(from, step, __ATOMIC_RELAXED);
	return code;
}

#define PLAIN(name) FN(name, (void), { return fake_done(); })

FN(cuLaunchKernel, (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra), { return fake_done(); })
FN(cuLaunchCooperativeKernel, (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params), { return fake_done(); })
FN(cuLaunchKernelEx, (const config *c, void *f, void **params, void **extra), { return fake_done(); })
PLAIN(cuGraphLaunch)
PLAIN(cuStreamBeginCapture_v2)
PLAIN(cuStreamEndCapture)
PLAIN(cuMemcpyHtoD_v2)
PLAIN(cuMemcpyDtoH_v2)
PLAIN(cuMemcpyDtoD_v2)
PLAIN(cuMemcpyHtoDAsync_v2)
PLAIN(cuMemcpyDtoHAsync_v2)
PLAIN(cuMemcpyDtoDAsync_v2)
PLAIN(cuMemcpy)
PLAIN(cuMemcpyAsync)
PLAIN(cuMemcpyPeer)
PLAIN(cuMemcpyPeerAsync)
PLAIN(cuMemcpy2D_v2)
PLAIN(cuMemcpy2DAsync_v2)
PLAIN(cuMemcpy3D_v2)
PLAIN(cuMemcpy3DAsync_v2)
PLAIN(cuMemcpy3DPeer)
PLAIN(cuMemcpy3DPeerAsync)
PLAIN(cuMemcpyBatchAsync)
PLAIN(cuMemsetD8_v2)
PLAIN(cuMemsetD16_v2)
PLAIN(cuMemsetD32_v2)
PLAIN(cuMemsetD8Async)
PLAIN(cuMemsetD16Async)
PLAIN(cuMemsetD32Async)
PLAIN(cuMemsetD2D8_v2)
PLAIN(cuMemsetD2D16_v2)
PLAIN(cuMemsetD2D32_v2)
PLAIN(cuMemsetD2D8Async)
PLAIN(cuMemsetD2D16Async)
PLAIN(cuMemsetD2D32Async)
FN(cuMemAlloc_v2, (void **p, size_t n), { return put(p, &address, 4096); })
FN(cuMemAllocPitch_v2, (void **p, size_t *pitch, size_t width, size_t height, unsigned element), {
	*pitch = (width + 511) / 512 * 512;
	return put(p, &address, 4096);
})
FN(cuMemAllocManaged, (void **p, size_t n, unsigned flags), { return put(p, &address, 4096); })
FN(cuMemAllocAsync, (void **p, size_t n, void *stream), { return put(p, &address, 4096); })
FN(cuMemAllocFromPoolAsync, (void **p, size_t n, void *pool, void *stream), { return put(p, &address, 4096); })
FN(cuMemCreate, (void **h, size_t n, const void *prop, unsigned long long flags), { return put(h, &handle, 16); })
FN(cuMemHostAlloc, (void **p, size_t n, unsigned flags), { return put(p, &address, 4096); })
FN(cuMemAllocHost_v2, (void **p, size_t n), { return put(p, &address, 4096); })
PLAIN(cuMemFree_v2)
PLAIN(cuMemFreeAsync)
PLAIN(cuMemRelease)
PLAIN(cuMemFreeHost)
PLAIN(cuMemMap)
PLAIN(cuMemUnmap)
PLAIN(cuMemPoolSetAttribute)
PLAIN(cuMemPoolTrimTo)
PLAIN(cuCtxDestroy_v2)
PLAIN(cuStreamSynchronize)
PLAIN(cuCtxSynchronize)
PLAIN(cuEventSynchronize)
PLAIN(cuEventRecord)
PLAIN(cuStreamWaitEvent)
PLAIN(cuStreamDestroy_v2)
PLAIN(cuModuleLoadData)
FN(cuLibraryGetKernel, (void **k, void *library, const char *name), { return put(k, &handle, 16); })
FN(cuModuleGetFunction, (void **k, void *module, const char *name), { return put(k, &handle, 16); })
FN(cuKernelGetFunction, (void **f, void *kernel), { return put(f, &handle, 16); })
FN(cuFuncGetName, (const char **name, void *f), {
	static char known[] = "asked_for"; // written at load time, like the driver's names

	known[0] = 'a';
	*name = known;
	return fake_done();
})
FN(cuDeviceGetUuid, (unsigned char *uuid, int dev), {
	for (int i = 0; i < 16; i++)
		uuid[i] = dev * 16 + i;
	return fake_done();
})
FN(cuDeviceGetUuid_v2, (unsigned char *uuid, int dev), {
	for (int i = 0; i < 16; i++)
		uuid[i] = dev * 16 + i + (dev == 1); // the second device is partitioned
	return fake_done();
})
FN(cuDevicePrimaryCtxReset_v2, (int dev), { return fake_done(); })
FN(cuDevicePrimaryCtxRetain, (void **c, int dev), {
	*c = (void *)(0xc0000 + (uint64_t)dev * 16);
	return fake_done();
})
FN(cuCtxCreate_v2, (void **c, unsigned flags, int dev), {
	*c = (void *)(0xd0000 + (uint64_t)dev * 16);
	return fake_done();
})
FN(cuCtxCreate_v3, (void **c, void *params, int n, unsigned flags, int dev), {
	*c = (void *)(0xe0000 + (uint64_t)dev * 16);
	return fake_done();
})
FN(cuCtxCreate_v4, (void **c, void *params, unsigned flags, int dev), {
	*c = (void *)(0xf0000 + (uint64_t)dev * 16);
	return fake_done();
})
PLAIN(cuCtxSetCurrent)
PLAIN(cuCtxPushCurrent_v2)
PLAIN(cuCtxPopCurrent_v2)
