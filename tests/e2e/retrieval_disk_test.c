/* Answers of the demo model over K and V larger than memory, by one rank and by two, each with a
 * file of its own: the tokens and logprobs of a pool in memory, and requests that fail by name
 * where the disk of one rank does. */
#include "disk/disk.h"
#include "tests/e2e/retrieval_requests.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BLOCK_ON_DISK = 65536, MOST_RANKS = 2 };

typedef struct known {
    answer alone[MOST_RANKS + 1][REQUESTS]; /* by ranks, of which 0 are no group */
    char folder[64];
} known;

/* Each request alone, in memory, in a backend that has computed nothing else. */
static void answer_alone(uint32_t n_ranks, answer *alone)
{
    setting s = usual;
    s.n_ranks = n_ranks;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        house h = open_house(&s);
        read_answer(submit_nth(&h, i, true), &alone[i]);
        assert_int_equal(alone[i].n[0], OUTPUTS);
        close_house(&h);
    }
}

static int setup(void **state)
{
    known *k = calloc(1, sizeof *k);
    const char *tmp = getenv("TMPDIR");
    snprintf(k->folder, sizeof k->folder, "%.36s/octavo-retrieval-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(k->folder)) return -1;
    answer_alone(0, k->alone[0]);
    answer_alone(2, k->alone[2]);
    *state = k;
    return 0;
}

/* The folder is empty: files had no name. */
static int teardown(void **state)
{
    known *k = *state;
    int result = rmdir(k->folder);
    free(k);
    return result;
}

/* A pool of so many blocks, a quarter of them in memory. */
static setting on_disk(const known *k, uint32_t n_ranks, uint32_t blocks)
{
    setting s = usual;
    s.n_ranks = n_ranks;
    s.kv_disk = k->folder;
    s.kv_disk_bytes = blocks * (uint64_t)BLOCK_ON_DISK;
    s.kv_bytes = s.kv_disk_bytes / 4;
    return s;
}

static sched_stats run(const known *k, uint32_t n_ranks, uint32_t blocks, uint32_t swap_blocks,
                       bool prefix_cache)
{
    setting s = on_disk(k, n_ranks, blocks);
    s.swap_bytes = swap_blocks * (uint64_t)BLOCK_ON_DISK;
    s.prefix_cache = prefix_cache;
    return run_in(k->alone[n_ranks], &s, blocks, swap_blocks, prefix_cache);
}

/* A prompt takes 13 blocks, an answer 4 more. Shared prefixes, choices and retention are among the
 * requests. */
static void answer_all(const known *k, uint32_t n_ranks)
{
    assert_true(run(k, n_ranks, 44, 200, true).swaps_in > 0);
    if (is_light()) return;
    assert_int_equal(run(k, n_ranks, 200, 0, true).preemptions, 0);
    assert_true(run(k, n_ranks, 44, 0, false).replayed_tokens > 0);
}

static void one_rank(void **state) { answer_all(*state, 0); }

static void two_ranks(void **state) { answer_all(*state, 2); }

/* ---- trouble on the disk of one rank --------------------------------------------------------- */

typedef enum trouble { NO_TROUBLE, READ_EIO, READ_FLIP, WRITE_FULL } trouble;

static ssize_t read_some(void *ctx, int fd, void *to, size_t n, off_t at)
{
    trouble now = (trouble)atomic_load((_Atomic int *)ctx);
    errno = EIO;
    if (now == READ_EIO) return -1;
    ssize_t got = pread(fd, to, n, at);
    if (now == READ_FLIP && got > 0) ((uint8_t *)to)[got / 2] ^= 1;
    return got;
}

static ssize_t write_some(void *ctx, int fd, const void *from, size_t n, off_t at)
{
    errno = ENOSPC;
    return atomic_load((_Atomic int *)ctx) == WRITE_FULL ? -1 : pwrite(fd, from, n, at);
}

static _Atomic int disk_state; /* of rank 1 */
static const disk_io disk_of_one = {read_some, write_some, NULL, &disk_state};

static status make_rank(void *ctx, comm *group, backend *out, error *err)
{
    backend_options o = *(const backend_options *)ctx;
    if (comm_rank(group) == 1) o.kv_disk_io = &disk_of_one;
    o.group = group;
    return backend_cpu_create(&o, out, err);
}

static status make_ranks(const backend_options *o, uint32_t n, backend *out, error *err)
{
    backend_options own = *o;
    backend_ranks_options all = {.n_ranks = n, .make = make_rank, .ctx = &own};
    return backend_ranks_create(&all, out, err);
}

/* Reads a request to its end, and its error into `text`: "" = none. */
static void read_end(engine_stream *s, char text[512])
{
    engine_output out;
    text[0] = 0;
    while (engine_stream_wait(s, &out))
        if (out.finish == ENGINE_FINISH_ERROR) snprintf(text, 512, "%s", out.error_text);
    engine_stream_release(s);
}

/* Four requests at once, which do not fit in memory together. They are numbers 0, 1, 2 and 6: what
 * they read few or all of is moved nowhere. */
static const uint32_t together[] = {0, 1, 2, 6};
enum { TOGETHER = sizeof together / sizeof *together };

static uint32_t fail_some(house *h, trouble what)
{
    static const char *const said[] = {
        [READ_EIO] = "kv-disk: rank 1: a page could not be read from the disk",
        [READ_FLIP] = "kv-disk: rank 1: a page that was read from the disk is damaged",
        [WRITE_FULL] = "kv-disk: rank 1: a page could not be written to the disk"};
    engine_stream *streams[TOGETHER];
    uint32_t n_failed = 0;
    atomic_store(&disk_state, what);
    shut_gate(h);
    for (uint32_t i = 0; i < TOGETHER; i++) streams[i] = submit_nth(h, together[i], true);
    open_gate(h);
    for (uint32_t i = 0; i < TOGETHER; i++) {
        char text[512];
        read_end(streams[i], text);
        if (*text) assert_string_equal(text, said[what]);
        n_failed += *text != 0;
    }
    atomic_store(&disk_state, NO_TROUBLE);
    return n_failed;
}

/* The backend is not made again: this engine could not. */
static void a_rank_whose_disk_fails(void **state)
{
    const known *k = *state;
    setting s = on_disk(k, 2, 100);
    s.kv_bytes = s.kv_disk_bytes / 4; /* a layer of the pool */
    s.make_ranks = make_ranks;
    house h = open_house(&s);
    for (trouble what = READ_EIO; what <= WRITE_FULL; what++) {
        if (fail_some(&h, what) == 0) fail_msg("trouble %d met no request", (int)what);
        for (uint32_t i = 0; i < TOGETHER; i++) {
            answer got;
            read_answer(submit_nth(&h, together[i], true), &got);
            if (!same_answers(&got, &k->alone[2][together[i]]))
                fail_msg("after trouble %d request %u has other tokens or logprobs", (int)what,
                         together[i]);
        }
    }
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(two_ranks),
        cmocka_unit_test(a_rank_whose_disk_fails),
    };
    return cmocka_run_group_tests_name("retrieval_disk", tests, setup, teardown);
}
