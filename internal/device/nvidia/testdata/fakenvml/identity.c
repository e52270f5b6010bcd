// What a device is.
#include <math.h>
#include <stdio.h>

#include "fake.h"

const char *nvmlErrorString(ret r) {
    switch (r) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case VERSION_MISMATCH: return "Argument version mismatch";
    }
    return "Unknown Error";
}

ret copy_text(const char *text, char *out, unsigned length) {
    if (!out) return INVALID_ARGUMENT;
    if (!strcmp(text, "na")) return NOT_SUPPORTED;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

// profile_gb is the memory in the name of a MIG profile: the instance's share in
// eighths of the GPU, of its memory in whole GiB.
static int profile_gb(const struct gpu *g, const struct mig *m) {
    double total = g->value[FB][0];
    double eighths = ceil(m->mib * 1048576.0 / total * 8);
    return (int)round(eighths / 8 * ceil(total / (1 << 30)));
}

ret nvmlDeviceGetUUID(device d, char *uuid, unsigned length) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    return copy_text(c.mig ? c.mig->uuid : c.gpu->text[UUID], uuid, length);
}

ret nvmlDeviceGetName(device d, char *name, unsigned length) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    char text[TEXT + 64], part[16] = "";
    if (!c.mig) return copy_text(c.gpu->text[NAME], name, length);
    if (c.mig->ci_slices != c.mig->gi_slices) snprintf(part, sizeof part, "%uc.", c.mig->ci_slices);
    snprintf(text, sizeof text, "%s MIG %s%ug.%dgb", c.gpu->text[NAME], part, c.mig->gi_slices,
             profile_gb(c.gpu, c.mig));
    return copy_text(text, name, length);
}

ret nvmlDeviceGetArchitecture(device d, unsigned *arch) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return number(c.gpu, ARCH, 0, arch);
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

ret nvmlDeviceGetPciInfo_v3(device d, struct pci *p) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    unsigned function = 0;
    memset(p, 0, sizeof *p);
    sscanf(c.gpu->text[PCI], "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &function);
    p->device_id = 0x233510de;    // H200 SXM
    p->subsystem_id = 0x18bf10de;
    snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.%X", p->domain & 0xffff, p->bus & 0xff,
             p->device & 0x1f, function & 7);
    return copy_text(c.gpu->text[PCI], p->id, sizeof p->id);
}

ret nvmlDeviceGetMinorNumber(device d, unsigned *minor) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return number(c.gpu, MINOR, 0, minor);
}

ret nvmlDeviceGetVbiosVersion(device d, char *version, unsigned length) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return copy_text(c.gpu->text[VBIOS], version, length);
}

// gpumeter does not call these two. They exist so that a test notices if it starts to.
ret nvmlDeviceGetSerial(device d, char *serial, unsigned length) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return copy_text(c.gpu->text[SERIAL], serial, length);
}

ret nvmlDeviceGetBoardPartNumber(device d, char *part, unsigned length) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return copy_text(c.gpu->text[BOARD_PART], part, length);
}

ret nvmlDeviceGetInforomImageVersion(device d, char *version, unsigned length) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return copy_text(c.gpu->text[INFOROM], version, length);
}

// The caller's buffer is taken to have the 64 bytes NVML asks for.
ret nvmlDeviceGetGspFirmwareVersion(device d, char *version) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    const char *text = c.gpu->text[GSP];
    return copy_text(*text ? text : state->driver, version, 64);
}

ret nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    number(c.gpu, CC, 1, minor);
    return number(c.gpu, CC, 0, major);
}

ret nvmlDeviceGetNumaNodeId(device d, unsigned *node) {
    ENTER_DEVICE(d, MIG_REFUSED_3);
    return number(c.gpu, NUMA, 0, node);
}

ret nvmlDeviceGetComputeMode(device d, unsigned *mode) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return number(c.gpu, COMPUTE_MODE, 0, mode);
}

ret nvmlDeviceGetPersistenceMode(device d, unsigned *mode) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    return number(c.gpu, PERSISTENCE, 0, mode);
}

bool in_mig_mode(const struct gpu *g) { return g->value[MIG_MODE][0] == 1; }

ret nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    if (c.gpu->value[ARCH][0] < 7) return NOT_SUPPORTED;
    number(c.gpu, MIG_MODE, 1, pending);
    return number(c.gpu, MIG_MODE, 0, current);
}

ret nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *count) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    *count = in_mig_mode(c.gpu) ? MAX_MIG : 0;
    return SUCCESS;
}

ret nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *out) {
    ENTER_DEVICE(d, MIG_REFUSED_2);
    if (!in_mig_mode(c.gpu) || index >= MAX_MIG || !c.gpu->mig[index].present) return NOT_FOUND;
    *out = handle(c.index, (int)index);
    return SUCCESS;
}

ret nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device d, device *out) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (!c.mig) return INVALID_ARGUMENT;
    *out = handle(c.index, -1);
    return SUCCESS;
}

ret nvmlDeviceGetGpuInstanceId(device d, unsigned *id) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (!c.mig) return INVALID_ARGUMENT;
    *id = c.mig->gi;
    return SUCCESS;
}

ret nvmlDeviceGetComputeInstanceId(device d, unsigned *id) {
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (!c.mig) return INVALID_ARGUMENT;
    *id = c.mig->ci;
    return SUCCESS;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long mib;
};

ret nvmlDeviceGetAttributes_v2(device d, struct attributes *a) {
    static const unsigned multiprocessors[] = {0, 16, 32, 60, 64, 80, 96, 132}; // by slices
    ENTER_DEVICE(d, MIG_ALLOWED);
    if (!c.mig) return NOT_SUPPORTED;
    *a = (struct attributes){.multiprocessors = multiprocessors[c.mig->ci_slices & 7],
                             .copy_engines = c.mig->gi_slices,
                             .decoders = c.mig->gi_slices,
                             .jpeg = c.mig->gi_slices,
                             .gi_slices = c.mig->gi_slices,
                             .ci_slices = c.mig->ci_slices,
                             .mib = c.mig->mib};
    return SUCCESS;
}
