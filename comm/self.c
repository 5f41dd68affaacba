/* A group of one: every collective is the identity. */
#include "comm/kinds.h"

#include <string.h>

static status self_all_reduce_sum(void *state, float *data, size_t n)
{
    (void)state, (void)data, (void)n;
    return STATUS_IS_OK;
}

static status self_all_gather(void *state, const float *in, size_t n, float *out)
{
    (void)state;
    if (out != in && n > 0) memmove(out, in, n * sizeof *out);
    return STATUS_IS_OK;
}

static status self_broadcast(void *state, void *data, size_t bytes, int root)
{
    (void)state, (void)data, (void)bytes, (void)root;
    return STATUS_IS_OK;
}

const comm_kind comm_kind_self = {
    .name = "self",
    .all_reduce_sum = self_all_reduce_sum,
    .all_gather = self_all_gather,
    .broadcast = self_broadcast,
    .size_max = 1,
};
