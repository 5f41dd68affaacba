/* A gRPC front end with a service made for tests, and a client. */
#ifndef TESTS_UNIT_RPC_GRPC_FIXTURE_H
#define TESTS_UNIT_RPC_GRPC_FIXTURE_H

#include "proto/proto.h"
#include "rpc/grpc/grpc.h"
#include "tests/unit/rpc_fixture.h"
#include "tests/unit/rpc_grpc_client.h"

/* The service uses the messages of health: the tests need only a text. */
typedef Grpc__Health__V1__HealthCheckRequest text_message;
#define TEXT_INIT  GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT
#define TEXT_INPUT (&grpc__health__v1__health_check_request__descriptor)

static inline text_message text_of(const char *s, size_t n)
{
    text_message m = TEXT_INIT;
    m.service = call_bytes(s, n);
    return m;
}

typedef struct fixture {
    rpc_fixture *core; // a test may change core->service.o before fixture_start
    grpc_front *front; // NULL when a test has destroyed it
    grpc_client client;
    bool has_client;
} fixture;

fixture *fixture_make(const char *const *keys, size_t n_keys);
void fixture_start(fixture *f, const rpc_service *const *services, size_t n);
void fixture_destroy(fixture *f);

/* Waits until *counter is at least n; false after some seconds. */
bool reaches(_Atomic int *counter, int n);
void nap_ms(int ms);

#endif
