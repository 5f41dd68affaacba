/* Runs plans on a mirror of the page tables, with 64 bits where a real backend has K and V. */
#include "tests/sim/sim.h"
#include <stdlib.h>
#include <string.h>

typedef struct sim_cell {
    uint64_t content;
    uint32_t rope;
} sim_cell;

typedef struct sim_slot {
    bool known; // opened at least once
    uint32_t choice;
    uint64_t seed;
    bool has_penalties;
    uint64_t history; // fold of the tokens that penalties count
} sim_slot;

/* Values of a step's measures; the scheduler may hold them for longer than the step. */
typedef struct sim_measured {
    float *values; // [max_seqs, sim_measure_floats of the longest table]
    _Atomic uint32_t holders;
    struct sim_measured *next; // among those that were left to a holder
} sim_measured;

/* A step: the plan until it has run, then the result. */
typedef struct sim_step {
    const step_plan *plan;
    bool has_run, fails;
    step_result result;
    step_seq_result *seqs; // [max_seqs]
    step_sample *samples;  // [step_most_draws]
    uint32_t n_samples;
    float *logits;        // [max_rows]
    float *novelty;       // [max_rows]
    step_sample *scores;  // [max_rows] logprob: the row's only logit
    float *pooled;        // [max_rows] the row's only logit, in place of a vector of its share
    uint16_t *embeddings; // [max_rows, 2] the halves of the row's only logit
    sim_measured *measured;
    size_t n_measures;
} sim_step;

enum { SIM_STEPS = 2, SLOT_BYTES = sizeof(uint64_t) + sizeof(uint32_t) };

struct sim_backend {
    sim_options options;
    backend_info info;
    pkv_mirror *mirror;
    uint32_t groups, sums_of, n_cells, n_host_cells;
    sim_cell *cells;   // [n_cells, page_tokens]
    uint64_t *fold;    // [n_cells, page_tokens] over the page's slots up to this one
    float *sums;       // [n_cells, page_tokens, sums_of]
    sim_cell *host;    // [n_host_cells, page_tokens]
    float *host_sums;  // [n_host_cells, page_tokens, sums_of]
    bool *host_filled; // [n_host_cells] copied to, and not yet copied back
    uint64_t *gather;  // [groups, slots of the longest table]
    float *gather_sums;
    sim_slot *slots; // [max_seqs]
    bool fail_next;
    uint64_t delays; // its bits decide which steps run only when their result is collected
    const char *wrong;
    sim_step steps[SIM_STEPS], *step; // step: the one that is running
    sim_measured *left;               // to holders
    uint32_t first, n_in_flight;
};

static uint32_t cell_at(const pkv_table_view *t, uint32_t page)
{
    return t->pages[page] + t->offset;
}

static void *need(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) abort();
    return p;
}

static size_t measured_floats(const sim_options *o)
{
    return o->max_seqs * sim_measure_floats(&o->geometry, o->max_model_len);
}

static sim_measured *make_measured(const sim_options *options)
{
    sim_measured *m = need(1, sizeof *m);
    m->values = need(measured_floats(options), sizeof *m->values);
    return m;
}

/* Values that are held are left to the holder. Others are overwritten: a late reader sees this
 * pattern. */
static void renew_measured(sim_backend *b, sim_step *step)
{
    if (atomic_load(&step->measured->holders) > 0) {
        sim_measured **link = &b->left, *free_one;
        while (*link && atomic_load(&(*link)->holders) > 0) link = &(*link)->next;
        free_one = *link;
        if (free_one) *link = free_one->next;
        step->measured->next = b->left;
        b->left = step->measured;
        step->measured = free_one ? free_one : make_measured(&b->options);
    }
    memset(step->measured->values, 0xee, step->n_measures * sizeof *step->measured->values);
    step->n_measures = 0;
}

static void free_measured(sim_backend *b, sim_measured *m)
{
    if (atomic_load(&m->holders) > 0) b->wrong = "measures are held for ever";
    free(m->values);
    free(m);
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
                             .max_in_flight = options->max_in_flight,
                             .geometry = *g,
                             .block_bytes = (size_t)b->groups * g->page_tokens * SLOT_BYTES};
    if (!status_ok(pkv_mirror_create(g, options->n_pages, options->max_seqs, NULL, &b->mirror)))
        abort();
    b->n_cells = pkv_cell_count(g, options->n_pages - 1);
    b->n_host_cells = options->n_host_pages ? pkv_cell_count(g, options->n_host_pages) : 0;
    size_t n_slots = (size_t)b->n_cells * g->page_tokens;
    size_t n_host = (size_t)b->n_host_cells * g->page_tokens;
    b->sums_of = sim_sums_of(g);
    b->cells = need(n_slots, sizeof *b->cells);
    b->fold = need(n_slots, sizeof *b->fold);
    b->sums = need(n_slots * b->sums_of, sizeof *b->sums);
    b->host = need(n_host + 1, sizeof *b->host);
    b->host_sums = need(n_host * b->sums_of + 1, sizeof *b->host_sums);
    b->host_filled = need((size_t)b->n_host_cells + 1, sizeof *b->host_filled);
    b->gather = need((size_t)b->groups * options->max_model_len, sizeof *b->gather);
    b->gather_sums =
        need((size_t)b->groups * options->max_model_len * b->sums_of, sizeof *b->gather_sums);
    b->slots = need(options->max_seqs, sizeof *b->slots);
    for (uint32_t i = 0; i < options->max_in_flight; i++) {
        sim_step *step = &b->steps[i];
        step->seqs = need(options->max_seqs, sizeof *step->seqs);
        step->samples = need(step_most_draws(options->max_seqs), sizeof *step->samples);
        step->logits = need(options->max_rows, sizeof *step->logits);
        step->novelty = need(options->max_rows, sizeof *step->novelty);
        step->scores = need(options->max_rows, sizeof *step->scores);
        step->pooled = need(options->max_rows, sizeof *step->pooled);
        step->embeddings = need(options->max_rows, 2 * sizeof *step->embeddings);
        step->measured = make_measured(options);
    }
    return b;
}

void sim_backend_fail_next(sim_backend *b) { b->fail_next = true; }
const char *sim_backend_wrong(const sim_backend *b) { return b->wrong; }

/* Updates the folds of a page's slots from `slot` on. */
static void refold(sim_backend *b, uint32_t page, uint32_t slot)
{
    uint32_t size = b->options.geometry.page_tokens;
    for (size_t at = (size_t)page * size + slot; slot < size; slot++, at++) {
        uint64_t key = sim_key(b->cells[at].content, b->cells[at].rope);
        b->fold[at] = sim_fold(slot > 0 ? b->fold[at - 1] : 0, key);
    }
}

static void put(sim_backend *b, uint32_t page, uint32_t slot, uint64_t content, uint32_t rope)
{
    size_t at = (size_t)page * b->options.geometry.page_tokens + slot;
    b->cells[at] = (sim_cell){content, rope};
    b->fold[at] = sim_fold(slot > 0 ? b->fold[at - 1] : 0, sim_key(content, rope));
}

/* A host page is read once after it was written; its contents are undefined afterwards. */
static void copy_page(sim_backend *b, const pkv_move *m)
{
    uint32_t size = b->options.geometry.page_tokens, sums = size * b->sums_of;
    bool out = m->kind == PKV_MOVE_OUT;
    uint32_t page = out ? m->src_page : m->dst_page, host = out ? m->dst_page : m->src_page;
    if (page >= b->n_cells || host >= b->n_host_cells || m->n_slots != size) {
        b->wrong = "a copy leaves its tier";
        return;
    }
    sim_cell *there = b->host + (size_t)host * size, *here = b->cells + (size_t)page * size;
    float *sums_there = b->host_sums + (size_t)host * sums,
          *sums_here = b->sums + (size_t)page * sums;
    if (!out && !b->host_filled[host]) b->wrong = "a host page comes back that was never filled";
    b->host_filled[host] = out;
    memcpy(out ? there : here, out ? here : there, size * sizeof *here);
    memcpy(out ? sums_there : sums_here, out ? sums_here : sums_there, sums * sizeof *sums_here);
    if (out) return;
    refold(b, page, 0);
    memset(there, 0xde, size * sizeof *there);
    memset(sums_there, 0x7f, sums * sizeof *sums_there);
}

static void move_slots(sim_backend *b, const pkv_move *m)
{
    uint32_t size = b->options.geometry.page_tokens, per = b->sums_of;
    if (m->src_slot + m->n_slots > size || m->dst_slot + m->n_slots > size) {
        b->wrong = "a move leaves its page";
        return;
    }
    size_t src = (size_t)m->src_page * size + m->src_slot;
    size_t dst = (size_t)m->dst_page * size + m->dst_slot;
    memmove(b->cells + dst, b->cells + src, m->n_slots * sizeof *b->cells);
    memmove(b->sums + dst * per, b->sums + src * per, (size_t)m->n_slots * per * sizeof *b->sums);
    for (uint32_t k = 0; k < m->n_slots; k++) b->cells[dst + k].rope += (uint32_t)m->rotate;
    refold(b, m->dst_page, m->dst_slot);
}

static void do_moves(sim_backend *b, const pkv_move *moves, size_t n)
{
    const pkv_geometry *g = &b->options.geometry;
    uint32_t usable = b->options.n_pages - 1, host = b->options.n_host_pages;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t c = 0; c < pkv_move_cells(g, &moves[i]); c++) {
            pkv_move cell = pkv_move_cell(g, &moves[i], c, usable, host);
            if (cell.kind == PKV_MOVE_SLOTS) move_slots(b, &cell);
            else copy_page(b, &cell);
        }
    }
}

/* A block whose sequence keeps running sums is never published, so it is without them. */
static bool sim_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                           uint8_t *const *to, uint32_t each)
{
    const sim_backend *b = ctx;
    uint32_t size = b->options.geometry.page_tokens;
    for (uint32_t i = 0; i < n * size; i++) {
        const sim_cell *cell = &b->cells[(size_t)cells[i / size] * size + i % size];
        uint8_t *at = to[i / size / each] + (size_t)(i % (each * size)) * SLOT_BYTES;
        memset(at, 0, SLOT_BYTES);
        if (i % size >= n_slots) continue;
        memcpy(at, &cell->content, sizeof cell->content);
        memcpy(at + sizeof cell->content, &cell->rope, sizeof cell->rope);
    }
    return true;
}

static bool sim_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from)
{
    sim_backend *b = ctx;
    uint32_t size = b->options.geometry.page_tokens;
    for (uint32_t i = 0; i < n * size; i++, from += SLOT_BYTES) {
        sim_cell cell = {0};
        memcpy(&cell.content, from, sizeof cell.content);
        memcpy(&cell.rope, from + sizeof cell.content, sizeof cell.rope);
        put(b, cells[i / size], i % size, cell.content, cell.rope);
    }
    return true;
}

/* The fold of what a row in slot `slot` of a table attends to: every slot before it. */
static uint64_t attended_of(const sim_backend *b, const pkv_table_view *t, uint32_t slot)
{
    uint32_t size = b->options.geometry.page_tokens, full = slot / size, fill = slot % size;
    uint64_t attended = 0;
    for (uint32_t i = 0; i < full; i++) {
        attended = sim_fold(attended, b->fold[(size_t)cell_at(t, i) * size + size - 1]);
    }
    return fill > 0 ? sim_fold(attended, b->fold[(size_t)cell_at(t, full) * size + fill - 1])
                    : attended;
}

/* Runs a row through all groups and returns its state. */
static uint64_t run_row(sim_backend *b, const step_seq *q, const pkv_table_view *tables,
                        uint32_t token, uint32_t row)
{
    uint32_t size = b->options.geometry.page_tokens;
    uint64_t x = sim_embed(token, q->position + row);
    for (uint32_t g = 0, n = sim_groups_of(&b->options.geometry, q->n_layers); g < n; g++) {
        uint32_t slot = tables[g].kept_tokens - q->n_tokens + row;
        uint64_t content = sim_content(x, g, attended_of(b, &tables[g], slot));
        put(b, cell_at(&tables[g], slot / size), slot % size, content, q->position + row);
        x = sim_next(x, content);
    }
    return x;
}

/* Copies the running sums of the tables' slots to `there`, or back. */
static void copy_sums(sim_backend *b, const pkv_table_view *t, float *there, bool back)
{
    uint32_t size = b->options.geometry.page_tokens, per = b->sums_of;
    for (uint32_t s = 0; s < t->kept_tokens; s += size) {
        uint32_t n = t->kept_tokens - s < size ? t->kept_tokens - s : size;
        float *here = b->sums + (size_t)cell_at(t, s / size) * size * per,
              *at = there + (size_t)s * per;
        memcpy(back ? here : at, back ? at : here, (size_t)n * per * sizeof *here);
    }
}

static void measure(sim_backend *b, const step_seq *q, const pkv_table_view *views,
                    measure_result *out)
{
    const pkv_geometry *geo = &b->options.geometry;
    uint32_t size = geo->page_tokens, most = b->options.max_model_len;
    sim_table tables[SIM_GROUPS_MAX];
    for (uint32_t g = 0; g < b->groups; g++) {
        uint64_t *content = b->gather + (size_t)g * most;
        float *sums = b->gather_sums + (size_t)g * most * b->sums_of;
        tables[g] = (sim_table){content, sums, views[g].kept_tokens};
        for (uint32_t s = 0; s < tables[g].n; s++)
            content[s] = b->cells[(size_t)cell_at(&views[g], s / size) * size + s % size].content;
        copy_sums(b, &views[g], sums, false);
    }
    const char *wrong = sim_measure(geo, &q->measure, q->n_tokens, tables,
                                    b->step->measured->values + b->step->n_measures, out);
    out->holders = &b->step->measured->holders;
    if (wrong) b->wrong = wrong;
    for (uint32_t g = 0; g < b->groups; g++) copy_sums(b, &views[g], tables[g].sums, true);
    b->step->n_measures += sim_measure_floats(geo, most);
}

static void sample(sim_backend *b, const step_seq *q, uint64_t x, step_seq_result *out)
{
    sim_slot *slot = &b->slots[q->seq];
    if (!slot->known || slot->choice != q->choice) {
        b->wrong = "a sequence samples that was not opened for this choice";
        return;
    }
    sim_step *step = b->step;
    if (step->n_samples + q->n_samples > step_most_draws(b->options.max_seqs)) {
        b->wrong = "more draws than a plan may have";
        return;
    }
    out->samples = step->samples + step->n_samples;
    out->n_samples = q->n_samples;
    uint64_t history = slot->history;
    for (uint32_t j = 0; j < q->n_samples; j++) {
        uint32_t token = sim_token(x, history, slot->seed, q->choice + j, q->sample_index);
        step->samples[step->n_samples++] = (step_sample){.token = token, .rank = 1};
        if (j == 0 && slot->has_penalties) slot->history = sim_fold(history, token);
    }
}

/* The token of a share's row: from the plan, or drawn by the step before, which has run. */
static uint32_t token_of(sim_backend *b, const step_plan *plan, const step_seq *q, uint32_t row)
{
    uint32_t token = plan->tokens[q->first_token + row];
    if (!q->token_from) return token;
    const sim_step *before = &b->steps[b->step == b->steps ? b->options.max_in_flight - 1 : 0];
    const step_seq_result *from = &before->seqs[q->token_from - 1];
    if (!status_ok(before->result.status)) return token; /* the result is discarded */
    if (before->result.step + 1 != plan->step || q->token_from > before->result.n_seqs ||
        from->n_samples != 1 || token != 0) {
        b->wrong = "a token is taken from no draw";
        return token;
    }
    return from->samples[0].token;
}

/* Counts the share's tokens that no draw gave. */
static void count_given(sim_backend *b, const step_plan *plan, const step_seq *q)
{
    sim_slot *slot = &b->slots[q->seq];
    if (q->n_uncounted > (q->token_from ? 0 : q->n_tokens) || (q->n_uncounted && !slot->known)) {
        b->wrong = "a share has tokens to count that are not its own";
        return;
    }
    const uint32_t *end = plan->tokens + q->first_token + q->n_tokens;
    for (const uint32_t *t = end - q->n_uncounted; slot->has_penalties && t < end; t++)
        slot->history = sim_fold(slot->history, *t);
}

static void run_seq(sim_backend *b, const step_plan *plan, const step_seq *q, step_seq_result *out)
{
    sim_step *step = b->step;
    pkv_table_view tables[SIM_GROUPS_MAX];
    uint32_t groups = sim_groups_of(&b->options.geometry, q->n_layers);
    for (uint32_t g = 0; g < b->groups; g++) {
        tables[g] = pkv_mirror_table(b->mirror, q->seq, g);
        if (g >= groups && tables[g].n_pages > 0) {
            b->wrong = "a table has pages of a layer that its sequence does not run";
            return;
        }
        if (g >= groups) continue;
        if (tables[g].kept_tokens < q->n_tokens || q->first_token + q->n_tokens > plan->n_tokens) {
            b->wrong = "a share has no slots or no tokens";
            return;
        }
    }
    if (q->position + q->n_tokens > b->options.max_model_len) {
        b->wrong = "a position beyond the model's";
        return;
    }
    count_given(b, plan, q);
    *out = (step_seq_result){0};
    uint64_t x = 0;
    for (uint32_t i = 0; i < q->n_tokens; i++) {
        x = run_row(b, q, tables, token_of(b, plan, q, i), i);
        if (q->want_logits) step->logits[step->result.n_logit_rows++] = sim_logit(x);
        uint32_t next = q->next_token;
        if (i + 1 < q->n_tokens) next = plan->tokens[q->first_token + i + 1];
        step->novelty[q->first_token + i] = sim_novelty(x, next);
        step->scores[q->first_token + i] = (step_sample){.token = next, .logprob = sim_logit(x)};
        const float logit = sim_logit(x);
        step->pooled[q->first_token + i] = logit;
        memcpy(step->embeddings + 2 * (size_t)(q->first_token + i), &logit, sizeof logit);
    }
    if (q->pooling) out->pooled = step->pooled + q->first_token;
    if (q->n_embeds) out->embeddings = step->embeddings + 2 * (size_t)q->first_token;
    if (q->want_scores) out->scores = step->scores + q->first_token;
    if (q->measure.novelty) out->novelty = step->novelty + q->first_token;
    if (q->n_samples > 0) sample(b, q, x, out);
    if (q->measure.kind != MEASURE_NONE) measure(b, q, tables, &out->measure);
}

/* Leaves what a step that broke in the middle leaves: rows that must never be read. */
static void write_garbage(sim_backend *b, const step_plan *plan)
{
    uint32_t size = b->options.geometry.page_tokens;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        for (uint32_t g = 0, n = sim_groups_of(&b->options.geometry, q->n_layers); g < n; g++) {
            pkv_table_view t = pkv_mirror_table(b->mirror, q->seq, g);
            for (uint32_t s = t.kept_tokens - q->n_tokens; s < t.kept_tokens; s++) {
                put(b, cell_at(&t, s / size), s % size, 0xdeadbeef, 77);
            }
        }
    }
}

static const backend_info *sim_info(void *ctx) { return &((sim_backend *)ctx)->info; }

/* Runs the oldest step that has not run: its rows and draws. */
static void run_next(sim_backend *b)
{
    uint32_t i = 0;
    while (i < b->n_in_flight && b->steps[(b->first + i) % b->options.max_in_flight].has_run) i++;
    if (i == b->n_in_flight) return;
    sim_step *step = b->step = &b->steps[(b->first + i) % b->options.max_in_flight];
    const step_plan *plan = step->plan;
    step->has_run = true;
    if (step->fails) {
        step->result.status = status_make(STATUS_IO, "made to fail");
        write_garbage(b, plan);
        return;
    }
    step->result.n_seqs = plan->n_seqs;
    for (uint32_t q = 0; q < plan->n_seqs && !b->wrong; q++)
        run_seq(b, plan, &plan->seqs[q], &step->seqs[q]);
}

/* Checks that a plan behind the one in flight obeys backend.h: a share whose sequence draws there
 * takes that draw, and no other share takes one. */
static void check_ahead(sim_backend *b, const step_plan *plan)
{
    const step_plan *before = b->steps[b->first].plan;
    bool fine = plan->n_seqs > 0 && before->step + 1 == plan->step;
    for (uint32_t i = 0; i < before->n_seqs; i++) {
        const step_seq *f = &before->seqs[i];
        fine &= !f->want_logits && !f->want_scores && !f->measure.novelty;
        for (uint32_t j = 0; j < plan->n_opens; j++) fine &= plan->opens[j].seq != f->seq;
        for (uint32_t j = 0; j < plan->n_seqs; j++) {
            const step_seq *q = &plan->seqs[j];
            uint32_t from = q->seq == f->seq && f->n_samples > 0 ? 1 + i : 0;
            if (q->seq == f->seq)
                fine &= q->request == f->request && f->n_samples < 2 && q->token_from == from;
            else fine &= q->token_from != 1 + i;
        }
    }
    for (uint32_t j = 0; j < plan->n_seqs; j++) {
        const step_seq *q = &plan->seqs[j];
        fine &= q->token_from <= before->n_seqs && (q->token_from == 0 || q->n_tokens == 1);
    }
    if (!fine) b->wrong = "a plan is not what may be behind one in flight";
}

static void open_slots(sim_backend *b, const step_plan *plan)
{
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
}

static status sim_submit(void *ctx, const step_plan *plan)
{
    sim_backend *b = ctx;
    if (b->n_in_flight == b->options.max_in_flight) b->wrong = "too many steps in flight";
    if (plan->n_tokens > b->options.max_rows || plan->n_seqs > b->options.max_seqs) {
        b->wrong = "a plan has more rows or sequences than agreed";
        return status_make(STATUS_INVALID, b->wrong);
    }
    if (b->n_in_flight > 0) {
        check_ahead(b, plan);
        run_next(b); /* the submitted plan is about to change the tables */
    }
    uint32_t at = (b->first + b->n_in_flight++) % b->options.max_in_flight;
    sim_step *step = &b->steps[at];
    step->plan = plan;
    step->has_run = false;
    step->fails = b->fail_next;
    b->fail_next = false;
    step->result = (step_result){.step = plan->step, .seqs = step->seqs, .logits = step->logits};
    step->n_samples = 0;
    renew_measured(b, step);
    /* A late reader of the result before last sees this pattern. */
    memset(step->samples, 0xee, step_most_draws(b->options.max_seqs) * sizeof *step->samples);
    if (!status_ok(pkv_mirror_apply(b->mirror, plan->deltas.words, plan->deltas.n_words))) {
        b->wrong = "the mirror refused the deltas";
        return status_make(STATUS_CORRUPT, b->wrong);
    }
    do_moves(b, plan->deltas.moves, plan->deltas.n_moves);
    step->result.checksum = pkv_mirror_checksum(b->mirror);
    if (step->result.checksum != plan->checksum)
        b->wrong = "the mirror's checksum differs from the plan's";
    open_slots(b, plan);
    b->delays = hash_mix64(b->delays + plan->step);
    if (b->delays & 1) run_next(b);
    return STATUS_IS_OK;
}

static status sim_collect(void *ctx, const step_result **out)
{
    sim_backend *b = ctx;
    sim_step *step = &b->steps[b->first];
    if (b->n_in_flight == 0) b->wrong = "nothing is in flight";
    if (!step->has_run) run_next(b);
    b->n_in_flight--;
    b->first = (b->first + 1) % b->options.max_in_flight;
    *out = &step->result;
    return STATUS_IS_OK;
}

static void sim_destroy(void *ctx)
{
    sim_backend *b = ctx;
    if (!b) return;
    pkv_mirror_destroy(b->mirror);
    free(b->cells);
    free(b->fold);
    free(b->sums);
    free(b->host);
    free(b->host_sums);
    free(b->gather);
    free(b->gather_sums);
    free(b->host_filled);
    free(b->slots);
    for (uint32_t i = 0; i < b->options.max_in_flight; i++) {
        free(b->steps[i].seqs);
        free(b->steps[i].samples);
        free(b->steps[i].novelty);
        free(b->steps[i].scores);
        free(b->steps[i].pooled);
        free(b->steps[i].embeddings);
        free(b->steps[i].logits);
        free_measured(b, b->steps[i].measured);
    }
    for (sim_measured *m = b->left, *next; m; m = next) {
        next = m->next;
        free_measured(b, m);
    }
    if (b->wrong) abort();
    free(b);
}

backend sim_backend_as_backend(sim_backend *b)
{
    static const backend_ops ops = {.info = sim_info,
                                    .submit = sim_submit,
                                    .collect = sim_collect,
                                    .read_cells = sim_read_cells,
                                    .write_cells = sim_write_cells,
                                    .destroy = sim_destroy};
    return (backend){&ops, b};
}
