/* Stands in for "ucx" in a build without UCX. */
#include "comm/kinds.h"

static status none_open(const comm_options *options, void *group, void **state, error *err)
{
    (void)options, (void)group, (void)state;
    return error_set(err, STATUS_UNSUPPORTED, "comm: built without \"ucx\" (libucx-dev)");
}

const comm_kind comm_kind_ucx = {.name = "ucx", .open = none_open, .size_max = 64};
