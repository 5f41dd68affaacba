/* The bearer keys of a service (private to rpc/), behind service_key_ok, service_is_admin and
 * service_identity. */
#ifndef RPC_KEYS_H
#define RPC_KEYS_H

#include "rpc/service.h"

typedef struct service_keys service_keys;

/* Copies the keys of clients and administrators from o. STATUS_INVALID: no header can carry one of
 * the keys. *out is NULL when o has no keys. */
status service_keys_create(const rpc_options *o, service_keys **out);
void service_keys_destroy(service_keys *k);

#endif
