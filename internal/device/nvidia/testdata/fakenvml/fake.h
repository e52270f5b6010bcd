// A stand-in for libnvidia-ml.so.1 whose answers come from a script, see README.md.
// The declarations are our own: only what the exported functions need, with the
// layout of the 64-bit ABI.
#ifndef FAKE_H
#define FAKE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef int ret; // nvmlReturn_t

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    MEMORY = 20,
    VERSION_MISMATCH = 25,
    NOT_READY = 27,
    UNKNOWN = 999,
};

enum { F64 = 0, U32 = 1, U64 = 3, I32 = 5, U16 = 6 }; // nvmlValueType_t

enum {
    MAX_GPUS = 64,
    MAX_MIG = 7,
    MAX_VALUES = 18, // of one property: the links of NVLink 4
    MAX_ROWS = 256,  // of processes, faults and field rules
    GPM_IDS = 477,
    TEXT = 96,
};

#define ABSENT LLONG_MIN // a value the GPU does not have: NOT_SUPPORTED
#define VERSIONED(size, n) ((unsigned)(size) | (unsigned)(n) << 24)

// device is an nvmlDevice_t: a number that names GPU, MIG slot and initialization.
typedef uintptr_t device;

#include "properties.h"

struct mig {
    bool present;
    char uuid[TEXT];
    unsigned gi, ci, gi_slices, ci_slices;
    unsigned long long mib, used;
};

struct gpu {
    char text[TEXT_COUNT][TEXT]; // "na" is absent
    long long value[PROPERTY_COUNT][MAX_VALUES];
    double gpm[GPM_IDS]; // NaN is absent
    struct mig mig[MAX_MIG];
    bool lost, gone;
};

enum process_type { COMPUTE, GRAPHICS, MPS };

struct process {
    int gpu;
    enum process_type type;
    unsigned pid, gi, ci;
    unsigned long long memory; // all bits set: not available
    long long sm;              // percent, or ABSENT
};

enum fault_kind { HANG, SLEEP, RETURN };

struct fault {
    int gpu; // -1: all, and the functions without a device
    enum fault_kind kind;
    char function[TEXT]; // a glob pattern
    int argument;
};

enum field_kind { FIELD_VALUE, FIELD_UNSUPPORTED, FIELD_UNTOUCHED };

struct field_rule {
    int gpu; // -1: all
    unsigned id;
    long long scope; // -1: any
    enum field_kind kind;
    int type; // -1: that of the hardware
    double value;
};

struct gi_metric {
    int gpu;
    unsigned gi, id;
    double value;
};

struct xid {
    int gpu;
    long long sequence;
    unsigned code;
};

struct state {
    char driver[TEXT];
    int cuda, gpus, init, field_batch;
    long long clock; // seconds
    long long generation;
    struct gpu gpu[MAX_GPUS];
    int processes, faults, fields, gi_metrics, xids;
    struct process process[MAX_ROWS];
    struct fault fault[MAX_ROWS];
    struct field_rule field[MAX_ROWS];
    struct gi_metric gi_metric[MAX_ROWS];
    struct xid xid[MAX_ROWS];
};

// Everything internal is hidden, as the build exports symbols by default.
#pragma GCC visibility push(hidden)

extern struct state *state; // guarded by the lock that enter takes

void defaults(struct state *s);
void restart_counters(struct state *s);
bool parse(struct state *s, char *script, char *problem, size_t size);

// A call holds the lock from enter to the end of the function's scope, unless ret is
// not SUCCESS: then nothing is held and the function returns it.
struct call {
    ret ret;
    int index;       // of the GPU in the script, -1 for a function without a device
    struct gpu *gpu; // NULL for a function without a device
    struct mig *mig; // NULL unless the handle is of a MIG device
    bool locked;
};

enum mig_rule {
    MIG_REFUSED_2 = INVALID_ARGUMENT, // what the function answers for a MIG handle
    MIG_REFUSED_3 = NOT_SUPPORTED,
    MIG_ALLOWED = 0,
};

struct call enter(const char *function, int index); // of the GPU whose faults apply
struct call enter_device(const char *function, device d, enum mig_rule rule);
void leave(struct call *c);

#define CALL struct call c __attribute__((cleanup(leave)))
#define ENTER()                        \
    CALL = enter(__func__, -1);        \
    if (c.ret != SUCCESS) return c.ret
#define ENTER_DEVICE(d, rule)                  \
    CALL = enter_device(__func__, d, rule);    \
    if (c.ret != SUCCESS) return c.ret

ret ready(void); // whether functions without a device may be used
device handle(int gpu, int mig);
int visible(int index); // GPU in the script of an enumerated index, -1 if there is none
int visible_count(void);
ret copy_text(const char *text, char *out, unsigned length);
unsigned long long now_us(void);
void sleep_ms(int ms);
bool in_mig_mode(const struct gpu *g);
ret ecc_count(const struct gpu *g, int type, int counter, int location, unsigned long long *out);

#pragma GCC visibility pop

// number stores element i of a property.
#define number(g, property, i, out)                                \
    ({                                                             \
        long long v_ = (g)->value[property][i];                    \
        if (v_ != ABSENT) *(out) = (__typeof__(*(out)))v_;         \
        v_ == ABSENT ? NOT_SUPPORTED : SUCCESS;                    \
    })

#endif
