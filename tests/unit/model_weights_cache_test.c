/* model/load/weights_cache.c: the cache holds what was packed, and whatever happened to its file, a
 * model loads with the same weights. */
#include "model/load/weights.h"
#include "model/load/weights_cache.h"
#include "tests/unit/model_folder.h"
#include "tests/unit/model_pass.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The file's header, as weights_cache.c writes it. */
enum { VERSION_AT = 8, KEY_AT = 16, TABLE_AT = 24, DATA_AT = 32, LISTS_HASH_AT = 40 };
enum { OWN_HASH_AT = 48, HEADER = 56 };

typedef struct fixture {
    folder model, cache;
} fixture;

typedef struct how {
    kern_quant quant;
    uint8_t attention_bits;
    int rank, size; /* size 0 = 1 */
    const char *cache_dir;
} how;

/* A load: a copy of all packed bytes, and the log's lines. */
typedef struct outcome {
    uint8_t *data;
    size_t bytes;
    bool from_cache;
    char log[2048];
} outcome;

static void copy_file(const folder *f, const char *name)
{
    char from[128], *data;
    size_t n;
    snprintf(from, sizeof from, "models/demo/%s", name);
    assert_true(status_ok(file_read(from, 64 << 20, &data, &n, NULL)));
    folder_write(f, name, data, n);
    free(data);
}

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    folder_make(&x->model);
    folder_make(&x->cache);
    copy_file(&x->model, "config.json");
    copy_file(&x->model, "model.safetensors");
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    folder_remove(&x->model);
    folder_remove(&x->cache);
    free(x);
    return 0;
}

static void listen(void *ctx, const char *line)
{
    char *log = ctx;
    size_t n = strlen(log);
    snprintf(log + n, sizeof((outcome *)0)->log - n, "%s\n", line);
}

typedef struct reports {
    size_t n;
    uint64_t done, total; /* of the last report */
} reports;

/* The total stays the same, and no progress is counted twice. */
static void note_progress(void *ctx, uint64_t done, uint64_t total)
{
    reports *r = ctx;
    assert_true(done >= r->done && done <= total && (!r->n || total == r->total));
    *r = (reports){r->n + 1, done, total};
}

static outcome load(const fixture *x, how h)
{
    reports progress = {0};
    thread_pool *pool;
    kern_context *kernels;
    model_config c;
    model_weights w;
    outcome out = {0};
    error err = {{0}};
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 2}, &pool)));
    assert_true(status_ok(kern_create(&(kern_options){.pool = pool}, &kernels, &err)));
    assert_true(status_ok(model_config_load(x->model.dir, NULL, 0, &c, &err)));
    weights_options o = {.dir = x->model.dir,
                         .config = &c,
                         .type = DTYPE_BF16,
                         .quant = h.quant,
                         .attention_bits = h.attention_bits,
                         .kernels = kernels,
                         .rank = h.rank,
                         .size = h.size ? h.size : 1,
                         .cache_dir = h.cache_dir,
                         .pool = pool,
                         .log_line = listen,
                         .log_ctx = out.log,
                         .progress = note_progress,
                         .progress_ctx = &progress};
    if (!status_ok(weights_load(&o, &w, &err))) fail_msg("%s", err.text);
    if (w.from_cache) assert_int_equal(progress.n, 0);
    else assert_true(progress.n > 1 && progress.done == progress.total);
    /* The embeddings come first among the packed bytes. */
    out.bytes = w.bytes - (size_t)((uint8_t *)w.embed.data - (uint8_t *)w.memory);
    out.data = malloc(out.bytes);
    memcpy(out.data, w.embed.data, out.bytes);
    out.from_cache = w.from_cache;
    weights_destroy(&w);
    kern_destroy(kernels);
    thread_pool_destroy(pool);
    return out;
}

static void expect(const fixture *x, how h, const outcome *due, bool from_cache, const char *log)
{
    outcome is = load(x, h);
    if (is.from_cache != from_cache || !strstr(is.log, log) || (!*log && *is.log))
        fail_msg("from cache: %d, due %d; told \"%s\", due \"%s\"", is.from_cache, from_cache,
                 is.log, log);
    assert_int_equal(is.bytes, due->bytes);
    assert_memory_equal(is.data, due->data, due->bytes);
    free(is.data);
}

/* The path of the cache's only file. */
static void find_kept(const fixture *x, char path[512])
{
    int n = 0;
    DIR *d = opendir(x->cache.dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, 512, "%s/%s", x->cache.dir, e->d_name);
        n++;
    }
    closedir(d);
    assert_int_equal(n, 1);
}

static how int4(const fixture *x) { return (how){.quant = {4, 32}, .cache_dir = x->cache.dir}; }

static outcome packed(const fixture *x, how h)
{
    h.cache_dir = NULL;
    return load(x, h);
}

/* ---- the same weights ------------------------------------------------------------------------ */

static void what_is_kept_is_what_was_packed(void **state)
{
    const fixture *x = *state;
    static const how ways[] = {{.quant = {8, 32}},
                               {.quant = {4, 32}},
                               {.quant = {4, 64}},
                               {.quant = {4, 32}, .attention_bits = 8},
                               {.quant = {4, 32}, .rank = 0, .size = 2},
                               {.quant = {4, 32}, .rank = 1, .size = 2}};
    enum { WAYS = sizeof ways / sizeof ways[0] };
    /* TSan has the first and the last: the threads are the same whatever is packed, and
     * kernels_quant_test packs all of it. */
    const size_t step = getenv("OCTAVO_TESTS_LIGHT") ? WAYS - 1 : 1;
    outcome due[WAYS];
    for (size_t i = 0; i < WAYS; i += step) {
        how h = ways[i];
        due[i] = load(x, h);
        assert_string_equal(due[i].log, "");
        h.cache_dir = x->cache.dir;
        expect(x, h, &due[i], false, ": written");
    }
    for (size_t i = 0; i < WAYS; i += step) { /* each has a file of its own */
        how h = ways[i];
        h.cache_dir = x->cache.dir;
        expect(x, h, &due[i], true, "");
        free(due[i].data);
    }
}

static void logits_are_the_same(void **state)
{
    const fixture *x = *state;
    enum { TOKENS = 40, VOCAB = 1024 };
    uint32_t tokens[TOKENS];
    random_tokens(tokens, TOKENS, VOCAB);
    for (unsigned ranks = 0; ranks <= 2; ranks += 2) {
        pass p = {.dir = "models/demo",
                  .kv_type = KERN_KV_BF16,
                  .quant_bits = 4,
                  .quant_group = 32,
                  .page_tokens = 16,
                  .layers_per_group = 1,
                  .n_threads = 2,
                  .n_ranks = ranks,
                  .chunk = 64};
        pass_result due = run(&p, tokens, TOKENS);
        p.cache_dir = x->cache.dir;
        for (int time = 0; time < 2; time++) {
            pass_result is = run(&p, tokens, TOKENS);
            assert_memory_equal(is.logits, due.logits, sizeof(float) * TOKENS * VOCAB);
            result_free(&is);
        }
        result_free(&due);
    }
}

/* ---- unusable files -------------------------------------------------------------------------- */

typedef struct kept {
    char path[512];
    uint8_t *data;
    size_t n;
} kept;

static kept keep(const fixture *x, const outcome *due)
{
    kept k;
    char *data;
    expect(x, int4(x), due, false, ": written");
    find_kept(x, k.path);
    assert_true(status_ok(file_read(k.path, 64 << 20, &data, &k.n, NULL)));
    k.data = (uint8_t *)data;
    return k;
}

static void put(const char *path, const uint8_t *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The file is replaced by a good one after it was refused. */
static void expect_refused(const fixture *x, const outcome *due, const char *log)
{
    expect(x, int4(x), due, false, log);
    expect(x, int4(x), due, true, "");
}

static uint64_t number_at(const uint8_t *data, size_t at)
{
    uint64_t v;
    memcpy(&v, data + at, sizeof v);
    return v;
}

/* Skipped under TSan, where packing is many times slower: files that cannot be used start no
 * threads of their own. */
static void leave_to_asan(void)
{
    if (getenv("OCTAVO_TESTS_LIGHT")) skip();
}

static void truncated_files(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    kept k = keep(x, &due);
    size_t table = number_at(k.data, TABLE_AT), data = k.n - number_at(k.data, DATA_AT);
    assert_true(HEADER + table < data && data + (1 << 20) < k.n); /* pieces, and their hashes */
    size_t ends[] = {0,
                     1,
                     VERSION_AT,
                     HEADER - 1,
                     HEADER,
                     HEADER + table / 2,
                     HEADER + table,
                     HEADER + table + 4,
                     data,
                     data + 1,
                     data + (1 << 20),
                     k.n - 1};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        put(k.path, k.data, ends[i]);
        expect_refused(x, &due, ends[i] < HEADER ? "less than a header" : "the header makes it");
    }
    uint8_t *longer = calloc(1, k.n + 1);
    memcpy(longer, k.data, k.n);
    put(k.path, longer, k.n + 1);
    expect_refused(x, &due, "the header makes it");
    free(longer);
    free(k.data);
    free(due.data);
}

static void flipped_bytes(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    kept k = keep(x, &due);
    size_t table = number_at(k.data, TABLE_AT), data = k.n - number_at(k.data, DATA_AT);
    const struct {
        size_t at;
        const char *log;
    } flips[] = {{0, "not a file of packed weights"},
                 {VERSION_AT, "this build has"},
                 {VERSION_AT + 7, "this build has"},
                 {KEY_AT, "the header is damaged"},
                 {TABLE_AT + 7, "the header is damaged"},
                 {DATA_AT, "the header is damaged"},
                 {LISTS_HASH_AT, "the header is damaged"},
                 {OWN_HASH_AT + 3, "the header is damaged"},
                 {HEADER, "the table of tensors is damaged"},
                 {HEADER + table - 1, "the table of tensors is damaged"},
                 {HEADER + table, "the table of tensors is damaged"},
                 {data - 1, "the table of tensors is damaged"},
                 {data, "pieces of the data are damaged"},
                 {data + (1 << 20) - 1, "pieces of the data are damaged"},
                 {data + (1 << 20), "pieces of the data are damaged"},
                 {k.n - 1, "pieces of the data are damaged"}};
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        k.data[flips[i].at] ^= 0x10;
        put(k.path, k.data, k.n);
        k.data[flips[i].at] ^= 0x10;
        expect_refused(x, &due, flips[i].log);
    }
    free(k.data);
    free(due.data);
}

/* Writes a file that was changed on purpose, with matching hashes. */
static void put_sealed(kept *k)
{
    uint64_t own = hash_bytes(k->data, OWN_HASH_AT, WEIGHTS_CACHE_VERSION);
    memcpy(k->data + OWN_HASH_AT, &own, sizeof own);
    put(k->path, k->data, k->n);
}

static void headers_that_fit_but_are_not_ours(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    kept k = keep(x, &due);
    static const struct {
        size_t at;
        uint64_t value;
        const char *log;
    } rows[] = {{VERSION_AT, 0, "version 0, this build has"},
                {VERSION_AT, WEIGHTS_CACHE_VERSION + 1, "this build has"},
                {KEY_AT, 1, "stale"},
                {TABLE_AT, 0, "a table of 0, due are"},
                {TABLE_AT, UINT64_MAX, "a table of 18446744073709551615, due are"},
                {TABLE_AT, 1ull << 40, "due are"},
                {DATA_AT, 0, "0 bytes of tensors"},
                {DATA_AT, UINT64_MAX - 100, "due are"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t before = number_at(k.data, rows[i].at);
        memcpy(k.data + rows[i].at, &rows[i].value, sizeof before);
        put_sealed(&k);
        memcpy(k.data + rows[i].at, &before, sizeof before);
        expect_refused(x, &due, rows[i].log);
    }
    k.data[HEADER] ^= 1; /* another tensor's name */
    size_t data = k.n - number_at(k.data, DATA_AT);
    uint64_t lists = hash_bytes(k.data + HEADER, data - HEADER, 0);
    memcpy(k.data + LISTS_HASH_AT, &lists, sizeof lists);
    put_sealed(&k);
    expect_refused(x, &due, "another table of tensors");
    free(k.data);
    free(due.data);
}

static void things_that_are_no_files(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    kept k = keep(x, &due);
    assert_int_equal(unlink(k.path), 0);
    assert_int_equal(mkfifo(k.path, 0600), 0);
    expect_refused(x, &due, "not a regular file");
    assert_int_equal(unlink(k.path), 0);
    assert_int_equal(symlink("nowhere", k.path), 0);
    expect_refused(x, &due, ": written");
    assert_int_equal(unlink(k.path), 0);
    assert_int_equal(mkdir(k.path, 0700), 0); /* a folder takes the file's name */
    expect(x, int4(x), &due, false, "not a regular file");
    expect(x, int4(x), &due, false, "cannot be written");
    assert_int_equal(rmdir(k.path), 0);
    expect(x, int4(x), &due, false, ": written");
    find_kept(x, k.path); /* and the folder holds no other file */
    free(k.data);
    free(due.data);
}

static void a_folder_that_cannot_be_written(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    how h = int4(x);
    outcome due = packed(x, h);
    char path[512];
    snprintf(path, sizeof path, "%s/nowhere", x->cache.dir);
    h.cache_dir = path;
    expect(x, h, &due, false, "No such file or directory: not kept");
    folder_puts(&x->cache, "nowhere", "a file");
    expect(x, h, &due, false, "Not a directory: not kept");
    free(due.data);
}

/* ---- models that change ---------------------------------------------------------------------- */

static void other_files_are_packed_anew(void **state)
{
    leave_to_asan();
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    kept k = keep(x, &due);
    char path[512], *data;
    size_t n;
    struct stat st;
    snprintf(path, sizeof path, "%s/model.safetensors", x->model.dir);
    assert_int_equal(stat(path, &st), 0);
    struct timespec later[2] = {st.st_atim, st.st_mtim};
    later[1].tv_nsec = (later[1].tv_nsec + 1) % 1000000000;
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    expect_refused(x, &due, "stale");

    /* Another model of the same shape and modification time: its weights differ. */
    assert_true(status_ok(file_read(path, 64 << 20, &data, &n, NULL)));
    for (size_t i = 16384; i < n; i += 2) data[i] ^= 1; /* after the header: the last bits */
    folder_write(&x->model, "model.safetensors", data, n);
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    outcome other = packed(x, int4(x));
    assert_memory_not_equal(other.data, due.data, due.bytes);
    expect_refused(x, &other, "stale");
    put(k.path, k.data, k.n); /* of the first model */
    expect_refused(x, &other, "stale");
    free(data);
    free(k.data);
    free(due.data);
    free(other.data);
}

/* ---- many at once ---------------------------------------------------------------------------- */

enum { STARTERS = 3, STARTS = 4 };

typedef struct starter {
    const fixture *x;
    const outcome *due;
    unsigned n_wrong;
} starter;

static void *start_often(void *arg)
{
    starter *s = arg;
    for (int i = 0; i < STARTS; i++) {
        outcome is = load(s->x, int4(s->x));
        s->n_wrong += is.bytes != s->due->bytes || memcmp(is.data, s->due->data, is.bytes) != 0;
        /* A first reader finds no file or a whole one, never half a file. */
        s->n_wrong += strstr(is.log, "packed anew") || strstr(is.log, "not kept");
        free(is.data);
        char path[512];
        if (i % 2 == 1) continue;
        DIR *d = opendir(s->x->cache.dir);
        for (struct dirent *e; (e = readdir(d));) {
            size_t n = strlen(e->d_name), tail = strlen(".weights");
            snprintf(path, sizeof path, "%s/%s", s->x->cache.dir, e->d_name);
            if (n > tail && strcmp(e->d_name + n - tail, ".weights") == 0) unlink(path);
        }
        closedir(d);
    }
    return NULL;
}

static void processes_and_threads_that_start_at_once(void **state)
{
    const fixture *x = *state;
    outcome due = packed(x, int4(x));
    pid_t children[STARTERS];
    for (int i = 0; i < STARTERS; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        starter s = {x, &due, 0};
        start_often(&s);
        _exit(s.n_wrong != 0);
    }
    for (int i = 0; i < STARTERS; i++) {
        int ended;
        assert_int_equal(waitpid(children[i], &ended, 0), children[i]);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
    pthread_t threads[STARTERS];
    starter starters[STARTERS];
    for (int i = 0; i < STARTERS; i++) {
        starters[i] = (starter){x, &due, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, start_often, &starters[i]), 0);
    }
    for (int i = 0; i < STARTERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(starters[i].n_wrong, 0);
    }
    free(due.data);
}

/* ---- the version ----------------------------------------------------------------------------- */

/* When this test fails, the packing has changed: WEIGHTS_CACHE_VERSION must rise with these
 * numbers. */
static void a_version_is_a_packing(void **state)
{
    (void)state;
    static const struct {
        kern_quant quant;
        uint64_t hash;
    } rows[] = {{{0, 0}, 0x1b2d6e8e29c56830},
                {{8, 32}, 0x40178cc9992814d7},
                {{4, 32}, 0x6b1105950db4716d},
                {{4, 128}, 0xd10d807d8f5aa923}};
    enum { N = 40, K = 300 };
    assert_int_equal(WEIGHTS_CACHE_VERSION, 3);
    unsigned n_other = 0;
    thread_pool *pool;
    kern_context *kernels;
    assert_true(status_ok(thread_pool_create(&(thread_pool_options){.n_threads = 1}, &pool)));
    assert_true(status_ok(kern_create(&(kern_options){.pool = pool}, &kernels, NULL)));
    float *src = malloc(sizeof(float) * N * K);
    rng r = rng_seed(7);
    for (size_t i = 0; i < N * K; i++) src[i] = (float)(int32_t)rng_u32(&r) * 0x1p-31f;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kern_matrix m = {.type = DTYPE_BF16, .n = N, .k = K, .quant = rows[i].quant};
        size_t bytes = kern_matrix_size(&m);
        m.data = alloc_pages(bytes);
        assert_non_null(m.data);
        kern_matrix_pack(kernels, &m, 0, N, src, DTYPE_F32, K);
        uint64_t is = hash_bytes(m.data, bytes, 0);
        if (is != rows[i].hash) {
            print_error("%u bits, groups of %u: %#llx\n", m.quant.bits, m.quant.group,
                        (unsigned long long)is);
            n_other++;
        }
        alloc_pages_free(m.data, bytes);
    }
    free(src);
    kern_destroy(kernels);
    thread_pool_destroy(pool);
    assert_int_equal(n_other, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_kept_is_what_was_packed, setup, teardown),
        cmocka_unit_test_setup_teardown(logits_are_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(truncated_files, setup, teardown),
        cmocka_unit_test_setup_teardown(flipped_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(headers_that_fit_but_are_not_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(things_that_are_no_files, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_written, setup, teardown),
        cmocka_unit_test_setup_teardown(other_files_are_packed_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(processes_and_threads_that_start_at_once, setup, teardown),
        cmocka_unit_test(a_version_is_a_packing),
    };
    return cmocka_run_group_tests_name("model_weights_cache", tests, NULL, NULL);
}
