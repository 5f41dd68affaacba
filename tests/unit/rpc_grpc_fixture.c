#include "tests/unit/rpc_grpc_fixture.h"

#include <time.h>

enum { PATIENCE_MS = 180000 }; // then an awaited event counts as lost

fixture *fixture_make(const char *const *keys, size_t n_keys)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->core = rpc_fixture_create(&(rpc_fixture_options){.keys = keys, .n_keys = n_keys});
    rpc_options *o = &f->core->service.o;
    o->grpc_address = "127.0.0.1:0";
    o->max_body_bytes = 1 << 20;
    o->grpc_threads = 3;
    o->max_streams = 2000;
    o->max_grpc_descriptors = 1000;
    o->stall_timeout_us = 180000000;
    o->keepalive_timeout_us = 180000000;
    return f;
}

void fixture_start(fixture *f, const rpc_service *const *services, size_t n)
{
    error err = {{0}};
    if (!status_ok(grpc_front_create(&f->core->service, services, n, &f->front, &err)))
        fail_msg("%s", err.text);
    f->client = grpc_client_plain(grpc_front_port(f->front));
    f->has_client = true;
}

void fixture_destroy(fixture *f)
{
    if (f->has_client) grpc_client_destroy(&f->client);
    grpc_front_destroy(f->front);
    rpc_fixture_destroy(f->core);
    free(f);
}

void nap_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

bool reaches(_Atomic int *counter, int n)
{
    for (int i = 0; i < PATIENCE_MS / 2 && atomic_load(counter) < n; i++) nap_ms(2);
    return atomic_load(counter) >= n;
}
