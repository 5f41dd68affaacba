/* The keys of a service (private to rpc/): see service_key_ok. */
#ifndef RPC_KEYS_H
#define RPC_KEYS_H

#include "rpc/service.h"

typedef struct service_keys service_keys;

/* Copies them. STATUS_INVALID for one that no header could carry. */
status service_keys_create(const char *const *keys, size_t n, service_keys **out);
void service_keys_destroy(service_keys *k);

#endif
