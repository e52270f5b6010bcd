// A stand-in for libhlml.so whose answers come from a script, see README.md.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef int ret;
typedef uintptr_t device;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

static int sessions;
static unsigned epoch; // counts initializations, to detect old handles

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// script returns fake.conf from the library's own directory. It is read again when replaced. The
// caller holds the lock.
static const char *script(void) {
    static char text[1 << 16], path[PATH_MAX + 16];
    static struct stat seen;
    struct stat now;
    Dl_info self;
    if (!*path) {
        if (!dladdr((void *)script, &self)) return "";
        snprintf(path, sizeof path, "%s", self.dli_fname);
        strcpy(strrchr(path, '/'), "/fake.conf");
    }
    if (stat(path, &now)) return "";
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return text;
    seen = now;
    FILE *f = fopen(path, "re");
    if (!f) return "";
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

// find returns the rest of the last line that begins with the given words.
static bool find(int aip, const char *words, char *value, size_t size) {
    char mine[320], every[320];
    bool found = false;
    snprintf(mine, sizeof mine, "%d %s ", aip, words);
    snprintf(every, sizeof every, "* %s ", words);
    if (aip < 0) snprintf(mine, sizeof mine, "%s ", words);
    pthread_mutex_lock(&lock);
    for (const char *line = script(); *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *rest = NULL;
        if (!strncmp(line, mine, strlen(mine))) rest = line + strlen(mine);
        if (!strncmp(line, every, strlen(every))) rest = line + strlen(every);
        if (!rest) continue;
        snprintf(value, size, "%.*s", (int)strcspn(rest, "\n"), rest);
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool number(int aip, const char *words, unsigned long long *out) {
    char value[128];
    if (!find(aip, words, value, sizeof value)) return false;
    *out = strtoull(value, NULL, 0);
    return true;
}

// hangs reports whether the script has a line "I hang FUNCTION".
static bool hangs(int aip, const char *function) {
    char value[128];
    return find(aip, "hang", value, sizeof value) && !strcmp(value, function);
}

static ret enter(const char *function, int aip) {
    char words[160];
    unsigned long long code;
    while (hangs(aip, function)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    snprintf(words, sizeof words, "ret %s", function);
    if (number(aip, words, &code)) return (ret)code;
    return SUCCESS;
}

enum { TAG = 0x6a };

static ret enter_device(const char *function, device d, int *aip) {
    if (sessions == 0) return UNINITIALIZED;
    if (d >> 24 != TAG || (d >> 8 & 0xffff) != (epoch & 0xffff)) return UNINITIALIZED;
    *aip = d & 0xff;
    return enter(function, *aip);
}

#define ENTER(d)                                 \
    int aip;                                     \
    ret code = enter_device(__func__, d, &aip);  \
    if (code != SUCCESS) return code

// answer stores a number of the script as the type that out points to.
#define ANSWER(out, ...)                                  \
    char key[64];                                         \
    unsigned long long v;                                 \
    snprintf(key, sizeof key, __VA_ARGS__);               \
    if (!number(aip, key, &v)) return NOT_SUPPORTED;      \
    *(out) = (__typeof__(*(out)))v;                       \
    return SUCCESS

ret hlml_init(void) {
    unsigned long long code = SUCCESS;
    if (number(-1, "init", &code) && code != SUCCESS) return (ret)code;
    sessions++;
    epoch++;
    return SUCCESS;
}

ret hlml_shutdown(void) {
    if (sessions == 0) return UNINITIALIZED;
    sessions--;
    return SUCCESS;
}

ret hlml_device_get_count(unsigned *count) {
    unsigned long long n = 1;
    if (sessions == 0) return UNINITIALIZED;
    ret code = enter(__func__, -1);
    if (code != SUCCESS) return code;
    number(-1, "count", &n);
    *count = n;
    return SUCCESS;
}

ret hlml_device_get_handle_by_index(unsigned index, device *d) {
    if (sessions == 0) return UNINITIALIZED;
    ret code = enter(__func__, (int)index);
    *d = (device)TAG << 24 | (epoch & 0xffff) << 8 | index;
    return code;
}

static ret text(int aip, const char *key, char *out, unsigned length) {
    char words[32], value[128];
    snprintf(words, sizeof words, "text %s", key);
    if (!find(aip, words, value, sizeof value)) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

ret hlml_device_get_name(device d, char *out, unsigned n) { ENTER(d); return text(aip, "name", out, n); }
ret hlml_device_get_uuid(device d, char *out, unsigned n) { ENTER(d); return text(aip, "uuid", out, n); }
ret hlml_device_get_serial(device d, char *out, unsigned n) { ENTER(d); return text(aip, "serial", out, n); }

// As large as that of hl-1.24, which has grown since hl-1.16.
struct pci_info {
    unsigned bus;
    char bus_id[19];
    unsigned device, domain, pci_device_id;
    char caps[40];
    unsigned revision, subsystem;
};

ret hlml_device_get_pci_info(device d, struct pci_info *p) {
    ENTER(d);
    memset(p, 0xff, sizeof *p);
    return text(aip, "pci", p->bus_id, sizeof p->bus_id);
}

struct utilization {
    unsigned aip, memory;
};

ret hlml_device_get_utilization_rates(device d, struct utilization *u) {
    ENTER(d);
    u->memory = 77; // of newer libraries
    ANSWER(&u->aip, "util");
}

struct memory {
    unsigned long long free, total, used;
};

ret hlml_device_get_memory_info(device d, struct memory *m) {
    ENTER(d);
    if (!number(aip, "memory-free", &m->free) || !number(aip, "memory-total", &m->total)) return NOT_SUPPORTED;
    ANSWER(&m->used, "memory-used");
}

ret hlml_device_get_temperature(device d, unsigned sensor, unsigned *t) {
    ENTER(d);
    if (sensor > 2 && !number(aip, "new-sensors", &(unsigned long long){0})) return INVALID_ARGUMENT;
    ANSWER(t, "temperature-%u", sensor);
}

ret hlml_device_get_temperature_threshold(device d, unsigned what, unsigned *t) { ENTER(d); ANSWER(t, "threshold-%u", what); }
ret hlml_device_get_power_usage(device d, unsigned *mw) { ENTER(d); ANSWER(mw, "power"); }
ret hlml_device_get_power_management_default_limit(device d, unsigned *mw) { ENTER(d); ANSWER(mw, "default-limit"); }
ret hlml_device_get_total_energy_consumption(device d, unsigned long long *e) { ENTER(d); ANSWER(e, "energy"); }
ret hlml_device_get_clock_info(device d, unsigned type, unsigned *mhz) { ENTER(d); ANSWER(mhz, "clock-%u", type); }
ret hlml_device_get_max_clock_info(device d, unsigned type, unsigned *mhz) { ENTER(d); ANSWER(mhz, "max-clock-%u", type); }
ret hlml_device_get_current_clocks_throttle_reasons(device d, unsigned long long *m) { ENTER(d); ANSWER(m, "throttle"); }
ret hlml_device_get_pcie_replay_counter(device d, unsigned *n) { ENTER(d); ANSWER(n, "replays"); }
ret hlml_device_get_replaced_rows_pending_status(device d, unsigned *on) { ENTER(d); ANSWER(on, "rows-pending"); }

ret hlml_device_get_ecc_mode(device d, unsigned *current, unsigned *pending) {
    ENTER(d);
    *pending = 1;
    ANSWER(current, "ecc-mode");
}

ret hlml_device_get_total_ecc_errors(device d, unsigned type, unsigned counter, unsigned long long *n) {
    ENTER(d);
    ANSWER(n, "ecc-%u-%u", type, counter);
}

ret hlml_device_get_memory_error_counter(device d, unsigned type, unsigned counter, unsigned location, unsigned long long *n) {
    ENTER(d);
    ANSWER(n, "ecc-%u-%u-%u", type, counter, location);
}

ret hlml_device_get_replaced_rows(device d, unsigned cause, unsigned *n, void *addresses) {
    ENTER(d);
    if (addresses || *n) return INVALID_ARGUMENT;
    ANSWER(n, "rows-%u", cause);
}

// The masks have two words, as in later versions.
ret hlml_get_mac_addr_info(device d, uint64_t *mask, uint64_t *external) {
    ENTER(d);
    external[0] = external[1] = mask[1] = 0;
    ANSWER(mask, "ports");
}

ret hlml_nic_get_link(device d, uint32_t port, bool *up) {
    unsigned long long mask = 0;
    ENTER(d);
    if (!number(aip, "ports-up", &mask)) return NOT_SUPPORTED;
    *up = mask >> port & 1;
    return SUCCESS;
}
