/* The keys of a service (private to rpc/): see service_key_ok and service_is_admin. */
#ifndef RPC_KEYS_H
#define RPC_KEYS_H

#include "rpc/service.h"

typedef struct service_keys service_keys;

/* Copies the keys of clients and administrators from o. STATUS_INVALID for a key that no header
 * could carry. *out is NULL when o has no keys. */
status service_keys_create(const rpc_options *o, service_keys **out);
void service_keys_destroy(service_keys *k);

#endif
