/* grpc.health.v1: tells whether the server serves, once (Check) or at each change (Watch). */
#include "rpc/grpc/internal.h"

#include "proto/proto.h"
#include <stdlib.h>
#include <string.h>

typedef Grpc__Health__V1__HealthCheckRequest health_request;
typedef Grpc__Health__V1__HealthCheckResponse health_response;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static bool is_known(const rpc_call *c, ProtobufCBinaryData name)
{
    size_t n;
    const rpc_service *const *services = grpc_front_services(call_front(c), &n);
    if (name.len == 0) return true;
    for (size_t i = 0; i < n; i++)
        if (strlen(services[i]->name) == name.len &&
            memcmp(services[i]->name, name.data, name.len) == 0)
            return true;
    return false;
}

static serving_status status_now(const rpc_call *c)
{
    service *s = call_service(c);
    bool serving = (!s || service_is_serving(s)) && !front_is_draining(call_front(c));
    return serving ? SERVING : NOT_SERVING;
}

static void check_health(rpc_call *c, const ProtobufCMessage *m)
{
    const health_request *request = (const health_request *)m;
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    if (!is_known(c, request->service)) {
        call_refuse(c, GRPC_STATUS_NOT_FOUND, "service: there is none of this name");
        return;
    }
    response.status = status_now(c);
    call_reply(c, &response.base);
}

/* ---- Watch ----------------------------------------------------------------------------------- */

typedef struct watch {
    listener changes;
    bool is_known, has_sent;
    serving_status sent;
} watch;

static void watch_send(rpc_call *c)
{
    watch *w = call_state(c);
    serving_status now = w->is_known ? status_now(c) : SERVICE_UNKNOWN;
    if (w->has_sent && w->sent == now) return;
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = now;
    if (!call_send(c, &response.base)) return;
    w->has_sent = true;
    w->sent = now;
}

static void watch_begin(rpc_call *c, const ProtobufCMessage *m)
{
    watch *w = calloc(1, sizeof *w);
    if (!w) {
        call_fail(c, status_make(STATUS_NO_MEMORY, NULL), NULL);
        return;
    }
    w->is_known = is_known(c, ((const health_request *)m)->service);
    w->changes = (listener){.notify = call_wake, .ctx = c};
    call_set_state(c, w);
    if (call_service(c)) listeners_add(&call_service(c)->state_listeners, &w->changes);
    watch_send(c);
}

static void watch_end(rpc_call *c)
{
    watch *w = call_state(c);
    if (!w) return;
    if (call_service(c)) listeners_remove(&call_service(c)->state_listeners, &w->changes);
    free(w);
}

static const rpc_method methods[] = {
    {.path = "/grpc.health.v1.Health/Check",
     .input = &grpc__health__v1__health_check_request__descriptor,
     .open = true,
     .message = check_health},
    {.path = "/grpc.health.v1.Health/Watch",
     .input = &grpc__health__v1__health_check_request__descriptor,
     .open = true,
     .message = watch_begin,
     .writable = watch_send,
     .ended = watch_end},
};

const rpc_service health_service = {"grpc.health.v1.Health", methods,
                                    sizeof methods / sizeof *methods};
