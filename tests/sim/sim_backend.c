/* Runs plans on a mirror of the page tables, with 64 bits where a real backend has K and V. */
#include "tests/sim/sim.h"
#include <stdlib.h>
#include <string.h>

typedef struct sim_slot {
    bool known; // opened at least once
    uint32_t choice;
    uint64_t seed;
    bool has_penalties;
    uint64_t history; // fold of what penalties count
} sim_slot;

struct sim_backend {
    sim_options options;
    backend_info info;
    pkv_mirror *mirror;
    uint32_t groups;
    uint64_t *content; // [n_pages, page_tokens]
    uint64_t *fold;    // [n_pages, page_tokens] over the page's slots up to this one
    uint64_t *host;    // [n_host_pages, page_tokens] contents
    bool *host_filled; // [n_host_pages] copied to, and not yet copied back
    sim_slot *slots;   // [max_seqs]
    bool fail_next, in_flight;
    const char *wrong;
    step_result result;
    step_seq_result *seqs; // [max_seqs]
    step_sample *samples;  // [max_seqs]
    uint32_t n_samples;
    float *logits;   // [max_rows]
    float *measures; // [max_seqs, n_layers, n_kv_heads, pages of the longest table]
    size_t n_measures;
};

static void *need(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) abort();
    return p;
}

sim_backend *sim_backend_create(const sim_options *options)
{
    sim_backend *b = need(1, sizeof *b);
    const pkv_geometry *g = &options->geometry;
    b->options = *options;
    b->groups = pkv_groups(g);
    b->info = (backend_info){.name = "sim",
                             .vocab_size = 1,
                             .max_positions = options->max_model_len,
                             .max_rows = options->max_rows,
                             .max_seqs = options->max_seqs,
                             .n_pages = options->n_pages,
                             .n_host_pages = options->n_host_pages,
                             .max_in_flight = 1,
                             .geometry = *g};
    if (!status_ok(pkv_mirror_create(g, options->n_pages, options->max_seqs, NULL, &b->mirror)))
        abort();
    size_t n_slots = (size_t)options->n_pages * g->page_tokens;
    size_t max_pages = options->max_model_len / g->page_tokens + 1;
    b->content = need(n_slots, sizeof *b->content);
    b->fold = need(n_slots, sizeof *b->fold);
    b->host = need((size_t)options->n_host_pages * g->page_tokens + 1, sizeof *b->host);
    b->host_filled = need((size_t)options->n_host_pages + 1, sizeof *b->host_filled);
    b->slots = need(options->max_seqs, sizeof *b->slots);
    b->seqs = need(options->max_seqs, sizeof *b->seqs);
    b->samples = need(options->max_seqs, sizeof *b->samples);
    b->logits = need(options->max_rows, sizeof *b->logits);
    b->measures = need((size_t)options->max_seqs * g->n_layers * g->n_kv_heads * max_pages,
                       sizeof *b->measures);
    return b;
}

void sim_backend_fail_next(sim_backend *b) { b->fail_next = true; }
const char *sim_backend_wrong(const sim_backend *b) { return b->wrong; }

static void put(sim_backend *b, uint32_t page, uint32_t slot, uint64_t content)
{
    size_t at = (size_t)page * b->options.geometry.page_tokens + slot;
    b->content[at] = content;
    b->fold[at] = sim_fold(slot > 0 ? b->fold[at - 1] : 0, content);
}

/* A host page is read once after it was written: what it holds then is nobody's. */
static void copy_page(sim_backend *b, const pkv_move *m)
{
    uint32_t size = b->options.geometry.page_tokens;
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    if (page >= b->options.n_pages || host >= b->options.n_host_pages || m->n_slots != size) {
        b->wrong = "a copy leaves its tier";
        return;
    }
    uint64_t *there = b->host + (size_t)host * size;
    if (!out && !b->host_filled[host]) b->wrong = "a host page comes back that nobody filled";
    b->host_filled[host] = out;
    for (uint32_t k = 0; k < size; k++) {
        if (out) there[k] = b->content[(size_t)page * size + k];
        else put(b, page, k, there[k]);
        if (!out) there[k] = 0xdeadbeef;
    }
}

static void do_moves(sim_backend *b, const pkv_move *moves, size_t n)
{
    uint32_t size = b->options.geometry.page_tokens;
    for (size_t i = 0; i < n; i++) {
        const pkv_move *m = &moves[i];
        if (m->kind != PKV_MOVE_SLOTS) {
            copy_page(b, m);
            continue;
        }
        if (m->src_slot + m->n_slots > size || m->dst_slot + m->n_slots > size) {
            b->wrong = "a move leaves its page";
            return;
        }
        for (uint32_t k = 0; k < m->n_slots; k++) {
            put(b, m->dst_page, m->dst_slot + k,
                b->content[(size_t)m->src_page * size + m->src_slot + k]);
        }
    }
}

/* What a row in slot `slot` of a table attends to: every slot before it. */
static uint64_t attended_of(const sim_backend *b, const pkv_table_view *t, uint32_t slot)
{
    uint32_t size = b->options.geometry.page_tokens, full = slot / size, fill = slot % size;
    uint64_t attended = 0;
    for (uint32_t i = 0; i < full; i++) {
        attended = sim_fold(attended, b->fold[(size_t)t->pages[i] * size + size - 1]);
    }
    return fill > 0 ? sim_fold(attended, b->fold[(size_t)t->pages[full] * size + fill - 1])
                    : attended;
}

/* The row's state after all groups. */
static uint64_t run_row(sim_backend *b, const step_seq *q, const pkv_table_view *tables,
                        uint32_t token, uint32_t row)
{
    uint32_t size = b->options.geometry.page_tokens;
    uint64_t x = sim_embed(token, q->position + row);
    for (uint32_t g = 0; g < b->groups; g++) {
        uint32_t slot = tables[g].kept_tokens - q->n_tokens + row;
        uint64_t content = sim_content(x, g, attended_of(b, &tables[g], slot));
        put(b, tables[g].pages[slot / size], slot % size, content);
        x = sim_next(x, content);
    }
    return x;
}

static void measure(sim_backend *b, const step_seq *q, const pkv_table_view *tables,
                    measure_result *out)
{
    const pkv_geometry *geo = &b->options.geometry;
    uint32_t size = geo->page_tokens, step = q->measure.layer_step, stride = 0;
    if (step == 0 || q->measure.rows == 0 || q->measure.rows > q->n_tokens) {
        b->wrong = "a measure of rows that are not in the step";
        return;
    }
    for (uint32_t g = 0; g < b->groups; g++) {
        if (tables[g].n_pages > stride) stride = tables[g].n_pages;
    }
    float *values = b->measures + b->n_measures;
    *out = (measure_result){.values = values,
                            .n_layers = (geo->n_layers + step - 1) / step,
                            .n_kv_heads = geo->n_kv_heads,
                            .stride = stride};
    for (uint32_t l = 0; l < out->n_layers; l++) {
        for (uint32_t h = 0; h < geo->n_kv_heads; h++, values += stride) {
            const pkv_table_view *t = &tables[pkv_group_of(geo, l * step, h)];
            uint64_t rows = 0;
            for (uint32_t s = t->kept_tokens - q->measure.rows; s < t->kept_tokens; s++) {
                rows = sim_fold(rows, b->content[(size_t)t->pages[s / size] * size + s % size]);
            }
            for (uint32_t i = 0; i < t->n_pages; i++) {
                uint32_t fill = i + 1 < t->n_pages ? size : (t->kept_tokens - 1) % size + 1;
                values[i] =
                    sim_mass(b->fold[(size_t)t->pages[i] * size + fill - 1], rows, l * step, h);
            }
        }
    }
    b->n_measures += (size_t)out->n_layers * out->n_kv_heads * stride;
}

static void sample(sim_backend *b, const step_seq *q, uint64_t x, step_seq_result *out)
{
    sim_slot *slot = &b->slots[q->seq];
    if (!slot->known || slot->choice != q->choice) {
        b->wrong = "a sequence samples that was not opened for this choice";
        return;
    }
    if (b->n_samples + q->n_samples > b->options.max_seqs) {
        b->wrong = "more draws than sequences";
        return;
    }
    out->samples = b->samples + b->n_samples;
    out->n_samples = q->n_samples;
    uint64_t history = slot->history;
    for (uint32_t j = 0; j < q->n_samples; j++) {
        uint32_t token = sim_token(x, history, slot->seed, q->choice + j, q->sample_index);
        b->samples[b->n_samples++] = (step_sample){.token = token, .rank = 1};
        if (j == 0 && slot->has_penalties) slot->history = sim_fold(history, token);
    }
}

static void run_seq(sim_backend *b, const step_plan *plan, const step_seq *q, step_seq_result *out)
{
    pkv_table_view tables[64];
    for (uint32_t g = 0; g < b->groups; g++) {
        tables[g] = pkv_mirror_table(b->mirror, q->seq, g);
        if (tables[g].kept_tokens < q->n_tokens || q->first_token + q->n_tokens > plan->n_tokens) {
            b->wrong = "a share has no slots or no tokens";
            return;
        }
    }
    *out = (step_seq_result){0};
    uint64_t x = 0;
    for (uint32_t i = 0; i < q->n_tokens; i++) {
        x = run_row(b, q, tables, plan->tokens[q->first_token + i], i);
        if (q->want_logits) b->logits[b->result.n_logit_rows++] = sim_logit(x);
    }
    if (q->n_samples > 0) sample(b, q, x, out);
    if (q->measure.kind != MEASURE_NONE) measure(b, q, tables, &out->measure);
}

/* What a step leaves that broke in the middle: rows that nobody may ever read. */
static void write_garbage(sim_backend *b, const step_plan *plan)
{
    uint32_t size = b->options.geometry.page_tokens;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        for (uint32_t g = 0; g < b->groups; g++) {
            pkv_table_view t = pkv_mirror_table(b->mirror, q->seq, g);
            for (uint32_t s = t.kept_tokens - q->n_tokens; s < t.kept_tokens; s++) {
                put(b, t.pages[s / size], s % size, 0xdeadbeef);
            }
        }
    }
}

static const backend_info *sim_info(void *ctx) { return &((sim_backend *)ctx)->info; }

static status sim_submit(void *ctx, const step_plan *plan)
{
    sim_backend *b = ctx;
    b->result = (step_result){.step = plan->step, .seqs = b->seqs, .logits = b->logits};
    b->n_samples = 0;
    b->n_measures = 0;
    if (b->in_flight) b->wrong = "two steps in flight";
    if (plan->n_tokens > b->options.max_rows || plan->n_seqs > b->options.max_seqs) {
        b->wrong = "a plan has more rows or sequences than agreed";
        return status_make(STATUS_INVALID, b->wrong);
    }
    b->in_flight = true;
    if (!status_ok(pkv_mirror_apply(b->mirror, plan->deltas.words, plan->deltas.n_words))) {
        b->wrong = "the mirror refused the deltas";
        return status_make(STATUS_CORRUPT, b->wrong);
    }
    do_moves(b, plan->deltas.moves, plan->deltas.n_moves);
    b->result.checksum = pkv_mirror_checksum(b->mirror);
    if (b->result.checksum != plan->checksum)
        b->wrong = "the mirror's checksum differs from the plan's";
    for (uint32_t i = 0; i < plan->n_opens; i++) {
        const step_open *o = &plan->opens[i];
        sim_slot *slot = &b->slots[o->seq];
        *slot = (sim_slot){.known = true,
                           .choice = o->choice,
                           .seed = o->params->seed,
                           .has_penalties = sim_has_penalties(o->params)};
        for (uint32_t k = 0; k < o->n_history; k++)
            slot->history = sim_fold(slot->history, o->history[k]);
    }
    if (b->fail_next) {
        b->fail_next = false;
        b->result.status = status_make(STATUS_IO, "made to fail");
        write_garbage(b, plan);
        return STATUS_IS_OK;
    }
    b->result.n_seqs = plan->n_seqs;
    for (uint32_t i = 0; i < plan->n_seqs && !b->wrong; i++)
        run_seq(b, plan, &plan->seqs[i], &b->seqs[i]);
    return STATUS_IS_OK;
}

static status sim_collect(void *ctx, const step_result **out)
{
    sim_backend *b = ctx;
    b->in_flight = false;
    *out = &b->result;
    return STATUS_IS_OK;
}

static void sim_destroy(void *ctx)
{
    sim_backend *b = ctx;
    if (!b) return;
    pkv_mirror_destroy(b->mirror);
    free(b->content);
    free(b->fold);
    free(b->host);
    free(b->host_filled);
    free(b->slots);
    free(b->seqs);
    free(b->samples);
    free(b->logits);
    free(b->measures);
    free(b);
}

backend sim_backend_as_backend(sim_backend *b)
{
    static const backend_ops ops = {
        .info = sim_info, .submit = sim_submit, .collect = sim_collect, .destroy = sim_destroy};
    return (backend){&ops, b};
}
