/* A worker's rank from configure to reset, alone in its group: how its address is made and read. */
#include "cli/workers/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"

static worker_config config_of(const model_config *config)
{
    return (worker_config){
        .size = 1,
        .comm = "self",
        .model = "",
        .device = "cpu",
        .isa = "",
        .cache_dir = "",
        .kv_disk = "",
        .weight_type = "f32",
        .kv_type = "f32",
        .n_threads = 1,
        .geometry = {.page_tokens = 16,
                     .layers_per_group = 1,
                     .heads_per_group = config->n_kv_heads},
        .kv_bytes = 1 << 20,
        .max_rows = 32,
        .max_seqs = 2,
        .max_model_len = 64,
    };
}

/* Configures the rank as a coordinator of the same model does, with K and V of so many bytes on
 * disk. */
static status try_disk(const worker_host *host, const char *kv_disk, uint64_t kv_disk_bytes,
                       worker_address *own, error *err)
{
    model_config model;
    if (!status_ok(model_config_load("models/demo", NULL, 0, &model, err)))
        fail_msg("%s", err->text);
    backend_options options = {.dir = "models/demo", .config = &model};
    worker_config c = config_of(&model);
    c.kv_disk = kv_disk;
    c.kv_disk_bytes = kv_disk_bytes;
    if (!status_ok(
            model_fingerprints(&options, &c.config_fingerprint, &c.weights_fingerprint, err)))
        fail_msg("%s", err->text);
    return host->configure(host->ctx, &c, own, err);
}

static worker_address configure(const worker_host *host)
{
    error err;
    worker_address own;
    if (!status_ok(try_disk(host, "", 0, &own, &err))) fail_msg("%s", err.text);
    return own;
}

static void joins_by_its_own_address(void **state)
{
    (void)state;
    error err;
    backend made;
    worker_facts facts;
    rank_host *h;
    worker_flags flags = {.model = "models/demo", .count = 1};
    assert_true(status_ok(rank_host_create(&flags, 0, &h)));
    worker_host host = rank_host_callbacks(h);
    for (int session = 0; session < 2; session++) {
        worker_address own = configure(&host);
        assert_true(own.n > 0);
        if (!status_ok(host.join(host.ctx, &own, 1, &err))) fail_msg("%s", err.text);
        if (!status_ok(host.load(host.ctx, &made, &facts, &err))) fail_msg("%s", err.text);
        assert_true(facts.pool_bytes > 0 && facts.weight_bytes > 0);
        made.ops->destroy(made.ctx);
        host.reset(host.ctx);
    }
    rank_host_destroy(h);
}

/* An address comes from another process: one that is too short to name a machine is refused. */
static void refuses_a_short_address(void **state)
{
    (void)state;
    error err;
    rank_host *h;
    worker_flags flags = {.model = "models/demo", .count = 1};
    assert_true(status_ok(rank_host_create(&flags, 0, &h)));
    worker_host host = rank_host_callbacks(h);
    worker_address own = configure(&host);
    for (size_t n = 0; n < own.n; n += own.n - 1) {
        worker_address cut = {own.bytes, n};
        assert_int_equal(host.join(host.ctx, &cut, 1, &err).code, STATUS_INVALID);
        assert_non_null(strstr(err.text, "of rank 0"));
    }
    host.reset(host.ctx);
    rank_host_destroy(h);
}

/* What a worker says to a coordinator that wants 4 MB of its disk and names the folder "theirs".
 * The folders are missing, so that loading tells which one it is. */
static void expect_disk(const worker_flags *flags, const char *why)
{
    error err = {{0}};
    backend made;
    worker_facts facts;
    rank_host *h;
    worker_address own;
    assert_true(status_ok(rank_host_create(flags, 0, &h)));
    worker_host host = rank_host_callbacks(h);
    status s = try_disk(&host, "theirs", 4 << 20, &own, &err);
    if (status_ok(s)) s = host.join(host.ctx, &own, 1, &err);
    if (status_ok(s)) s = host.load(host.ctx, &made, &facts, &err);
    assert_false(status_ok(s));
    if (!strstr(err.text, why)) fail_msg("'%s' does not say '%s'", err.text, why);
    host.reset(host.ctx);
    rank_host_destroy(h);
}

static void writes_where_its_own_flag_says(void **state)
{
    (void)state;
    worker_flags f = {.model = "models/demo", .count = 1};
    expect_disk(&f, "kv-disk: this worker has no folder for K and V on disk");
    f.kv_disk = "ours";
    expect_disk(&f, "kv-disk: ours: No such file");
    f.tls_client_ca = "ca";
    expect_disk(&f, "kv-disk: ours: No such file");
    f.kv_disk = NULL;
    expect_disk(&f, "kv-disk: theirs: No such file");
    f.kv_disk_size = (4 << 20) - 1;
    expect_disk(&f, "kv-disk-size: 4194304 bytes are wanted on this worker's disk, whose own "
                    "--kv-disk-size is 4194303");
    f.kv_disk_size++;
    expect_disk(&f, "kv-disk: theirs: No such file");
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(joins_by_its_own_address),
        cmocka_unit_test(refuses_a_short_address),
        cmocka_unit_test(writes_where_its_own_flag_says),
    };
    return cmocka_run_group_tests(all, NULL, NULL);
}
