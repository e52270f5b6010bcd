// The test cases that use the fake libraries: work CASE [N].
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
	char internal[128];
} id;
typedef struct {
	unsigned gx, gy, gz, bx, by, bz, shared;
	void *stream, *attrs;
	unsigned n;
} config;
typedef struct {
	size_t srcX, srcY;
	int srcType;
	const void *srcHost, *srcDevice, *srcArray;
	size_t srcPitch, dstX, dstY;
	int dstType;
	void *dstHost, *dstDevice, *dstArray;
	size_t dstPitch, width, height;
} copy2d;
typedef struct {
	size_t srcX, srcY, srcZ, srcLOD;
	int srcType;
	const void *srcHost, *srcDevice, *srcArray, *reserved0;
	size_t srcPitch, srcHeight, dstX, dstY, dstZ, dstLOD;
	int dstType;
	void *dstHost, *dstDevice, *dstArray, *reserved1;
	size_t dstPitch, dstHeight, width, height, depth;
} copy3d;
typedef struct {
	int type, handles, locationType, location;
	void *win32;
	char flags[8];
} prop;
typedef struct {
	int8_t type, index;
} device;

void fake_next(int code, long us);
void fake_exit(void);
void fake_deep(int n);
void fake_jump(jmp_buf *to);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
int cuLaunchKernelEx(const config *, void *, void **, void **);
int cuGraphLaunch(void *, void *), cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuMemcpyHtoD_v2(void *, const void *, size_t), cuMemcpyDtoH_v2(void *, const void *, size_t), cuMemcpyDtoD_v2(void *, const void *, size_t);
int cuMemcpyHtoDAsync_v2(void *, const void *, size_t, void *), cuMemcpyDtoHAsync_v2(void *, const void *, size_t, void *), cuMemcpyDtoDAsync_v2(void *, const void *, size_t, void *);
int cuMemcpy(void *, const void *, size_t), cuMemcpyAsync(void *, const void *, size_t, void *);
int cuMemcpyPeer(void *, void *, const void *, void *, size_t), cuMemcpyPeerAsync(void *, void *, const void *, void *, size_t, void *);
int cuMemcpy2D_v2(const copy2d *), cuMemcpy2DAsync_v2(const copy2d *, void *), cuMemcpy3D_v2(const copy3d *), cuMemcpy3DAsync_v2(const copy3d *, void *);
int cuMemcpy3DPeer(const copy3d *), cuMemcpy3DPeerAsync(const copy3d *, void *);
int cuMemcpyBatchAsync(void **, void **, size_t *, size_t, void *, size_t *, size_t, size_t *, void *);
int cuMemsetD8_v2(void *, int, size_t), cuMemsetD16_v2(void *, int, size_t), cuMemsetD32_v2(void *, int, size_t);
int cuMemsetD8Async(void *, int, size_t, void *), cuMemsetD16Async(void *, int, size_t, void *), cuMemsetD32Async(void *, int, size_t, void *);
int cuMemsetD2D8_v2(void *, size_t, int, size_t, size_t), cuMemsetD2D16_v2(void *, size_t, int, size_t, size_t), cuMemsetD2D32_v2(void *, size_t, int, size_t, size_t);
int cuMemsetD2D8Async(void *, size_t, int, size_t, size_t, void *), cuMemsetD2D16Async(void *, size_t, int, size_t, size_t, void *), cuMemsetD2D32Async(void *, size_t, int, size_t, size_t, void *);
int cuMemAlloc_v2(void **, size_t), cuMemAllocPitch_v2(void **, size_t *, size_t, size_t, unsigned), cuMemAllocManaged(void **, size_t, unsigned), cuMemAllocAsync(void **, size_t, void *);
int cuMemAllocFromPoolAsync(void **, size_t, void *, void *), cuMemCreate(void **, size_t, const prop *, unsigned long long), cuMemHostAlloc(void **, size_t, unsigned), cuMemAllocHost_v2(void **, size_t);
int cuMemFree_v2(void *), cuMemFreeAsync(void *, void *), cuMemRelease(void *), cuMemFreeHost(void *);
int cuMemMap(void *, size_t, size_t, void *, unsigned long long), cuMemUnmap(void *, size_t), cuMemPoolSetAttribute(void *, int, void *), cuMemPoolTrimTo(void *, size_t), cuCtxDestroy_v2(void *);
int cuStreamSynchronize(void *), cuCtxSynchronize(void), cuEventSynchronize(void *), cuEventRecord(void *, void *), cuStreamWaitEvent(void *, void *, unsigned), cuStreamDestroy_v2(void *), cuModuleLoadData(void **, const void *);
int cuLibraryGetKernel(void **, void *, const char *), cuModuleGetFunction(void **, void *, const char *), cuKernelGetFunction(void **, void *), cuFuncGetName(const char **, void *);
int cuDeviceGetUuid(unsigned char *, int), cuDeviceGetUuid_v2(unsigned char *, int), cuDevicePrimaryCtxRetain(void **, int), cuDevicePrimaryCtxReset_v2(int);
int cuCtxCreate_v2(void **, unsigned, int), cuCtxCreate_v3(void **, void *, int, unsigned, int), cuCtxCreate_v4(void **, void *, unsigned, int);
int cuCtxSetCurrent(void *), cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *), ncclBroadcast(const void *, void *, size_t, int, int, void *, void *), ncclBcast(void *, size_t, int, int, void *, void *);
int ncclReduce(const void *, void *, size_t, int, int, int, void *, void *), ncclAllGather(const void *, void *, size_t, int, void *, void *), ncclReduceScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclAlltoAll(const void *, void *, size_t, int, void *, void *), ncclGather(const void *, void *, size_t, int, int, void *, void *), ncclScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *), ncclRecv(void *, size_t, int, int, void *, void *), ncclGroupEnd(void);
int ncclCommInitRank(void **, int, id, int), ncclCommInitRankConfig(void **, int, id, int, void *), ncclCommInitRankScalable(void **, int, int, int, id *, void *), ncclCommInitAll(void **, int, const int *);
int ncclCommSplit(void *, int, int, void **, void *), ncclCommDestroy(void *), ncclCommFinalize(void *), ncclCommAbort(void *), ncclCommUserRank(void *, int *), ncclCommCount(void *, int *), ncclCommCuDevice(void *, int *);
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, device);

#define P(n) ((void *)(uint64_t)(n))

// step lets the test read the counts, and waits until it has.
static void step(const char *name)
{
	char line[16];

	puts(name);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(2);
}

static void launch(void *f, void *stream) { cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL); }

static void use(int dev)
{
	void *c;

	cuDevicePrimaryCtxRetain(&c, dev);
	cuCtxSetCurrent(c);
}

static long each;
static void *loop(void *f)
{
	for (long i = 0; i < each; i++)
		launch(f, NULL);
	return NULL;
}

// count makes n launches in 8 threads.
static void count(long n)
{
	pthread_t t[8];

	use(0);
	each = n / 8;
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, loop, P(0x10));
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
}

// copies gives each copy and memset a different size.
static void copies(void)
{
	void *s = P(7), *d = P(8), *st = P(0x57);
	size_t sizes[3] = { 1000000, 20000, 300 };
	copy2d two = { .srcType = 1, .dstType = 2, .width = 11, .height = 13 };
	copy3d three = { .srcType = 2, .dstType = 1, .width = 3, .height = 5, .depth = 7 };

	use(0);
	cuMemcpyHtoD_v2(d, s, 101);
	cuMemcpyDtoH_v2(d, s, 102);
	cuMemcpyDtoD_v2(d, s, 103);
	cuMemcpyHtoDAsync_v2(d, s, 104, st);
	cuMemcpyDtoHAsync_v2(d, s, 105, st);
	cuMemcpyDtoDAsync_v2(d, s, 106, st);
	cuMemcpy(d, s, 5000000000);
	cuMemcpyAsync(d, s, 108, st);
	cuMemcpyPeer(d, P(1), s, P(2), 109);
	cuMemcpyPeerAsync(d, P(1), s, P(2), 110, st);
	cuMemcpy2D_v2(&two);
	two.dstType = 1;
	cuMemcpy2DAsync_v2(&two, st);
	cuMemcpy3D_v2(&three);
	three.dstType = 3;
	cuMemcpy3DAsync_v2(&three, st);
	three.dstType = 4;
	cuMemcpy3DAsync_v2(&three, st);
	cuMemcpy3DPeer(&three);
	cuMemcpy3DPeerAsync(&three, st);
	cuMemcpyBatchAsync(NULL, NULL, sizes, 3, NULL, NULL, 0, NULL, st);
	cuMemsetD8_v2(d, 1, 201);
	cuMemsetD16_v2(d, 1, 202);
	cuMemsetD32_v2(d, 1, 203);
	cuMemsetD8Async(d, 1, 204, st);
	cuMemsetD16Async(d, 1, 205, st);
	cuMemsetD32Async(d, 1, 206, st);
	cuMemsetD2D8_v2(d, 999, 1, 10, 21);
	cuMemsetD2D16_v2(d, 999, 1, 10, 22);
	cuMemsetD2D32_v2(d, 999, 1, 10, 23);
	cuMemsetD2D8Async(d, 999, 1, 10, 24, st);
	cuMemsetD2D16Async(d, 999, 1, 10, 25, st);
	cuMemsetD2D32Async(d, 999, 1, 10, 26, st);
	fake_next(700, 0);
	cuMemcpyHtoD_v2(d, s, 1 << 20); // fails: no bytes counted
}

static void memory(void)
{
	void *a, *b, *c, *d, *e, *f, *g, *h;
	size_t pitch;
	prop on1 = { .type = 1, .locationType = 1, .location = 1 }, host = { .type = 1, .locationType = 3 };

	use(0);
	cuMemAlloc_v2(&a, 1000);
	cuMemAllocPitch_v2(&b, &pitch, 100, 3, 4);  // 512 * 3
	cuMemAllocAsync(&c, 20000, P(1));
	cuMemAllocFromPoolAsync(&d, 300000, P(2), P(1));
	cuMemAllocManaged(&e, 1 << 20, 1);
	cuMemHostAlloc(&f, 1 << 21, 0);
	cuMemAllocHost_v2(&g, 1 << 22);
	fake_next(2, 0);
	cuMemAlloc_v2(&h, 1 << 30); // out of memory
	cuMemFree_v2(a);
	fake_next(1, 0);
	cuMemFree_v2(c); // stays allocated
	cuMemFreeAsync(d, P(1));
	cuMemFree_v2(e);
	cuMemFreeHost(f);
	cuMemFree_v2(NULL);
	cuMemFree_v2(P(0x123456)); // allocated before tracing
	cuMemCreate(&h, 4 << 20, &on1, 0);
	cuMemCreate(&a, 2 << 20, &on1, 0);
	cuMemCreate(&a, 8 << 20, &host, 0);
	cuMemRelease(h);
}

// mapped memory exists until it is released and unmapped, in any order.
static void mapped(void)
{
	void *a, *b;
	char *at = P(0x7e0000000000);
	prop on0 = { .type = 1, .locationType = 1 };

	use(0);
	cuMemCreate(&a, 1000, &on0, 0);
	cuMemCreate(&b, 200, &on0, 0);
	cuMemMap(at, 1000, 0, a, 0);
	cuMemMap(at + 1000, 200, 0, b, 0);
	cuMemMap(at + 5000, 200, 0, b, 0);
	cuMemRelease(a);
	cuMemRelease(b);
	step("released");
	cuMemUnmap(at, 1200); // all of the first, and the second at one of its places
	step("unmapped");
	cuMemUnmap(at + 5000, 200);
	cuMemCreate(&a, 30, &on0, 0);
	cuMemMap(at, 30, 0, a, 0);
	cuMemUnmap(at, 30);
	step("again");
	cuMemRelease(a);
	step("none");
}

// pools keep what is freed: until a synchronization, or beyond it.
static void pools(void)
{
	void *a, *b;
	uint64_t keep = 500;

	use(0);
	cuMemAllocAsync(&a, 300, P(1));
	cuMemAllocAsync(&b, 1000, P(1));
	cuMemFreeAsync(b, P(1));
	step("freed");
	cuMemAllocAsync(&b, 900, P(1)); // from what the pool has
	step("used again");
	cuMemFreeAsync(b, P(1));
	cuStreamSynchronize(P(1));
	step("synchronized");
	cuMemPoolSetAttribute(P(5), 4, &keep);
	cuMemAllocFromPoolAsync(&b, 900, P(5), P(1));
	cuMemFreeAsync(b, P(1));
	cuCtxSynchronize();
	step("kept");
	cuMemPoolTrimTo(P(5), 350);
	step("trimmed");
}

// contexts have memory of their own.
static void contexts(void)
{
	void *c, *a, *b, *p;

	cuDevicePrimaryCtxRetain(&p, 0);
	cuCtxSetCurrent(p);
	cuMemAlloc_v2(&a, 1000);
	cuCtxCreate_v2(&c, 0, 0);
	cuMemAlloc_v2(&b, 30);
	cuMemAlloc_v2(&b, 4);
	cuMemFree_v2(b);
	step("made");
	cuCtxDestroy_v2(c);
	step("destroyed");
	cuCtxSetCurrent(p);
	cuMemAlloc_v2(&b, 7);
	cuMemFree_v2(a);
	step("left");
}

static void names(void)
{
	void *k, *f, *g, *u = P(0xdead);
	const char *name;
	char longest[400];
	config c = { 7, 8, 9, 10, 11, 12, 13, P(0x5e) };

	use(0);
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	cuLibraryGetKernel(&k, NULL, "_Z6matmulPfS_");
	cuKernelGetFunction(&f, k);
	cuModuleGetFunction(&g, NULL, longest);
	cuLaunchKernel(f, 1, 2, 3, 4, 5, 6, 4096, P(0x5d), NULL, NULL);
	launch(k, NULL);
	cuLaunchKernel(k, 21, 22, 23, 24, 25, 26, 27, P(0x5d), NULL, NULL);
	cuLaunchKernelEx(&c, g, NULL, NULL);
	cuLaunchCooperativeKernel(g, 31, 32, 33, 34, 35, 36, 37, P(0x5d), NULL);
	launch(u, NULL);
	launch(u, NULL);
	launch(P(0xbeef), NULL);
	cuFuncGetName(&name, P(0xbeef));
}

static void *elsewhere(void *c)
{
	cuCtxSetCurrent(c);
	launch(P(0x10), NULL);
	return NULL;
}

static void devices(void)
{
	unsigned char uuid[16];
	void *c0, *c1, *c2, *old;
	pthread_t t;

	launch(P(0x10), NULL); // on an unknown device
	for (int i = 0; i < 3; i++) {
		cuDeviceGetUuid(uuid, i);
		cuDeviceGetUuid_v2(uuid, i);
	}
	cuDevicePrimaryCtxRetain(&c0, 0);
	launch(P(0x10), NULL); // the only device
	cuDevicePrimaryCtxRetain(&c1, 1);
	launch(P(0x10), NULL); // no longer the only device
	cuCtxSetCurrent(c1);
	launch(P(0x10), NULL);
	cuCtxPushCurrent_v2(c0);
	launch(P(0x10), NULL);
	cuCtxPopCurrent_v2(&old);
	launch(P(0x10), NULL);
	pthread_create(&t, NULL, elsewhere, c0);
	pthread_join(t, NULL);
	cuCtxCreate_v2(&c2, 0, 2);
	launch(P(0x10), NULL);
	cuCtxCreate_v3(&c2, NULL, 0, 0, 3);
	launch(P(0x10), NULL);
	cuCtxCreate_v4(&c2, NULL, 0, 4);
	launch(P(0x10), NULL);
}

static void busy(void)
{
	use(0);
	launch(P(0x10), P(1));
	usleep(20000);
	launch(P(0x10), P(2));
	fake_next(0, 10000);
	cuStreamSynchronize(P(1)); // the other stream is still open
	usleep(20000);
	fake_next(0, 10000);
	cuStreamSynchronize(P(2)); // 60 ms since the first launch
	usleep(30000);		   // a bubble
	launch(P(0x10), P(1));
	launch(P(0x10), P(2));
	fake_next(0, 20000);
	cuEventSynchronize(P(9));
	fake_next(0, 20000);
	cuCtxSynchronize(); // 40 ms
	cuStreamBeginCapture_v2(P(1), 0);
	launch(P(0x10), P(1)); // captured, not run
	cuStreamEndCapture(P(1), NULL);
	usleep(10000);
	cuGraphLaunch(P(1), P(1));
	cuStreamDestroy_v2(P(1));
	cuCtxSynchronize();
	launch(P(0x10), P(3));
	step("launched");
	fake_next(0, 50000);
	cuStreamSynchronize(P(3));
	step("waited");
}

// events waits for events: of the last work in a stream, and of work with more behind it.
static void events(void)
{
	use(0);
	for (int i = 0; i < 5; i++) {
		launch(P(0x10), P(1));
		cuEventRecord(P(9), P(1));
		fake_next(0, 20000);
		cuEventSynchronize(P(9));
		usleep(10000);
	}
	step("waited");
	launch(P(0x10), P(1));
	cuEventRecord(P(9), P(1));
	launch(P(0x10), P(1)); // nobody waits for this
	fake_next(0, 20000);
	cuEventSynchronize(P(9));
	step("more");
	cuStreamSynchronize(P(1));
	step("synced");
	launch(P(0x10), P(2));
	cuEventRecord(P(9), P(2));
	cuStreamWaitEvent(P(1), P(9), 0);
	launch(P(0x10), P(1));
	fake_next(0, 20000);
	cuStreamSynchronize(P(1)); // and with it for the other stream
	step("both");
}

// blocking copies wait for work that was launched before them.
static void blocking(void)
{
	void *h = P(7), *d = P(8);
	size_t large = 64 << 20;

	use(0);
	for (int i = 0; i < 5; i++) {
		launch(P(0x10), NULL);
		fake_next(0, 20000);
		cuMemcpyDtoH_v2(h, d, 4);
		usleep(10000);
	}
	step("synchronous");
	for (int i = 0; i < 5; i++) {
		launch(P(0x10), P(1));
		fake_next(0, 20000);
		cuMemcpyDtoHAsync_v2(h, d, 4, P(1));
		cuStreamSynchronize(P(1));
	}
	step("not pinned");
	fake_next(0, 20000);
	cuMemcpyHtoD_v2(d, h, large); // the device has nothing else to do
	step("large");
	launch(P(0x10), NULL);
	fake_next(0, 200000);
	cuMemcpyHtoD_v2(d, h, large);
	step("large, behind work");
	launch(P(0x10), P(1));
	fake_next(0, 20000);
	cuMemcpyDtoD_v2(d, h, 4); // not with the host
	fake_next(0, 20000);
	cuMemcpyDtoHAsync_v2(h, d, 4, P(2)); // its stream has no work
	step("others");
}

static void *submits(void *unused)
{
	launch(P(0x10), P(1));
	return unused;
}

// polls synchronizes n times with nothing to wait for, before and after each of what there is to wait for.
static void polls(long n)
{
	pthread_t t;

	use(0);
	for (int i = 0; i < 6; i++) {
		for (long j = 0; j < n; j++)
			cuStreamSynchronize(P(1));
		switch (i) {
		case 0:
			launch(P(0x10), P(1));
			break;
		case 1:
			cuMemcpyHtoDAsync_v2(P(1), P(2), 64, P(1));
			break;
		case 2:
			cuMemsetD8Async(P(1), 0, 64, P(1));
			break;
		case 3: // of another thread, which has no context: its device is the only one
			pthread_create(&t, NULL, submits, NULL);
			pthread_join(t, NULL);
			break;
		case 4:
			cuEventRecord(P(9), P(1));
			break;
		case 5: // something else
			fake_next(0, 20000);
			cuStreamSynchronize(P(2));
			continue;
		}
		fake_next(0, 20000);
		cuStreamSynchronize(P(1));
	}
	for (long j = 0; j < n; j++)
		cuStreamSynchronize(P(1));
}

// capture fails, and ends all the same.
static void capture(void)
{
	use(0);
	cuStreamBeginCapture_v2(P(1), 0);
	launch(P(0x10), P(1));
	fake_next(901, 0); // invalidated
	cuStreamEndCapture(P(1), NULL);
	launch(P(0x10), P(1));
	fake_next(0, 20000);
	cuStreamSynchronize(P(1));
}

static void *waiting(void *unused)
{
	fake_next(0, 10000000);
	cuCtxSynchronize();
	return NULL;
}

static void hang(void)
{
	pthread_t t;

	use(0);
	launch(P(0x10), NULL);
	pthread_create(&t, NULL, waiting, NULL);
	step("waiting");
}

static void nccl(void)
{
	void *c, *d, *s, *old = P(0x01d), *all[2];
	int devices[2] = { 5, 3 }, n;
	id one, two;

	memset(&one, 'a', sizeof(one));
	memset(&two, 'a', sizeof(two));
	two.internal[127] = 'b';
	use(0);
	ncclCommInitRank(&c, 8, one, 3);
	fake_next(7, 0); // in progress
	ncclCommInitRankConfig(&d, 4, two, 2, NULL);
	for (int i = 0; i < 10; i++)
		ncclAllReduce(NULL, NULL, 1024, 7, 0, c, P(1));
	fake_next(0, 20000);
	cuStreamSynchronize(P(1));
	cuStreamSynchronize(P(1));
	ncclBroadcast(NULL, NULL, 100, 9, 5, c, P(1));
	ncclBcast(NULL, 101, 1, 4, c, P(1));
	ncclReduce(NULL, NULL, 102, 8, 2, 6, c, P(1));
	ncclAllGather(NULL, NULL, 103, 4, c, P(1));
	ncclReduceScatter(NULL, NULL, 104, 6, 4, c, P(1));
	ncclAlltoAll(NULL, NULL, 105, 10, c, P(1));
	ncclGather(NULL, NULL, 106, 2, 7, c, P(1));
	ncclScatter(NULL, NULL, 107, 3, 0, c, P(1));
	ncclSend(NULL, 108, 0, 1, c, P(1));
	ncclRecv(NULL, 109, 5, 2, c, P(1));
	fake_next(5, 0);
	ncclAllGather(NULL, NULL, 110, 11, d, P(1));
	ncclAllReduce(NULL, NULL, 111, 7, 77, d, P(1));
	ncclGroupEnd();
	ncclCommSplit(c, 1, 0, &s, NULL);
	ncclCommUserRank(s, &n);
	ncclCommCount(s, &n);
	ncclCommCuDevice(s, &n);
	ncclAllReduce(NULL, NULL, 1, 7, 0, old, P(1));
	ncclCommInitAll(all, 2, devices);
	ncclCommInitRankScalable(&d, 16, 9, 1, &one, NULL);
	step("made");
	ncclCommFinalize(c);
	ncclCommDestroy(c);
	ncclCommAbort(s);
	step("ended");
}

// hash computes a communicator hash from its unique id like NCCL: with plain char.
static uint64_t hash(const char *s, int n)
{
	uint64_t h = 5381;

	for (int i = 0; i < n; i++)
		h = ((h << 5) + h) ^ s[i];
	return h;
}

// rank is one of two processes that create and split the same communicators.
static void rank(int n)
{
	void *c, *s;
	id one;

	for (int i = 0; i < (int)sizeof(one); i++)
		one.internal[i] = i * 37 + 11;
	printf("%#llx\n", (unsigned long long)hash(one.internal, sizeof(one)));
	use(n);
	ncclCommInitRank(&c, 2, one, n);
	ncclCommSplit(c, 0, n, &s, NULL);
	ncclAllReduce(NULL, NULL, 1, 7, 0, s, P(1));
	ncclCommSplit(c, 0, n, &s, NULL);
	ncclAllReduce(NULL, NULL, 1, 7, 0, s, P(1));
}

// pipeline is a rank that sends n times and receives twice as often.
static void pipeline(int n)
{
	void *c;
	id one;

	memset(&one, 'p', sizeof(one));
	use(0);
	ncclCommInitRank(&c, 4, one, 1);
	ncclSend(NULL, 1, 0, 2, c, P(1)); // before any collective
	ncclAllReduce(NULL, NULL, 1, 7, 0, c, P(1));
	for (int i = 1; i < n; i++)
		ncclSend(NULL, 1, 0, 2, c, P(1));
	for (int i = 0; i < 2 * n; i++)
		ncclRecv(NULL, 1, 0, 0, c, P(1));
}

static void torch(void)
{
	use(1);
	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(P(1), 512, 512, 2 << 20, (device){ 1, 1 });
	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(P(2), 1024, 1536, 4 << 20, (device){ 1, 1 });
	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(P(1), -512, 1024, 4 << 20, (device){ 1, 1 });
	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(P(3), 100, 100, 1 << 20, (device){ 0, -1 }); // for the CPU
	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(P(3), 7, 7, 1 << 20, (device){ 1, 3 });
}

static void forks(void)
{
	use(0);
	launch(P(0x10), NULL);
	pid_t child = fork();
	if (!child) {
		launch(P(0x10), NULL);
		launch(P(0x10), NULL);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	launch(P(0x10), NULL);
	printf("%d\n", child);
	fflush(stdout);
}

static void *leaves(void *unused)
{
	fake_exit();
	cuCtxSynchronize();
	return NULL;
}

__attribute__((noinline)) static void jumps(void)
{
	volatile char deep[512] = {};
	jmp_buf here;

	if (!setjmp(here)) {
		fake_jump(&here);
		cuCtxSynchronize();
	}
	(void)deep;
}

// gone makes calls that never return: their thread exits, or jumps out of them.
static void gone(void)
{
	pthread_t t;

	use(0);
	launch(P(0x10), NULL);
	pthread_create(&t, NULL, leaves, NULL);
	pthread_join(t, NULL);
	jumps();
	for (int i = 0; i < 10; i++)
		launch(P(0x10), NULL);
}

static void deep(void)
{
	use(0);
	fake_deep(6);
	cuStreamSynchronize(NULL);
	for (int i = 0; i < 5; i++)
		launch(P(0x10), NULL);
}

static void faults(void)
{
	use(0);
	cuLaunchKernelEx((config *)8, P(0x10), NULL, NULL);
	cuLaunchKernelEx((config *)8, P(0x10), NULL, NULL);
}

static void fail(void)
{
	use(0);
	for (int i = 0; i < 3; i++) {
		fake_next(719, 0);
		launch(P(0x10), NULL);
	}
	fake_next(1, 0);
	launch(P(0x10), NULL);
	launch(P(0x10), NULL);
	for (int i = 0; i < 1000; i++) {
		fake_next(600, 0);
		cuCtxSynchronize();
	}
}

static void slow(void)
{
	void *k;

	use(0);
	cuLibraryGetKernel(&k, NULL, "slowly");
	launch(k, P(3));
	step("watch");
	launch(k, P(3));
	fake_next(0, 30000);
	launch(k, P(4));
	step("record");
	cuMemcpyHtoD_v2(P(1), P(2), 4711);
	launch(k, P(5));
	step("stop");
	launch(k, P(5));
}

static void restart(void)
{
	void *k, *l, *p, *c;
	id one = { "a communicator" };

	use(0);
	cuLibraryGetKernel(&k, NULL, "before");
	cuMemAlloc_v2(&p, 1 << 20);
	ncclCommInitRank(&c, 8, one, 3);
	ncclAllReduce(NULL, NULL, 1024, 7, 0, c, P(1));
	launch(k, P(1));
	step("seen");
	cuLibraryGetKernel(&l, NULL, "between"); // while no agent runs
	launch(k, P(1));
	launch(l, P(1));
	cuMemFree_v2(p);
	cuMemAlloc_v2(&p, 2 << 20);
	ncclAllReduce(NULL, NULL, 1024, 7, 0, c, P(1));
	step("unseen");
	launch(k, P(1));
	launch(l, P(1));
	cuMemAlloc_v2(&p, 4 << 20);
	ncclAllReduce(NULL, NULL, 1024, 7, 0, c, P(1));
	step("seen again");
	launch(k, P(1));
}

static void many(long n)
{
	use(0);
	for (long i = 1; i <= n; i++) {
		void *p, *k;
		char name[32];

		snprintf(name, sizeof(name), "kernel%ld", i);
		cuModuleGetFunction(&k, NULL, name);
		launch(P(i * 16), P(i));
		cuMemAlloc_v2(&p, 1);
	}
}

static volatile int stop;
static void *hog(void *unused)
{
	while (!stop)
		;
	return unused;
}

// host sleeps inside and outside a call, and competes for its CPU.
static void host(void)
{
	pthread_t t[4];

	use(0);
	launch(P(0x10), NULL);
	fake_next(0, 100000);
	cuCtxSynchronize();
	usleep(50000);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, hog, NULL);
	for (volatile long i = 0; i < 50000000; i++)
		;
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	launch(P(0x10), NULL);
}

// execs allocates, and again after exec, which frees the first allocation.
static void execs(long n)
{
	void *p, *k;

	use(0);
	cuModuleGetFunction(&k, NULL, n ? "first" : "second");
	launch(k, NULL);
	cuMemAlloc_v2(&p, n ? 1000 : 7);
	if (n) {
		step("first");
		execl("/proc/self/exe", "work", "exec", "0", NULL);
		exit(3);
	}
	launch(k, NULL);
	step("second");
}

// leaves_cuda executes a program that does not use CUDA.
static void leaves_cuda(void)
{
	use(0);
	launch(P(0x10), NULL);
	execl("/bin/true", "true", NULL);
	exit(3);
}

// reset frees all memory of a device at once.
static void reset(void)
{
	void *p, *q;

	use(0);
	cuMemAlloc_v2(&p, 1000);
	cuMemAlloc_v2(&q, 24);
	use(1);
	cuMemAlloc_v2(&q, 5);
	cuDevicePrimaryCtxReset_v2(0);
	step("reset");
	use(0);
	cuMemAlloc_v2(&q, 7);
	cuMemFree_v2(p);
	step("again");
}

// late launches a kernel and looks up its name afterwards.
static void late(void)
{
	const char *name;

	use(0);
	for (int i = 0; i < 3; i++)
		launch(P(0x10), NULL);
	step("launched");
	cuFuncGetName(&name, P(0x10));
	step("named");
}

static int by_size(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return x < y ? -1 : x > y;
}

// price prints what a call takes of the CPU: the minimum and the median, in ns, over batches of n calls.
static void price(const char *what, long n, void (*call)(void))
{
	long ns[101];
	struct timespec from, to;

	for (int b = 0; b < 101; b++) {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (long i = 0; i < n; i++)
			call();
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		ns[b] = ((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec) / n;
	}
	qsort(ns, 101, sizeof(*ns), by_size);
	printf("%s %ld %ld\n", what, ns[0], ns[50]);
}

static void price_launch(void) { launch(P(0x10), P(1)); }
static void price_sync(void) { cuStreamSynchronize(P(1)); }
static void price_copy(void) { cuMemcpyHtoDAsync_v2(P(1), P(2), 64, P(1)); }

static void prices(long n)
{
	use(0);
	price("launch", n, price_launch);
	cuCtxSynchronize();
	price("copy", n, price_copy);
	price("sync", n, price_sync);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long n = argc > 2 ? atol(argv[2]) : 1;

#define CASE(name, call)              \
	if (!strcmp(what, name)) {    \
		call;                 \
		return 0;             \
	}
	CASE("count", count(n))
	CASE("copies", copies())
	CASE("memory", memory())
	CASE("mapped", mapped())
	CASE("pools", pools())
	CASE("contexts", contexts())
	CASE("names", names())
	CASE("devices", devices())
	CASE("busy", busy())
	CASE("events", events())
	CASE("blocking", blocking())
	CASE("capture", capture())
	CASE("polls", polls(n))
	CASE("hang", hang())
	CASE("nccl", nccl())
	CASE("rank", rank(n))
	CASE("pipeline", pipeline(n))
	CASE("torch", torch())
	CASE("fork", forks())
	CASE("gone", gone())
	CASE("deep", deep())
	CASE("faults", faults())
	CASE("fail", fail())
	CASE("slow", slow())
	CASE("restart", restart())
	CASE("many", many(n))
	CASE("host", host())
	CASE("exec", execs(n))
	CASE("leave", leaves_cuda())
	CASE("late", late())
	CASE("reset", reset())
	CASE("prices", prices(n))
	CASE("loop", { use(0); each = n; loop(P(0x10)); })
	CASE("paced", { use(0); for (long i = 0; i < n; i++) { launch(P(0x10), NULL); usleep(300); } })
	CASE("gated", { step("ready"); use(0); each = n; loop(P(0x10)); })
	return 1;
}
