// Processes, and the driver's sample history of processes and of the GPU.
#include "fake.h"

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};

// list gives the processes of a GPU, or of the one MIG device.
static ret list(const struct call *c, enum process_type type, unsigned *count, struct process_info *out) {
    unsigned found = 0, room = out ? *count : 0;
    if (!count) return INVALID_ARGUMENT;
    for (int i = 0; i < state->processes; i++) {
        const struct process *p = &state->process[i];
        if (p->gpu != c->index || p->type != type) continue;
        if (c->mig && (p->gi != c->mig->gi || p->ci != c->mig->ci)) continue;
        if (found++ < room) out[found - 1] = (struct process_info){p->pid, p->memory, p->gi, p->ci};
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

ret nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, struct process_info *out) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    return list(&c, COMPUTE, count, out);
}

ret nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *count, struct process_info *out) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    return list(&c, GRAPHICS, count, out);
}

ret nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, unsigned *count, struct process_info *out) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    return list(&c, MPS, count, out);
}

struct process_sample {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, memory, encoder, decoder;
};

// The driver samples utilization every 200 ms and power every 20 ms.
enum { UTIL_PERIOD = 200000, POWER_PERIOD = 20000, UTIL_ROWS = 72, POWER_ROWS = 120 };

ret nvmlDeviceGetProcessUtilization(device d, struct process_sample *out, unsigned *count,
                                    unsigned long long last_seen) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (!count) return INVALID_ARGUMENT;
    if (!out || *count < UTIL_ROWS) { // asked for even where it is not supported, and with no process
        *count = UTIL_ROWS;
        return INSUFFICIENT_SIZE;
    }
    if (c.mig) return INVALID_ARGUMENT;
    if (in_mig_mode(c.gpu)) return NOT_SUPPORTED;
    unsigned long long real = now_us() / UTIL_PERIOD * UTIL_PERIOD;
    unsigned long long newest = real + state->clock * 1000000;
    unsigned n = 0;
    for (int i = 0; i < state->processes && n + 1 < UTIL_ROWS; i++) {
        const struct process *p = &state->process[i];
        if (p->gpu != c.index || p->sm == ABSENT) continue;
        if (newest > last_seen)
            out[n++] = (struct process_sample){.pid = p->pid, .timestamp = newest, .sm = p->sm};
        if (state->clock < 0 && real > last_seen)
            out[n++] = (struct process_sample){.pid = p->pid, .timestamp = real, .sm = 100};
    }
    if (n == 0) return NOT_FOUND; // count stays at the caller's
    *count = n;
    return SUCCESS;
}

struct sample {
    unsigned long long timestamp, value;
};

static long long sample_value(const struct gpu *g, unsigned type, int age) {
    switch (type) {
    case 0: return g->value[POWER][1];
    case 1:
        if (age < MAX_VALUES && g->value[UTIL_SAMPLES][age] != ABSENT) return g->value[UTIL_SAMPLES][age];
        return g->value[UTIL][0];
    case 2: return g->value[UTIL][1];
    case 3: return g->value[ENC][0];
    case 4: return g->value[DEC][0];
    case 5: return g->value[CLOCKS][1];
    case 6: return g->value[CLOCKS][2];
    case 8: return g->value[JPG][0];
    case 9: return g->value[OFA][0];
    }
    return ABSENT;
}

// The requested size is one more than is filled, oldest first: a caller that ignores the
// returned count sees one row as it was allocated.
ret nvmlDeviceGetSamples(device d, unsigned type, unsigned long long last_seen, unsigned *value_type,
                         unsigned *count, struct sample *out) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    if (type > 9 || !count || !value_type || (out && *count == 0)) return INVALID_ARGUMENT;
    if (sample_value(c.gpu, type, 0) == ABSENT) return NOT_SUPPORTED;
    int rows = type == 0 ? POWER_ROWS : UTIL_ROWS;
    unsigned long long period = type == 0 ? POWER_PERIOD : UTIL_PERIOD;
    *value_type = U32;
    if (!out) {
        *count = rows;
        return SUCCESS;
    }
    if (in_mig_mode(c.gpu) && type != 0) return NOT_SUPPORTED;
    unsigned long long newest = now_us() / period * period;
    unsigned n = 0;
    for (int age = rows - 2; age >= 0 && n < *count; age--) {
        unsigned long long t = newest - age * period;
        if (t > last_seen) out[n++] = (struct sample){t, sample_value(c.gpu, type, age)};
    }
    if (n == 0) return NOT_FOUND;
    *count = n;
    return SUCCESS;
}
