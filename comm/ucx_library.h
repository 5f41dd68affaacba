/* The functions of UCX that "ucx" uses, from libraries that are opened when needed (private to
 * comm/): the executable starts without them, and without their effects on a process at
 * start-up. */
#ifndef COMM_UCX_LIBRARY_H
#define COMM_UCX_LIBRARY_H

#include "base/base.h"

#include <ucp/api/ucp.h>

#define UCP_FUNCTIONS(X)                                                                           \
    X(ucp_cleanup)                                                                                 \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_read)                                                                             \
    X(ucp_config_release)                                                                          \
    X(ucp_ep_create)                                                                               \
    X(ucp_get_version)                                                                             \
    X(ucp_init_version)                                                                            \
    X(ucp_request_cancel)                                                                          \
    X(ucp_request_free)                                                                            \
    X(ucp_tag_recv_nbx)                                                                            \
    X(ucp_tag_send_nbx)                                                                            \
    X(ucp_worker_arm)                                                                              \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_flush_nbx)                                                                        \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_progress)                                                                         \
    X(ucp_worker_release_address)

#define UCS_FUNCTIONS(X) X(ucs_status_string)

typedef struct ucx_library {
#define UCX_MEMBER(name) __typeof__(name) *name;
    UCP_FUNCTIONS(UCX_MEMBER)
    UCS_FUNCTIONS(UCX_MEMBER)
#undef UCX_MEMBER
} ucx_library;

/* Opens the libraries. They stay open, because UCX has threads and exit handlers of its own. */
status ucx_library_open(ucx_library *out, error *err);

#endif
