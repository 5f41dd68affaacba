/* Word problems: many-shot arithmetic, and many questions answered in one long output as in
 * LongGenBench. */
#include "quality/tasks/tasks.h"

#include "quality/tasks/wordlist.h"

#include <string.h>

enum { DEMOS = 8, TOKENS_FOR_ANSWER = 128 };

typedef struct problem {
    const char *text, *solution;
    uint32_t answer;
} problem;

/* The question and the solution of a word problem over three numbers a, b and c. */
typedef struct story {
    const char *text;     // name, thing, a, b, c
    const char *solution; // a, b, a ? b, a ? b, c, answer
    bool product;         // a * b first, else a + b
    bool minus;           // then - c, else + c
} story;

static const story stories[] = {
    {"%1$s has %3$u boxes with %4$u %2$ss in each of them. %1$s gives %5$u of them away. How many "
     "%2$ss are left?",
     "There are %1$u * %2$u = %3$u at first. Then there are %3$u - %4$u = %5$u.", true, true},
    {"%1$s finds %3$u %2$ss on Monday and %4$u on Tuesday, and loses %5$u on the way home. How "
     "many %2$ss does %1$s bring home?",
     "Both days make %1$u + %2$u = %3$u. After the loss there are %3$u - %4$u = %5$u.", false,
     true},
    {"A shelf holds %3$u rows of %4$u %2$ss. %1$s puts %5$u more beside them. How many %2$ss are "
     "there now?",
     "The rows hold %1$u * %2$u = %3$u. With the others there are %3$u + %4$u = %5$u.", true,
     false},
    {"%1$s buys %3$u %2$ss, then %4$u, then %5$u. How many %2$ss did %1$s buy?",
     "The first two make %1$u + %2$u = %3$u. With the last there are %3$u + %4$u = %5$u.", false,
     false},
};

static problem draw_problem(document *d, rng *r)
{
    const story *s = &stories[rng_below(r, sizeof stories / sizeof stories[0])];
    const char *name = wordlist_names[rng_below(r, (uint32_t)wordlist_n_names())];
    const char *thing = wordlist_nouns[rng_below(r, (uint32_t)wordlist_n_nouns())];
    uint32_t a = 2 + rng_below(r, 18), b = 2 + rng_below(r, 18);
    uint32_t both = s->product ? a * b : a + b;
    uint32_t c = 1 + rng_below(r, s->minus ? both - 1 : 30);
    problem p = {.answer = s->minus ? both - c : both + c};
    /* The formats are rows of the table above. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    p.text = document_format(d, s->text, name, thing, a, b, c);
    p.solution = document_format(d, s->solution, a, b, both, c, p.answer);
#pragma GCC diagnostic pop
    return p;
}

/* ---- many shots, one question ---------------------------------------------------------------- */

static void make_many_shot(const task *t, const task_context *ctx, rng *r, uint32_t size,
                           document *d)
{
    (void)t;
    for (uint32_t i = 0; i < size && !d->failed; i++) {
        problem p = draw_problem(d, r);
        strbuf_printf(&d->text, "Question: %s\nAnswer: %s The answer is %u.\n\n", p.text,
                      p.solution, p.answer);
    }
    d->context_to = d->text.size;
    for (uint32_t i = 0; i < ctx->max_questions; i++) {
        problem p = draw_problem(d, r);
        question *q = document_ask(d, document_format(d, "Question: %s\nAnswer:", p.text), p.text);
        if (!q) return;
        document_add(d, &q->references, document_format(d, "%u", p.answer));
    }
}

/* ---- many questions, one answer -------------------------------------------------------------- */

static void make_longgen(const task *t, const task_context *ctx, rng *r, uint32_t size, document *d)
{
    (void)ctx;
    (void)size;
    const uint32_t *questions = t->shape;
    strbuf_puts(&d->text, "Answer each question step by step, in their order, and end each answer "
                          "with \"The answer is\" and the number.\n\nExamples: \n");
    for (uint32_t i = 1; i <= DEMOS; i++) {
        problem p = draw_problem(d, r);
        strbuf_printf(&d->text, "Question_%u:\n%s\nAnswer_%u: %s The answer is %u.\n\n", i, p.text,
                      i, p.solution, p.answer);
    }
    strbuf_puts(&d->text, "Following Question: \n");
    question *q = document_ask(d, "\n", "answer");
    for (uint32_t i = DEMOS + 1; q && i <= DEMOS + *questions; i++) {
        problem p = draw_problem(d, r);
        strbuf_printf(&d->text, "Question_%u:\n%s\n", i, p.text);
        document_add(d, &q->references, document_format(d, "%u", p.answer));
    }
    d->context_to = d->text.size;
}

#define LONGGEN_ROW(row_name, questions, row_summary)                                              \
    {                                                                                              \
        .name = row_name, .summary = row_summary, .make = make_longgen,                            \
        .shape = &(const uint32_t){questions}, .scorer = SCORER_NUMBERED,                          \
        .max_new_tokens = (questions)*TOKENS_FOR_ANSWER, .least_size = 0                           \
    }

static const task tasks[] = {
    {.name = "many_shot",
     .summary = "arithmetic word problems behind as many solved ones as fit",
     .make = make_many_shot,
     .scorer = SCORER_ANSWER_NUMBER,
     .max_new_tokens = TOKENS_FOR_ANSWER,
     .between = "\n\n",
     .least_size = 1},
    LONGGEN_ROW("longgen_30", 30, "LongGenBench's form: 30 word problems in one answer"),
    LONGGEN_ROW("longgen_60", 60, "LongGenBench's form: 60 word problems in one answer"),
};

const task_family family_arithmetic = {tasks, sizeof tasks / sizeof tasks[0]};
