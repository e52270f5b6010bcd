// GPM: metrics out of two samples.
#include <math.h>
#include <stdlib.h>

#include "fake.h"

enum { SAMPLE_MAGIC = 0x67706d31, WHOLE_GPU = -1 };

// A sample holds the values at the time it was taken; the script may change between two.
struct gpm_sample {
    unsigned magic;
    int gpu;
    long long gi; // WHOLE_GPU, or the instance
    unsigned long long taken; // µs, 0 while empty
    long long period;
    double value[GPM_IDS];
};

struct gpm_metric {
    unsigned id, ret;
    double value;
    const char *short_name, *long_name, *unit;
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *older, *newer;
    struct gpm_metric metric[];
};

struct gpm_support {
    unsigned version, supported;
};

static bool has_gpm(const struct gpu *g) { return g->value[ARCH][0] >= 9; }

static bool valid(const struct gpm_sample *s) { return s && s->magic == SAMPLE_MAGIC; }

ret nvmlGpmQueryDeviceSupport(device d, struct gpm_support *s) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (s->version != 1) return VERSION_MISMATCH;
    s->supported = has_gpm(c.gpu);
    return SUCCESS;
}

ret nvmlGpmSampleAlloc(struct gpm_sample **s) {
    ENTER();
    *s = calloc(1, sizeof **s);
    if (!*s) return MEMORY;
    (*s)->magic = SAMPLE_MAGIC;
    return SUCCESS;
}

ret nvmlGpmSampleFree(struct gpm_sample *s) {
    ENTER();
    if (!valid(s)) return INVALID_ARGUMENT;
    s->magic = 0;
    free(s);
    return SUCCESS;
}

static ret take(const struct call *c, long long gi, struct gpm_sample *s) {
    if (!valid(s)) return INVALID_ARGUMENT;
    if (!has_gpm(c->gpu)) return NOT_SUPPORTED;
    s->gpu = c->index;
    s->gi = gi;
    s->taken = now_us();
    s->period = c->gpu->value[GPM_PERIOD][0];
    memcpy(s->value, c->gpu->gpm, sizeof s->value);
    if (gi == WHOLE_GPU) return SUCCESS;
    for (int i = 14; i <= 209; i++) s->value[i] = 0; // an instance has no traffic of its own
    for (int i = 0; i < state->gi_metrics; i++) {
        const struct gi_metric *m = &state->gi_metric[i];
        if ((m->gpu == -1 || m->gpu == c->index) && m->gi == gi) s->value[m->id] = m->value;
    }
    return SUCCESS;
}

ret nvmlGpmSampleGet(device d, struct gpm_sample *s) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    return take(&c, c.mig ? (long long)c.mig->gi : WHOLE_GPU, s);
}

ret nvmlGpmMigSampleGet(device d, unsigned gi, struct gpm_sample *s) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    for (int i = 0; i < MAX_MIG; i++)
        if (c.gpu->mig[i].present && c.gpu->mig[i].gi == gi) return take(&c, gi, s);
    return INVALID_ARGUMENT;
}

// This call has no device handle: the faults of the newer sample's GPU apply, and a
// lost GPU is only visible in nvmlGpmSampleGet.
ret nvmlGpmMetricsGet(struct gpm_metrics *m) {
    CALL = enter(__func__, m && valid(m->newer) ? m->newer->gpu : -1);
    if (c.ret != SUCCESS) return c.ret;
    if (m->version != 1) return VERSION_MISMATCH;
    const struct gpm_sample *older = m->older, *newer = m->newer;
    if (!valid(older) || !valid(newer) || older == newer || !older->taken || !newer->taken) return INVALID_ARGUMENT;
    if (older->gpu != newer->gpu || older->gi != newer->gi) return INVALID_ARGUMENT;
    // Too close together or out of order: no error, but meaningless values. Measured on
    // an H200, whose counters advance every 100 ms.
    bool empty = (long long)(newer->taken - older->taken) < newer->period * 1000;
    for (unsigned i = 0; i < m->count; i++) {
        struct gpm_metric *out = &m->metric[i];
        double value = out->id < GPM_IDS ? newer->value[out->id] : NAN;
        bool known = out->id >= 1 && out->id <= 209; // by R580
        out->ret = !isnan(value) ? SUCCESS : known ? NOT_SUPPORTED : INVALID_ARGUMENT;
        if (out->ret == SUCCESS) out->value = !empty ? value : out->id == 10 ? NAN : 0;
    }
    return SUCCESS;
}
