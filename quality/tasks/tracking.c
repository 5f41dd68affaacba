/* RULER's variable tracking: a chain of assignments in noise, with an example before it. */
#include "quality/tasks/tasks.h"

#include <string.h>

enum { HOPS = 4, CHAIN = HOPS + 1, EXAMPLE_LINES = 8 };

static const char intro[] = "Memorize and track the chain(s) of variable assignment hidden in the "
                            "following text.\n\n";

typedef struct chain {
    const char *names[CHAIN], *value;
    hidden lines[CHAIN];
} chain;

static void draw_chain(document *d, rng *r, uint32_t letters, chain *c)
{
    for (uint32_t i = 0; i < CHAIN; i++) {
        uint32_t other;
        do {
            c->names[i] = random_letters(d, r, letters, 'A');
            for (other = 0; other < i && strcmp(c->names[other], c->names[i]) != 0;) other++;
        } while (other < i && !d->failed);
    }
    c->value = document_format(d, "%u", 10000 + rng_below(r, 89999));
    c->lines[0].line = document_format(d, "VAR %s = %s", c->names[0], c->value);
    for (uint32_t i = 1; i < CHAIN; i++)
        c->lines[i].line = document_format(d, "VAR %s = VAR %s ", c->names[i], c->names[i - 1]);
}

static const char *ask_for(document *d, const char *value)
{
    return document_format(d,
                           "\nQuestion: Find all variables that are assigned the value %s in the "
                           "text above. Answer: According to the chain(s) of variable assignment "
                           "in the text above, %d variables are assigned the value %s, they are: ",
                           value, CHAIN, value);
}

static void write_chain(document *d, rng *r, uint32_t lines, chain *c)
{
    haystack_slots(r, lines, c->lines, CHAIN, true);
    haystack_write(d, NULL, r, lines, c->lines, CHAIN);
    /* The context ends without a newline, because the question begins with one. */
    d->text.size--;
    d->text.data[d->text.size] = 0;
}

static void make_tracking(const task *t, const task_context *ctx, rng *r, uint32_t size,
                          document *d)
{
    (void)t;
    (void)ctx;
    chain example, c;
    draw_chain(d, r, 3, &example);
    draw_chain(d, r, 5, &c);
    if (d->failed) return;
    strbuf_puts(&d->text, intro);
    write_chain(d, r, EXAMPLE_LINES, &example);
    strbuf_puts(&d->text, ask_for(d, example.value));
    for (uint32_t i = 0; i < CHAIN; i++)
        strbuf_printf(&d->text, i ? " %s" : "%s", example.names[i]);
    strbuf_printf(&d->text, "\n%s", intro);
    d->context_from = d->text.size;
    write_chain(d, r, size, &c);
    d->context_to = d->text.size;
    question *q = document_ask(d, ask_for(d, c.value), c.value);
    if (!q) return;
    q->depth = (float)c.lines[0].slot / (float)size;
    for (uint32_t i = 0; i < CHAIN; i++) {
        document_add(d, &q->references, c.names[i]);
        document_add(d, &q->needles, c.lines[i].line);
    }
}

static const task tasks[] = {
    {.name = "vt",
     .summary = "RULER: variables that share a value through four assignments",
     .make = make_tracking,
     .scorer = SCORER_MATCH_ALL,
     .max_new_tokens = 30,
     .least_size = 1},
};

const task_family family_tracking = {tasks, sizeof tasks / sizeof tasks[0]};
