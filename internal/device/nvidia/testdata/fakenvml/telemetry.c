// Device readings, except fields, processes and GPM.
#include "fake.h"

struct utilization {
    unsigned gpu, memory;
};

ret nvmlDeviceGetUtilizationRates(device d, struct utilization *u) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    if (in_mig_mode(c.gpu)) return NOT_SUPPORTED;
    number(c.gpu, UTIL, 1, &u->memory);
    return number(c.gpu, UTIL, 0, &u->gpu);
}

#define ENGINE(name, property)                                                 \
    ret nvmlDeviceGet##name##Utilization(device d, unsigned *u, unsigned *us) { \
        ENTER_DEVICE(d, MIG_REFUSED_2);                                        \
        if (in_mig_mode(c.gpu)) return NOT_SUPPORTED;                          \
        *us = 100000;                                                          \
        return number(c.gpu, property, 0, u);                                  \
    }
ENGINE(Encoder, ENC)
ENGINE(Decoder, DEC)
ENGINE(Jpg, JPG)
ENGINE(Ofa, OFA)

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static ret read_memory(const struct call *c, struct memory_v2 *m) {
    if (c->mig) {
        m->total = c->mig->mib << 20;
        m->reserved = 0;
        m->used = c->mig->used;
    } else {
        c->gpu->value[FB][2] += c->gpu->value[FB_STEP][0]; // shows a test how often memory was read
        number(c->gpu, FB, 1, &m->reserved);
        number(c->gpu, FB, 2, &m->used);
        if (number(c->gpu, FB, 0, &m->total) != SUCCESS) return NOT_SUPPORTED;
    }
    m->free = m->total - m->reserved - m->used;
    return SUCCESS;
}

ret nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *m) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    // Measured: this one function answers a wrong version with 13, not with 25.
    if (m->version != VERSIONED(sizeof *m, 2)) return FUNCTION_NOT_FOUND;
    return read_memory(&c, m);
}

ret nvmlDeviceGetMemoryInfo(device d, struct memory *m) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    struct memory_v2 v2 = {0};
    ret r = read_memory(&c, &v2);
    if (r == SUCCESS) *m = (struct memory){v2.total, v2.free, v2.used + v2.reserved};
    return r;
}

ret nvmlDeviceGetBAR1MemoryInfo(device d, struct memory *m) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    *m = (struct memory){0};
    ret r = SUCCESS;
    if (c.mig) {
        m->total = c.mig->mib << 20;
    } else {
        number(c.gpu, BAR1, 1, &m->used);
        r = number(c.gpu, BAR1, 0, &m->total);
    }
    m->free = m->total - m->used;
    return r;
}

ret nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return sensor != 0 ? INVALID_ARGUMENT : number(c.gpu, TEMP, 0, celsius);
}

ret nvmlDeviceGetTemperatureThreshold(device d, unsigned type, unsigned *celsius) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return type > 7 ? INVALID_ARGUMENT : number(c.gpu, THRESHOLDS, type, celsius);
}

struct margin {
    unsigned version;
    int celsius;
};

ret nvmlDeviceGetMarginTemperature(device d, struct margin *m) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    if (m->version != VERSIONED(sizeof *m, 1)) return VERSION_MISMATCH;
    return number(c.gpu, MARGIN, 0, &m->celsius);
}

// ONE is a function that gives one element of a property.
#define ONE(function, type, property, i, rule)  \
    ret nvmlDeviceGet##function(device d, type *out) { \
        ENTER_DEVICE(d, rule);                  \
        return number(c.gpu, property, i, out); \
    }
ONE(PowerUsage, unsigned, POWER, 1, MIG_REFUSED_3)
ONE(EnforcedPowerLimit, unsigned, POWER_LIMITS, 0, MIG_REFUSED_3)
ONE(PowerManagementLimit, unsigned, POWER_LIMITS, 1, MIG_REFUSED_3)
ONE(PowerManagementDefaultLimit, unsigned, POWER_LIMITS, 2, MIG_REFUSED_3)
ONE(TotalEnergyConsumption, unsigned long long, ENERGY, 0, MIG_REFUSED_3)
ONE(PerformanceState, unsigned, PSTATE, 0, MIG_REFUSED_2)
ONE(CurrentClocksEventReasons, unsigned long long, THROTTLE, 0, MIG_REFUSED_3)
ONE(CurrentClocksThrottleReasons, unsigned long long, THROTTLE, 0, MIG_REFUSED_3)
ONE(CurrPcieLinkGeneration, unsigned, PCIE, 0, MIG_REFUSED_2)
ONE(CurrPcieLinkWidth, unsigned, PCIE, 1, MIG_REFUSED_2)
ONE(MaxPcieLinkGeneration, unsigned, PCIE, 2, MIG_REFUSED_2)
ONE(MaxPcieLinkWidth, unsigned, PCIE, 3, MIG_REFUSED_2)
ONE(PcieReplayCounter, unsigned, PCIE_REPLAY, 0, MIG_REFUSED_3)
ONE(RetiredPagesPendingStatus, unsigned, RETIRED, 2, MIG_REFUSED_2)

ret nvmlDeviceGetPowerManagementLimitConstraints(device d, unsigned *min, unsigned *max) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    number(c.gpu, POWER_LIMITS, 3, min);
    return number(c.gpu, POWER_LIMITS, 4, max);
}

ret nvmlDeviceGetClockInfo(device d, unsigned type, unsigned *mhz) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    return type > 3 ? INVALID_ARGUMENT : number(c.gpu, CLOCKS, type, mhz);
}

ret nvmlDeviceGetMaxClockInfo(device d, unsigned type, unsigned *mhz) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    return type > 3 ? INVALID_ARGUMENT : number(c.gpu, MAX_CLOCKS, type, mhz);
}

static unsigned fan_count(const struct gpu *g) {
    unsigned n = 0;
    while (n < 4 && (g->value[FANS][n] != ABSENT || g->value[FAN_RPM][n] != ABSENT)) n++;
    return n;
}

ret nvmlDeviceGetNumFans(device d, unsigned *count) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    *count = fan_count(c.gpu);
    return SUCCESS;
}

ret nvmlDeviceGetFanSpeed_v2(device d, unsigned fan, unsigned *percent) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return fan >= fan_count(c.gpu) ? INVALID_ARGUMENT : number(c.gpu, FANS, fan, percent);
}

struct fan {
    unsigned version, fan, rpm;
};

ret nvmlDeviceGetFanSpeedRPM(device d, struct fan *f) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    if (f->version != VERSIONED(sizeof *f, 1)) return VERSION_MISMATCH;
    return f->fan >= fan_count(c.gpu) ? INVALID_ARGUMENT : number(c.gpu, FAN_RPM, f->fan, &f->rpm);
}

// The real one measures for 20 ms, and so blocks that long.
ret nvmlDeviceGetPcieThroughput(device d, unsigned counter, unsigned *kb) {
    ret r;
    {
        ENTER_DEVICE(d, MIG_REFUSED_2);
        if (counter > 1) return INVALID_ARGUMENT;
        r = number(c.gpu, PCIE_RATE, counter, kb);
    }
    sleep_ms(20);
    return r;
}

ret nvmlDeviceGetEccMode(device d, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    number(c.gpu, ECC_MODE, 1, pending);
    return number(c.gpu, ECC_MODE, 0, current);
}

// ecc_count counts one location, or with -1 all that are there. type is 0 corrected, 1
// uncorrected; counter is 0 volatile, 1 aggregate.
ret ecc_count(const struct gpu *g, int type, int counter, int location, unsigned long long *out) {
    unsigned long long sum = 0, n = 0;
    ret r = NOT_SUPPORTED;
    if (g->value[ECC_MODE][0] != 1) return NOT_SUPPORTED;
    for (int i = 0; i < 8; i++) {
        if ((location == -1 || location == i) && number(g, ECC_L1 + i, 2 * counter + type, &n) == SUCCESS) {
            sum += n;
            r = SUCCESS;
        }
    }
    if (r == SUCCESS) *out = sum;
    return r;
}

ret nvmlDeviceGetTotalEccErrors(device d, unsigned type, unsigned counter, unsigned long long *count) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    return type > 1 || counter > 1 ? INVALID_ARGUMENT : ecc_count(c.gpu, type, counter, -1, count);
}

ret nvmlDeviceGetMemoryErrorCounter(device d, unsigned type, unsigned counter, unsigned location,
                                    unsigned long long *count) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (type > 1 || counter > 1 || location > 7) return INVALID_ARGUMENT;
    if (c.mig) { // an instance counts what it could not correct in its own caches, since driver load
        if (type == 0 || counter == 1 || location == 2) return NOT_SUPPORTED;
        *count = 0;
        return SUCCESS;
    }
    return ecc_count(c.gpu, type, counter, location, count);
}

struct sram {
    unsigned version;
    unsigned long long count[11];
    unsigned exceeded;
};

ret nvmlDeviceGetSramEccErrorStatus(device d, struct sram *s) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    if (s->version != VERSIONED(sizeof *s, 1)) return VERSION_MISMATCH;
    if (c.gpu->value[ARCH][0] < 9 || c.gpu->value[ECC_MODE][0] != 1) return NOT_SUPPORTED;
    for (int i = 0; i < 11; i++)
        if (number(c.gpu, SRAM, i, &s->count[i]) != SUCCESS) return NOT_SUPPORTED;
    return number(c.gpu, SRAM, 11, &s->exceeded);
}

ret nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    if (in_mig_mode(c.gpu)) return NOT_SUPPORTED;
    number(c.gpu, REMAPPED, 1, uncorrected);
    number(c.gpu, REMAPPED, 2, pending);
    number(c.gpu, REMAPPED, 3, failure);
    return number(c.gpu, REMAPPED, 0, corrected);
}

ret nvmlDeviceGetRowRemapperHistogram(device d, unsigned banks[5]) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    for (int i = 0; i < 5; i++)
        if (number(c.gpu, HISTOGRAM, i, &banks[i]) != SUCCESS) return NOT_SUPPORTED;
    return SUCCESS;
}

ret nvmlDeviceGetRetiredPages(device d, unsigned cause, unsigned *count, unsigned long long *addresses) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    unsigned pages = 0, room = *count;
    if (cause > 1) return INVALID_ARGUMENT;
    if (number(c.gpu, RETIRED, cause, &pages) != SUCCESS) return NOT_SUPPORTED;
    *count = pages;
    if (room < pages) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages; i++) addresses[i] = 0x1000ULL * (i + 1);
    return SUCCESS;
}

struct fabric {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
    unsigned char summary; // version 3 only
};

ret nvmlDeviceGetGpuFabricInfoV(device d, struct fabric *f) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    bool v3 = f->version == VERSIONED(sizeof *f, 3);
    if (!v3 && f->version != VERSIONED(36, 2)) return VERSION_MISMATCH;
    memset(f->cluster, 0x11, sizeof f->cluster);
    number(c.gpu, FABRIC, 1, &f->status);
    number(c.gpu, FABRIC, 2, &f->health);
    number(c.gpu, FABRIC, 4, &f->clique);
    if (v3) number(c.gpu, FABRIC, 3, &f->summary);
    return number(c.gpu, FABRIC, 0, &f->state);
}
