/* RULER's common words and frequent words: what the answer needs is spread over the whole
 * context. */
#include "quality/tasks/tasks.h"

#include <math.h>
#include <string.h>

enum { COMMON = 10, FREQUENT = 3 };

/* ---- common words ---------------------------------------------------------------------------- */

/* Writes a list in which the first COMMON of n words occur `often` times each, the others
 * `seldom`. */
static void write_list(document *d, rng *r, const char *const *words, uint32_t n, uint32_t often,
                       uint32_t seldom)
{
    size_t total = (size_t)COMMON * often + (size_t)(n - COMMON) * seldom, k = 0;
    const char **items = arena_alloc_array(&d->memory, total, sizeof *items);
    if (!items) {
        d->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < (i < COMMON ? often : seldom); j++) items[k++] = words[i];
    shuffle_strings(r, items, total);
    for (size_t i = 0; i < total; i++)
        strbuf_printf(&d->text, i ? " %zu. %s" : "%zu. %s", i + 1, items[i]);
}

static const char cwe_intro[] =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n";
static const char cwe_question[] =
    "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words "
    "that appear most often in the list are:";

static void make_cwe(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    bool small = ctx->target_tokens < 4096;
    uint32_t shot = small ? 20 : 40, n = COMMON + size;
    const char **words = arena_alloc_array(&d->memory, shot + n, sizeof *words);
    if (!words) {
        d->failed = true;
        return;
    }
    random_vocabulary(d, r, words, shot + n);
    if (d->failed) return;
    strbuf_puts(&d->text, cwe_intro);
    write_list(d, r, words, shot, small ? 3 : 10, small ? 1 : 3);
    strbuf_puts(&d->text, cwe_question);
    for (uint32_t i = 0; i < COMMON; i++) strbuf_printf(&d->text, " %u. %s", i + 1, words[i]);
    strbuf_printf(&d->text, "\n%s", cwe_intro);
    d->context_from = d->text.size;
    write_list(d, r, words + shot, n, small ? 6 : 30, small ? 1 : 3);
    d->context_to = d->text.size;
    question *q = document_ask(d, cwe_question, "most common words");
    for (uint32_t i = 0; q && i < COMMON; i++) document_add(d, &q->references, words[shot + i]);
}

/* ---- frequent words: counts fall with rank to the power of minus two ------------------------- */

static void make_fwe(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    static const double zeta_2 = 1.6449340668482264;
    uint32_t n = ctx->target_tokens / 50 > 4 ? ctx->target_tokens / 50 : 4;
    const char **vocabulary = arena_alloc_array(&d->memory, n, sizeof *vocabulary);
    const char **items = arena_alloc_array(&d->memory, size, sizeof *items);
    if (!vocabulary || !items) {
        d->failed = true;
        return;
    }
    /* The most frequent item is no word but dots, which the question says to ignore. */
    vocabulary[0] = "...";
    for (uint32_t i = 1; i < n; i++) vocabulary[i] = random_letters(d, r, 6, 'a');
    size_t total = 0;
    for (uint32_t k = 1; k <= n; k++) {
        uint32_t count = (uint32_t)((double)size / ((double)k * (double)k) / zeta_2);
        for (uint32_t i = 0; i < count && total < size; i++) items[total++] = vocabulary[k - 1];
    }
    shuffle_strings(r, items, total);
    strbuf_puts(&d->text,
                "Read the following coded text and track the frequency of each coded word. Find "
                "the three most frequently appeared coded words. ");
    d->context_from = d->text.size;
    for (size_t i = 0; i < total; i++) strbuf_printf(&d->text, i ? " %s" : "%s", items[i]);
    d->context_to = d->text.size;
    question *q = document_ask(
        d,
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text? Answer: According to the "
        "coded text above, the three most frequently appeared words are:",
        "most frequently appeared words");
    for (uint32_t i = 1; q && i <= FREQUENT; i++) document_add(d, &q->references, vocabulary[i]);
}

static const task tasks[] = {
    {.name = "cwe",
     .summary = "RULER: the ten words of a list that appear most often",
     .make = make_cwe,
     .scorer = SCORER_MATCH_ALL,
     .max_new_tokens = 120,
     .least_size = 10},
    {.name = "fwe",
     .summary = "RULER: the three most frequent words of a coded text",
     .make = make_fwe,
     .scorer = SCORER_MATCH_ALL,
     .max_new_tokens = 50,
     .least_size = 48},
};

const task_family family_words = {tasks, sizeof tasks / sizeof tasks[0]};
