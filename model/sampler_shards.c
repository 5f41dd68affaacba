#include "model/sampler_shards.h"

#include "base/logits.h"
#include "model/draw.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whole rows that one gather carries. */
enum { WHOLE_ROWS = 8 };

/* Where a draw stands, and the words that each rank gives for it:
 *
 *   FIRST  the largest edited logit, and whether one is NaN; without limits also the largest with
 *          noise; with top_k or top_p the number of candidates and the likeliest ones; with
 *          logprobs the largest raw logit, and the likeliest tokens
 *   TOTAL  top_p: the mass of all tokens from the floor on
 *   SCAN   the largest logit with noise from the floor on
 *   SCORE  logprobs: the sum over raw logits, and how many are greater than the token's
 *   WHOLE  none: the row is gathered
 *   DONE   none */
typedef enum stage { FIRST, TOTAL, SCAN, SCORE, WHOLE, DONE } stage;

typedef union word {
    float f;
    uint32_t u;
} word;
_Static_assert(sizeof(word) == sizeof(float), "words travel as floats");

/* A token that may come, in three words. */
typedef struct contender {
    float value; /* its edited logit, or that with noise */
    uint32_t id; /* DRAW_NO_TOKEN: there is none */
    float raw;
} contender;

enum { CONTENDER_WORDS = 3, PEAK_WORDS = 4, TOTAL_WORDS = 2, SCORE_WORDS = 4, TOP_WORDS = 2 };

typedef struct one_draw {
    const sampler_draw *draw;
    const sample_params *params;
    draw_noise noise;
    stage stage;
    bool has_noise;   /* FIRST has the largest with noise */
    bool is_scored;   /* logprobs are asked for */
    uint32_t n_list;  /* candidates in FIRST, 0: no list */
    uint32_t n_top;   /* likeliest tokens in FIRST */
    size_t at;        /* its words in a rank's message of this round */
    size_t first_at;  /* in that of the first round */
    float max, floor; /* of edited logits */
    float raw;        /* the token's raw logit */
} one_draw;

/* One thread's. */
typedef struct scratch {
    float *edited, *raw; /* [slice] */
    candidate *own;      /* [2 * SHARDS_CANDIDATES] */
    candidate *kept;     /* [ranks * SHARDS_CANDIDATES] */
    uint32_t *heads;     /* [ranks] */
} scratch;

/* The words of all ranks in one round, by rank. */
typedef struct round_words {
    word *words; /* [ranks, n] */
    size_t capacity, n;
} round_words;

struct sampler_shards {
    sampler_shards_options o;
    uint32_t ranks, first, n; /* this rank's tokens [first, first + n) */
    one_draw *draws;          /* [max_draws] */
    size_t n_draws;
    scratch *scratch;           /* [threads] */
    round_words opening, later; /* FIRST, and what follows */
    float *parts, *rows; /* [ranks, WHOLE_ROWS, slice], [WHOLE_ROWS, vocab]; made when needed */
};

/* ---- creation -------------------------------------------------------------------------------- */

static bool make_scratch(const sampler_shards *s, scratch *t)
{
    size_t slice = s->o.slice;
    *t = (scratch){
        .edited = malloc(slice * sizeof *t->edited),
        .raw = malloc(slice * sizeof *t->raw),
        .own = malloc(2 * (size_t)SHARDS_CANDIDATES * sizeof *t->own),
        .kept = malloc((size_t)s->ranks * SHARDS_CANDIDATES * sizeof *t->kept),
        .heads = malloc(s->ranks * sizeof *t->heads),
    };
    return t->edited && t->raw && t->own && t->kept && t->heads;
}

status sampler_shards_create(const sampler_shards_options *options, sampler_shards **out)
{
    sampler_shards *s = calloc(1, sizeof *s);
    if (!s) return status_make(STATUS_NO_MEMORY, "draws of ranks");
    s->o = *options;
    s->ranks = (uint32_t)comm_size(options->group);
    uint64_t first = (uint64_t)options->slice * (uint64_t)comm_rank(options->group);
    s->first = first < options->vocab_size ? (uint32_t)first : options->vocab_size;
    uint32_t left = options->vocab_size - s->first;
    s->n = left < options->slice ? left : options->slice;
    unsigned n_threads = thread_pool_size(options->pool);
    s->draws = calloc(options->max_draws, sizeof *s->draws);
    s->scratch = calloc(n_threads, sizeof *s->scratch);
    bool ok = s->draws && s->scratch;
    for (unsigned i = 0; ok && i < n_threads; i++) ok = make_scratch(s, &s->scratch[i]);
    if (!ok) {
        sampler_shards_destroy(s);
        return status_make(STATUS_NO_MEMORY, "draws of ranks");
    }
    *out = s;
    return STATUS_IS_OK;
}

void sampler_shards_destroy(sampler_shards *s)
{
    if (!s) return;
    for (unsigned i = 0; s->scratch && i < thread_pool_size(s->o.pool); i++) {
        scratch *t = &s->scratch[i];
        free(t->edited);
        free(t->raw);
        free(t->own);
        free(t->kept);
        free(t->heads);
    }
    free(s->scratch);
    free(s->draws);
    free(s->opening.words);
    free(s->later.words);
    free(s->parts);
    free(s->rows);
    free(s);
}

/* ---- words ----------------------------------------------------------------------------------- */

static word *put_contender(word *w, contender c)
{
    w[0].f = c.value;
    w[1].u = c.id;
    w[2].f = c.raw;
    return w + CONTENDER_WORDS;
}

static contender get_contender(const word *w) { return (contender){w[0].f, w[1].u, w[2].f}; }

static word *put_peak(word *w, contender largest, bool is_nan)
{
    w = put_contender(w, largest);
    w->u = is_nan;
    return w + PEAK_WORDS - CONTENDER_WORDS;
}

static bool get_is_nan(const word *peak) { return peak[CONTENDER_WORDS].u != 0; }

static void put_sum(word *w, uint64_t sum)
{
    w[0].u = (uint32_t)sum;
    w[1].u = (uint32_t)(sum >> 32);
}

static uint64_t get_sum(const word *w) { return w[0].u | (uint64_t)w[1].u << 32; }

/* Words behind the largest, in FIRST: those with noise, the list, the logprobs. */
static size_t list_at(const one_draw *d) { return PEAK_WORDS + CONTENDER_WORDS * d->has_noise; }

static size_t top_at(const one_draw *d)
{
    return list_at(d) + (d->n_list ? 1 + (size_t)CONTENDER_WORDS * d->n_list : 0);
}

static size_t words_of(const one_draw *d)
{
    switch (d->stage) {
    case FIRST: return top_at(d) + (d->is_scored ? 1 + (size_t)TOP_WORDS * d->n_top : 0);
    case TOTAL: return TOTAL_WORDS;
    case SCAN: return CONTENDER_WORDS;
    case SCORE: return SCORE_WORDS;
    case WHOLE:
    case DONE: break;
    }
    return 0;
}

static const word *words_from(const round_words *r, uint32_t rank, size_t at)
{
    return r->words + rank * r->n + at;
}

/* ---- a rank's own words ---------------------------------------------------------------------- */

/* A rank without tokens has no contender, and gives NaN, which is never the largest. */
static void fill_nothing(const one_draw *d, word *w)
{
    const contender none = {NAN, DRAW_NO_TOKEN, NAN};
    size_t n = words_of(d);
    for (size_t i = 0; i < n; i++) w[i].u = d->stage == FIRST ? DRAW_NO_TOKEN : 0;
    if (d->stage == SCAN) put_contender(w, none);
    if (d->stage != FIRST) return;
    w = put_peak(w, none, false);
    if (d->has_noise) w = put_contender(w, none);
    if (d->n_list) w->u = 0;
    w += top_at(d) - list_at(d);
    if (d->is_scored) w->f = NAN;
}

static contender contender_of(const sampler_shards *s, candidate c, const float *raw)
{
    return (contender){c.logit, c.id, c.id == DRAW_NO_TOKEN ? NAN : raw[c.id - s->first]};
}

static void fill_list(const sampler_shards *s, const one_draw *d, scratch *t, const float *raw,
                      word *w)
{
    size_t n = candidates_collect_top(t->edited, s->first, s->n, d->n_list, t->own);
    (w++)->u = (uint32_t)n;
    for (size_t i = 0; i < d->n_list; i++)
        w = put_contender(w, i < n ? contender_of(s, t->own[i], raw)
                                   : (contender){NAN, DRAW_NO_TOKEN, NAN});
}

static void fill_top(const sampler_shards *s, const one_draw *d, const float *raw, word *w)
{
    uint32_t ids[SAMPLE_LOGPROBS_MAX];
    uint32_t n = logits_top(raw, s->n, d->n_top, ids);
    (w++)->f = raw[logits_argmax(raw, s->n)];
    for (uint32_t i = 0; i < d->n_top; i++, w += TOP_WORDS) {
        w[0].f = i < n ? raw[ids[i]] : NAN;
        w[1].u = i < n ? s->first + ids[i] : DRAW_NO_TOKEN;
    }
}

static void fill_first(const sampler_shards *s, const one_draw *d, scratch *t, word *w)
{
    const float *raw = sampler_raw(d->draw, s->first, s->n, t->raw);
    sampler_edited(s->o.sampler, d->draw, s->first, s->n, t->edited);
    logits_peak peak = logits_find_peak(t->edited, s->n);
    uint32_t largest = peak.index;
    w = put_peak(w, (contender){t->edited[largest], s->first + largest, raw[largest]}, peak.is_nan);
    if (d->has_noise) {
        candidate c = draw_gumbel_row(d->noise, t->edited, s->first, s->n, -INFINITY, largest);
        w = put_contender(w, contender_of(s, c, raw));
    }
    if (d->n_list) fill_list(s, d, t, raw, w);
    w += top_at(d) - list_at(d);
    if (d->is_scored) fill_top(s, d, raw, w);
}

static void fill_total(const sampler_shards *s, const one_draw *d, scratch *t, word *w)
{
    sampler_edited(s->o.sampler, d->draw, s->first, s->n, t->edited);
    put_sum(w, logits_shares(t->edited, s->n, d->max, d->floor));
}

static void fill_scan(const sampler_shards *s, const one_draw *d, scratch *t, word *w)
{
    const float *raw = sampler_raw(d->draw, s->first, s->n, t->raw);
    sampler_edited(s->o.sampler, d->draw, s->first, s->n, t->edited);
    candidate c = draw_gumbel_row(d->noise, t->edited, s->first, s->n, d->floor,
                                  logits_argmax(t->edited, s->n));
    put_contender(w, contender_of(s, c, raw));
}

static void fill_score(const sampler_shards *s, const one_draw *d, scratch *t, word *w)
{
    const float *raw = sampler_raw(d->draw, s->first, s->n, t->raw);
    logits_sum sum = logits_add_up(raw, s->n, d->max);
    put_sum(w, sum.shares);
    w[2].u = sum.is_nan;
    w[3].u = logits_greater(raw, s->n, d->raw);
}

static void fill_words(void *ctx, size_t from, size_t to, unsigned thread)
{
    sampler_shards *s = ctx;
    for (size_t i = from; i < to; i++) {
        const one_draw *d = &s->draws[i];
        round_words *r = d->stage == FIRST ? &s->opening : &s->later;
        word *w = r->words + (uint32_t)comm_rank(s->o.group) * r->n + d->at;
        scratch *t = &s->scratch[thread];
        if (s->n == 0) fill_nothing(d, w);
        else if (d->stage == FIRST) fill_first(s, d, t, w);
        else if (d->stage == TOTAL) fill_total(s, d, t, w);
        else if (d->stage == SCAN) fill_scan(s, d, t, w);
        else if (d->stage == SCORE) fill_score(s, d, t, w);
    }
}

/* ---- decisions from all ranks' words --------------------------------------------------------- */

/* The first contender of a message: the largest over ranks, as logits_argmax has it. */
static contender largest_of(const sampler_shards *s, const one_draw *d)
{
    contender best = {NAN, DRAW_NO_TOKEN, NAN};
    for (uint32_t r = 0; r < s->ranks; r++) {
        contender c = get_contender(words_from(&s->opening, r, d->at));
        if (c.id != DRAW_NO_TOKEN && (c.value > best.value || isnan(best.value))) best = c;
    }
    return best;
}

static bool is_nan_anywhere(const sampler_shards *s, const one_draw *d)
{
    bool is_nan = false;
    for (uint32_t r = 0; r < s->ranks; r++) is_nan |= get_is_nan(words_from(&s->opening, r, d->at));
    return is_nan;
}

/* The largest with noise over ranks. The first of equal ones has the lowest id. */
static contender winner_of(const sampler_shards *s, const round_words *words, size_t at)
{
    contender best = {-INFINITY, DRAW_NO_TOKEN, NAN};
    for (uint32_t r = 0; r < s->ranks; r++) {
        contender c = get_contender(words_from(words, r, at));
        if (c.id != DRAW_NO_TOKEN && (best.id == DRAW_NO_TOKEN || c.value > best.value)) best = c;
    }
    return best;
}

static float raw_max_of(const sampler_shards *s, const one_draw *d)
{
    float max = NAN;
    for (uint32_t r = 0; r < s->ranks; r++) {
        float f = words_from(&s->opening, r, d->first_at + top_at(d))->f;
        if (f > max || isnan(max)) max = f;
    }
    return max;
}

static void take_token(const sampler_shards *s, one_draw *d, contender c)
{
    d->draw->out->token = c.id;
    d->raw = c.raw;
    d->stage = d->is_scored ? SCORE : DONE;
    if (d->is_scored) d->max = raw_max_of(s, d);
}

/* Walks the candidates of all ranks, likeliest first. */
typedef struct walk {
    const sampler_shards *s;
    const one_draw *d;
    uint32_t *heads; /* [ranks] candidates that were taken */
    bool is_unknown; /* a rank may have more tokens than those that it listed, and they come next */
} walk;

static walk walk_start(const sampler_shards *s, const one_draw *d, scratch *t)
{
    memset(t->heads, 0, s->ranks * sizeof *t->heads);
    return (walk){.s = s, .d = d, .heads = t->heads};
}

static const word *list_of(const walk *w, uint32_t rank)
{
    return words_from(&w->s->opening, rank, w->d->first_at + list_at(w->d));
}

static contender candidate_at(const walk *w, uint32_t rank, uint32_t i)
{
    return get_contender(list_of(w, rank) + 1 + (size_t)CONTENDER_WORDS * i);
}

/* Gives the likeliest candidate that was not taken yet, if there is one at or above the floor and
 * none that was not listed can come before it. */
static bool walk_peek(walk *w, candidate *out, uint32_t *rank)
{
    *rank = w->s->ranks;
    for (uint32_t r = 0; r < w->s->ranks; r++) {
        uint32_t n = list_of(w, r)->u, i = w->heads[r];
        if (i == n && n == w->d->n_list) w->is_unknown = true;
        if (i == n) continue;
        contender c = candidate_at(w, r, i);
        candidate one = {c.value, c.id};
        if (*rank < w->s->ranks && candidate_order(&one, out) > 0) continue;
        *out = one;
        *rank = r;
    }
    return !w->is_unknown && *rank < w->s->ranks && out->logit >= w->d->floor;
}

static float raw_of(const walk *w, uint32_t token)
{
    for (uint32_t r = 0; r < w->s->ranks; r++)
        for (uint32_t i = 0; i < w->heads[r]; i++)
            if (candidate_at(w, r, i).id == token) return candidate_at(w, r, i).raw;
    return NAN;
}

/* Draws from the set that was found. */
static void draw_kept(const sampler_shards *s, one_draw *d, const walk *w, const candidate *kept,
                      size_t n)
{
    candidate c = draw_gumbel(d->noise, kept, n);
    take_token(s, d, (contender){c.logit, c.id, raw_of(w, c.id)});
}

/* With top_k: the k likeliest and all as likely as the k-th; then top_p, if there is one. Where
 * more of those than were listed may be as likely as the k-th, the set is all from it on. */
static void decide_top_k(const sampler_shards *s, one_draw *d, scratch *t)
{
    const sample_params *p = d->params;
    walk w = walk_start(s, d, t);
    candidate next;
    uint32_t n = 0, rank;
    while (walk_peek(&w, &next, &rank)) {
        if (n >= p->top_k && next.logit < t->kept[p->top_k - 1].logit) break;
        t->kept[n++] = next;
        w.heads[rank]++;
    }
    if (!w.is_unknown) {
        draw_kept(s, d, &w, t->kept, candidates_keep_top_p(t->kept, n, p->top_p));
    } else if (n >= p->top_k && p->top_p >= 1) {
        d->floor = t->kept[p->top_k - 1].logit;
        d->stage = SCAN;
    } else {
        d->stage = WHOLE;
    }
}

/* top_p alone, when the mass of all is known: the likeliest until they reach their part of it. */
static void decide_top_p(const sampler_shards *s, one_draw *d, scratch *t)
{
    uint64_t total = 0, before = 0;
    for (uint32_t r = 0; r < s->ranks; r++) total += get_sum(words_from(&s->later, r, d->at));
    double target = (double)d->params->top_p * (double)total;
    walk w = walk_start(s, d, t);
    candidate next;
    uint32_t n = 0, rank;
    while ((n == 0 || (double)before < target) && walk_peek(&w, &next, &rank)) {
        before += logits_share(next.logit, d->max);
        t->kept[n++] = next;
        w.heads[rank]++;
    }
    if (w.is_unknown) d->stage = WHOLE;
    else draw_kept(s, d, &w, t->kept, n);
}

static void decide_first(const sampler_shards *s, one_draw *d, scratch *t)
{
    const sample_params *p = d->params;
    contender largest = largest_of(s, d);
    d->first_at = d->at;
    d->max = largest.value;
    d->floor = sampler_floor(p, largest.value);
    d->draw->out->undefined = !logits_are_defined(largest.value, is_nan_anywhere(s, d));
    if (sampler_is_greedy(p) || !(largest.value > -INFINITY)) take_token(s, d, largest);
    else if (d->has_noise) take_token(s, d, winner_of(s, &s->opening, d->at + PEAK_WORDS));
    else if (p->top_k) decide_top_k(s, d, t);
    else d->stage = d->n_list ? TOTAL : SCAN;
}

/* Merges the ranks' likeliest tokens. Ranks are in the order of their tokens. */
static void list_top(const sampler_shards *s, const one_draw *d, uint32_t *heads, logits_sum sum)
{
    step_sample *out = d->draw->out;
    memset(heads, 0, s->ranks * sizeof *heads);
    for (out->n_top = 0; out->n_top < d->n_top; out->n_top++) {
        const word *best = NULL;
        uint32_t from = 0;
        for (uint32_t r = 0; r < s->ranks; r++) {
            const word *w = words_from(&s->opening, r, d->first_at + top_at(d)) + 1;
            w += (size_t)TOP_WORDS * heads[r];
            if (heads[r] == d->n_top || w[1].u == DRAW_NO_TOKEN) continue;
            if (best && !logits_before(w[0].f, best[0].f)) continue;
            best = w;
            from = r;
        }
        if (!best) return;
        heads[from]++;
        out->top_ids[out->n_top] = best[1].u;
        out->top_logprobs[out->n_top] = logits_logprob(best[0].f, d->max, sum);
    }
}

static void decide_score(const sampler_shards *s, one_draw *d, scratch *t)
{
    step_sample *out = d->draw->out;
    logits_sum sum = {0};
    out->rank = 1;
    for (uint32_t r = 0; r < s->ranks; r++) {
        const word *w = words_from(&s->later, r, d->at);
        sum.shares += get_sum(w);
        sum.is_nan |= w[2].u;
        out->rank += w[3].u;
    }
    out->logprob = logits_logprob(d->raw, d->max, sum);
    list_top(s, d, t->heads, sum);
    d->stage = DONE;
}

static void decide(void *ctx, size_t from, size_t to, unsigned thread)
{
    sampler_shards *s = ctx;
    scratch *t = &s->scratch[thread];
    for (size_t i = from; i < to; i++) {
        one_draw *d = &s->draws[i];
        if (d->stage == FIRST) decide_first(s, d, t);
        else if (d->stage == TOTAL) decide_top_p(s, d, t);
        else if (d->stage == SCAN) take_token(s, d, winner_of(s, &s->later, d->at));
        else if (d->stage == SCORE) decide_score(s, d, t);
    }
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static one_draw start_draw(const sampler_shards *s, const sampler_draw *draw)
{
    one_draw d = {.draw = draw, .stage = FIRST};
    sampler_edits n_edits;
    const sample_params *p = sampler_describe(s->o.sampler, draw, &d.noise.key, NULL, &n_edits);
    d.params = p;
    d.noise.sample_index = draw->sample_index;
    d.is_scored = p->n_logprobs >= 0;
    if (d.is_scored) d.n_top = sampler_n_top(p);
    if (!sampler_is_greedy(p)) {
        if (p->top_k) d.n_list = p->top_k < SHARDS_CANDIDATES ? p->top_k + 1 : SHARDS_CANDIDATES;
        else if (p->top_p < 1) d.n_list = SHARDS_CANDIDATES;
        d.has_noise = d.n_list == 0 && !(p->min_p > 0);
    }
    *draw->out = (step_sample){.logprob = NAN};
    return d;
}

/* Lays out the words of all draws. False: none has any. */
static bool lay_out(sampler_shards *s, round_words *r)
{
    r->n = 0;
    for (size_t i = 0; i < s->n_draws; i++) {
        s->draws[i].at = r->n;
        r->n += words_of(&s->draws[i]);
    }
    return r->n > 0;
}

static status run_round(sampler_shards *s, round_words *r)
{
    size_t n = r->n * s->ranks;
    if (n > r->capacity) {
        word *grown = alloc_resize(NULL, r->words, n, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, "draws of ranks");
        r->words = grown;
        r->capacity = n;
    }
    thread_pool_for(s->o.pool, s->n_draws, 1, fill_words, s);
    float *all = (float *)(void *)r->words;
    RETURN_IF_ERROR(
        comm_all_gather(s->o.group, all + (size_t)comm_rank(s->o.group) * r->n, r->n, all));
    thread_pool_for(s->o.pool, s->n_draws, 1, decide, s);
    return STATUS_IS_OK;
}

/* ---- whole rows ------------------------------------------------------------------------------ */

static status make_rows(sampler_shards *s)
{
    if (!s->parts)
        s->parts = alloc_zeroed(NULL, (size_t)s->ranks * WHOLE_ROWS * s->o.slice, sizeof(float));
    if (!s->rows) s->rows = alloc_zeroed(NULL, (size_t)WHOLE_ROWS * s->o.vocab_size, sizeof(float));
    return s->parts && s->rows ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, "draws of ranks");
}

/* Makes these draws from whole rows. They are counted with all others. */
static status draw_whole(sampler_shards *s, sampler_draw *draws, uint32_t n)
{
    size_t slice = s->o.slice, vocab = s->o.vocab_size;
    float *own = s->parts + (size_t)comm_rank(s->o.group) * n * slice;
    for (uint32_t i = 0; i < n; i++) memcpy(own + i * slice, draws[i].logits, s->n * sizeof *own);
    RETURN_IF_ERROR(comm_all_gather(s->o.group, own, n * slice, s->parts));
    for (uint32_t i = 0; i < n; i++) {
        float *row = s->rows + i * vocab;
        for (size_t at = 0; at < vocab; at += slice) {
            size_t some = vocab - at < slice ? vocab - at : slice;
            memcpy(row + at, s->parts + (at / slice * n + i) * slice, some * sizeof *row);
        }
        draws[i].logits = row;
        draws[i].own = false;
    }
    sampler_run(s->o.sampler, draws, n);
    return STATUS_IS_OK;
}

static status run_whole(sampler_shards *s)
{
    sampler_draw draws[WHOLE_ROWS];
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_draws; i++) {
        if (s->draws[i].stage != WHOLE) continue;
        RETURN_IF_ERROR(make_rows(s));
        draws[n++] = *s->draws[i].draw;
        if (n < WHOLE_ROWS) continue;
        RETURN_IF_ERROR(draw_whole(s, draws, n));
        n = 0;
    }
    return n ? draw_whole(s, draws, n) : STATUS_IS_OK;
}

status sampler_shards_run(sampler_shards *s, const sampler_draw *draws, size_t n)
{
    assert(n <= s->o.max_draws);
    s->n_draws = n;
    for (size_t i = 0; i < n; i++) s->draws[i] = start_draw(s, &draws[i]);
    if (lay_out(s, &s->opening)) RETURN_IF_ERROR(run_round(s, &s->opening));
    while (lay_out(s, &s->later)) RETURN_IF_ERROR(run_round(s, &s->later));
    RETURN_IF_ERROR(run_whole(s));
    sampler_count_drawn(s->o.sampler, draws, n);
    return STATUS_IS_OK;
}
