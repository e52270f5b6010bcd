// The script: its defaults and its grammar. See README.md.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"

static const struct {
    const char *key;
    unsigned counters, count;
    const long long *defaults;
} properties[] = {
#define P(id, key, counters, ...) \
    {key, counters, sizeof(long long[]){__VA_ARGS__} / sizeof(long long), (const long long[]){__VA_ARGS__}},
    PROPERTIES(P)
#undef P
};

static const struct {
    const char *key, *value;
} texts[] = {
#define T(id, key, value) {key, value},
    TEXTS(T)
#undef T
};

// Percent, and MiB/s from 20 on; the links are 62 to 97, receive and transmit by turns.
static void gpm_defaults(double *gpm) {
    for (int i = 0; i < GPM_IDS; i++) gpm[i] = i >= 1 && i <= 209 ? 0 : NAN;
    gpm[1] = 99.75, gpm[2] = 96.5, gpm[3] = 14.25, gpm[4] = 1.5, gpm[5] = 93.5, gpm[7] = 93.5;
    gpm[10] = 17.25, gpm[20] = 5.5, gpm[21] = 14.25, gpm[60] = 18 * 64, gpm[61] = 18 * 32;
    for (int i = 62; i <= 97; i++) gpm[i] = i % 2 ? 32 : 64;
}

void defaults(struct state *s) {
    memset(s, 0, sizeof *s);
    snprintf(s->driver, sizeof s->driver, "580.159.04");
    s->cuda = 13000;
    s->gpus = 1;
    s->field_batch = 8;
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *g = &s->gpu[i];
        for (int p = 0; p < PROPERTY_COUNT; p++)
            memcpy(g->value[p], properties[p].defaults, properties[p].count * sizeof(long long));
        for (int t = 0; t < TEXT_COUNT; t++) snprintf(g->text[t], TEXT, "%s", texts[t].value);
        snprintf(g->text[UUID], TEXT, "GPU-00000000-0000-4000-8000-%012x", i);
        snprintf(g->text[PCI], TEXT, "00000000:%02X:00.0", 0x10 + 8 * i);
        g->value[MINOR][0] = i;
        gpm_defaults(g->gpm);
    }
}

void restart_counters(struct state *s) {
    for (int i = 0; i < MAX_GPUS; i++)
        for (int p = 0; p < PROPERTY_COUNT; p++)
            for (unsigned v = 0; v < properties[p].count; v++) {
                long long *value = &s->gpu[i].value[p][v];
                if (properties[p].counters >> v & 1 && *value != ABSENT) *value = 0;
            }
}

struct line {
    int number, words;
    char *word[32];
    char *problem;
    size_t size;
};

static bool fail(struct line *l, const char *format, ...) {
    int n = snprintf(l->problem, l->size, "line %d: ", l->number);
    va_list args;
    va_start(args, format);
    vsnprintf(l->problem + n, l->size - n, format, args);
    va_end(args);
    return false;
}

static bool real(struct line *l, int i, double *out) {
    char *end;
    if (i >= l->words) return fail(l, "too few words");
    *out = strtod(l->word[i], &end);
    return !*end || fail(l, "%s is not a number", l->word[i]);
}

// integer reads a number, decimal or 0x, or "na".
static bool integer(struct line *l, int i, long long *out) {
    char *end;
    if (i >= l->words) return fail(l, "too few words");
    if (!strcmp(l->word[i], "na")) {
        *out = ABSENT;
        return true;
    }
    *out = (long long)strtoull(l->word[i], &end, 0);
    return !*end || fail(l, "%s is not an integer", l->word[i]);
}

static bool natural(struct line *l, int i, long long most, long long *out) {
    if (!integer(l, i, out)) return false;
    return (*out >= 0 && *out <= most) || fail(l, "%s is not in 0 to %lld", l->word[i], most);
}

// target reads the index of a GPU, or * as -1.
static bool target(struct line *l, int *gpu) {
    long long n;
    if (l->words > 1 && !strcmp(l->word[1], "*")) {
        *gpu = -1;
        return true;
    }
    if (!natural(l, 1, MAX_GPUS - 1, &n)) return false;
    *gpu = n;
    return true;
}

// set_values reads KEY, KEY[FIRST] or KEY[*], and the values from word 3 on.
static bool set_values(struct line *l, struct gpu *g) {
    char key[TEXT] = "", index[TEXT] = "";
    if (sscanf(l->word[2], "%95[^[][%95[^]]]", key, index) < 1) return fail(l, "%s is no key", l->word[2]);
    int p = 0;
    while (p < PROPERTY_COUNT && strcmp(properties[p].key, key)) p++;
    if (p == PROPERTY_COUNT) return fail(l, "%s is no property", key);
    bool fill = !strcmp(index, "*");
    unsigned first = fill ? 0 : (unsigned)atoi(index);
    unsigned count = fill ? properties[p].count : (unsigned)(l->words - 3);
    if (l->words < 4) return fail(l, "%s has no value", key);
    if (first + count > properties[p].count) return fail(l, "%s has %u values", key, properties[p].count);
    for (unsigned i = 0; i < count; i++)
        if (!integer(l, fill ? 3 : 3 + (int)i, &g->value[p][first + i])) return false;
    return true;
}

static bool set_gpm(struct line *l, int at, unsigned *id, double *value) {
    long long n;
    if (!natural(l, at, GPM_IDS - 1, &n)) return false;
    *id = n;
    *value = NAN;
    return (l->words > at + 1 && !strcmp(l->word[at + 1], "na")) || real(l, at + 1, value);
}

static bool set_gpu(struct line *l, struct gpu *g) {
    const char *key = l->word[2];
    for (int t = 0; t < TEXT_COUNT; t++) {
        if (strcmp(key, texts[t].key)) continue;
        if (l->words < 4) return fail(l, "%s has no value", key);
        g->text[t][0] = 0;
        for (int w = 3; w < l->words; w++) { // a name may have blanks
            size_t n = strlen(g->text[t]);
            snprintf(g->text[t] + n, TEXT - n, "%s%s", n ? " " : "", l->word[w]);
        }
        return true;
    }
    if (!strcmp(key, "lost")) return g->lost = true;
    if (!strcmp(key, "gone")) return g->gone = true;
    if (!strcmp(key, "gpm")) {
        unsigned id;
        double value;
        if (!set_gpm(l, 3, &id, &value)) return false;
        g->gpm[id] = value;
        return true;
    }
    return set_values(l, g);
}

static bool add_fault(struct state *s, struct line *l, int gpu) {
    static const char *const kinds[] = {"hang", "sleep", "ret"};
    for (int k = 0; k < 3; k++) {
        if (strcmp(l->word[2], kinds[k])) continue;
        long long argument = 0;
        if (l->words < 4 || s->faults == MAX_ROWS) return fail(l, "no function, or too many faults");
        if (k != HANG && !natural(l, 4, INT_MAX, &argument)) return false;
        struct fault *f = &s->fault[s->faults++];
        *f = (struct fault){.gpu = gpu, .kind = k, .argument = argument};
        snprintf(f->function, TEXT, "%s", l->word[3]);
        return true;
    }
    return fail(l, "%s is no fault", l->word[2]);
}

static bool gpu_line(struct state *s, struct line *l) {
    int gpu;
    if (!target(l, &gpu)) return false;
    if (l->words < 3) return fail(l, "no key");
    const char *key = l->word[2];
    if (!strcmp(key, "hang") || !strcmp(key, "sleep") || !strcmp(key, "ret")) return add_fault(s, l, gpu);
    for (int i = 0; i < MAX_GPUS; i++)
        if ((gpu == -1 || gpu == i) && !set_gpu(l, &s->gpu[i])) return false;
    return true;
}

static bool process_line(struct state *s, struct line *l) {
    static const char *const types[] = {"compute", "graphics", "mps"};
    int gpu, type = 0;
    long long pid, memory, sm, gi = 0xffffffff, ci = 0xffffffff;
    if (!target(l, &gpu) || !natural(l, 2, UINT_MAX, &pid)) return false;
    if (gpu < 0 || l->words < 6 || s->processes == MAX_ROWS) return fail(l, "no GPU, too few words or too many rows");
    while (type < 3 && strcmp(l->word[3], types[type])) type++;
    if (type == 3) return fail(l, "%s is no process type", l->word[3]);
    if (!integer(l, 4, &memory) || !integer(l, 5, &sm)) return false;
    if (l->words > 6 && (!natural(l, 6, UINT_MAX, &gi) || !natural(l, 7, UINT_MAX, &ci))) return false;
    s->process[s->processes++] = (struct process){
        .gpu = gpu, .type = type, .pid = pid, .gi = gi, .ci = ci, .sm = sm,
        .memory = memory == ABSENT ? ~0ULL : (unsigned long long)memory};
    return true;
}

static bool mig_line(struct state *s, struct line *l) {
    int gpu;
    long long slot, v[6];
    if (!target(l, &gpu) || !natural(l, 2, MAX_MIG - 1, &slot)) return false;
    if (gpu < 0) return fail(l, "no GPU");
    for (int i = 0; i < 6; i++)
        if (!natural(l, 4 + i, LLONG_MAX, &v[i])) return false;
    struct mig *m = &s->gpu[gpu].mig[slot];
    *m = (struct mig){.present = true, .gi = v[0], .ci = v[1], .gi_slices = v[2], .ci_slices = v[3],
                      .mib = v[4], .used = v[5]};
    snprintf(m->uuid, TEXT, "%s", l->word[3]);
    s->gpu[gpu].value[MIG_MODE][0] = s->gpu[gpu].value[MIG_MODE][1] = 1;
    return true;
}

static bool gpm_mig_line(struct state *s, struct line *l) {
    long long gi;
    struct gi_metric m;
    if (!target(l, &m.gpu) || !natural(l, 2, UINT_MAX, &gi) || !set_gpm(l, 3, &m.id, &m.value)) return false;
    if (s->gi_metrics == MAX_ROWS) return fail(l, "too many rows");
    m.gi = gi;
    s->gi_metric[s->gi_metrics++] = m;
    return true;
}

static bool field_line(struct state *s, struct line *l) {
    static const struct {
        const char *name;
        int type;
    } types[] = {{"f64", F64}, {"u32", U32}, {"u64", U64}, {"i32", I32}, {"u16", U16}};
    struct field_rule f = {.scope = -1, .type = -1};
    if (!target(l, &f.gpu)) return false;
    if (l->words < 4 || s->fields == MAX_ROWS) return fail(l, "too few words or too many rows");
    if (sscanf(l->word[2], "%u/%lld", &f.id, &f.scope) < 1) return fail(l, "%s is no field", l->word[2]);
    if (!strcmp(l->word[3], "unsupported"))
        f.kind = FIELD_UNSUPPORTED;
    else if (!strcmp(l->word[3], "untouched"))
        f.kind = FIELD_UNTOUCHED;
    else if (!real(l, 3, &f.value))
        return false;
    if (l->words > 4) {
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
            if (!strcmp(l->word[4], types[i].name)) f.type = types[i].type;
        if (f.type < 0) return fail(l, "%s is no type", l->word[4]);
    }
    s->field[s->fields++] = f;
    return true;
}

static bool xid_line(struct state *s, struct line *l) {
    struct xid x;
    long long code;
    if (!target(l, &x.gpu) || !natural(l, 2, LLONG_MAX, &x.sequence) || !natural(l, 3, UINT_MAX, &code)) return false;
    if (x.gpu < 0 || s->xids == MAX_ROWS) return fail(l, "no GPU, or too many rows");
    x.code = code;
    s->xid[s->xids++] = x;
    return true;
}

static bool statement(struct state *s, struct line *l) {
    const char *key = l->word[0];
    long long n;
    if (!strcmp(key, "gpu")) return gpu_line(s, l);
    if (!strcmp(key, "process")) return process_line(s, l);
    if (!strcmp(key, "mig")) return mig_line(s, l);
    if (!strcmp(key, "gpm-mig")) return gpm_mig_line(s, l);
    if (!strcmp(key, "field")) return field_line(s, l);
    if (!strcmp(key, "xid")) return xid_line(s, l);
    if (!strcmp(key, "driver")) {
        if (l->words < 2) return fail(l, "no version");
        snprintf(s->driver, TEXT, "%s", l->word[1]);
        return true;
    }
    if (!strcmp(key, "clock")) return integer(l, 1, &s->clock);
    if (!natural(l, 1, INT_MAX, &n)) return false;
    if (!strcmp(key, "cuda")) {
        s->cuda = n;
    } else if (!strcmp(key, "gpus")) {
        if (n > MAX_GPUS) return fail(l, "at most %d GPUs", MAX_GPUS);
        s->gpus = n;
    } else if (!strcmp(key, "init")) {
        s->init = n;
    } else if (!strcmp(key, "field-batch")) {
        s->field_batch = n;
    } else if (!strcmp(key, "generation")) {
        s->generation = n;
        if (n > 0) restart_counters(s);
    } else {
        return fail(l, "%s is no statement", key);
    }
    return true;
}

bool parse(struct state *s, char *script, char *problem, size_t size) {
    struct line l = {.problem = problem, .size = size};
    char *rest = script, *text;
    while ((text = strsep(&rest, "\n"))) {
        l.number++;
        l.words = 0;
        text[strcspn(text, "#")] = 0;
        char *word, *blank = text;
        while ((word = strsep(&blank, " \t\r"))) {
            if (*word && l.words == 32) return fail(&l, "too many words");
            if (*word) l.word[l.words++] = word;
        }
        if (l.words > 0 && !statement(s, &l)) return false;
    }
    return true;
}
