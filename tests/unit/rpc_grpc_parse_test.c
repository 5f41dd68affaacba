/* Parsing of hostile bytes without a connection: descriptors, and messages under a cap. */
#include "proto/proto.h"
#include "rpc/grpc/internal.h"
#include "rpc/services/services.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static byte_range text(const char *s) { return (byte_range){(const uint8_t *)s, strlen(s)}; }

static byte_range whole(void)
{
    return (byte_range){octavo_descriptors, (size_t)(octavo_descriptors_end - octavo_descriptors)};
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void test_symbols(void **state)
{
    (void)state;
    static const struct {
        const char *file, *symbol;
    } known[] = {
        {"octavo.proto", "octavo.v1.Inference"},
        {"octavo.proto", "octavo.v1.Inference.Generate"},
        {"octavo.proto", "octavo.v1.GenerateRequest"},
        {"health.proto", "grpc.health.v1.Health"},
        {"health.proto", "grpc.health.v1.Health.Watch"},
        {"health.proto", "grpc.health.v1.HealthCheckResponse"},
        {"health.proto", "grpc.health.v1.HealthCheckResponse.ServingStatus"},
        {"reflection.proto", "grpc.reflection.v1.ServerReflection"},
        {"reflection_v1alpha.proto", "grpc.reflection.v1alpha.ServerReflection"},
    };
    static const char *const unknown[] = {"",
                                          ".",
                                          "octavo",
                                          "octavo.v1",
                                          "octavo.v1.",
                                          ".octavo.v1.Inference",
                                          "octavo.v1.Inference.",
                                          "octavo.v1.Inference.Generat",
                                          "octavo.v1.Inference.Generate.x",
                                          "octavo.v1.GenerateRequests",
                                          "octavo.v1.GenerateRequest.prompt",
                                          "octavo.v1Inference",
                                          "grpc.health.v1.HealthCheckResponse.SERVING"};
    descriptor_set set;
    assert_true(status_ok(descriptor_set_open(whole(), &set)));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t file = descriptor_set_file(&set, text(known[i].file));
        assert_true(file < set.n_files);
        assert_int_equal(descriptor_set_symbol(&set, text(known[i].symbol)), file);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(descriptor_set_symbol(&set, text(unknown[i])), set.n_files);
    assert_int_equal(descriptor_set_file(&set, text("octavo")), set.n_files);
    assert_int_equal(descriptor_set_file(&set, text("")), set.n_files);
}

/* a imports b, which imports a (a cycle that does not occur in practice) and a missing file; deep
 * nesting. */
static void test_imports(void **state)
{
    (void)state;
    static const char bytes[] = "\x0a\x06\x0a\x01"
                                "a\x1a\x01"
                                "b"
                                "\x0a\x09\x0a\x01"
                                "b\x1a\x01"
                                "a\x1a\x01"
                                "z"
                                "\x0a\x03\x0a\x01"
                                "c";
    descriptor_set set;
    assert_true(status_ok(
        descriptor_set_open((byte_range){(const uint8_t *)bytes, sizeof bytes - 1}, &set)));
    assert_int_equal(set.n_files, 3);
    assert_int_equal(descriptor_set_closure(&set, 0), 3);
    assert_int_equal(descriptor_set_closure(&set, 1), 3);
    assert_int_equal(descriptor_set_closure(&set, 2), 4);
}

static void test_cut_descriptors(void **state)
{
    (void)state;
    byte_range all = whole();
    size_t n_good = 0;
    for (size_t n = 0; n < all.size; n++) { // cut between two fields the file is still valid
        descriptor_set set;
        uint8_t *copy = malloc(n ? n : 1); // so that ASan sees over-reads
        memcpy(copy, all.data, n);
        n_good += status_ok(descriptor_set_open((byte_range){copy, n}, &set));
        if (n % 64 == 0) descriptor_set_symbol(&set, text("octavo.v1.Inference.Generate"));
        free(copy);
    }
    descriptor_set set;
    assert_true(status_ok(descriptor_set_open(all, &set)));
    assert_int_equal(n_good, set.n_files);
    uint8_t many[2 * (DESCRIPTOR_FILES_MAX + 1)];
    for (size_t i = 0; i < sizeof many; i++) many[i] = i % 2 ? 0 : 0x0a;
    assert_int_equal(descriptor_set_open((byte_range){many, sizeof many}, &set).code, STATUS_LIMIT);
    assert_true(status_ok(descriptor_set_open((byte_range){many, sizeof many - 2}, &set)));
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static void test_unpack(void **state)
{
    (void)state;
    arena a;
    error err;
    const ProtobufCMessage *m;
    const ProtobufCMessageDescriptor *type = &octavo__v1__chat__descriptor;
    static const uint8_t good[] = {0x0a, 0x03, 0x0a, 0x01, 'u'}, cut[] = {0x0a, 0x03, 0x0a};
    assert_true(status_ok(message_unpack(type, good, sizeof good, 1 << 20, &a, &m, &err)));
    const Octavo__V1__Chat *chat = (const Octavo__V1__Chat *)m;
    assert_int_equal(chat->n_messages, 1);
    assert_int_equal(chat->messages[0]->role.len, 1);
    arena_destroy(&a);
    assert_int_equal(message_unpack(type, cut, sizeof cut, 1 << 20, &a, &m, &err).code,
                     STATUS_INVALID);
    assert_string_equal(err.text, "request: not a valid octavo.v1.Chat message");
    arena_destroy(&a);

    uint8_t many[20000];
    for (size_t i = 0; i < sizeof many; i++) many[i] = i % 2 ? 0 : 0x0a;
    assert_int_equal(message_unpack(type, many, sizeof many, 100000, &a, &m, &err).code,
                     STATUS_LIMIT);
    assert_true(a.total_bytes <= 100000);
    arena_destroy(&a);
    assert_true(status_ok(message_unpack(type, many, sizeof many, 10 << 20, &a, &m, &err)));
    arena_destroy(&a);
}

/* True when a message of this type can contain one of a type that encloses it: an unpacker without
 * a depth limit could be made to overflow the stack. */
static bool nests_itself(const ProtobufCMessageDescriptor *type,
                         const ProtobufCMessageDescriptor **outer, size_t depth)
{
    if (depth == 32) return true;
    for (size_t i = 0; i < depth; i++)
        if (outer[i] == type) return true;
    outer[depth] = type;
    for (unsigned i = 0; i < type->n_fields; i++)
        if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE &&
            nests_itself(type->fields[i].descriptor, outer, depth + 1))
            return true;
    return false;
}

static void test_no_recursion(void **state)
{
    (void)state;
    static const rpc_service *const services[] = {&octavo_v1_service, &vllm_engine_service,
                                                  &kserve_service, &health_service,
                                                  &reflection_service};
    const ProtobufCMessageDescriptor *outer[32];
    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        for (size_t k = 0; k < services[i]->n_methods; k++)
            assert_false(nests_itself(services[i]->methods[k].input, outer, 0));
}

static void test_details(void **state)
{
    (void)state;
    char out[DETAILS_BYTES_MAX], in[3 * DETAILS_BYTES_MAX + 1];
    assert_int_equal(details_text("a\xc3", out), 2);
    assert_memory_equal(out, "a?", 2);
    for (size_t i = 0; i < sizeof in - 1; i++) in[i] = "\xe2\x82\xac"[i % 3];
    in[sizeof in - 1] = '\0';
    size_t n = details_text(in, out);
    assert_int_equal(n, DETAILS_BYTES_MAX / 3 * 3); // cut between characters
    assert_true(utf8_valid((uint8_t *)out, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symbols),         cmocka_unit_test(test_imports),
        cmocka_unit_test(test_cut_descriptors), cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_no_recursion),    cmocka_unit_test(test_details),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
