/* Runs one request at a time, row by row, in a pool of its own that is always large enough: nothing
 * is shared, scheduled, moved or replayed. Contents are indexed by logical position, so that a
 * wrong move cannot affect them; which slots stay, in which order, is decided by paged_kv and
 * retention. */
#include "tests/sim/sim.h"
#include <stdlib.h>
#include <string.h>

/* One group's cache. */
typedef struct ref_table {
    uint64_t *content; // [rows] by logical index
    float *sums;       // [rows, sums_of]
    uint64_t full;     // fold over the full pages
    uint64_t last;     // over the page being filled
} ref_table;

typedef struct ref_line {
    pkv *kv;
    uint32_t seq;
    const pkv_geometry *g;
    uint32_t groups, rows, sums_of;
    uint32_t n_layers; // that its rows run, 0 = all
    bool contiguous;
    ref_table tables[SIM_GROUPS_MAX];
    /* Scratch for a selection. */
    uint64_t *keep, *slots;
    float *scratch, *values, *slot_sums;
    float *novelty; // [rows] by logical index
    uint64_t dropped;
} ref_line;

static void *need(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p) abort();
    return p;
}

static ref_line line_create(const pkv_geometry *g, uint32_t rows)
{
    ref_line l = {.g = g, .groups = pkv_groups(g), .rows = rows, .sums_of = sim_sums_of(g)};
    pkv_options o = {
        .geometry = *g, .n_pages = 1 + 6 * l.groups * (rows / g->page_tokens + 2), .max_seqs = 2};
    if (!status_ok(pkv_create(&o, &l.kv))) abort();
    for (uint32_t i = 0; i < l.groups; i++) {
        l.tables[i].content = need(rows, sizeof *l.tables[i].content);
        l.tables[i].sums = need((size_t)rows * l.sums_of, sizeof *l.tables[i].sums);
    }
    l.keep = need((size_t)l.groups * (rows / 64 + 1), sizeof *l.keep);
    l.slots = need((size_t)l.groups * rows, sizeof *l.slots);
    l.slot_sums = need((size_t)l.groups * rows * l.sums_of, sizeof *l.slot_sums);
    l.novelty = need(rows, sizeof *l.novelty);
    l.scratch = need(retention_scratch_floats(g, rows), sizeof *l.scratch);
    l.values = need(sim_measure_floats(g, rows), sizeof *l.values);
    return l;
}

static void line_destroy(ref_line *l)
{
    pkv_destroy(l->kv);
    for (uint32_t i = 0; i < l->groups; i++) {
        free(l->tables[i].content);
        free(l->tables[i].sums);
    }
    free(l->keep);
    free(l->novelty);
    free(l->slots);
    free(l->slot_sums);
    free(l->scratch);
    free(l->values);
}

/* A fork of the line, as sequence 1 of the same pool. */
static ref_line line_fork(const ref_line *from)
{
    ref_line l = *from;
    l.seq = 1;
    if (!status_ok(pkv_seq_fork(l.kv, from->seq, l.seq, l.rows))) abort();
    for (uint32_t i = 0; i < l.groups; i++) {
        size_t sums = (size_t)l.rows * l.sums_of;
        l.tables[i].content = need(l.rows, sizeof *l.tables[i].content);
        l.tables[i].sums = need(sums, sizeof *l.tables[i].sums);
        memcpy(l.tables[i].content, from->tables[i].content, l.rows * sizeof(uint64_t));
        memcpy(l.tables[i].sums, from->tables[i].sums, sums * sizeof(float));
    }
    return l;
}

static void line_close(ref_line *l)
{
    pkv_seq_close(l->kv, l->seq);
    pkv_take_deltas(l->kv);
    for (uint32_t i = 0; i < l->groups; i++) {
        free(l->tables[i].content);
        free(l->tables[i].sums);
    }
}

static uint32_t rope_of(const ref_line *l, uint32_t slot, uint32_t logical)
{
    return l->contiguous ? slot : logical;
}

/* Runs one row; returns its state after all groups. */
static uint64_t run_row(ref_line *l, uint32_t token)
{
    uint32_t logical = pkv_seq_length(l->kv, l->seq), size = l->g->page_tokens;
    uint32_t first = pkv_seq_table(l->kv, l->seq, 0).kept_tokens;
    uint64_t x = sim_embed(token, rope_of(l, first, logical));
    if (!status_ok(pkv_seq_append(l->kv, l->seq, 1))) abort();
    pkv_take_deltas(l->kv);
    for (uint32_t g = 0, n = sim_groups_of(l->g, l->n_layers); g < n; g++) {
        ref_table *t = &l->tables[g];
        uint32_t slot = pkv_seq_table(l->kv, l->seq, g).kept_tokens - 1, fill = slot % size;
        uint64_t content = sim_content(x, g, fill > 0 ? sim_fold(t->full, t->last) : t->full);
        t->content[logical] = content;
        t->last = sim_fold(fill > 0 ? t->last : 0, sim_key(content, rope_of(l, slot, logical)));
        if (fill + 1 == size) t->full = sim_fold(t->full, t->last);
        x = sim_next(x, content);
    }
    return x;
}

static void refold(ref_line *l)
{
    uint32_t size = l->g->page_tokens;
    for (uint32_t g = 0; g < l->groups; g++) {
        ref_table *t = &l->tables[g];
        uint32_t n = pkv_seq_table(l->kv, l->seq, g).kept_tokens;
        t->full = t->last = 0;
        for (uint32_t s = 0; s < n; s++) {
            uint32_t logical = pkv_seq_position(l->kv, l->seq, g, s);
            uint64_t key = sim_key(t->content[logical], rope_of(l, s, logical));
            t->last = sim_fold(s % size > 0 ? t->last : 0, key);
            if (s % size + 1 == size) t->full = sim_fold(t->full, t->last);
        }
    }
}

/* Measures the last n_rows rows as one share. */
static measure_result measure(ref_line *l, const measure_spec *spec, uint32_t n_rows)
{
    sim_table tables[SIM_GROUPS_MAX];
    measure_result out = {0};
    if (spec->kind == MEASURE_NONE) return out;
    size_t per = l->sums_of, bytes = per * sizeof(float);
    for (int back = 0; back < 2; back++) {
        for (uint32_t g = 0; g < l->groups; g++) {
            const ref_table *t = &l->tables[g];
            uint64_t *content = l->slots + (size_t)g * l->rows;
            float *sums = l->slot_sums + (size_t)g * l->rows * per;
            uint32_t n = pkv_seq_table(l->kv, l->seq, g).kept_tokens;
            tables[g] = (sim_table){content, sums, n};
            for (uint32_t s = 0; s < n; s++) {
                uint32_t logical = pkv_seq_position(l->kv, l->seq, g, s);
                float *here = t->sums + logical * per, *there = sums + s * per;
                content[s] = t->content[logical];
                memcpy(back ? here : there, back ? there : here, bytes);
            }
        }
        if (back == 0 && sim_measure(l->g, spec, n_rows, tables, l->values, &out)) abort();
    }
    return out;
}

static void select_reference(ref_line *l, const retention_policy *policy, uint32_t n_prompt,
                             const measure_result *measures, bool counts)
{
    retention_selection out = {.keep = l->keep,
                               .words = l->rows / 64 + 1,
                               .scratch = l->scratch,
                               .n_scratch = retention_scratch_floats(l->g, l->rows)};
    error err = {""};
    measure_result given = *measures;
    bool keeps_all = retention_keeps_all(policy, l->kv, l->seq, n_prompt);
    given.novelty = l->novelty;
    if (!status_ok(retention_select(policy, l->kv, l->seq, n_prompt, &given, &out, &err))) {
        fprintf(stderr, "sim: the reference cannot select (%s, %u of %u tokens): %s\n",
                policy->preset->name, pkv_seq_length(l->kv, l->seq), n_prompt, err.text);
        abort();
    }
    if (keeps_all && out.gives_up) abort();
    if (!out.gives_up) return;
    uint32_t held = pkv_seq_pages_held(l->kv, l->seq);
    for (uint32_t g = 0; g < l->groups; g++) {
        const uint64_t *keep = l->keep + (size_t)g * out.words;
        if (!status_ok(pkv_seq_keep(l->kv, l->seq, g, keep, policy->contiguous))) abort();
    }
    pkv_grain grain = retention_grain(policy, l->g);
    if (grain == PKV_ALL && sim_groups_of(l->g, l->n_layers) < l->groups) grain = PKV_LAYER;
    pkv_geometry at = pkv_geometry_at(l->g, grain);
    uint32_t cells = l->groups / pkv_groups(&at); /* of a page of the policy's tables */
    if (counts) l->dropped += (held - pkv_seq_pages_held(l->kv, l->seq)) / cells;
    pkv_take_deltas(l->kv);
    refold(l);
}

/* Does what follows the rows [from, to) of a turn: measures them as one share, and selects if `to`
 * is a retention point. */
static void after_rows(ref_line *l, const sim_turn *turn, uint32_t from, uint32_t to, bool counts)
{
    measure_spec spec = retention_measure_rows(&turn->policy, turn->n_prompt, from, to);
    measure_result measures = measure(l, &spec, to - from);
    if (retention_next_point(&turn->policy, turn->n_prompt, from) == to)
        select_reference(l, &turn->policy, turn->n_prompt, &measures, counts);
}

static void drop_under_pressure(ref_line *l, const retention_policy *pressure, uint32_t length,
                                bool counts)
{
    measure_spec spec = retention_measure_rows(pressure, length, length - 1, length);
    if (spec.rows > 1) spec.rows = 1;
    measure_result measures = measure(l, &spec, 1);
    select_reference(l, pressure, length, &measures, counts);
}

uint64_t sim_hash_text(const char *text)
{
    uint64_t hash = 1;
    for (; *text; text++) hash = sim_fold(hash, (uint8_t)*text);
    return hash_mix64(hash);
}

static uint64_t kept_hash(const ref_line *l, const sim_story *story)
{
    strbuf json = {0};
    retention_kept_json(l->kv, l->seq, story->request->policy.sinks, story->cut, &json);
    uint64_t hash = sim_hash_text(json.data);
    strbuf_destroy(&json);
    return hash;
}

/* The position of a line in its story. */
typedef struct ref_walk {
    const sim_story *story;
    uint32_t choice, turn, start; // start: of the current share
    uint32_t counted_from;        // drops from this length on are the request's own
    sim_answer *answer;
} ref_walk;

/* Runs one row and what follows it; shares end at retention points, turns and pressure drops. */
static uint64_t step(ref_line *l, ref_walk *w, uint32_t token)
{
    const sim_story *story = w->story;
    const sched_request *r = story->request;
    uint64_t x = run_row(l, token);
    uint32_t to = pkv_seq_length(l->kv, l->seq);
    if (to < r->n_prompt) l->novelty[to] = sim_novelty(x, r->prompt[to]);
    const sim_turn *turn = &story->turns[w->turn];
    bool counts = to > w->counted_from, dropped = false;
    for (uint32_t i = 0; i < story->n_pressure_drops[w->choice]; i++)
        dropped |= story->pressure_drops[w->choice][i] == to;
    uint32_t point = retention_next_point(&turn->policy, turn->n_prompt, w->start);
    if (to == point || to == turn->end) after_rows(l, turn, w->start, to, counts);
    if (dropped) drop_under_pressure(l, story->pressure, to, counts);
    /* A turn that ended during its replay may have added no rows. */
    while (story->turns[w->turn].end == to) w->turn++;
    if (to == point || to == turn->end || dropped) w->start = to;
    size_t at = (size_t)w->choice * (r->n_prompt + r->max_new_tokens) + to;
    w->answer->dropped[at] = l->dropped;
    if (r->policy.report_positions && to >= r->n_prompt) w->answer->kept[at] = kept_hash(l, story);
    return x;
}

sim_answer sim_reference(const pkv_geometry *geometry, const sim_story *story)
{
    const sched_request *r = story->request;
    uint32_t rows = r->n_prompt + r->max_new_tokens, hit;
    size_t n = r->n;
    sim_answer a = {.tokens = need(n * r->max_new_tokens, sizeof *a.tokens),
                    .logits = need(r->n_prompt, sizeof *a.logits),
                    .dropped = need(n * rows, sizeof *a.dropped),
                    .kept = need(n * rows, sizeof *a.kept)};
    ref_line prompt = line_create(geometry, rows);
    prompt.contiguous = r->policy.contiguous;
    prompt.n_layers = r->n_layers;
    if (!status_ok(pkv_seq_open(prompt.kv, 0, PKV_HEAD, r->prompt, 0, 0, rows, &hit))) abort();
    pkv_seq_fill_layers(prompt.kv, 0, r->n_layers);
    ref_walk walk = {.story = story, .answer = &a};
    if (story->n_turns > 1) walk.counted_from = story->turns[story->n_turns - 2].end;
    uint64_t x_prompt = 0, history = 0;
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        x_prompt = step(&prompt, &walk, r->prompt[i]);
        a.logits[i] = sim_logit(x_prompt);
        if (sim_has_penalties(&r->params)) history = sim_fold(history, r->prompt[i]);
    }
    for (uint32_t c = 0; c < r->n; c++) {
        uint32_t *tokens = a.tokens + (size_t)c * r->max_new_tokens;
        uint64_t x = x_prompt, seen = history;
        ref_line line = line_fork(&prompt);
        ref_walk w = walk;
        w.choice = c;
        a.dropped[(size_t)c * rows + r->n_prompt] = a.dropped[r->n_prompt];
        a.kept[(size_t)c * rows + r->n_prompt] = a.kept[r->n_prompt];
        for (uint32_t i = 0; i < r->max_new_tokens; i++) {
            tokens[i] = story->forces && sim_is_forced(r, i)
                            ? sim_forced_token(r, i)
                            : sim_token(x, seen, r->params.seed, c, i);
            if (sim_has_penalties(&r->params)) seen = sim_fold(seen, tokens[i]);
            if (i + 1 < r->max_new_tokens) x = step(&line, &w, tokens[i]);
        }
        line_close(&line);
    }
    line_destroy(&prompt);
    return a;
}

void sim_answer_free(sim_answer *a)
{
    free(a->tokens);
    free(a->logits);
    free(a->dropped);
    free(a->kept);
    *a = (sim_answer){0};
}
