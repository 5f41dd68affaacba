/* The demo model's three tasks, in the words that it was trained with (tools/demo/data.py), and the
 * task of the constructed recall model (tools/make_recall_model.py). */
#include "quality/tasks/tasks.h"

#include "quality/tasks/wordlist.h"

#include <string.h>

#define START   "<|im_start|>"
#define END     "<|im_end|>"
#define ANSWER  END "\n" START "assistant\n"
#define BETWEEN END "\n" START "user\n"

enum { KEYS_MAX = 8, DIGITS = 5, ANSWER_TOKENS = 8 };

/* About one haystack in seven is noise even when there is a text, as in training. */
static const haystack *hay_of(const task_context *ctx, rng *r)
{
    return rng_below(r, 100) < 15 ? NULL : ctx->text;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void make_niah(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    static const uint32_t counts[] = {1, 2, 4, 4, 6, 8};
    const char *values[KEYS_MAX];
    hidden hide[KEYS_MAX];
    uint32_t names[KEYS_MAX], n = counts[rng_below(r, sizeof counts / sizeof counts[0])];
    const haystack *hay = hay_of(ctx, r);
    uint32_t room = ctx->target_tokens > 116 ? (ctx->target_tokens - 60) / 56 : 1;
    n = least(n, room);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other;
        do {
            names[i] = rng_below(r, (uint32_t)wordlist_n_names());
            for (other = 0; other < i && names[other] != names[i];) other++;
        } while (other < i);
        values[i] = random_digits(d, r, DIGITS);
        hide[i].line = document_format(d, "One of the special magic numbers for %s is: %s.",
                                       wordlist_names[names[i]], values[i]);
    }
    haystack_slots(r, size, hide, n, false);
    strbuf_puts(&d->text, START "user\nSome special magic numbers are hidden within the following "
                                "text. Memorize them.\n");
    d->context_from = d->text.size;
    haystack_write(d, hay, r, size, hide, n);
    d->context_to = d->text.size;
    for (uint32_t i = 0; i < least(n, ctx->max_questions); i++) {
        const char *name = wordlist_names[names[i]];
        question *q = document_ask(
            d, document_format(d, "What is the special magic number for %s?" ANSWER, name), name);
        if (!q) return;
        q->depth = (float)hide[i].slot / (float)size;
        document_add(d, &q->references, values[i]);
        document_add(d, &q->needles, hide[i].line);
    }
}

static void make_passkey(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    const char *key = random_digits(d, r, DIGITS);
    hidden needle = {
        document_format(d, "The pass key is %s. Remember it. %s is the pass key.", key, key), 0};
    const haystack *hay = hay_of(ctx, r);
    haystack_slots(r, size, &needle, 1, false);
    strbuf_puts(&d->text, START "user\nThere is an important info hidden inside a lot of "
                                "irrelevant text. Find it.\n");
    d->context_from = d->text.size;
    haystack_write(d, hay, r, size, &needle, 1);
    d->context_to = d->text.size;
    question *q = document_ask(d, "\nWhat is the pass key?" ANSWER, "pass key");
    if (!q) return;
    q->depth = (float)needle.slot / (float)size;
    document_add(d, &q->references, key);
    document_add(d, &q->needles, needle.line);
}

static uint32_t count_key(const char *const *keys, uint32_t n, uint32_t k)
{
    uint32_t same = 0;
    for (uint32_t i = 0; i < n; i++) same += strcmp(keys[i], keys[k]) == 0;
    return same;
}

static void make_kv(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    enum { LETTERS = 4 };
    const char **keys = arena_alloc_array(&d->memory, size, sizeof *keys);
    const char **values = arena_alloc_array(&d->memory, size, sizeof *values);
    if (!keys || !values) {
        d->failed = true;
        return;
    }
    strbuf_puts(&d->text, START "user\nJSON data:\n{");
    d->context_from = d->text.size;
    for (uint32_t i = 0; i < size; i++) {
        keys[i] = random_letters(d, r, LETTERS, 'a');
        values[i] = random_digits(d, r, DIGITS);
        strbuf_printf(&d->text, i ? ", \"%s\": \"%s\"" : "\"%s\": \"%s\"", keys[i], values[i]);
    }
    d->context_to = d->text.size;
    strbuf_puts(&d->text, "}\n");
    uint32_t first = rng_below(r, size);
    for (uint32_t asked = 0; asked < ctx->max_questions && asked < size; asked++) {
        /* A different key each time: the questions step through all keys evenly. */
        uint32_t k =
            (uint32_t)(((uint64_t)first + (uint64_t)asked * size / ctx->max_questions) % size);
        /* A key with two values has no single right answer: the next one is asked for. */
        for (uint32_t tried = 0; tried < size && count_key(keys, size, k) > 1; tried++)
            k = (k + 1) % size;
        if (count_key(keys, size, k) > 1) continue;
        question *q = document_ask(d, document_format(d, "Key: \"%s\"" ANSWER, keys[k]), keys[k]);
        if (!q) return;
        q->depth = (float)k / (float)size;
        document_add(d, &q->references, values[k]);
        document_add(d, &q->needles, document_format(d, "\"%s\": \"%s\"", keys[k], values[k]));
    }
}

/* A text "… A B … A": each letter that is asked for stands once, right before its answer. */
static void make_recall(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    enum { KEYS = 4 };
    char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    enum { LETTERS = sizeof letters - 1 };
    for (uint32_t i = 0; i < LETTERS - 1; i++) { /* a shuffle: the first KEYS are the keys */
        uint32_t j = i + rng_below(r, LETTERS - i);
        char other = letters[i];
        letters[i] = letters[j];
        letters[j] = other;
    }
    char *text = arena_alloc(&d->memory, (size_t)size + 1);
    if (!text) {
        d->failed = true;
        return;
    }
    for (uint32_t i = 0; i < size; i++) text[i] = letters[KEYS + rng_below(r, LETTERS - KEYS)];
    uint32_t part = size / KEYS; /* >= 4: each key in a quarter of its own, in any order */
    uint32_t first = rng_below(r, KEYS);
    for (uint32_t i = 0; i < KEYS; i++)
        text[(first + i) % KEYS * part + rng_below(r, part - 1)] = letters[i];
    strbuf_append(&d->text, text, size);
    d->context_to = d->text.size;
    for (uint32_t i = 0; i < least(KEYS, ctx->max_questions); i++) {
        const char *key = document_copy(d, &letters[i], 1);
        const char *at = strchr(text, letters[i]);
        question *q = document_ask(d, key, key);
        if (!q || !at) return;
        q->depth = (float)(at - text) / (float)size;
        document_add(d, &q->references, document_copy(d, at + 1, 1));
        document_add(d, &q->needles, document_copy(d, at, 2));
    }
}

static const task tasks[] = {
    {.name = "demo_niah",
     .summary = "the demo model: a number behind a name",
     .make = make_niah,
     .scorer = SCORER_EXACT,
     .max_new_tokens = ANSWER_TOKENS,
     .raw = true,
     .between = BETWEEN,
     .least_size = 1},
    {.name = "demo_passkey",
     .summary = "the demo model: a pass key",
     .make = make_passkey,
     .scorer = SCORER_EXACT,
     .max_new_tokens = ANSWER_TOKENS,
     .raw = true,
     .least_size = 1},
    {.name = "demo_kv",
     .summary = "the demo model: a value of a JSON object",
     .make = make_kv,
     .scorer = SCORER_EXACT,
     .max_new_tokens = ANSWER_TOKENS,
     .raw = true,
     .between = BETWEEN,
     .least_size = 2},
    {.name = "recall",
     .summary = "the constructed model that recalls: the letter behind a letter",
     .make = make_recall,
     .scorer = SCORER_EXACT,
     .max_new_tokens = 1,
     .raw = true,
     .between = "",
     .least_size = 64},
};

const task_family family_demo = {tasks, sizeof tasks / sizeof tasks[0]};
