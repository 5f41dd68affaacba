#include "cli/heads_tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACTS = 8, WORDS = 16, KEY_LETTERS = 10, LINE_BYTES = 160, NAME_BYTES = 16 };

static const char *const names[HEADS_TASKS] = {"pattern", "multi-hop"};

const char *heads_task_name(heads_task task) { return names[task]; }

/* ---- words ----------------------------------------------------------------------------------- */

static const char *const adjectives[WORDS] = {"old",   "green", "quiet", "small", "bright", "cold",
                                              "heavy", "young", "empty", "long",  "dark",   "warm",
                                              "plain", "brave", "slow",  "round"};
static const char *const nouns[WORDS] = {"river", "garden", "table",  "horse",  "window", "letter",
                                         "city",  "forest", "bridge", "market", "lamp",   "field",
                                         "tower", "ship",   "road",   "kitchen"};
static const char *const verbs[WORDS] = {"follows", "leaves", "holds",  "hides",  "finds",  "meets",
                                         "passes",  "keeps",  "shows",  "covers", "brings", "needs",
                                         "opens",   "paints", "builds", "watches"};
static const char *const jobs[WORDS] = {
    "teacher", "baker",  "doctor", "miner", "painter", "judge",  "farmer", "pilot",
    "plumber", "singer", "lawyer", "smith", "sailor",  "tailor", "actor",  "gardener"};
static const char *const syllables[WORDS] = {"ba", "ke", "lo", "mi", "nu", "ra", "so", "ti",
                                             "va", "we", "do", "fi", "ga", "hu", "jo", "pe"};

static const char *pick(rng *r, const char *const *words) { return words[rng_below(r, WORDS)]; }

/* Ten random letters and digits. */
static void random_key(rng *r, char out[KEY_LETTERS + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    for (int i = 0; i < KEY_LETTERS; i++) out[i] = letters[rng_below(r, sizeof letters - 1)];
    out[KEY_LETTERS] = 0;
}

/* A name of four syllables: two of these are hardly ever equal. */
static void random_name(rng *r, char out[NAME_BYTES])
{
    int n = 0;
    for (int i = 0; i < 4; i++)
        n += snprintf(out + n, (size_t)(NAME_BYTES - n), "%s", pick(r, syllables));
    out[0] = (char)(out[0] - 'a' + 'A');
}

/* ---- facts ----------------------------------------------------------------------------------- */

typedef struct fact {
    char line[LINE_BYTES];
    double place; // of the text's length
    bool gold;
} fact;

typedef struct facts {
    fact list[2 * FACTS];
    uint32_t n;
    char question[LINE_BYTES];
} facts;

static fact *add_fact(facts *f, rng *r, bool gold)
{
    fact *x = &f->list[f->n++];
    x->gold = gold;
    x->place = (double)rng_below(r, 1 << 20) / (1 << 20);
    return x;
}

static void make_pattern(facts *f, rng *r)
{
    uint32_t asked = rng_below(r, FACTS);
    for (uint32_t i = 0; i < FACTS; i++) {
        char key[KEY_LETTERS + 1], value[KEY_LETTERS + 1];
        random_key(r, key);
        random_key(r, value);
        snprintf(add_fact(f, r, i == asked)->line, LINE_BYTES,
                 "The value corresponding to the id %s is %s.\n", key, value);
        if (i == asked)
            snprintf(f->question, LINE_BYTES, "\nWhat is the value corresponding to the id %s?",
                     key);
    }
}

/* Two facts answer the question, and the second has no word of it but the kind of fact. */
static void make_multi_hop(facts *f, rng *r)
{
    uint32_t asked = rng_below(r, FACTS);
    for (uint32_t i = 0; i < FACTS; i++) {
        char one[NAME_BYTES], other[NAME_BYTES];
        random_name(r, one);
        random_name(r, other);
        snprintf(add_fact(f, r, i == asked)->line, LINE_BYTES, "The neighbour of %s is %s.\n", one,
                 other);
        snprintf(add_fact(f, r, i == asked)->line, LINE_BYTES, "%s earns a living as a %s.\n",
                 other, pick(r, jobs));
        if (i == asked)
            snprintf(f->question, LINE_BYTES, "\nWhat does the neighbour of %s do for a living?",
                     one);
    }
}

/* Sorts facts by place. */
static int compare_places(const void *a, const void *b)
{
    double x = ((const fact *)a)->place, y = ((const fact *)b)->place;
    return x < y ? -1 : x > y;
}

/* ---- the text -------------------------------------------------------------------------------- */

typedef struct writer {
    const tokenizer *t;
    rng *r;
    const char *const *lines;
    size_t n_lines, at;
    heads_sample *out;
    error *err;
} writer;

/* Appends a text of its own tokens; gold: they are needed for the answer. */
static status put(writer *w, const char *text, bool gold)
{
    heads_sample *s = w->out;
    size_t from = s->ids.n;
    RETURN_IF_ERROR(tok_encode(w->t, text, strlen(text), from == 0, &s->ids, w->err));
    if (s->ids.n > s->capacity) {
        bool *grown = alloc_resize(NULL, s->gold, 2 * s->ids.n, sizeof *grown);
        if (!grown) return error_set(w->err, STATUS_NO_MEMORY, "out of memory");
        s->gold = grown;
        s->capacity = (uint32_t)(2 * s->ids.n);
    }
    for (size_t i = from; i < s->ids.n; i++) s->gold[i] = gold;
    if (gold) s->n_gold += (uint32_t)(s->ids.n - from);
    return STATUS_IS_OK;
}

static status put_filler(writer *w)
{
    char line[LINE_BYTES];
    if (w->n_lines > 0) {
        RETURN_IF_ERROR(put(w, w->lines[w->at++ % w->n_lines], false));
        return put(w, "\n", false);
    }
    snprintf(line, sizeof line, "The %s %s %s the %s %s.\n", pick(w->r, adjectives),
             pick(w->r, nouns), pick(w->r, verbs), pick(w->r, adjectives), pick(w->r, nouns));
    return put(w, line, false);
}

static status count_tokens(const tokenizer *t, const char *text, size_t *n, error *err)
{
    tok_ids ids = {0};
    status s = tok_encode(t, text, strlen(text), false, &ids, err);
    *n += ids.n;
    tok_ids_destroy(&ids);
    return s;
}

/* Writes filler with the facts at their places, so that with the question it has n tokens at
 * most, unless a line is longer than all of that. */
static status write_text(writer *w, const facts *f, uint32_t n)
{
    size_t facts_tokens = 0, written = 0, empty = 0; /* lines one after another without tokens */
    uint32_t next = 0;
    RETURN_IF_ERROR(count_tokens(w->t, f->question, &facts_tokens, w->err));
    for (uint32_t i = 0; i < f->n; i++)
        RETURN_IF_ERROR(count_tokens(w->t, f->list[i].line, &facts_tokens, w->err));
    size_t room = n > facts_tokens ? n - facts_tokens : 0, line = 0;
    while (written + line < room) {
        for (; next < f->n && f->list[next].place * (double)room <= (double)written; next++)
            RETURN_IF_ERROR(put(w, f->list[next].line, f->list[next].gold));
        size_t before = w->out->ids.n;
        RETURN_IF_ERROR(put_filler(w));
        size_t some = w->out->ids.n - before;
        empty = some ? 0 : empty + 1;
        if (empty > w->n_lines)
            return error_set(w->err, STATUS_UNSUPPORTED,
                             "tokenizer: it makes no tokens of the lines between the facts");
        written += some;
        if (some > line) line = some;
    }
    for (; next < f->n; next++) RETURN_IF_ERROR(put(w, f->list[next].line, f->list[next].gold));
    return STATUS_IS_OK;
}

status heads_sample_make(heads_task task, const tokenizer *t, uint32_t n_tokens, rng *r,
                         const char *const *lines, size_t n_lines, heads_sample *out, error *err)
{
    facts f = {.n = 0};
    if (task == HEADS_PATTERN) make_pattern(&f, r);
    else make_multi_hop(&f, r);
    qsort(f.list, f.n, sizeof *f.list, compare_places);
    out->ids.n = 0;
    out->n_gold = 0;
    writer w = {.t = t, .r = r, .lines = lines, .n_lines = n_lines, .out = out, .err = err};
    if (n_lines > 0) w.at = rng_below(r, (uint32_t)n_lines);
    RETURN_IF_ERROR(write_text(&w, &f, n_tokens));
    out->n_context = (uint32_t)out->ids.n;
    return put(&w, f.question, false);
}

void heads_sample_destroy(heads_sample *s)
{
    tok_ids_destroy(&s->ids);
    free(s->gold);
}
