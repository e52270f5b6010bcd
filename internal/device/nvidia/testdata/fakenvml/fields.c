// nvmlDeviceGetFieldValues: the field table, and the pitfalls of large requests.
#include "fake.h"

enum source {
    PLAIN,       // element i of the property
    ECC_TOTAL,   // element i: corrected and uncorrected, volatile then aggregate
    POWER_SCOPE, // element i of the property of the part the scope names
    LINK,        // the element the scope names
    LINK_SUM,    // the same, or all links for scope 0xffffffff
    LINK_COMMON, // element i, if there are links
    MISSING,     // the type is known, the H200 does not have it
    ZERO,
};

static const struct field {
    unsigned id;
    int type;
    enum source source;
    enum property property;
    int i;
} fields[] = {
    {1, U64, PLAIN, ECC_MODE, 0},           {2, U64, PLAIN, ECC_MODE, 1},
    {3, U64, ECC_TOTAL, 0, 0},              {4, U64, ECC_TOTAL, 0, 1},
    {5, U64, ECC_TOTAL, 0, 2},              {6, U64, ECC_TOTAL, 0, 3},
    {29, U64, PLAIN, RETIRED, 0},           {30, U64, PLAIN, RETIRED, 1},
    {31, U64, PLAIN, RETIRED, 2},           {38, U64, LINK_COMMON, NVLINK_ERRORS, 0},
    {45, U64, LINK_COMMON, NVLINK_ERRORS, 1}, {52, U64, LINK_COMMON, NVLINK_ERRORS, 2},
    {59, U64, LINK_COMMON, NVLINK_ERRORS, 3}, {74, U64, PLAIN, THROTTLE_TIMES, 0},
    {75, U64, PLAIN, THROTTLE_TIMES, 1},    {76, U64, PLAIN, THROTTLE_TIMES, 2},
    {77, U64, PLAIN, THROTTLE_TIMES, 3},    {78, U64, PLAIN, THROTTLE_TIMES, 4},
    {79, U64, PLAIN, THROTTLE_TIMES, 5},    {80, U64, PLAIN, THROTTLE_TIMES, 6},
    {81, U64, PLAIN, THROTTLE_TIMES, 7},    {82, U32, PLAIN, MEMORY_TEMP, 0},
    {83, U64, PLAIN, ENERGY, 0},            {90, U32, LINK_COMMON, NVLINK_SPEED, 0},
    {91, U32, LINK_COMMON, NVLINKS, 0},     {94, U32, PLAIN, PCIE_REPLAY, 0},
    {95, U32, PLAIN, PCIE_REPLAY, 1},       {138, U64, LINK_SUM, NVLINK_TX, 0},
    {139, U64, LINK_SUM, NVLINK_RX, 0},     {140, U64, LINK_SUM, NVLINK_TX, 0},
    {141, U64, LINK_SUM, NVLINK_RX, 0},     {142, U64, PLAIN, REMAPPED, 0},
    {143, U64, PLAIN, REMAPPED, 1},         {144, U64, PLAIN, REMAPPED, 2},
    {145, U64, PLAIN, REMAPPED, 3},         {160, U64, LINK_COMMON, NVLINK_ERRORS, 4},
    {161, U64, LINK_SUM, NVLINK_REPLAY, 0}, {162, U64, LINK_SUM, NVLINK_RECOVERY, 0},
    {163, U64, LINK_SUM, NVLINK_CRC, 0},    {164, U32, LINK, NVLINK_SPEED, 0},
    {165, U32, LINK, NVLINK_STATE, 0},      {166, U32, LINK, NVLINK_VERSION, 0},
    {169, U32, ZERO, 0, 0},                 {170, U32, MISSING, 0, 0},
    {171, U32, MISSING, 0, 0},              {172, U32, MISSING, 0, 0},
    {173, U32, ZERO, 0, 0},                 {174, U32, ZERO, 0, 0},
    {175, U32, ZERO, 0, 0},                 {176, U32, ZERO, 0, 0},
    {177, U32, ZERO, 0, 0},                 {178, U32, ZERO, 0, 0},
    {179, U32, ZERO, 0, 0},                 {180, U32, ZERO, 0, 0},
    {181, U32, ZERO, 0, 0},                 {182, U32, ZERO, 0, 0},
    {183, U32, ZERO, 0, 0},                 {185, U32, POWER_SCOPE, POWER, 1},
    {186, U32, POWER_SCOPE, POWER, 0},      {187, U32, PLAIN, POWER_LIMITS, 3},
    {188, U32, PLAIN, POWER_LIMITS, 4},     {189, U32, PLAIN, POWER_LIMITS, 2},
    {190, U32, PLAIN, POWER_LIMITS, 0},     {191, U64, PLAIN, ENERGY, 0},
    {192, U32, PLAIN, POWER_LIMITS, 1},     {193, I32, PLAIN, TLIMIT, 0},
    {194, I32, PLAIN, TLIMIT, 1},           {195, I32, PLAIN, TLIMIT, 2},
    {196, I32, PLAIN, TLIMIT, 3},           {197, U32, PLAIN, PCIE_BYTES, 0},
    {198, U32, PLAIN, PCIE_BYTES, 1},       {230, U32, PLAIN, RECOVERY, 0},
    {231, U32, MISSING, 0, 0},              {232, U32, MISSING, 0, 0},
    {233, U32, MISSING, 0, 0},              {234, U32, MISSING, 0, 0},
    {269, U64, PLAIN, THROTTLE_TIMES, 8},   {270, U64, PLAIN, THROTTLE_TIMES, 9},
    {271, U64, PLAIN, THROTTLE_TIMES, 10},
};

struct field_value {
    unsigned id, scope;
    long long timestamp, latency; // µs
    unsigned type, ret;
    union {
        double f64;
        unsigned u32;
        unsigned long long u64;
        int i32;
        unsigned short u16;
    } value;
};

static const struct field *find_field(unsigned id) {
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].id == id) return &fields[i];
    return NULL;
}

// The last rule that matches wins, as everywhere in the script.
static const struct field_rule *find_rule(int gpu, const struct field_value *v) {
    for (int i = state->fields - 1; i >= 0; i--) {
        const struct field_rule *f = &state->field[i];
        if (f->id == v->id && (f->gpu == -1 || f->gpu == gpu) && (f->scope == -1 || f->scope == v->scope))
            return f;
    }
    return NULL;
}

static ret link_value(const struct gpu *g, const struct field *f, unsigned scope, long long *out) {
    long long links = g->value[NVLINKS][0];
    if (links <= 0) return NOT_SUPPORTED;
    if (f->source == LINK_COMMON) return number(g, f->property, f->i, out);
    if (scope < links) return number(g, f->property, scope, out);
    if (f->source != LINK_SUM || scope != UINT_MAX) return INVALID_ARGUMENT;
    long long sum = 0, n;
    for (int i = 0; i < links && i < MAX_VALUES; i++)
        if (number(g, f->property, i, &n) == SUCCESS) sum += n;
    *out = sum;
    return SUCCESS;
}

static ret read_field(const struct gpu *g, const struct field *f, unsigned scope, long long *out) {
    static const enum property powers[] = {POWER, MODULE_POWER, MEMORY_POWER};
    unsigned long long count;
    ret r;
    switch (f->source) {
    case PLAIN:
        if (f->property == REMAPPED && in_mig_mode(g)) return NOT_SUPPORTED;
        return number(g, f->property, f->i, out);
    case ECC_TOTAL:
        r = ecc_count(g, f->i & 1, f->i >> 1, -1, &count);
        if (r == SUCCESS) *out = count;
        return r;
    case POWER_SCOPE:
        return scope > 2 ? INVALID_ARGUMENT : number(g, powers[scope], f->i, out);
    case LINK:
    case LINK_SUM:
    case LINK_COMMON:
        return link_value(g, f, scope, out);
    case ZERO:
        *out = 0;
        return SUCCESS;
    case MISSING:
        break;
    }
    return NOT_SUPPORTED;
}

static void store(struct field_value *v, int type, double real, long long integer) {
    v->type = type;
    v->value.u64 = 0;
    switch (type) {
    case F64: v->value.f64 = real; break;
    case U32: v->value.u32 = (unsigned)integer; break; // 197 and 198 wrap here
    case I32: v->value.i32 = (int)integer; break;
    case U16: v->value.u16 = (unsigned short)integer; break;
    default: v->value.u64 = (unsigned long long)integer;
    }
}

static void answer(const struct call *c, struct field_value *v) {
    const struct field *f = find_field(v->id);
    const struct field_rule *rule = find_rule(c->index, v);
    long long n = 0;
    if (rule && rule->kind == FIELD_UNTOUCHED) return;
    v->timestamp = now_us();
    v->latency = 1;
    if (f) store(v, f->type, 0, 0); // the type is set even where the field is not supported
    if (rule && rule->kind == FIELD_VALUE) {
        v->ret = SUCCESS;
        store(v, rule->type >= 0 ? rule->type : f ? f->type : U64, rule->value, (long long)rule->value);
        return;
    }
    v->ret = !f || rule ? NOT_SUPPORTED : read_field(c->gpu, f, v->scope, &n);
    if (v->ret == SUCCESS) store(v, f->type, (double)n, n);
}

static bool between(unsigned id, unsigned first, unsigned last) { return id >= first && id <= last; }

// Fields that stay unanswered next to a C2C field, on a GPU without C2C.
static bool fragile(unsigned id) {
    return between(id, 187, 190) || between(id, 192, 196) || between(id, 251, 268) || between(id, 270, 273) ||
           between(id, 275, 288);
}

// Measured on an H200 with R580: one of the C2C ids in a call, in any place, leaves the
// fragile ones as the caller passed them, with SUCCESS for the call. The size of the
// call plays no part there; field-batch makes the fake stricter than that.
static bool spoilt(int count, const struct field_value *v) {
    if (state->field_batch > 0 && count > state->field_batch) return true;
    for (int i = 0; i < count; i++)
        if (between(v[i].id, 170, 172) || between(v[i].id, 231, 234)) return true;
    return false;
}

ret nvmlDeviceGetFieldValues(device d, int count, struct field_value *v) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    if (count <= 0 || !v) return INVALID_ARGUMENT;
    bool skip = spoilt(count, v);
    for (int i = 0; i < count; i++) {
        if (v[i].id == 147 || (skip && fragile(v[i].id))) continue; // 147 is never answered
        answer(&c, &v[i]);
    }
    return SUCCESS;
}
