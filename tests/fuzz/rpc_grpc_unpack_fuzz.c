/* Property: for any bytes sent to any method, unpacking takes no more memory than allowed, and
 * fails with a text that names the message or gives a readable message: packed and unpacked again,
 * the message has the same bytes. */
#include "rpc/grpc/internal.h"
#include "rpc/services/services.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static const size_t limits[] = {1 << 10, 1 << 16, 4 << 20};

static const ProtobufCMessageDescriptor *input_of(uint8_t which)
{
    static const rpc_service *const services[] = {&octavo_v1_service, &vllm_engine_service,
                                                  &kserve_service, &health_service,
                                                  &reflection_service};
    enum { N = sizeof services / sizeof *services };
    const rpc_service *s = services[which % N];
    return s->methods[which / N % s->n_methods].input;
}

static void check_readable(const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    FUZZ_CHECK(bytes && protobuf_c_message_pack(m, bytes) == n);
    free(bytes);
}

/* The first byte picks the method, the second the cap. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const ProtobufCMessageDescriptor *type = input_of(data[0]);
    size_t limit = limits[data[1] % (sizeof limits / sizeof *limits)];
    arena a;
    const ProtobufCMessage *m;
    error err = {{0}};
    status s = message_unpack(type, data + 2, size - 2, limit, &a, &m, &err);
    FUZZ_CHECK(a.total_bytes <= limit);
    FUZZ_CHECK(status_ok(s) == (m != NULL));
    if (m) check_readable(m);
    else FUZZ_CHECK(strncmp(err.text, "request: ", 9) == 0);
    arena_destroy(&a);
    return 0;
}
