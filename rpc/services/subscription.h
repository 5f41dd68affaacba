/* A stream of KV events, for every service that has one (private to rpc/services). */
#ifndef RPC_SERVICES_SUBSCRIPTION_H
#define RPC_SERVICES_SUBSCRIPTION_H

#include "rpc/grpc/grpc.h"

/* Sends one event as a batch of its own, so that a batch has the number of its event. */
typedef void (*kv_event_send)(rpc_call *c, const kv_event *e, uint32_t page_tokens);

/* Sends all events from event `from` on; 0 = events from now on. Ends the call when event `from` is
 * out of range. */
void subscription_begin(rpc_call *c, uint64_t from, kv_event_send send);
/* The rpc_method's callbacks. */
void subscription_writable(rpc_call *c);
void subscription_ended(rpc_call *c);

#endif
