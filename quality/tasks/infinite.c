/* InfiniteBench's synthetic tasks: pass key, number string, key-value retrieval. */
#include "quality/tasks/tasks.h"

#include <string.h>

static const char passkey_intro[] =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n\n";

/* t->shape: "pass key" or "sequence of digits". */
static void make_key(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)ctx;
    const char *what = t->shape;
    const char *key = random_number(d, r, 5);
    if (t->max_new_tokens > 6) { /* each of five digits, twice */
        key = document_format(d, "%c%c%c%c%c%c%c%c%c%c", key[0], key[0], key[1], key[1], key[2],
                              key[2], key[3], key[3], key[4], key[4]);
    }
    hidden needle = {
        document_format(d, "The %s is %s. Remember it. %s is the %s.", what, key, key, what), 0};
    haystack_slots(r, size, &needle, 1, false);
    strbuf_puts(&d->text, passkey_intro);
    d->context_from = d->text.size;
    haystack_write(d, NULL, r, size, &needle, 1);
    d->context_to = d->text.size;
    question *q =
        document_ask(d, document_format(d, "\nWhat is the %s?\nThe %s is", what, what), what);
    if (!q) return;
    q->depth = (float)needle.slot / (float)size;
    document_add(d, &q->references, key);
    document_add(d, &q->needles, needle.line);
}

static void make_kv(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)t;
    const char **keys = arena_alloc_array(&d->memory, size, sizeof *keys);
    const char **values = arena_alloc_array(&d->memory, size, sizeof *values);
    if (!keys || !values) {
        d->failed = true;
        return;
    }
    strbuf_puts(&d->text,
                "Extract the value corresponding to the specified key in the JSON object below.\n\n"
                "JSON data:\n{");
    d->context_from = d->text.size;
    for (uint32_t i = 0; i < size; i++) {
        keys[i] = random_uuid(d, r);
        values[i] = random_uuid(d, r);
        strbuf_printf(&d->text, i ? ", \"%s\": \"%s\"" : "\"%s\": \"%s\"", keys[i], values[i]);
    }
    d->context_to = d->text.size;
    strbuf_puts(&d->text, "}\n\n");
    uint32_t first = rng_below(r, size);
    for (uint32_t i = 0; i < ctx->max_questions && i < size; i++) {
        /* A different key each time: the questions step through all keys evenly. */
        uint32_t k = (uint32_t)(((uint64_t)first + (uint64_t)i * size / ctx->max_questions) % size);
        question *q = document_ask(
            d,
            document_format(
                d, "\nKey: \"%s\"\nThe value associated with the specified key is: ", keys[k]),
            keys[k]);
        if (!q) return;
        q->depth = (float)k / (float)size;
        document_add(d, &q->references, values[k]);
        document_add(d, &q->needles, document_format(d, "\"%s\": \"%s\"", keys[k], values[k]));
    }
}

static const task tasks[] = {
    {.name = "passkey",
     .summary = "InfiniteBench: five digits in noise",
     .make = make_key,
     .shape = "pass key",
     .scorer = SCORER_FIRST_NUMBER,
     .max_new_tokens = 6,
     .least_size = 1},
    {.name = "number_string",
     .summary = "InfiniteBench: ten digits in noise, each twice",
     .make = make_key,
     .shape = "sequence of digits",
     .scorer = SCORER_FIRST_NUMBER,
     .max_new_tokens = 12,
     .least_size = 1},
    {.name = "kv_retrieval",
     .summary = "InfiniteBench: a value of a JSON object of uuids",
     .make = make_kv,
     .scorer = SCORER_MATCH_ALL,
     .max_new_tokens = 50,
     .between = "\n\n",
     .least_size = 1},
};

const task_family family_infinite = {tasks, sizeof tasks / sizeof tasks[0]};
