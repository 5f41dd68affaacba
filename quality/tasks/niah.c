/* RULER's needles in a haystack: a value behind a key, hidden in noise, in a text, or among similar
 * needles. The multikey rows may ask for several keys, each in a prompt of its own. */
#include "quality/tasks/tasks.h"

#include <string.h>

enum { KEYS_MAX = 8 };

typedef enum hay_kind { HAY_NOISE, HAY_TEXT, HAY_NEEDLES } hay_kind;
typedef enum word_kind { KIND_NUMBER, KIND_WORD, KIND_UUID } word_kind;

typedef struct niah_shape {
    hay_kind hay;
    word_kind key, value;
    uint32_t keys, values, queries; // values of each key; keys asked for at once
} niah_shape;

static const char *const plural[] = {"numbers", "words", "uuids"};
static const char *const singular[] = {"number", "word", "uuid"};

typedef struct needle {
    const char *key, *value, *line;
} needle;

static const char *draw_word(document *d, rng *r, word_kind kind)
{
    switch (kind) {
    case KIND_NUMBER: return random_number(d, r, 7);
    case KIND_WORD: return random_word(d, r);
    case KIND_UUID: return random_uuid(d, r);
    }
    return "";
}

static const char *needle_line(document *d, const niah_shape *s, const char *key, const char *value)
{
    return document_format(d, "One of the special magic %s for %s is: %s.", plural[s->value], key,
                           value);
}

/* Draws a key that differs from those of the n needles before it. */
static const char *new_key(document *d, rng *r, const niah_shape *s, const needle *before, size_t n)
{
    for (;;) {
        const char *key = draw_word(d, r, s->key);
        size_t i = 0;
        while (i < n && strcmp(before[i].key, key) != 0) i++;
        if (i == n || d->failed) return key;
    }
}

static void intro(document *d, const niah_shape *s)
{
    bool one = s->queries * s->values == 1;
    const char *type = one ? singular[s->value] : plural[s->value];
    strbuf_printf(&d->text,
                  "%s special magic %s %s hidden within the following text. Make sure to memorize "
                  "it. I will quiz you about the %s afterwards.\n",
                  one ? "A" : "Some", type, one ? "is" : "are", type);
}

static const char *question_text(document *d, const niah_shape *s, const char *query)
{
    if (s->queries * s->values == 1)
        return document_format(
            d,
            "What is the special magic %s for %s mentioned in the provided "
            "text? The special magic %s for %s mentioned in the provided text is",
            singular[s->value], query, singular[s->value], query);
    return document_format(d,
                           "What are all the special magic %s for %s mentioned in the provided "
                           "text? The special magic %s for %s mentioned in the provided text are",
                           plural[s->value], query, plural[s->value], query);
}

/* Joins keys as "a, b, and c". */
static const char *joined_keys(document *d, const needle *first, uint32_t n, uint32_t step)
{
    const char *out = first->key;
    for (uint32_t i = 1; i < n; i++)
        out = document_format(d, i + 1 < n ? "%s, %s" : "%s, and %s", out, first[i * step].key);
    return out;
}

/* Adds a prompt that asks for `queries` keys, from needle `first` on. */
static void ask_keys(document *d, const niah_shape *s, const needle *first, double depth)
{
    const char *query = joined_keys(d, first, s->queries, s->values);
    question *q = document_ask(d, question_text(d, s, query), query);
    if (!q) return;
    q->depth = (float)depth;
    for (uint32_t i = 0; i < s->queries * s->values; i++) {
        document_add(d, &q->references, first[i].value);
        document_add(d, &q->needles, first[i].line);
    }
}

static double depth_of(uint32_t slot, uint32_t size)
{
    return size ? (double)slot / (double)size : 0;
}

/* Makes a document in which every line is a needle, some of which are asked for. */
static void among_needles(const niah_shape *s, const task_context *ctx, rng *r, uint32_t size,
                          document *d)
{
    needle *all = arena_alloc_array(&d->memory, size, sizeof *all);
    if (!all) {
        d->failed = true;
        return;
    }
    uint32_t asked = ctx->max_questions < size ? ctx->max_questions : size;
    for (uint32_t i = 0; i < size && !d->failed; i++) {
        const char *key = new_key(d, r, s, all, i < asked ? i : asked);
        const char *value = draw_word(d, r, s->value);
        all[i] = (needle){key, value, needle_line(d, s, key, value)};
    }
    /* The first `asked` keys differ from all others; their needles go to random lines. */
    hidden *lines = arena_alloc_array(&d->memory, asked, sizeof *lines);
    if (!lines || d->failed) {
        d->failed = true;
        return;
    }
    for (uint32_t i = 0; i < asked; i++) lines[i].line = all[i].line;
    haystack_slots(r, size - asked, lines, asked, false);
    for (uint32_t i = 0; i <= size - asked; i++) {
        for (uint32_t k = 0; k < asked; k++)
            if (lines[k].slot == i) strbuf_printf(&d->text, "%s\n", lines[k].line);
        if (i < size - asked) strbuf_printf(&d->text, "%s\n", all[asked + i].line);
    }
    for (uint32_t k = 0; k < asked; k++)
        ask_keys(d, s, &all[k], depth_of(lines[k].slot, size - asked));
}

static void in_haystack(const niah_shape *s, const task_context *ctx, rng *r, uint32_t size,
                        document *d)
{
    needle needles[KEYS_MAX];
    hidden hide[KEYS_MAX];
    uint32_t n = s->keys * s->values;
    for (uint32_t i = 0; i < n; i++) {
        const char *key = i % s->values ? needles[i - 1].key : new_key(d, r, s, needles, (size_t)i);
        const char *value = draw_word(d, r, s->value);
        needles[i] = (needle){key, value, needle_line(d, s, key, value)};
        hide[i] = (hidden){needles[i].line, 0};
    }
    haystack_slots(r, size, hide, n, false);
    haystack_write(d, s->hay == HAY_TEXT ? ctx->text : NULL, r, size, hide, n);
    uint32_t prompts = s->keys / s->queries;
    for (uint32_t i = 0; i < prompts && i < ctx->max_questions; i++) {
        uint32_t first = i * s->queries * s->values;
        ask_keys(d, s, &needles[first], depth_of(hide[first].slot, size));
    }
}

static void make_niah(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    const niah_shape *s = t->shape;
    intro(d, s);
    d->context_from = d->text.size;
    if (s->hay == HAY_NEEDLES) among_needles(s, ctx, r, size, d);
    else in_haystack(s, ctx, r, size, d);
    d->context_to = d->text.size;
}

#define NIAH_ROW(row_name, row_summary, ...)                                                       \
    {                                                                                              \
        .name = row_name, .summary = row_summary, .make = make_niah,                               \
        .shape = &(const niah_shape){__VA_ARGS__}, .scorer = SCORER_MATCH_ALL,                     \
        .max_new_tokens = 128, .between = "\n\n", .least_size = 1                                  \
    }

static const task tasks[] = {
    NIAH_ROW("niah_single_1", "RULER: one number in noise", HAY_NOISE, KIND_WORD, KIND_NUMBER, 1, 1,
             1),
    NIAH_ROW("niah_single_2", "RULER: one number in a text", HAY_TEXT, KIND_WORD, KIND_NUMBER, 1, 1,
             1),
    NIAH_ROW("niah_single_3", "RULER: one uuid in a text", HAY_TEXT, KIND_WORD, KIND_UUID, 1, 1, 1),
    NIAH_ROW("niah_multikey_1", "RULER: four keys in a text, one asked for", HAY_TEXT, KIND_WORD,
             KIND_NUMBER, 4, 1, 1),
    NIAH_ROW("niah_multikey_2", "RULER: every line is a needle, words to numbers", HAY_NEEDLES,
             KIND_WORD, KIND_NUMBER, 1, 1, 1),
    NIAH_ROW("niah_multikey_3", "RULER: every line is a needle, uuids to uuids", HAY_NEEDLES,
             KIND_UUID, KIND_UUID, 1, 1, 1),
    NIAH_ROW("niah_multivalue", "RULER: one key with four values in a text", HAY_TEXT, KIND_WORD,
             KIND_NUMBER, 1, 4, 1),
    NIAH_ROW("niah_multiquery", "RULER: four keys in a text, all asked for at once", HAY_TEXT,
             KIND_WORD, KIND_NUMBER, 4, 1, 4),
};

const task_family family_niah = {tasks, sizeof tasks / sizeof tasks[0]};
