// The library's life cycle: its script, its initialization, and what every call does
// before it answers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

struct state *state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char directory[PATH_MAX];

// The script as last read, valid or not.
static struct {
    bool known, present;
    struct timespec modified;
    off_t size;
    ino_t inode;
} seen;

static int references;
static unsigned epoch; // counts initializations, so that a handle of an earlier one is told apart
static long long init_generation;
static bool no_attach; // initialized without GPUs
static bool lost[MAX_GPUS]; // stays until the next initialization
static int files[MAX_GPUS + 1], open_files;

__attribute__((constructor)) static void locate(void) {
    Dl_info self;
    if (!dladdr((void *)locate, &self) || !realpath(self.dli_fname, directory)) return;
    *strrchr(directory, '/') = 0;
}

void sleep_ms(int ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) continue;
}

unsigned long long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000ULL + t.tv_nsec / 1000;
}

static char *read_script(const char *path, off_t size) {
    char *text = calloc(1, size + 1);
    FILE *f = fopen(path, "r");
    if (f) {
        if (text && fread(text, 1, size, f) != (size_t)size) text[size] = 0;
        fclose(f);
    }
    return text;
}

// reload reads the script if it changed. An invalid script leaves the state unchanged.
static void reload(void) {
    char path[PATH_MAX + 16], problem[256];
    struct stat st = {0};
    snprintf(path, sizeof path, "%s/fake.conf", directory);
    bool present = stat(path, &st) == 0;
    if (seen.known && present == seen.present && st.st_size == seen.size &&
        st.st_ino == seen.inode && st.st_mtim.tv_sec == seen.modified.tv_sec &&
        st.st_mtim.tv_nsec == seen.modified.tv_nsec)
        return;
    seen.known = true;
    seen.present = present;
    seen.size = st.st_size;
    seen.inode = st.st_ino;
    seen.modified = st.st_mtim;

    struct state *fresh = malloc(sizeof *fresh);
    char *text = present ? read_script(path, st.st_size) : calloc(1, 1);
    defaults(fresh);
    if (!parse(fresh, text, problem, sizeof problem)) {
        fprintf(stderr, "fakenvml: %s: %s\n", path, problem);
        free(fresh);
        free(text);
        if (state) return;
        fresh = malloc(sizeof *fresh);
        defaults(fresh);
        text = NULL;
    }
    free(text);
    free(state);
    state = fresh;
    if (references > 0) {
        for (int i = 0; i < MAX_GPUS; i++) lost[i] |= state->gpu[i].lost || state->gpu[i].gone;
    }
}

static bool enumerated(int gpu) { return gpu < state->gpus && !state->gpu[gpu].gone && !no_attach; }

int visible(int index) {
    for (int i = 0; i < MAX_GPUS; i++) {
        if (enumerated(i) && index-- == 0) return i;
    }
    return -1;
}

int visible_count(void) {
    int n = 0;
    for (int i = 0; i < MAX_GPUS; i++) n += enumerated(i);
    return n;
}

// A handle looks like an address, as the real ones are, and holds, from the lowest
// bit: MIG slot + 1 (4 bits), GPU (8), initialization (12), hash of the MIG UUID (12).
enum { HANDLE_TAG = 0x7a };

static unsigned uuid_hash(const char *s) {
    unsigned h = 5381;
    while (*s) h = h * 33 + (unsigned char)*s++;
    return h & 0xfff;
}

device handle(int gpu, int mig) {
    unsigned long long hash = mig < 0 ? 0 : uuid_hash(state->gpu[gpu].mig[mig].uuid);
    return (device)HANDLE_TAG << 40 | hash << 24 | (epoch & 0xfff) << 12 | (unsigned)gpu << 4 | (mig + 1);
}

// resolve finds the GPU of a handle. Unlike the real library it refuses a handle of an
// earlier initialization, because it may refer to another GPU by then.
static ret resolve(device d, struct call *c) {
    c->index = -1;
    if (references == 0 || state->generation != init_generation) return UNINITIALIZED;
    if (d >> 40 != HANDLE_TAG || (d >> 12 & 0xfff) != (epoch & 0xfff)) return INVALID_ARGUMENT;
    c->index = d >> 4 & 0xff;
    if (c->index >= MAX_GPUS) return INVALID_ARGUMENT;
    c->gpu = &state->gpu[c->index];
    int slot = (int)(d & 0xf) - 1;
    if (lost[c->index]) return GPU_IS_LOST;
    if (c->index >= state->gpus) return INVALID_ARGUMENT;
    if (slot < 0) return SUCCESS;
    c->mig = &c->gpu->mig[slot];
    // The instance was destroyed, or another one took its slot.
    if (!c->mig->present || uuid_hash(c->mig->uuid) != (d >> 24 & 0xfff)) return INVALID_ARGUMENT;
    return SUCCESS;
}

static const struct fault *find_fault(enum fault_kind kind, const char *function, int gpu) {
    for (int i = 0; i < state->faults; i++) {
        const struct fault *f = &state->fault[i];
        if (f->kind == kind && (f->gpu == -1 || f->gpu == gpu) && !fnmatch(f->function, function, 0))
            return f;
    }
    return NULL;
}

static void wait_unlocked(int ms) {
    pthread_mutex_unlock(&lock);
    sleep_ms(ms);
    pthread_mutex_lock(&lock);
    reload();
}

// begin takes the lock and applies the faults. d is NULL for a function without a
// device.
static ret begin(const char *function, const device *d, struct call *c) {
    pthread_mutex_lock(&lock);
    reload();
    const struct fault *f;
    ret r = d ? resolve(*d, c) : SUCCESS;
    if ((f = find_fault(SLEEP, function, c->index))) wait_unlocked(f->argument);
    while (find_fault(HANG, function, c->index)) wait_unlocked(10);
    if ((f = find_fault(RETURN, function, c->index))) return f->argument;
    // The script may have changed meanwhile.
    if (d) r = resolve(*d, c);
    return r;
}

static struct call finish(struct call c, ret r) {
    c.ret = r;
    c.locked = r == SUCCESS;
    if (!c.locked) pthread_mutex_unlock(&lock);
    return c;
}

struct call enter(const char *function, int index) {
    struct call c = {.index = index};
    return finish(c, begin(function, NULL, &c));
}

struct call enter_device(const char *function, device d, enum mig_rule rule) {
    struct call c = {.index = -1};
    ret r = begin(function, &d, &c);
    if (r == SUCCESS && c.mig) r = (ret)rule;
    return finish(c, r);
}

void leave(struct call *c) {
    if (c->locked) pthread_mutex_unlock(&lock);
}

static void open_file(const char *name) {
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) files[open_files++] = fd;
}

static ret initialise(unsigned flags) {
    if (references > 0) { // as the real one: only counted, even when the driver was reloaded
        references++;
        return SUCCESS;
    }
    if (state->init != SUCCESS) return state->init;
    references = 1;
    epoch++;
    init_generation = state->generation;
    no_attach = flags & 2; // 1, "no GPUs is no failure", changes nothing
    open_file("nvidiactl");
    for (int i = 0; i < MAX_GPUS; i++) {
        lost[i] = state->gpu[i].lost || state->gpu[i].gone;
        char name[32];
        snprintf(name, sizeof name, "nvidia%lld", state->gpu[i].value[MINOR][0]);
        if (enumerated(i)) open_file(name);
    }
    return SUCCESS;
}

ret nvmlInit_v2(void) {
    ENTER();
    return initialise(0);
}

ret nvmlInitWithFlags(unsigned flags) {
    ENTER();
    return initialise(flags);
}

ret nvmlShutdown(void) {
    ENTER();
    if (references == 0) return UNINITIALIZED;
    if (--references == 0) {
        while (open_files > 0) close(files[--open_files]);
    }
    return SUCCESS;
}

// The functions without a device that need the driver.
ret ready(void) {
    return references == 0 || state->generation != init_generation ? UNINITIALIZED : SUCCESS;
}

ret nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER();
    ret r = ready();
    return r != SUCCESS ? r : copy_text(state->driver, version, length);
}

// This one needs no initialization.
ret nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER();
    char text[TEXT + 16];
    snprintf(text, sizeof text, "%d.%s", state->cuda / 1000, state->driver);
    return copy_text(text, version, length);
}

ret nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER();
    ret r = ready();
    if (r == SUCCESS) *version = state->cuda;
    return r;
}

ret nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER();
    ret r = ready();
    if (r == SUCCESS) *count = visible_count();
    return r;
}

ret nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    pthread_mutex_lock(&lock);
    reload();
    int gpu = index < MAX_GPUS ? visible(index) : -1;
    device d = gpu < 0 ? 0 : handle(gpu, -1);
    pthread_mutex_unlock(&lock);
    if (gpu < 0) {
        ENTER();
        ret r = ready();
        return r != SUCCESS ? r : INVALID_ARGUMENT;
    }
    // Entering with the handle it is about to give applies the faults of that GPU.
    ENTER_DEVICE(d, MIG_ALLOWED);
    *out = d;
    return SUCCESS;
}
