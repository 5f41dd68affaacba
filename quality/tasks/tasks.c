/* The list of families, and fitting a document to a length. */
#include "quality/tasks/tasks.h"

#include <string.h>

static const task_family *const families[] = {
    &family_demo,  &family_niah,     &family_tracking,
    &family_words, &family_infinite, &family_arithmetic,
};

const task *task_at(size_t i)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        if (i < families[f]->n) return &families[f]->tasks[i];
        i -= families[f]->n;
    }
    return NULL;
}

const task *task_find(const char *name, size_t n)
{
    const task *t;
    for (size_t i = 0; (t = task_at(i)) != NULL; i++)
        if (strlen(t->name) == n && memcmp(t->name, name, n) == 0) return t;
    return NULL;
}

/* ---- fitting --------------------------------------------------------------------------------- */

typedef struct fitting {
    const task *task;
    const task_context *ctx;
    uint64_t seed;
    count_tokens count;
    void *count_ctx;
} fitting;

static status make_at(const fitting *f, uint32_t size, document *d, error *err)
{
    document_init(d);
    rng r = rng_seed(f->seed);
    f->task->make(f->task, f->ctx, &r, size, d);
    if (!d->failed && !d->text.failed && d->n_questions > 0) return STATUS_IS_OK;
    bool empty = !d->failed && !d->text.failed;
    document_destroy(d);
    if (empty) return error_set(err, STATUS_INTERNAL, "%s: has no question", f->task->name);
    return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", f->task->name);
}

/* Tokens of the longest prompt: the document's text with its longest question. */
static status measure_document(const fitting *f, const document *d, uint32_t *tokens, error *err)
{
    const char *longest = "";
    for (size_t i = 0; i < d->n_questions; i++)
        if (strlen(d->questions[i].text) >= strlen(longest)) longest = d->questions[i].text;
    strbuf prompt = {0};
    strbuf_append(&prompt, d->text.data ? d->text.data : "", d->text.size);
    strbuf_puts(&prompt, longest);
    status st = prompt.failed ? error_set(err, STATUS_NO_MEMORY, "out of memory")
                              : f->count(f->count_ctx, prompt.data, prompt.size, tokens, err);
    strbuf_destroy(&prompt);
    *tokens += f->task->max_new_tokens;
    return st;
}

static status probe(const fitting *f, uint32_t size, uint32_t *tokens, error *err)
{
    document d;
    RETURN_IF_ERROR(make_at(f, size, &d, err));
    status st = measure_document(f, &d, tokens, err);
    document_destroy(&d);
    return st;
}

/* Finds the largest size that fits, between one that does and one that does not. Tokens grow about
 * linearly with size, so each guess is where a line through both ends meets the target. */
static status find_size(const fitting *f, uint32_t *size, error *err)
{
    uint32_t target = f->ctx->target_tokens;
    uint32_t low = f->task->least_size, low_tokens, high = 0, high_tokens = 0;
    RETURN_IF_ERROR(probe(f, low, &low_tokens, err));
    if (low_tokens > target)
        return error_set(err, STATUS_LIMIT,
                         "%s: takes %u tokens at least, more than the %u of --lengths",
                         f->task->name, low_tokens, target);
    for (uint32_t step = 64; high_tokens <= target; step *= 4) {
        high = low + step;
        RETURN_IF_ERROR(probe(f, high, &high_tokens, err));
        if (high_tokens <= target) {
            low = high;
            low_tokens = high_tokens;
        }
    }
    while (high - low > 1) {
        uint64_t part = (uint64_t)(target - low_tokens) * (high - low);
        uint32_t middle = low + (uint32_t)(part / (high_tokens - low_tokens));
        if (middle <= low) middle = low + 1;
        if (middle >= high) middle = high - 1;
        uint32_t tokens;
        RETURN_IF_ERROR(probe(f, middle, &tokens, err));
        if (tokens <= target) {
            low = middle;
            low_tokens = tokens;
        } else {
            high = middle;
            high_tokens = tokens;
        }
    }
    *size = low;
    return STATUS_IS_OK;
}

status task_fit(const task *t, const task_context *ctx, uint64_t seed, count_tokens count,
                void *count_ctx, document *out, error *err)
{
    fitting f = {t, ctx, seed, count, count_ctx};
    uint32_t size = 0, tokens;
    if (t->least_size > 0) {
        RETURN_IF_ERROR(find_size(&f, &size, err));
        return make_at(&f, size, out, err);
    }
    /* The task's shape alone decides its size. */
    RETURN_IF_ERROR(make_at(&f, size, out, err));
    status st = measure_document(&f, out, &tokens, err);
    if (status_ok(st) && tokens > ctx->target_tokens)
        st = error_set(err, STATUS_LIMIT, "%s: takes %u tokens, more than the %u of --lengths",
                       t->name, tokens, ctx->target_tokens);
    if (!status_ok(st)) document_destroy(out);
    return st;
}
