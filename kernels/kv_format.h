/* kernels: the formats that K and V are kept in.
 *
 * What     one row for each format: its name for --kv-dtype, its bits, its layout.
 * Owner    none: constants.
 * Threads  any.
 * Units    bits of an element, bytes.
 * Errors   none. */
#ifndef KERNELS_KV_FORMAT_H
#define KERNELS_KV_FORMAT_H

#include "base/base.h"

#include <string.h>

/* The first three have the values of their dtypes. */
typedef enum kern_kv_format {
    KERN_KV_F32 = DTYPE_F32,
    KERN_KV_BF16 = DTYPE_BF16,
    KERN_KV_F16 = DTYPE_F16,
    KERN_KV_INT8, /* with a scale for each slot's K and one for its V */
    KERN_KV_INT4, /* with grids (kernels.h): a page is quantised when it is full */
    KERN_KV_INT2,
    KERN_KV_FORMATS,
} kern_kv_format;

typedef struct kern_kv_facts {
    const char *name;
    uint8_t bits;   /* bits of an element */
    uint8_t pair;   /* elements side by side along the summed axis */
    uint8_t scales; /* bytes of scale for a slot's K, as many for its V */
    uint8_t group;  /* slots of K or dims of V that share a grid; 0: no grids */
} kern_kv_facts;

static inline kern_kv_facts kern_kv_facts_of(kern_kv_format f)
{
    static const kern_kv_facts rows[KERN_KV_FORMATS] = {
        [KERN_KV_F32] = {"f32", 32, 1, 0, 0},   [KERN_KV_BF16] = {"bf16", 16, 2, 0, 0},
        [KERN_KV_F16] = {"f16", 16, 2, 0, 0},   [KERN_KV_INT8] = {"int8", 8, 2, 2, 0},
        [KERN_KV_INT4] = {"int4", 4, 2, 0, 32}, [KERN_KV_INT2] = {"int2", 2, 4, 0, 32},
    };
    return rows[f];
}

static inline bool kern_kv_has_grids(kern_kv_format f) { return kern_kv_facts_of(f).group != 0; }

static inline const char *kern_kv_name(kern_kv_format f) { return kern_kv_facts_of(f).name; }

/* Returns the format with this name, or KERN_KV_FORMATS. */
static inline kern_kv_format kern_kv_named(const char *name)
{
    kern_kv_format f = KERN_KV_F32;
    while (f < KERN_KV_FORMATS && strcmp(name, kern_kv_name(f)) != 0) f++;
    return f;
}

#endif
