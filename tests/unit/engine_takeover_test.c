/* A prompt that another server has computed and that this one's pool cannot take: it is computed
 * here, and its record's room is free for other prompts from then on. */
#include "engine/internal.h"
#include "tests/unit/engine_fixture.h"

enum { PAGES = 20, TOKENS = PAGES * 16, CELL_BYTES = 32, ROOM = 1 << 20, RECORD_MOST = 1 << 18 };
#define AGES INT64_C(10000000000) /* microseconds: longer than any test runs */

typedef struct servers {
    fixture *prefill, *decode;
    transfer *holds, *fetches;
    char address[64];
} servers;

static fixture *make_server(transfer *t, uint32_t n_pages)
{
    fixture *f = fixture_create();
    f->model.info.n_pages = n_pages;
    f->model.info.kv_identity = 1;
    f->model.info.block_bytes = CELL_BYTES * pkv_groups(&f->model.info.geometry);
    f->options.transfer = t;
    answer(f, "some words");
    fixture_start(f);
    return f;
}

/* Two servers, of which the decode server's pool has so many pages. */
static int start_servers(void **state, uint32_t n_pages)
{
    servers *s = calloc(1, sizeof *s);
    const char *peers[] = {s->address};
    error err;
    transfer_options o = {
        .listen = "127.0.0.1:0", .bytes = ROOM, .ttl_us = AGES, .timeout_us = AGES};
    if (!status_ok(transfer_open(&o, &s->holds, &err))) fail_msg("%s", err.text);
    snprintf(s->address, sizeof s->address, "127.0.0.1:%u", transfer_port(s->holds));
    o.listen = NULL;
    o.peers = peers;
    o.n_peers = 1;
    if (!status_ok(transfer_open(&o, &s->fetches, &err))) fail_msg("%s", err.text);
    s->prefill = make_server(s->holds, 1000);
    s->decode = make_server(s->fetches, n_pages);
    *state = s;
    return 0;
}

/* The pool has too few pages for a prompt of which everything is kept, or no more than these. */
static int setup_too_small(void **state) { return start_servers(state, 1 + 2 * PAGES - 5); }
static int setup_full(void **state) { return start_servers(state, 1 + 2 * PAGES); }

static int teardown(void **state)
{
    servers *s = *state;
    void *fixtures[] = {s->prefill, s->decode};
    int failed = fixture_teardown(&fixtures[0]) | fixture_teardown(&fixtures[1]);
    transfer_close(s->holds);
    transfer_close(s->fetches);
    free(s);
    return failed;
}

/* A request of method streaming-recurrent, which keeps few pages of any prompt. */
static engine_stream *ask(fixture *f, uint32_t max_tokens, const char *params)
{
    strbuf json = {0};
    strbuf_printf(&json,
                  "{\"retention\": {\"method\": \"streaming-recurrent\", \"tokens\": 64, "
                  "\"recurrent_chunk\": 64, \"sinks\": 4, \"window\": 16}, \"max_tokens\": %u, "
                  "\"kv_transfer_params\": {%s}, "
                  "\"prompt_token_ids\": [",
                  max_tokens, params);
    for (uint32_t i = 0; i < TOKENS; i++) strbuf_printf(&json, "%s%u", i ? "," : "", 10 + i % 7);
    strbuf_puts(&json, "]}");
    engine_stream *s = submit(f, json.data);
    strbuf_destroy(&json);
    return s;
}

typedef struct fetching {
    transfer_got got;
    _Atomic bool done;
} fetching;

static void take(void *ctx, const transfer_got *got)
{
    fetching *f = ctx;
    f->got = *got;
    atomic_store(&f->done, true);
}

/* Takes the record of this key away from the prefill server. */
static uint8_t *fetch(const servers *s, const transfer_key *key, uint64_t owner)
{
    fetching out = {0};
    transfer_fetch f = {.host = "127.0.0.1",
                        .port = transfer_port(s->holds),
                        .key = *key,
                        .owner = owner,
                        .most = RECORD_MOST,
                        .done = take,
                        .ctx = &out};
    transfer_fetch_begin(s->fetches, &f);
    while (!atomic_load(&out.done)) nap();
    assert_non_null(out.got.bytes);
    transfer_release(s->fetches, owner, out.got.n);
    return out.got.bytes;
}

/* A record that agrees with the honest one in all that the request says, and keeps everything. */
static uint8_t *keep_everything(const servers *s, const uint8_t *honest, size_t *n)
{
    const backend_info *info = &s->decode->model.info;
    uint64_t digests[4]; /* of the layout, K and V, the policy and the sampling */
    uint32_t tokens[TOKENS + 1], bases[PAGES];
    pkv_image_table table = {.kept = TOKENS, .bases = bases};
    memcpy(digests, honest, sizeof digests);
    const handover_terms terms = {.geometry = &info->geometry,
                                  .cell_bytes = backend_cell_bytes(info),
                                  .identity = digests[1],
                                  .policy = digests[2],
                                  .sampling = digests[3]};
    const sched_export all = {.image = {.grain = PKV_ALL, .length = TOKENS, .tables = &table},
                              .tokens = tokens,
                              .n_cells = PAGES * pkv_groups(&info->geometry),
                              .n_tokens = TOKENS};
    const step_sample first = {.token = s->decode->model.script[0], .rank = 1};
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = 10 + i % 7;
    for (uint32_t i = 0; i < PAGES; i++) bases[i] = 16 * i;
    *n = handover_size(&terms, &all);
    uint8_t *bytes = calloc(*n, 1);
    (void)handover_write(&terms, &all, &first, bytes);
    return bytes;
}

/* Has the prefill server hold a lie about the prompt; `params` gets what it is fetched by. */
static void hold_a_lie(const servers *s, char params[256])
{
    engine_stream *made = ask(s->prefill, 1, "\"do_remote_decode\": true");
    assert_int_equal(read_stream(made).finish, ENGINE_FINISH_LENGTH);
    assert_true(made->transfer.held);
    transfer_key key = made->handover->key;
    uint64_t owner = made->handover->owner;
    snprintf(params, 256,
             "\"do_remote_prefill\": true, \"remote_host\": \"127.0.0.1\", \"remote_port\": %u, "
             "\"remote_request_id\": \"%s\"",
             transfer_port(s->holds), made->transfer.id);
    engine_stream_release(made);
    size_t n;
    uint8_t *honest = fetch(s, &key, owner), *bytes = keep_everything(s, honest, &n);
    free(honest);
    assert_true(transfer_make_room(s->holds, owner, n));
    assert_true(transfer_hold(s->holds, &key, owner, bytes, n));
}

static void room_is_given_back_where_the_prompt_is_computed(void **state)
{
    const servers *s = *state;
    scripted *model = &s->decode->model;
    char params[256];
    hold_a_lie(s, params);
    atomic_store(&model->hold_at, 2);
    engine_stream *computed = ask(s->decode, 5, params);
    while (!atomic_load(&model->hold)) nap();
    transfer_counts counts = transfer_count(s->fetches);
    assert_int_equal(counts.fetched, 2);
    assert_int_equal(counts.bytes, 0);
    assert_int_equal(atomic_load(&model->writes), 0);
    atomic_store(&model->hold_at, 0);
    atomic_store(&model->hold, false);
    assert_int_equal(read_stream(computed).error_code, STATUS_OK);
    assert_false(computed->transfer.received);
    engine_stream_release(computed);
}

/* The prompt takes all pages, so there is none for the next token. */
static void a_prompt_that_fills_the_pool_ends(void **state)
{
    const servers *s = *state;
    char params[256];
    hold_a_lie(s, params);
    engine_stream *taken = ask(s->decode, 5, params),
                  *next = submit(s->decode, "{\"prompt\": \"a\"}");
    reading first = read_stream(taken);
    assert_int_equal(first.error_code, STATUS_OK);
    assert_int_equal(first.finish, ENGINE_FINISH_STOP);
    engine_stream_release(taken);
    assert_int_equal(read_all(next).error_code, STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(room_is_given_back_where_the_prompt_is_computed,
                                        setup_too_small, teardown),
        cmocka_unit_test_setup_teardown(a_prompt_that_fills_the_pool_ends, setup_full, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
