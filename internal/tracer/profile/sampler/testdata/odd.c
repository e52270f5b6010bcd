// Programs that are hard to profile. odd forged: claims to be Python 3.11, with frames in a circle, names
// that are endless or no text. odd threads: launches from a thousand threads. odd exec: becomes another program.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra);

unsigned long Py_Version = 0x030b07f0;
uint64_t _PyRuntime[256];
uint64_t PyCode_Type[64];
static uint64_t interpreter[64], thread[64], cframe[8], frames[2][16], codes[2][64];
static char name[4096], lines[64];

static void text(char *at, uint64_t length, unsigned kind, int ascii, const char *content, int n)
{
	memset(at, 0, 64);
	memcpy(at + 16, &length, 8);
	at[32] = kind << 2 | 1 << 5 | ascii << 6;
	memcpy(at + (ascii ? 48 : 72), content, n);
}

static void forge(void)
{
	char *endless = name, *bad = name + 2048;

	PyCode_Type[3] = (uint64_t) "code";
	_PyRuntime[5] = (uint64_t)interpreter;
	interpreter[2] = (uint64_t)thread;
	thread[1] = (uint64_t)thread; // the next one is itself
	thread[19] = (uint64_t)pthread_self();
	thread[7] = (uint64_t)cframe;
	cframe[1] = (uint64_t)frames[0];
	memset(endless, 'x', 2048);
	text(endless, 1ull << 62, 1, 1, "xxxx", 4);
	memset(endless + 48, 'x', 1024);
	text(bad, 6, 2, 0, "\0\xd8\x1b\0\n\0a\0;\0\xff\xff", 12);
	*(uint64_t *)(lines + 16) = ~0ull; // of bytes
	for (int i = 0; i < 2; i++) {
		frames[i][4] = (uint64_t)codes[i];
		frames[i][6] = (uint64_t)frames[!i]; // in a circle
		frames[i][7] = (uint64_t)codes[i] + 1000000;
		codes[i][1] = (uint64_t)PyCode_Type;
		codes[i][14] = (uint64_t)bad;
		codes[i][16] = (uint64_t)(i ? bad : endless);
		codes[i][17] = (uint64_t)lines;
	}
}

static void launch(int n)
{
	while (n--)
		cuLaunchKernel((void *)0x300, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void *ten(void *barrier)
{
	pthread_barrier_wait(barrier);
	launch(10);
	return NULL;
}

int main(int argc, char **argv)
{
	char line[64];

	if (!strcmp(argv[1], "forged"))
		forge();
	if (strcmp(argv[1], "executed"))
		puts("ready");
	else
		puts("done");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && line[0] != '\n') {
		if (!strcmp(argv[1], "threads")) {
			pthread_t t[1000];
			pthread_barrier_t b;
			pthread_attr_t small;

			pthread_attr_init(&small);
			pthread_attr_setstacksize(&small, 64 << 10);
			pthread_barrier_init(&b, NULL, 1000);
			for (int i = 0; i < 1000; i++)
				if (pthread_create(&t[i], &small, ten, &b))
					abort();
			for (int i = 0; i < 1000; i++)
				pthread_join(t[i], NULL);
		} else {
			launch(atoi(line));
		}
		if (!strcmp(argv[1], "exec"))
			execl("/proc/self/exe", argv[0], "executed", NULL);
		puts("done");
		fflush(stdout);
	}
}
