#include "comm/comm.h"

#include "comm/kinds.h"

#include <stdlib.h>
#include <string.h>

const comm_kind *const comm_kinds[] = {
    &comm_kind_self,
};
const size_t comm_kinds_n = sizeof comm_kinds / sizeof *comm_kinds;

struct comm {
    const comm_kind *kind;
    void *state;
    int rank;
    int size;
};

static status find_kind(const char *name, const comm_kind **out, error *err)
{
    for (size_t i = 0; i < comm_kinds_n; i++) {
        if (name && strcmp(comm_kinds[i]->name, name) == 0) {
            *out = comm_kinds[i];
            return STATUS_IS_OK;
        }
    }
    return error_set(err, STATUS_UNSUPPORTED, "comm: unknown kind \"%.64s\"", name ? name : "");
}

status comm_create(const comm_options *options, comm **out, error *err)
{
    const comm_kind *kind;
    RETURN_IF_ERROR(find_kind(options->kind, &kind, err));
    if (options->size < 1 || options->size > kind->size_max)
        return error_set(err, STATUS_INVALID, "comm: a group of %d ranks; \"%s\" has at most %d",
                         options->size, kind->name, kind->size_max);
    if (options->rank < 0 || options->rank >= options->size)
        return error_set(err, STATUS_INVALID, "comm: rank %d of %d", options->rank, options->size);

    comm *c = malloc(sizeof *c);
    if (!c) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    *c = (comm){.kind = kind, .rank = options->rank, .size = options->size};
    if (kind->open) {
        status opened = kind->open(options, &c->state, err);
        if (!status_ok(opened)) {
            free(c);
            return opened;
        }
    }
    *out = c;
    return STATUS_IS_OK;
}

void comm_destroy(comm *c)
{
    if (!c) return;
    if (c->kind->close) c->kind->close(c->state);
    free(c);
}

int comm_rank(const comm *c) { return c->rank; }
int comm_size(const comm *c) { return c->size; }

status comm_all_reduce_sum(comm *c, float *data, size_t n)
{
    return c->kind->all_reduce_sum(c->state, data, n);
}

status comm_all_gather(comm *c, const float *in, size_t n, float *out)
{
    return c->kind->all_gather(c->state, in, n, out);
}

status comm_broadcast(comm *c, void *data, size_t bytes, int root)
{
    if (root < 0 || root >= c->size) return status_make(STATUS_INVALID, "no such root rank");
    return c->kind->broadcast(c->state, data, bytes, root);
}
