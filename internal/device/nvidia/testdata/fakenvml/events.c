// Event sets: XIDs that occur while a set is registered.
#include "fake.h"

enum { SETS = 16, XID_CRITICAL = 0x8, SUPPORTED = 0x9f9f };

// set is what an nvmlEventSet_t points to.
struct set {
    bool used;
    device session;                // a handle of the initialization it belongs to
    bool registered[MAX_GPUS];
    long long delivered[MAX_GPUS]; // sequence number of the last XID
};

static struct set sets[SETS];

struct event {
    device device;
    unsigned long long type, data;
    unsigned gi, ci;
};

// valid returns the reason why a set cannot be used. Sets do not survive an initialization.
static ret valid(const struct set *s) {
    ret r = ready();
    if (r != SUCCESS) return r;
    return s >= sets && s < sets + SETS && s->used && s->session == handle(0, -1) ? SUCCESS : INVALID_ARGUMENT;
}

ret nvmlEventSetCreate(struct set **out) {
    ENTER();
    ret r = ready();
    for (int i = 0; r == SUCCESS && i < SETS; i++) {
        if (sets[i].used && sets[i].session == handle(0, -1)) continue;
        sets[i] = (struct set){.used = true, .session = handle(0, -1)};
        *out = &sets[i];
        return SUCCESS;
    }
    return r == SUCCESS ? MEMORY : r;
}

ret nvmlEventSetFree(struct set *s) {
    ENTER();
    ret r = valid(s);
    if (r == SUCCESS) s->used = false;
    return r;
}

ret nvmlDeviceGetSupportedEventTypes(device d, unsigned long long *types) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    *types = SUPPORTED;
    return SUCCESS;
}

ret nvmlDeviceRegisterEvents(device d, unsigned long long types, struct set *s) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    ret r = valid(s);
    if (r != SUCCESS) return r;
    if (types & ~(unsigned long long)SUPPORTED) return NOT_SUPPORTED;
    if (!(types & XID_CRITICAL)) return SUCCESS;
    s->registered[c.index] = true;
    for (int i = 0; i < state->xids; i++) {
        const struct xid *x = &state->xid[i];
        if (x->gpu == c.index && x->sequence > s->delivered[c.index]) s->delivered[c.index] = x->sequence;
    }
    return SUCCESS;
}

static ret next(struct set *s, struct event *e) {
    CALL = enter("nvmlEventSetWait_v2", -1);
    if (c.ret != SUCCESS) return c.ret;
    ret r = valid(s);
    if (r != SUCCESS) return r;
    for (int i = 0; i < state->xids; i++) {
        const struct xid *x = &state->xid[i];
        if (!s->registered[x->gpu] || x->sequence <= s->delivered[x->gpu]) continue;
        s->delivered[x->gpu] = x->sequence;
        *e = (struct event){.device = handle(x->gpu, -1), .type = XID_CRITICAL, .data = x->code, .gi = ~0u, .ci = ~0u};
        return SUCCESS;
    }
    return TIMEOUT;
}

ret nvmlEventSetWait_v2(struct set *s, struct event *e, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited++) {
        ret r = next(s, e);
        if (r != TIMEOUT || waited >= timeout_ms) return r;
        sleep_ms(1);
    }
}
