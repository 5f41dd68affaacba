/* Property: for any words, pkv_mirror_apply returns OK or CORRUPT. After OK every table has the
 * pages that its tokens need, all of them in the pool, and closing every sequence brings the
 * checksum back to 0.
 *
 * Input: the first byte picks a geometry; each further byte is a word, except that after 255 the
 * next four bytes are one word. */
#include "paged_kv/delta.h"
#include "paged_kv/paged_kv.h"
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
};

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

static void check_tables(const pkv_mirror *m, const pkv_geometry *g)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        for (uint32_t group = 0; group < pkv_groups(g); group++) {
            pkv_table_view view = pkv_mirror_table(m, seq, group);
            uint32_t needed =
                view.kept_tokens / g->page_tokens + (view.kept_tokens % g->page_tokens != 0);
            FUZZ_CHECK(view.n_pages == needed);
            for (uint32_t i = 0; i < view.n_pages; i++) {
                FUZZ_CHECK(view.pages[i] >= 1 && view.pages[i] < N_PAGES);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const pkv_geometry *g = &geometries[data[0] % 3];
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
        check_tables(m, g);
        for (uint32_t seq = 0; seq < SEQS; seq++) {
            uint32_t close[] = {DELTA_CLOSE, seq};
            s = pkv_mirror_apply(m, close, DELTA_CLOSE_WORDS);
            FUZZ_CHECK(s.code == STATUS_OK || s.code == STATUS_CORRUPT); /* corrupt: was closed */
        }
        FUZZ_CHECK(pkv_mirror_checksum(m) == 0);
    }
    free(words);
    pkv_mirror_destroy(m);
    return 0;
}
