#include "comm/comm.h"

#include "comm/kinds.h"

#include <stdlib.h>
#include <string.h>

static const comm_kind *const comm_kinds[] = {
    &comm_kind_self,
    &comm_kind_threads,
    &comm_kind_ucx,
    &comm_kind_nccl,
};

struct comm_group {
    const comm_kind *kind;
    void *state;
    int size;
};

struct comm {
    const comm_kind *kind;
    void *state;
    int rank;
    int size;
};

static status find_kind(const char *name, int size, const comm_kind **out, error *err)
{
    for (size_t i = 0; i < sizeof comm_kinds / sizeof *comm_kinds; i++) {
        const comm_kind *kind = comm_kinds[i];
        if (!name || strcmp(kind->name, name) != 0) continue;
        if (size < 1 || size > kind->size_max)
            return error_set(err, STATUS_INVALID,
                             "comm: a group of %d ranks; \"%s\" has at most %d", size, kind->name,
                             kind->size_max);
        *out = kind;
        return STATUS_IS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED, "comm: unknown kind \"%.64s\"", name ? name : "");
}

/* ---- groups ---------------------------------------------------------------------------------- */

status comm_group_create(const char *kind_name, int size, comm_group **out, error *err)
{
    const comm_kind *kind = NULL;
    RETURN_IF_ERROR(find_kind(kind_name, size, &kind, err));
    if (!kind->open_group)
        return error_set(err, STATUS_UNSUPPORTED, "comm: \"%s\" needs no group", kind->name);
    comm_group *g = malloc(sizeof *g);
    if (!g) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    *g = (comm_group){.kind = kind, .size = size};
    status opened = kind->open_group(size, &g->state, err);
    if (status_ok(opened)) *out = g;
    else free(g);
    return opened;
}

void comm_group_destroy(comm_group *g)
{
    if (!g) return;
    g->kind->close_group(g->state);
    free(g);
}

static status check_group(const comm_options *o, const comm_kind *kind, error *err)
{
    bool needed = kind->open_group != NULL;
    if (!needed && !o->group) return STATUS_IS_OK;
    if (needed && o->group && o->group->kind == kind && o->group->size == o->size)
        return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "comm: \"%s\" joins %s", kind->name,
                     needed ? "a group made for its kind and size" : "no group");
}

/* ---- one rank -------------------------------------------------------------------------------- */

status comm_create(const comm_options *options, comm **out, error *err)
{
    const comm_kind *kind = NULL;
    RETURN_IF_ERROR(find_kind(options->kind, options->size, &kind, err));
    if (options->rank < 0 || options->rank >= options->size)
        return error_set(err, STATUS_INVALID, "comm: rank %d of %d", options->rank, options->size);
    RETURN_IF_ERROR(check_group(options, kind, err));

    comm *c = malloc(sizeof *c);
    if (!c) return error_set(err, STATUS_NO_MEMORY, "comm: out of memory");
    *c = (comm){.kind = kind, .rank = options->rank, .size = options->size};
    if (kind->open) {
        void *group = options->group ? options->group->state : NULL;
        status opened = kind->open(options, group, &c->state, err);
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
bool comm_on_device(const comm *c) { return c->kind->on_device; }

comm_address comm_own_address(const comm *c)
{
    return c->kind->address ? c->kind->address(c->state) : (comm_address){NULL, 0};
}

status comm_connect(comm *c, const comm_address *all, int64_t timeout_us, error *err)
{
    return c->kind->connect ? c->kind->connect(c->state, all, timeout_us, err) : STATUS_IS_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

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

status comm_check(comm *c) { return c->kind->check ? c->kind->check(c->state) : STATUS_IS_OK; }

bool comm_waits(const comm *c, comm_wait *out)
{
    if (c->kind->waits) c->kind->waits(c->state, out);
    return c->kind->waits != NULL;
}

void comm_abort(comm *c)
{
    if (c->kind->abort) c->kind->abort(c->state);
}
