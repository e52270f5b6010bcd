// The properties of a GPU: key in the script, which values are counters that restart
// with the driver (a bit mask), and the values of an H200 under load. Sources: NVML and
// nvidia-smi on an H200 SXM with driver 580.159.04. NVLink and fabric, which that
// machine did not show, are those of an HGX board.
#ifndef PROPERTIES_H
#define PROPERTIES_H

#define ALL_COUNT ~0u

#define PROPERTIES(P)                                                                     \
    P(ARCH, "arch", 0, 9)                                                                 \
    P(CC, "cc", 0, 9, 0)                                                                  \
    P(MINOR, "minor", 0, 0) /* the index unless set */                                    \
    P(NUMA, "numa", 0, ABSENT)                                                            \
    P(UTIL, "util", 0, 100, 24)                 /* gpu, memory; % */                      \
    P(UTIL_SAMPLES, "util-samples", 0, [0 ... 17] = ABSENT) /* newest first; % */         \
    P(ENC, "enc", 0, 0)                                                                   \
    P(DEC, "dec", 0, 0)                                                                   \
    P(JPG, "jpg", 0, 0)                                                                   \
    P(OFA, "ofa", 0, 0)                                                                   \
    P(FB, "memory", 0, 150754820096, 644939776, 1194131456) /* total, reserved, used; B */ \
    P(FB_STEP, "memory-step", 0, 0) /* B more used with each question for it */           \
    P(BAR1, "bar1", 0, 274877906944, 1195900928)            /* total, used; B */          \
    P(TEMP, "temp", 0, 63)                                  /* C */                       \
    P(MEMORY_TEMP, "memory-temp", 0, 50)                                                  \
    P(THRESHOLDS, "thresholds", 0, 95, 89, 95, 87, ABSENT, ABSENT, ABSENT, ABSENT)        \
    P(MARGIN, "margin", 0, 18)                                                            \
    P(TLIMIT, "tlimit", 0, -8, -2, 0, 0)       /* shutdown, slowdown, memory, gpu */      \
    P(POWER, "power", 0, 685770, 689580)       /* instant, average; mW */                 \
    P(MODULE_POWER, "module-power", 0, ABSENT, ABSENT)                                    \
    P(MEMORY_POWER, "memory-power", 0, ABSENT, 108910)                                    \
    P(POWER_LIMITS, "power-limits", 0, 700000, 700000, 700000, 200000, 700000)            \
    P(ENERGY, "energy", ALL_COUNT, 8653252)    /* mJ */                                   \
    P(CLOCKS, "clocks", 0, 1455, 1455, 3201, 1470) /* graphics, sm, memory, video; MHz */ \
    P(MAX_CLOCKS, "max-clocks", 0, 1980, 1980, 3201, 1545)                                \
    P(PSTATE, "pstate", 0, 0)                                                             \
    P(FANS, "fans", 0, ABSENT, ABSENT, ABSENT, ABSENT)       /* % */                      \
    P(FAN_RPM, "fan-rpm", 0, ABSENT, ABSENT, ABSENT, ABSENT)                              \
    P(THROTTLE, "throttle", 0, 4)                                                         \
    P(THROTTLE_TIMES, "throttle-times", ALL_COUNT, 6328776864, 0, 0, 0, 18078119936, 0,   \
      8618824256, 8618824256, 0, 0, 0) /* fields 74 to 81, 269 to 271; ns */              \
    P(PCIE, "pcie", 0, 5, 16, 5, 16)   /* generation, width, and their maxima */          \
    P(PCIE_RATE, "pcie-throughput", 0, 6962, 17869) /* tx, rx; KB/s */                    \
    P(PCIE_BYTES, "pcie-bytes", ALL_COUNT, 4148898892, 1615905736) /* tx, rx; wrap at 2^32 */ \
    P(PCIE_REPLAY, "pcie-replay", ALL_COUNT, 0, 0)  /* replays, rollovers */              \
    P(ECC_MODE, "ecc-mode", 0, 1, 1)                /* current, pending */                \
    /* corrected and uncorrected since driver load, the same since manufacture */         \
    P(ECC_L1, "ecc-l1", 3, ABSENT, ABSENT, ABSENT, ABSENT)                                \
    P(ECC_L2, "ecc-l2", 3, ABSENT, ABSENT, ABSENT, ABSENT)                                \
    P(ECC_DRAM, "ecc-dram", 3, 0, 0, 0, 0)                                                \
    P(ECC_REGFILE, "ecc-regfile", 3, ABSENT, ABSENT, ABSENT, ABSENT)                      \
    P(ECC_TEXTURE, "ecc-texture", 3, ABSENT, ABSENT, ABSENT, ABSENT)                      \
    P(ECC_TEXSHM, "ecc-texshm", 3, ABSENT, ABSENT, ABSENT, ABSENT)                        \
    P(ECC_CBU, "ecc-cbu", 3, ABSENT, ABSENT, ABSENT, ABSENT)                              \
    P(ECC_SRAM, "ecc-sram", 3, 0, 0, 0, 0)                                                \
    /* since manufacture: parity, secded, corrected; since driver load: the same; */     \
    /* by unit: L2, SM, PCIe, MCU, other; threshold exceeded */                           \
    P(SRAM, "sram", 0x38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)                             \
    P(REMAPPED, "remapped-rows", 0, 0, 0, 0, 0) /* corrected, uncorrected, pending, failure */ \
    P(HISTOGRAM, "remap-histogram", 0, 3072, 0, 0, 0, 0) /* max, high, partial, low, none */ \
    P(RETIRED, "retired-pages", 0, ABSENT, ABSENT, ABSENT) /* single, double bit, pending */ \
    P(RECOVERY, "recovery", 0, 0)                                                         \
    P(FABRIC, "fabric", 0, 3, 0, 0x1aa, 1, 1) /* state, status, health mask, summary, clique */ \
    P(COMPUTE_MODE, "compute-mode", 0, 0)                                                 \
    P(PERSISTENCE, "persistence", 0, 1)                                                   \
    P(MIG_MODE, "mig-mode", 0, 0, 0)          /* current, pending */                      \
    P(GPM_PERIOD, "gpm-period", 0, 0)         /* ms; samples closer than that are empty */ \
    P(NVLINKS, "nvlinks", 0, 18)              /* links present */                         \
    P(NVLINK_STATE, "nvlink-state", 0, [0 ... 17] = 1)                                    \
    P(NVLINK_SPEED, "nvlink-speed", 0, [0 ... 17] = 26562) /* MB/s */                     \
    P(NVLINK_VERSION, "nvlink-version", 0, [0 ... 17] = 6) /* NVML's code for 4.0 */      \
    P(NVLINK_TX, "nvlink-tx", ALL_COUNT, [0 ... 17] = 1048576) /* KiB */                  \
    P(NVLINK_RX, "nvlink-rx", ALL_COUNT, [0 ... 17] = 2097152)                            \
    P(NVLINK_REPLAY, "nvlink-replay", ALL_COUNT, [0 ... 17] = 0)                          \
    P(NVLINK_RECOVERY, "nvlink-recovery", ALL_COUNT, [0 ... 17] = 0)                      \
    P(NVLINK_CRC, "nvlink-crc", ALL_COUNT, [0 ... 17] = 0)                                \
    /* all links: CRC flit, CRC data, replay, recovery, ECC */                            \
    P(NVLINK_ERRORS, "nvlink-errors", ALL_COUNT, 0, 0, 0, 0, 0)

enum property {
#define P(id, key, counters, ...) id,
    PROPERTIES(P)
#undef P
    PROPERTY_COUNT
};

// An empty default is filled in per GPU by defaults().
#define TEXTS(T)                      \
    T(UUID, "uuid", "")               \
    T(NAME, "name", "NVIDIA H200")    \
    T(PCI, "pci", "")                 \
    T(VBIOS, "vbios", "96.00.A5.00.1A") \
    T(SERIAL, "serial", "1650000000000")     \
    T(BOARD_PART, "board-part", "900-2G520-0040-000") \
    T(INFOROM, "inforom", "G520.0282.02.02") \
    T(GSP, "gsp", "") /* the driver's version */

enum text {
#define T(id, key, value) id,
    TEXTS(T)
#undef T
    TEXT_COUNT
};

#endif
