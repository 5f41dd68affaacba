/* Reads a stream and makes its record. */
#include "quality/campaign.h"

#include <stdlib.h>
#include <string.h>

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* Whether the engine refuses every prompt of the cell; any other error is the engine's own
 * trouble. */
static bool is_refusal(status_code code)
{
    return code == STATUS_INVALID || code == STATUS_UNSUPPORTED || code == STATUS_LIMIT ||
           code == STATUS_NO_PAGES;
}

/* ---- while the answer grows ------------------------------------------------------------------ */

static bool wants_samples(const campaign *c, const job *j)
{
    return j->live->measured || (c->o->turns > 1 && j->arm == ARM_FIRST);
}

static void take_sample(const campaign *c, job *j, const engine_output *out)
{
    strbuf_append(&j->text, out->text, out->text_bytes);
    if (!out->has_token || !wants_samples(c, j)) return;
    if (j->n_samples == j->capacity) {
        size_t capacity = j->capacity ? 2 * j->capacity : 16;
        step_sample *grown = realloc(j->samples, capacity * sizeof *grown);
        if (!grown) {
            j->failed = true;
            return;
        }
        j->samples = grown;
        j->capacity = capacity;
    }
    j->samples[j->n_samples++] = out->sample;
}

/* ---- measures -------------------------------------------------------------------------------- */

/* Marks the tokens that stay whatever is measured. The policy parses, because the engine has
 * accepted the request. */
static void mark_forced(const campaign *c, const job *j, uint32_t n_prompt, uint32_t length,
                        bool *forced)
{
    const retention_limits limits = {c->o->geometry, UINT32_MAX, c->o->max_tokens};
    retention_policy policy;
    error unread;
    const json_t *retention = c->variants.items[j->column].retention;
    if (status_ok(retention_parse(retention, &limits, &policy, &unread)))
        retention_forced(&policy, n_prompt, length, forced);
}

/* Analyses the answer to the first question of a document if --analyses is given. */
static status analyse(const campaign *c, const job *j, const engine_output *out, analysis *m,
                      error *err)
{
    if (!c->o->probe || j->question != 0 || j->arm != ARM_SINGLE) return STATUS_IS_OK;
    engine_prompt prompt = engine_stream_prompt(j->stream);
    const full_answer *full = &j->live->full[j->question];
    const char *kept = out->report ? out->report->kept_json : NULL;
    analysis_input in = {.probe = c->o->probe,
                         .prompt = prompt.tokens,
                         .n_prompt = prompt.n_tokens,
                         .full = full->samples,
                         .n_full = full->n,
                         .own = j->samples,
                         .n_own = j->n_samples,
                         .kept_json = kept,
                         .n_logical = out->report ? out->report->logical_tokens : 0};
    return j->column == 0 || kept ? analysis_run(&in, m, err) : STATUS_IS_OK;
}

static status measure_job(const campaign *c, const job *j, const engine_output *out, findings *m,
                          error *err)
{
    const question *q = &j->live->doc->questions[j->question];
    engine_prompt prompt = engine_stream_prompt(j->stream);
    if (out->report && out->report->kept_json) {
        bool *needle = calloc(2 * (size_t)prompt.n_tokens, sizeof *needle);
        if (!needle) return out_of_memory(err);
        bool *forced = needle + prompt.n_tokens;
        mark_forced(c, j, prompt.n_tokens, out->report->logical_tokens, forced);
        size_t found = findings_find_needles(c->o->tokenizer, prompt.tokens, prompt.n_tokens,
                                             q->needles.items, q->needles.n, needle);
        status st = findings_of_kept(out->report->kept_json, prompt.n_tokens, found ? needle : NULL,
                                     forced, m, err);
        free(needle);
        RETURN_IF_ERROR(st);
    }
    RETURN_IF_ERROR(analyse(c, j, out, &m->attention, err));
    const full_answer *full = j->live->full ? &j->live->full[j->question] : NULL;
    if (full && full->n && j->column > 0 && j->arm == ARM_SINGLE)
        findings_agree(full->samples, full->n, j->samples, j->n_samples, m);
    return STATUS_IS_OK;
}

/* Hands the full cache's answer to the document, for comparison with the others. */
static void hand_over(job *j)
{
    if (!j->live->full || j->column != 0 || j->arm != ARM_SINGLE) return;
    full_answer *full = &j->live->full[j->question];
    *full = (full_answer){j->samples, j->n_samples};
    j->samples = NULL;
    j->n_samples = j->capacity = 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

static status score_job(const campaign *c, const job *j, record *r, error *err)
{
    const source *s = &c->sources.items[j->live->row];
    const question *q = &j->live->doc->questions[j->question];
    const char *answer = j->text.data ? j->text.data : "";
    double value = scorer_score(s->scorer, answer, &q->references, &j->live->doc->classes);
    if (value < 0) return out_of_memory(err);
    r->score = (float)value;
    for (size_t i = 0; s->scorer == SCORER_NUMBERED && i < q->references.n && i < 64; i++)
        if (scorer_numbered(answer, i, q->references.items[i])) r->right |= UINT64_C(1) << i;
    return STATUS_IS_OK;
}

static void count_kept(const job *j, const engine_output *out, record *r)
{
    uint32_t all = out->usage.prompt_tokens + out->usage.completion_tokens;
    r->kept = r->logical = (float)all;
    if (j->whole_prompt) {
        r->logical = (float)(j->whole_prompt + out->usage.completion_tokens);
    } else if (out->report && out->report->logical_tokens) {
        r->kept = (float)out->report->kept_tokens;
        r->logical = (float)out->report->logical_tokens;
    }
}

static status add_second(job *j, record_arm arm, error *err)
{
    live *l = j->live;
    if (l->n_second == l->second_capacity) {
        size_t capacity = l->second_capacity ? 2 * l->second_capacity : 8;
        second_turn *grown = realloc(l->second, capacity * sizeof *grown);
        if (!grown) return out_of_memory(err);
        l->second = grown;
        l->second_capacity = capacity;
    }
    engine_prompt prompt = engine_stream_prompt(j->stream);
    second_turn turn = {.question = j->pair, .column = j->column, .arm = arm};
    turn.tokens = calloc(prompt.n_tokens + j->n_samples, sizeof *turn.tokens);
    turn.answer = strndup(j->text.data ? j->text.data : "", j->text.size);
    if (!turn.tokens || !turn.answer) {
        free(turn.tokens);
        free(turn.answer);
        return out_of_memory(err);
    }
    memcpy(turn.tokens, prompt.tokens, prompt.n_tokens * sizeof *turn.tokens);
    turn.n_tokens = prompt.n_tokens;
    for (size_t i = 0; i < j->n_samples; i++) turn.tokens[turn.n_tokens++] = j->samples[i].token;
    l->second[l->n_second++] = turn;
    return STATUS_IS_OK;
}

/* Adds turn 2, which continues the exact tokens of turn 1. The stop token is left out, because the
 * text between the turns repeats it. For the full cache, ARM_FRESH serves as ARM_FULL. */
static status go_on(job *j, const engine_output *out, error *err)
{
    if (j->arm != ARM_FIRST) return STATUS_IS_OK;
    if (out->stop_token >= 0 && j->n_samples > 0 &&
        j->samples[j->n_samples - 1].token == (uint32_t)out->stop_token)
        j->n_samples--;
    if (j->column > 0) RETURN_IF_ERROR(add_second(j, ARM_FULL, err));
    RETURN_IF_ERROR(add_second(j, ARM_FRESH, err));
    /* The last one added starts first, so that the session waits as short as possible for its
     * turn. */
    return add_second(j, ARM_SESSION, err);
}

static status make_record(campaign *c, job *j, const engine_output *out, error *err)
{
    const question *q = &j->live->doc->questions[j->question];
    record r = {.row = j->live->row,
                .column = j->column,
                .arm = j->arm,
                .document = j->live->number,
                .question = j->pair,
                .depth = q->depth};
    if (j->failed || j->text.failed) return out_of_memory(err);
    RETURN_IF_ERROR(score_job(c, j, &r, err));
    count_kept(j, out, &r);
    const char *session = out->report ? out->report->session : "";
    r.continued = strcmp(session, "continued") == 0;
    if (j->live->measured) RETURN_IF_ERROR(measure_job(c, j, out, &r.findings, err));
    c->n_done++;
    status st = go_on(j, out, err);
    hand_over(j);
    if (status_ok(st) && !records_done(&c->records, &r))
        return records_add(&c->records, &r, j->text.data ? j->text.data : "", session, err);
    findings_destroy(&r.findings);
    return st;
}

static status end_job(campaign *c, job *j, const engine_output *out, error *err)
{
    switch (out->finish) {
    case ENGINE_FINISH_ABORT: return STATUS_IS_OK;
    case ENGINE_FINISH_ERROR:
        if (is_refusal(out->error_code)) {
            c->n_refused++;
            return records_refuse(&c->records, j->live->row, j->column, out->error_text, err);
        }
        return error_set(err, out->error_code, "%s", out->error_text);
    default: return make_record(c, j, out, err);
    }
}

status judge_read(campaign *c, job *j, bool *ended, bool *progressed, error *err)
{
    engine_output out;
    while (!*ended && engine_stream_read(j->stream, &out)) {
        *progressed = true;
        take_sample(c, j, &out);
        if (out.finish == ENGINE_FINISH_NONE) continue;
        *ended = true;
        RETURN_IF_ERROR(end_job(c, j, &out, err));
    }
    return STATUS_IS_OK;
}

bool judge_refusal(campaign *c, const job *j, status st, const error *why, status *out, error *err)
{
    if (!is_refusal(st.code)) return false;
    c->n_refused++;
    *out = records_refuse(&c->records, j->live->row, j->column, why->text, err);
    return true;
}
