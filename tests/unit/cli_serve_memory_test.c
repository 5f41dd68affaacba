/* What a server refuses before it reads any weights: more memory than it may take, with figures,
 * and retention policies that do not suit the model. */
#include "cli/serve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static const uint64_t mib = 1 << 20;

static const model_flags demo = {.dir = "models/demo",
                                 .load_format = "auto",
                                 .dtype = "auto",
                                 .kv_dtype = "auto",
                                 .quantize = "auto",
                                 .quantize_group = 64,
                                 .device = "cpu",
                                 .threads = 1,
                                 .tp = 1,
                                 .kv_memory = 8 << 20,
                                 .max_batch = 32,
                                 .prefill_chunk = 512,
                                 .scheduling_policy = "fcfs"};

static const serve_flags serving = {.max_body = 1 << 20};

static void needs_are_compared_with_the_bound(void **state)
{
    (void)state;
    const backend_cpu_needs needs = {.weights = 6 * mib,
                                     .pool = 5 * mib,
                                     .representatives = mib / 4,
                                     .retrieval = mib / 4,
                                     .buffers = 3 * mib,
                                     .swap = 4 * mib};
    const uint64_t body = mib * RPC_BODY_FACTOR;
    serve_wants wants = {.max_body = mib};
    const uint64_t all = 14 * mib + mib / 2 + SERVE_OWN_BYTES + body;
    memory_bound bound = {all, "the memory cgroup"};
    serve_room room;
    error err = {{0}};
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.swap == 0 && room.bodies == body); /* one request of --max-body */
    bound.bytes = all + 3 * mib;
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.swap == 3 * mib && room.bodies == body);
    bound.bytes = all + 10 * mib;
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.swap == 4 * mib && room.embeds == 0 && room.bodies == body + 6 * mib);
    wants.embeds = 2 * mib;
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.embeds == 2 * mib && room.bodies == body + 4 * mib);
    wants.embeds = UINT64_C(1) << 30; /* half of what is left */
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.embeds == 3 * mib && room.bodies == body + 3 * mib);
    wants.responses = mib;
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.responses == 3 * mib / 8 && room.bodies == body + 9 * mib / 4);
    wants.responses = mib / 4; /* and as much again while requests hold some */
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
    assert_true(room.responses == mib / 4 && room.bodies == body + 5 * mib / 2);
    bound.bytes = all - 1;
    assert_int_equal(serve_check_needs(&needs, &wants, &bound, &room, &err).code, STATUS_NO_MEMORY);
    bound.bytes = 24 * mib;
    assert_int_equal(serve_check_needs(&needs, &wants, &bound, &room, &err).code, STATUS_NO_MEMORY);
    assert_string_equal(
        err.text, "memory: this server needs 62.5 MiB (weights 6.0 MiB, KV pages 5.0 MiB, "
                  "representatives and lists of retrieval 512 KiB, step buffers 3.0 MiB, a request "
                  "of --max-body 32.0 MiB, the rest 16.0 MiB), and the memory cgroup allows "
                  "24.0 MiB; --kv-memory, --max-batch and "
                  "--max-body make it smaller");
}

/* Buffers and index of the prefix cache on disk: 256 buffers and four threads' blocks of 8 KiB, and
 * 2^17 slots. Large blocks have as many buffers as 64 MiB hold, but four. */
static void the_disk_cache_is_counted(void **state)
{
    (void)state;
    const backend_cpu_needs needs = {.weights = mib, .pool = mib, .block_bytes = 5000};
    const uint64_t size = UINT64_C(1) << 30, disk = disk_memory(size, 5000);
    const serve_wants wants = {.max_body = mib}, stores = {.max_body = mib, .disk_size = size};
    memory_bound bound = {2 * mib + SERVE_OWN_BYTES + mib * RPC_BODY_FACTOR + disk, "RLIMIT_AS"};
    serve_room room;
    error err = {{0}};
    assert_true(disk >= (256 + 4) * 8192 + (1 << 17) * (48 + 4) && disk < 16 * mib);
    assert_true(disk_memory(size, 1 << 20) > 68 * mib && disk_memory(size, 1 << 20) < 69 * mib);
    assert_true(disk_memory(size, 32 << 20) >= 256 * mib);
    if (!status_ok(serve_check_needs(&needs, &stores, &bound, &room, &err)))
        fail_msg("%s", err.text);
    bound.bytes--;
    assert_int_equal(serve_check_needs(&needs, &stores, &bound, &room, &err).code,
                     STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "buffers and index of the disk cache "));
    assert_non_null(strstr(err.text, "--max-batch, --disk-size and --max-body"));
    assert_true(status_ok(serve_check_needs(&needs, &wants, &bound, &room, &err)));
}

/* The predicted size is what the backend takes. */
static void needs_are_those_of_the_backend(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        model_flags f = demo;
        loaded_model described, opened;
        backend_cpu_needs needs, twice;
        error err = {{0}};
        f.tp = ranks;
        assert_true(status_ok(model_describe(&f, &described, &err)));
        assert_true(status_ok(backend_cpu_need(&described.options, ranks, 64 * mib, &needs, &err)));
        if (!status_ok(model_open(&f, false, &opened, &err))) fail_msg("%s", err.text);
        assert_true(needs.weights == opened.facts.weight_bytes);
        assert_true(needs.pool == opened.facts.pool_bytes);
        const backend_info *info = opened.backend.ops->info(opened.backend.ctx);
        if (ranks == 1) assert_true(needs.block_bytes == info->block_bytes);
        /* Two bf16 vectors and a mark beside K and V of 16 tokens, of a head in a layer. */
        uint64_t dim = opened.config.head_dim, tile = (uint64_t)16 * 2 * dim * 2;
        assert_true(needs.representatives == needs.pool / tile * (4 * dim + 8));
        /* The least that a step needs: rows of the residual stream, of its norm and of what is
         * added to it. */
        uint64_t rows = demo.prefill_chunk + demo.max_batch;
        uint64_t logits = (uint64_t)demo.max_batch * opened.config.vocab_size;
        assert_true(needs.buffers > 4 * ranks * (3 * rows * opened.config.hidden + logits));
        described.options.max_rows *= 2;
        assert_true(status_ok(backend_cpu_need(&described.options, ranks, 64 * mib, &twice, &err)));
        assert_true(twice.buffers > needs.buffers + needs.buffers / 2);
        model_close(&opened);
        model_close(&described);
    }
}

/* int4 pages are filled in bf16 tiles, which stand beside the pool. */
static void filling_tiles_are_counted(void **state)
{
    (void)state;
    backend_cpu_needs needs[2];
    backend_measures measures;
    error err = {{0}};
    for (int i = 0; i < 2; i++) {
        model_flags f = demo;
        loaded_model described;
        f.kv_dtype = i ? "int4" : "int8";
        assert_true(status_ok(model_describe(&f, &described, &err)));
        assert_true(status_ok(backend_cpu_need(&described.options, 1, 0, &needs[i], &err)));
        assert_true(status_ok(
            backend_cpu_measure(&described.options, 1, 0, MODEL_POOL_SHARE, &measures, &err)));
        model_close(&described);
    }
    assert_true(measures.filling_bytes > 0);
    assert_true(needs[1].buffers == needs[0].buffers + measures.filling_bytes);
}

static void a_server_that_fits_is_taken(void **state)
{
    (void)state;
    error err = {{0}};
    serve_room room;
    model_flags f = demo;
    f.embed_memory = mib;
    if (!status_ok(serve_check_memory(&f, &serving, &room, &err))) fail_msg("%s", err.text);
    assert_true(room.embeds == mib); /* the demo model has heads */
    f.page_tokens = 256;
    f.kv_memory = UINT64_C(1) << 44; /* more than any machine has */
    assert_int_equal(serve_check_memory(&f, &serving, &room, &err).code, STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "KV pages 16.0 TiB"));
    f.workers.where = "auto";
    assert_int_equal(serve_check_memory(&f, &serving, &room, &err).code, STATUS_NO_MEMORY);
    f.workers.where = "127.0.0.1:1"; /* the ranks use memory of other hosts */
    assert_true(status_ok(serve_check_memory(&f, &serving, &room, &err)));
    assert_true(room.bodies == 0);
}

static void a_pool_of_more_pages_than_have_numbers_is_refused(void **state)
{
    (void)state;
    error err = {{0}};
    serve_room room;
    model_flags f = demo;
    f.page_tokens = 256;
    f.kv_memory = (UINT64_C(1) << 45) + 32768;
    assert_int_equal(serve_check_memory(&f, &serving, &room, &err).code, STATUS_INVALID);
    assert_string_equal(
        err.text, "kv-memory: 35184372121600 bytes are 1073741825 pages of 32768 bytes, and a "
                  "pool has at most 1073741824; page-tokens makes them larger");
    f.kv_memory -= 32768;
    assert_int_equal(serve_check_memory(&f, &serving, &room, &err).code, STATUS_NO_MEMORY);
}

static void a_pool_without_room_for_a_block_is_refused(void **state)
{
    (void)state;
    error err = {{0}};
    serve_room room;
    model_flags f = demo;
    f.kv_memory = 1024;
    assert_int_equal(serve_check_memory(&f, &serving, &room, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "kv-memory: 1024 bytes hold 0 pages"));
}

static void retention_is_checked_without_weights(void **state)
{
    (void)state;
    const struct {
        retention_flags r;
        const char *text; // NULL: accepted
    } rows[] = {
        {{0}, NULL},
        {{.standard = "{\"method\":\"chunkkv\",\"ratio\":0.5}", .allow = "full,chunkkv"}, NULL},
        {{.pressure = "chunkkv:0.3"}, NULL},
        {{.standard = "{\"method\":\"nope\"}"}, "--retention: retention.method"},
        {{.standard = "{\"method\":\"snapkv\"}"}, "--retention: retention.ratio"},
        {{.standard = "{\"method\":\"snapkv\",\"ratio\":0.2}"}, NULL},
        {{.standard = "chunkkv:0.5", .allow = "full,chunkkv"}, NULL},
        {{.standard = "nope:0.5"}, "--retention: retention.method"},
        {{.allow = "full,nope"}, "--retention-allow: 'nope'"},
        {{.standard = "{\"method\":\"chunkkv\",\"ratio\":0.5}", .allow = "snapkv"},
         "--retention: retention.method: 'chunkkv' is not allowed"},
        {{.standard = "{\"method\":\"reform\"}"}, NULL},
        {{.pressure = "snapkv:0.5"}, "--pressure-retention: snapkv cannot be used"},
        {{.pressure = "{\"method\":\"tova\",\"scope\":\"layer\",\"ratio\":0.5}"},
         "--pressure-retention: tova cannot be used"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        retention_flags r = rows[i].r;
        error err = {{0}};
        assert_true(status_ok(retention_flags_read(&r, &err)));
        status s = serve_check_retention(&demo, &r, &err);
        if (!rows[i].text && !status_ok(s)) fail_msg("row %zu: %s", i, err.text);
        if (rows[i].text && (status_ok(s) || !strstr(err.text, rows[i].text)))
            fail_msg("row %zu: \"%s\", not \"%s\"", i, err.text, rows[i].text);
        retention_flags_destroy(&r);
    }
}

/* --host and --port are parts of --http. */
static void an_address_is_joined(void **state)
{
    (void)state;
    const struct {
        const char *http, *host;
        uint32_t port;
        const char *text; // the address, or the error
    } rows[] = {
        {"127.0.0.1:8000", NULL, SERVE_PORT_OF_HTTP, "127.0.0.1:8000"},
        {"127.0.0.1:8000", "0.0.0.0", SERVE_PORT_OF_HTTP, "0.0.0.0:8000"},
        {"127.0.0.1:8000", NULL, 0, "127.0.0.1:0"},
        {"[::]:8000", NULL, 9, "[::]:9"},
        {"127.0.0.1:8000", "::1", 9, "[::1]:9"},
        {"127.0.0.1:8000", "[::1]", 9, "[::1]:9"},
        {"none", NULL, 9, "--port: --http is none"},
        {"none", "localhost", 9, "--host: --http is none"},
        {"127.0.0.1:8000", "", SERVE_PORT_OF_HTTP, "--host: names no host"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        serve_flags f = {.http = rows[i].http, .host = rows[i].host, .port = rows[i].port};
        error err = {{0}};
        const char *got = status_ok(serve_flags_join(&f, &err)) ? f.http : err.text;
        if (strncmp(got, rows[i].text, strlen(rows[i].text)) != 0)
            fail_msg("row %zu: \"%s\", not \"%s\"", i, got, rows[i].text);
        serve_flags_destroy(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needs_are_compared_with_the_bound),
        cmocka_unit_test(the_disk_cache_is_counted),
        cmocka_unit_test(needs_are_those_of_the_backend),
        cmocka_unit_test(filling_tiles_are_counted),
        cmocka_unit_test(a_server_that_fits_is_taken),
        cmocka_unit_test(a_pool_of_more_pages_than_have_numbers_is_refused),
        cmocka_unit_test(a_pool_without_room_for_a_block_is_refused),
        cmocka_unit_test(retention_is_checked_without_weights),
        cmocka_unit_test(an_address_is_joined),
    };
    return cmocka_run_group_tests_name("cli_serve_memory", tests, NULL, NULL);
}
