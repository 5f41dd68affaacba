/* Property: for any words, pkv_mirror_apply returns OK or CORRUPT. After OK every KV group has the
 * pages that its tokens need, and its cells are in the pool and held. Cutting every sequence to the
 * finest grain leaves all cells where they are. Closing every sequence brings the checksum back to
 * 0 and leaves no cell held.
 *
 * Input: the first byte picks a geometry; each further byte is a word, except that after 255 the
 * next four bytes are one word. */
#include "paged_kv/delta.h"
#include "paged_kv/mirror.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { N_PAGES = 90, SEQS = 5, WORDS_MAX = 4096 };

static const pkv_geometry geometries[] = {
    {.page_tokens = 16,
     .n_layers = 1,
     .n_kv_heads = 1,
     .layers_per_group = 1,
     .heads_per_group = 1},
    {.page_tokens = 16,
     .n_layers = 2,
     .n_kv_heads = 1,
     .layers_per_group = 1,
     .heads_per_group = 1},
    {.page_tokens = 32,
     .n_layers = 3,
     .n_kv_heads = 2,
     .layers_per_group = 2,
     .heads_per_group = 1},
    {.page_tokens = 16,
     .n_layers = 1,
     .n_kv_heads = 8,
     .layers_per_group = 1,
     .heads_per_group = 2},
    {.page_tokens = 16,
     .n_layers = 3,
     .n_kv_heads = 3,
     .layers_per_group = 1,
     .heads_per_group = 1},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof *geometries };

static size_t read_words(const uint8_t *data, size_t size, uint32_t *words)
{
    size_t n = 0;
    for (size_t i = 0; i < size && n < WORDS_MAX; n++) {
        words[n] = data[i++];
        if (words[n] == 255 && size - i >= 4) {
            memcpy(&words[n], data + i, 4);
            i += 4;
        }
    }
    return n;
}

/* Checks every table, and returns a sum over the cells that all KV groups read. */
static uint64_t check_tables(const pkv_mirror *m, const pkv_geometry *g)
{
    uint64_t sum = 0;
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t group = 0; group < pkv_groups(g); group++) {
            pkv_table_view view = pkv_mirror_table(m, seq, group);
            uint32_t needed =
                view.kept_tokens / g->page_tokens + (view.kept_tokens % g->page_tokens != 0);
            FUZZ_CHECK(view.n_pages == needed);
            sum = hash_mix64(sum + view.kept_tokens);
            for (uint32_t i = 0; i < view.n_pages; i++) {
                uint32_t cell = view.pages[i] + view.offset;
                FUZZ_CHECK(cell >= 1 && cell < pkv_cell_count(g, N_PAGES - 1));
                FUZZ_CHECK(pkv_mirror_page_at(m, cell).held);
                sum = hash_mix64(sum + cell);
            }
        }
    }
    return sum;
}

/* Closes the sequences that are being closed in portions: their tables are as before until then,
 * though some of their cells are no longer held. */
static void close_leaving(pkv_mirror *m)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        uint32_t words[] = {DELTA_CLOSE, seq};
        if (m->seqs[seq].leaves)
            FUZZ_CHECK(status_ok(pkv_mirror_apply(m, words, DELTA_CLOSE_WORDS)));
    }
}

/* Applies one operation to every sequence: those that are closed refuse it. */
static void apply_to_all(pkv_mirror *m, uint32_t op, uint32_t field, size_t n)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        uint32_t words[] = {op, seq, field};
        status s = pkv_mirror_apply(m, words, n);
        FUZZ_CHECK(s.code == STATUS_OK || s.code == STATUS_CORRUPT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const pkv_geometry *g = &geometries[data[0] % N_GEOMETRIES];
    pkv_mirror *m;
    FUZZ_CHECK(status_ok(pkv_mirror_create(g, N_PAGES, SEQS, NULL, &m)));
    uint32_t *words = malloc(WORDS_MAX * sizeof *words);
    FUZZ_CHECK(words);
    size_t n = read_words(data + 1, size - 1, words);
    words = realloc(words, n > 0 ? n * sizeof *words : 1); /* exact, so that over-reads are seen */
    FUZZ_CHECK(words);
    status s = pkv_mirror_apply(m, words, n);
    FUZZ_CHECK(s.code == STATUS_OK || s.code == STATUS_CORRUPT);
    if (status_ok(s)) {
        close_leaving(m);
        uint64_t before = check_tables(m, g);
        apply_to_all(m, DELTA_SPLIT, PKV_HEAD, DELTA_SPLIT_WORDS);
        FUZZ_CHECK(check_tables(m, g) == before);
        apply_to_all(m, DELTA_CLOSE, 0, DELTA_CLOSE_WORDS);
        FUZZ_CHECK(pkv_mirror_checksum(m) == 0);
        for (uint32_t cell = 0; cell < pkv_cell_count(g, N_PAGES - 1); cell++)
            FUZZ_CHECK(!pkv_mirror_page_at(m, cell).held);
    }
    free(words);
    pkv_mirror_destroy(m);
    return 0;
}
