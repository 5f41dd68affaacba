/* Ranks at workers: the same bits as ranks of this process, and the consequences when a rank is
 * lost, silent, hung, or of the wrong kind. */
#include "tests/unit/rpc_worker_fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static int teardown(void **state)
{
    if (*state) site_destroy(*state);
    return 0;
}

static site *site_of(void **state, uint32_t n)
{
    *state = site_create(n);
    return *state;
}

static void expect_same_bits_reading(site *s, const retrieval_spec *retrieval)
{
    strbuf there = {0}, here = {0};
    backend b = site_make_sure(s), local = site_local(s);
    pass_run(&b, retrieval, &there);
    pass_run(&local, retrieval, &here);
    assert_int_equal(there.size, here.size);
    assert_memory_equal(there.data, here.data, here.size);
    b.ops->destroy(b.ctx);
    local.ops->destroy(local.ctx);
    strbuf_destroy(&there);
    strbuf_destroy(&here);
}

static void expect_same_bits(site *s) { expect_same_bits_reading(s, NULL); }

static void expect_contains(const char *text, const char *word)
{
    if (!strstr(text, word)) fail_msg("\"%s\" does not say '%s'", text, word);
}

static void one_rank_gives_the_same_bits(void **state)
{
    site *s = site_of(state, 1);
    site_start(s, true);
    expect_same_bits(s);
}

static void two_ranks_give_the_same_bits_again_and_again(void **state)
{
    site *s = site_of(state, 2);
    site_start(s, false);
    expect_same_bits(s);
    expect_same_bits(s);
    assert_int_equal(atomic_load(&s->ranks[1].sessions), 2);
    expect_contains(worker_group_facts(s->group, 1)->device, "cpu, ");
}

/* KV heads that select together lie at two workers. */
static void two_ranks_read_the_same_few_blocks(void **state)
{
    const retrieval_spec few = {.block_tokens = 16,
                                .representative = RETRIEVAL_QUEST,
                                .representative_num = 1,
                                .group_heads = 1,
                                .local_tokens = 16,
                                .top_blocks = 1,
                                .observed_rows = 128,
                                .layer_step = 1,
                                .token_step = 2};
    retrieval_spec specs[] = {few, few, few, few};
    specs[1].representative =
        RETRIEVAL_DYNAMIC; /* of what all heads of the prompt's end attend to */
    specs[1].preselect_blocks = 1;
    specs[1].audit = 2;
    specs[2].top_blocks = 99; /* as many as the bounds of all heads need */
    specs[2].token_step = 1;
    specs[2].epsilon = 0.3f;
    specs[2].audit = 1;
    specs[3].top_blocks = 99; /* all */
    strbuf got[4] = {{0}};
    site *s = site_of(state, 2);
    site_start(s, false);
    for (int i = 0; i < 4; i++) {
        if (i < 3) expect_same_bits_reading(s, &specs[i]);
        backend local = site_local(s);
        pass_run(&local, &specs[i], &got[i]);
        local.ops->destroy(local.ctx);
        for (int j = 0; j < i; j++) /* what they read makes a difference */
            assert_true(got[j].size != got[i].size ||
                        memcmp(got[j].data, got[i].data, got[i].size) != 0);
    }
    for (int i = 0; i < 4; i++) strbuf_destroy(&got[i]);
}

/* ---- lost, silent, hung ---------------------------------------------------------------------- */

typedef struct running {
    site *site;
    backend backend;
    site_pass pass;
} running;

/* Starts a step that rank 1 holds. */
static void begin_held(running *r, site *s)
{
    *r = (running){.site = s, .backend = site_make_sure(s)};
    pass_begin(&r->pass, &r->backend);
    atomic_store(&s->ranks[1].hold, true);
    assert_true(status_ok(r->backend.ops->submit(r->backend.ctx, pass_plan(&r->pass))));
    site_await_held(&s->ranks[1]);
}

/* The step's end as the engine would see it. meanwhile: a thread that ends before the backend
 * does. */
static status end_held(running *r, const pthread_t *meanwhile, char text[512])
{
    const step_result *result = NULL;
    status st = r->backend.ops->collect(r->backend.ctx, &result);
    if (status_ok(st)) st = result->status;
    snprintf(text, 512, "%s", st.message ? st.message : "");
    if (meanwhile) pthread_join(*meanwhile, NULL);
    r->backend.ops->destroy(r->backend.ctx);
    pass_end(&r->pass);
    return st;
}

static void *destroy_worker(void *rank)
{
    worker_server_destroy(((site_rank *)rank)->server);
    return NULL;
}

static void a_lost_worker_is_named_and_its_group_made_again(void **state)
{
    site *s = site_of(state, 2);
    running r;
    pthread_t thread;
    char text[512], due[160], address[128];
    site_start(s, false);
    begin_held(&r, s);
    pthread_create(&thread, NULL, destroy_worker, &s->ranks[1]);
    assert_int_equal(end_held(&r, &thread, text).code, STATUS_UNAVAILABLE);
    snprintf(due, sizeof due, "rank 1 (%s): ", s->ranks[1].address);
    expect_contains(text, due);
    s->ranks[1].server = NULL;

    backend b;
    error err = {{0}};
    assert_int_equal(site_make(s, &b, &err).code, STATUS_UNAVAILABLE);
    expect_contains(err.text, due);
    snprintf(address, sizeof address, "%s", s->ranks[1].address);
    site_start_worker(s, 1, address);
    expect_same_bits(s);
}

static void *interrupt(void *arg)
{
    running *r = arg;
    r->backend.ops->interrupt(r->backend.ctx);
    return NULL;
}

static void an_interrupt_ends_a_stuck_step(void **state)
{
    site *s = site_of(state, 2);
    running r;
    pthread_t thread;
    char text[512];
    site_start(s, false);
    begin_held(&r, s);
    pthread_create(&thread, NULL, interrupt, &r);
    assert_int_equal(end_held(&r, &thread, text).code, STATUS_INTERNAL);
    expect_same_bits(s);
}

static void a_rank_that_fails_frees_the_others(void **state)
{
    site *s = site_of(state, 2);
    running r;
    char text[512], due[192];
    site_start(s, false);
    atomic_store(&s->ranks[0].fails, true);
    begin_held(&r, s);
    assert_int_equal(end_held(&r, NULL, text).code, STATUS_UNAVAILABLE); /* it had no memory */
    snprintf(due, sizeof due, "rank 0 (%s): a full house: out of memory", s->ranks[0].address);
    expect_contains(text, due);
    expect_same_bits(s);
}

/* ---- attempts -------------------------------------------------------------------------------- */

static size_t n_files(void)
{
    size_t n = 0;
    DIR *all = opendir("/proc/self/fd");
    assert_non_null(all);
    while (readdir(all)) n++;
    closedir(all);
    return n;
}

/* The attempts to reach the other rank are aborted again and again, also while its connection is
 * made. */
static void tries_leave_nothing(void **state)
{
    enum { TRIES = 60, NAPS = 20000 };
    site *s = site_of(state, 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int silent = socket(AF_INET, SOCK_STREAM, 0); // has a port, but does not listen
    char address[128];
    size_t before = 0;
    assert_return_code(bind(silent, (struct sockaddr *)&at, sizeof at), 0);
    assert_return_code(getsockname(silent, (struct sockaddr *)&at, &n), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    site_start_worker(s, 0, "127.0.0.1:0");
    site_start_worker(s, 1, "127.0.0.1:0");
    s->addresses[1] = address;
    site_start(s, false);
    for (int i = 0; i < TRIES; i++) {
        backend b;
        error err = {{0}};
        assert_int_equal(site_make(s, &b, &err).code, STATUS_UNAVAILABLE);
        expect_contains(err.text, "rank 1 (");
        if (i == 0) before = n_files();
    }
    /* Both ends of a connection are in this process, and are closed a little later. */
    for (int i = 0; n_files() > before + 4; i++) {
        if (i == NAPS) fail_msg("%zu files, there were %zu", n_files(), before);
        site_nap();
    }
    close(silent);
    snprintf(address, sizeof address, "%s", s->ranks[1].address);
    expect_same_bits(s); // nor did a worker keep an aborted session
}

/* ---- a broken network ------------------------------------------------------------------------ */

/* A relay between a coordinator and a worker; once it is cut, nothing passes and neither side is
 * notified. */
typedef struct relay {
    int listener, ends[2]; // of the coordinator and the worker; -1 = none
    uint16_t port, target;
    _Atomic bool cut, stop;
    pthread_t thread;
} relay;

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void relay_accept(relay *r)
{
    struct sockaddr_in to = loopback(r->target);
    for (int i = 0; i < 2; i++)
        if (r->ends[i] >= 0) close(r->ends[i]);
    r->ends[0] = accept(r->listener, NULL, NULL);
    r->ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(r->ends[1], (struct sockaddr *)&to, sizeof to) != 0) abort();
}

static void relay_pass(relay *r, int from)
{
    char bytes[4096];
    ssize_t n = read(r->ends[from], bytes, sizeof bytes);
    if (n <= 0 || send(r->ends[!from], bytes, (size_t)n, MSG_NOSIGNAL) != n) {
        close(r->ends[0]);
        close(r->ends[1]);
        r->ends[0] = r->ends[1] = -1;
    }
}

static void *relay_main(void *arg)
{
    relay *r = arg;
    while (!atomic_load(&r->stop)) {
        struct pollfd fds[3] = {{r->listener, POLLIN, 0}};
        for (int i = 0; i < 2; i++)
            fds[1 + i] = (struct pollfd){atomic_load(&r->cut) ? -1 : r->ends[i], POLLIN, 0};
        if (poll(fds, 3, 5) <= 0 || atomic_load(&r->cut)) continue;
        if (fds[0].revents) relay_accept(r);
        else if (fds[1].revents) relay_pass(r, 0);
        else if (fds[2].revents) relay_pass(r, 1);
    }
    return NULL;
}

static void relay_start(relay *r, uint16_t target)
{
    struct sockaddr_in at = loopback(0);
    socklen_t n = sizeof at;
    *r = (relay){.listener = socket(AF_INET, SOCK_STREAM, 0), .ends = {-1, -1}, .target = target};
    assert_return_code(bind(r->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_return_code(listen(r->listener, 8), 0);
    assert_return_code(getsockname(r->listener, (struct sockaddr *)&at, &n), 0);
    r->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

static void relay_stop(relay *r)
{
    atomic_store(&r->stop, true);
    pthread_join(r->thread, NULL);
    close(r->listener);
    for (int i = 0; i < 2; i++)
        if (r->ends[i] >= 0) close(r->ends[i]);
}

static void count_loss(void *n, const char *why)
{
    expect_contains(why, "rank 1 (");
    atomic_fetch_add((_Atomic int *)n, 1);
}

/* A site whose rank 1 is behind a relay, with short time-outs for silence. */
static site *site_behind(relay *net, char address[64], void **state)
{
    site *s = site_of(state, 2);
    s->silence_us = 2000000;
    site_start_worker(s, 0, "127.0.0.1:0");
    site_start_worker(s, 1, "127.0.0.1:0");
    relay_start(net, worker_server_port(s->ranks[1].server));
    snprintf(address, 64, "127.0.0.1:%u", net->port);
    s->addresses[1] = address;
    site_start(s, false);
    return s;
}

static void both_sides_notice_a_cut_network(void **state)
{
    static relay net; // its thread outlives a failed test
    running r;
    _Atomic int losses = 0;
    char text[512], address[64], due[160];
    site *s = site_behind(&net, address, state);
    worker_group_on_loss(s->group, count_loss, (void *)&losses);
    begin_held(&r, s);
    atomic_store(&net.cut, true);
    assert_int_equal(end_held(&r, NULL, text).code, STATUS_UNAVAILABLE);
    snprintf(due, sizeof due, "rank 1 (%s): no heartbeat for 2.0 s", address);
    expect_contains(text, due);
    assert_int_equal(atomic_load(&losses), 1);
    site_await(&s->ranks[1], "no heartbeat for 4.0 s");
    site_await(&s->ranks[1], "idle");
    atomic_store(&net.cut, false);
    expect_same_bits(s);
    worker_group_destroy(s->group);
    s->group = NULL;
    relay_stop(&net);
}

static void a_worker_that_falls_silent_in_configure_is_noticed(void **state)
{
    static relay net; // its thread outlives a failed test
    char address[64];
    pthread_t thread;
    site *s = site_behind(&net, address, state);
    making m = {.site = s};
    atomic_store(&s->ranks[1].hold_configure, true);
    assert_int_equal(pthread_create(&thread, NULL, make_ranks, &m), 0);
    site_await_held(&s->ranks[1]);
    atomic_store(&net.cut, true);
    pthread_join(thread, NULL);
    assert_int_equal(m.status.code, STATUS_UNAVAILABLE);
    expect_contains(m.why.text, "no heartbeat for 2.0 s");
    site_await(&s->ranks[1], "idle");
    atomic_store(&net.cut, false);
    expect_same_bits(s);
    worker_group_destroy(s->group);
    s->group = NULL;
    relay_stop(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(one_rank_gives_the_same_bits, teardown),
        cmocka_unit_test_teardown(two_ranks_give_the_same_bits_again_and_again, teardown),
        cmocka_unit_test_teardown(two_ranks_read_the_same_few_blocks, teardown),
        cmocka_unit_test_teardown(a_lost_worker_is_named_and_its_group_made_again, teardown),
        cmocka_unit_test_teardown(an_interrupt_ends_a_stuck_step, teardown),
        cmocka_unit_test_teardown(a_rank_that_fails_frees_the_others, teardown),
        cmocka_unit_test_teardown(tries_leave_nothing, teardown),
        cmocka_unit_test_teardown(both_sides_notice_a_cut_network, teardown),
        cmocka_unit_test_teardown(a_worker_that_falls_silent_in_configure_is_noticed, teardown),
    };
    return cmocka_run_group_tests_name("rpc_worker", tests, NULL, NULL);
}
