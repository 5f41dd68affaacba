/* The phases of a request of method `reform`: prepared, read, gathered, answered. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the engine ------------------------------------------------------------------------------ */

static status check_heads(const engine *e, error *err)
{
    size_t of_token = (size_t)e->o.n_embed_heads * e->info.head_dim * sizeof(uint16_t);
    uint32_t rows = e->o.prefill_chunk + e->info.max_seqs;
    if (e->o.n_embed_heads <= EMBED_HEADS_MOST && of_token * rows <= EMBED_BYTES_MOST)
        return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT,
                     "the embeddings of a step of %u tokens, by %u heads, are more than %d MiB",
                     rows, e->o.n_embed_heads, EMBED_BYTES_MOST >> 20);
}

void reform_stop(engine *e)
{
    if (e->embed_heads) reform_store_destroy(&e->embeddings);
    alloc_free(e->o.alloc, e->embed_heads);
}

status reform_check_known(const engine_options *o, const retention_policy *policy, error *err)
{
    if (policy->gather_tokens == 0 || o->n_embed_heads > 0) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "retention.method: 'reform' needs heads to embed tokens by, and none are "
                     "known for this model: octavo heads finds them");
}

/* Whether the engine can do what the policy says. */
static status check_policy(const engine *e, const retention_policy *policy, error *err)
{
    if (policy->gather_tokens == 0) return STATUS_IS_OK;
    if (e->info.n_heads == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "retention.method: 'reform' needs embeddings of tokens, which the %s "
                         "backend does not compute; a CPU does (--device cpu)",
                         e->info.name);
    RETURN_IF_ERROR(reform_check_known(&e->o, policy, err));
    if (policy->exit_layer && policy->exit_layer < e->embed_layers)
        return error_set(err, STATUS_INVALID,
                         "retention.exit_layer is %u: the embeddings need %u layers",
                         policy->exit_layer, e->embed_layers);
    if (policy->gather_tokens < e->o.max_model_len) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID,
                     "retention.gather_tokens is %u: with an answer these tokens take more than "
                     "the context of %u",
                     policy->gather_tokens, e->o.max_model_len);
}

status reform_start(engine *e, error *err)
{
    uint32_t n = e->o.n_embed_heads;
    reform_store_init(&e->embeddings, &e->o, e->info.head_dim);
    e->embed_heads = alloc_zeroed(e->o.alloc, n + 1, sizeof *e->embed_heads);
    if (!e->embed_heads) return error_set(err, STATUS_NO_MEMORY, "engine: out of memory");
    if (n) memcpy(e->embed_heads, e->o.embed_heads, n * sizeof *e->embed_heads);
    e->embed_layers = reform_layers(e->embed_heads, n);
    if (e->info.n_heads) RETURN_IF_ERROR(check_heads(e, err));
    status s = check_policy(e, &e->retention.standard, err);
    if (!status_ok(s)) error_prefix(err, "--retention");
    return s;
}

status reform_check(const engine *e, const engine_request *r, const retention_policy *policy,
                    error *err)
{
    if (policy->gather_tokens == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(check_policy(e, policy, err));
    if (r->pooling)
        return error_set(err, STATUS_UNSUPPORTED,
                         "pooling: method 'reform' has none: it computes few of the prompt's "
                         "tokens");
    if (r->prompt_logprobs >= 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "prompt_logprobs: method 'reform' has none: it computes few of the "
                         "prompt's tokens with all layers");
    if (r->truncate_prompt_tokens != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "truncate_prompt_tokens: method 'reform' gathers from the whole prompt");
    return STATUS_IS_OK;
}

/* The claim begins here, so that a deletion of the session reaches a request that still waits for a
 * tokenizer thread. */
status reform_create(engine *e, engine_stream *s)
{
    if (s->policy.gather_tokens == 0) return STATUS_IS_OK;
    reform_run *run = calloc(1, sizeof *run);
    if (!run) return status_make(STATUS_NO_MEMORY, "request");
    s->reform = run;
    if (!s->request.session) return STATUS_IS_OK;
    session_key(&s->request, run->claim.key);
    run->claim.owner = session_owner(&s->request);
    reform_store_claim(&e->embeddings, &run->claim);
    run->claimed = true;
    return STATUS_IS_OK;
}

/* ---- tokenizer threads ----------------------------------------------------------------------- */

/* The question and what is behind it always stay, and count against the budget. */
static status make_fields(const engine_stream *s, reform_run *run, error *err)
{
    const retention_policy *p = &s->policy;
    uint32_t tail = s->n_tokens - run->question;
    uint32_t last = p->window > tail ? p->window - tail : 0;
    if ((uint64_t)tail + last + p->sinks >= p->gather_tokens)
        return error_set(err, STATUS_INVALID,
                         "retention.query_tokens: the question and what follows it have %u tokens, "
                         "and retention.gather_tokens %u leaves no room for others beside the "
                         "first %u: say how many tokens at the end are the question",
                         tail, p->gather_tokens, p->sinks);
    run->fields = (gather_fields){.budget = p->gather_tokens - tail,
                                  .window = p->gather_window,
                                  .first = p->sinks,
                                  .last = last};
    return STATUS_IS_OK;
}

/* The fields that decide what the embeddings of tokens are. */
static retention_policy reading_of(const retention_policy *p)
{
    retention_policy reading = *p;
    reading.gather_tokens = reading.gather_window = reading.query_tokens = reading.exit_layer = 0;
    reading.pressure = reading.report_positions = false;
    return reading;
}

/* The tokens that are read: all, or where the session has some of their embeddings, the others
 * behind the first and last tokens of those. */
static status list_reading(const engine_stream *s, reform_run *run, error *err)
{
    uint32_t had = run->text.n, sinks = s->policy.sinks, window = s->policy.window;
    if (sinks > had) sinks = had;
    uint32_t from = had > window ? had - window : 0;
    if (from < sinks) from = sinks;
    if (had == s->n_tokens) return STATUS_IS_OK;
    run->n_before = sinks + (had - from);
    run->n_read = sinks + (s->n_tokens - from);
    run->read = alloc_resize(NULL, NULL, run->n_read, sizeof *run->read);
    if (!run->read) return error_set(err, STATUS_NO_MEMORY, "prompt: out of memory");
    memcpy(run->read, s->tokens, sinks * sizeof *run->read);
    memcpy(run->read + sinks, s->tokens + from, (s->n_tokens - from) * sizeof *run->read);
    return STATUS_IS_OK;
}

static status prepare_reading(engine *e, engine_stream *s, const question_place *place, error *err)
{
    reform_run *run = s->reform;
    retention_policy reading = reading_of(&s->policy);
    RETURN_IF_ERROR(reform_find_question(e, s, place, &run->question, &run->n_question, err));
    RETURN_IF_ERROR(make_fields(s, run, err));
    if (run->claimed && reform_store_take(&e->embeddings, &run->claim, &reading, s->tokens,
                                          s->n_tokens, &run->text))
        run->session_note = run->text.n > 0 ? "continued" : NULL;
    run->text.policy = reading;
    RETURN_IF_ERROR(reform_store_reserve(&e->embeddings, &run->text, s->n_tokens, err));
    if (run->claimed && run->text.n == 0 &&
        reform_store_recall(&e->embeddings, &run->claim, &reading, s->tokens, s->n_tokens,
                            &run->text))
        run->session_note = "continued";
    run->report.reused = run->text.n;
    run->report.layers = s->policy.exit_layer ? s->policy.exit_layer : e->embed_layers;
    RETURN_IF_ERROR(list_reading(s, run, err));
    run->reading.policy = reading;
    retention_policy_resolve(&run->reading.policy, 1);
    return STATUS_IS_OK;
}

status reform_prepare(engine *e, engine_stream *s, const question_place *place, error *err)
{
    reform_run *run = s->reform;
    run->report_positions = s->policy.report_positions;
    run->shown = retention_fields_of(&s->policy);
    run->queued_us = -1;
    run->n_kept = s->n_tokens;
    run->phase = REFORM_ANSWER;
    run->report.recomputed = s->n_tokens;
    if (s->request.session)
        run->session_note = "ignored: the prompt is short enough to be computed";
    if (s->n_tokens > s->policy.gather_tokens) {
        run->session_note = NULL;
        run->phase = REFORM_READ;
        run->n_kept = s->policy.gather_tokens;
        run->report.recomputed = 0; /* until they are known */
        RETURN_IF_ERROR(prepare_reading(e, s, place, err));
    }
    bool pressure = s->policy.pressure;
    const retention_preset *full = retention_find("full");
    s->policy = full->defaults;
    s->policy.preset = full;
    s->policy.pressure = pressure;
    return STATUS_IS_OK;
}

void reform_fill(engine *e, engine_stream *s)
{
    reform_run *run = s->reform;
    sched_request *answer = &s->sched_request;
    answer->n_prompt = run->n_kept;
    answer->session[0] = answer->session[1] = answer->owner = 0;
    if (run->phase == REFORM_ANSWER) return;
    uint32_t layers = run->report.layers;
    retention_policy policy = run->reading.policy;
    run->reading = (sched_request){
        .priority = answer->priority,
        .arrival = answer->arrival,
        .prompt = run->read,
        .n_prompt = run->n_read,
        .max_new_tokens = 1,
        .n = 1,
        .salt = answer->salt,
        .hidden = answer->hidden,
        .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
        .policy = policy,
        .embeds = e->embed_heads,
        .n_embeds = e->o.n_embed_heads,
        .n_layers = layers < e->info.geometry.n_layers ? layers : 0,
    };
}

status reform_check_fit(engine *e, engine_stream *s, error *err)
{
    if (s->reform->n_read) RETURN_IF_ERROR(sched_check(e->sched, &s->reform->reading, err));
    return sched_check(e->sched, &s->sched_request, err);
}

/* ---- the engine thread: reading -------------------------------------------------------------- */

const char *reform_phase_name(const reform_run *run)
{
    if (run->phase == REFORM_READ) return "read";
    if (run->phase == REFORM_GATHER) return "gather"; // a select thread may be writing run->kept
    return run->kept ? "recompute" : "prefill";
}

static void begin_gathering(engine *e, engine_stream *s)
{
    if (s->request.progress)
        stream_push_progress(s, (engine_progress){"gather", 0, s->reform->question});
    s->progress_us = 0; /* the next phase's first step is told */
    s->reform->phase = REFORM_GATHER;
    s->reform->gather_us = clock_now_us();
    s->reform->selecting = true;
    select_gather(e, s);
}

void reform_begin(engine *e, engine_stream *s)
{
    reform_run *run = s->reform;
    if (run->phase == REFORM_ANSWER) {
        run->answer_us = clock_now_us();
        s->sched_request.id = s->id;
        slots_add_event(e, (sched_event){.kind = SCHED_ADD, .add = &s->sched_request});
    } else if (run->n_read == 0) {
        run->queued_us = 0;
        begin_gathering(e, s);
    } else {
        run->reading.id = s->id;
        slots_add_event(e, (sched_event){.kind = SCHED_ADD, .add = &run->reading});
    }
}

/* The answer has an id of its own, under which the stream is known from now on. */
static void end_reading(engine *e, engine_stream *s)
{
    slots_add_event(e, (sched_event){.kind = SCHED_END, .request = s->id});
    s->reform->read_id = s->id;
    s->id = (uint64_t)++e->generation << 32 | (uint32_t)s->id;
    s->reform->phase = REFORM_GATHER;
    e->readings[e->n_readings++] = s;
}

void reform_take_rows(engine *e, engine_stream *s, const step_seq *share,
                      const step_seq_result *got)
{
    reform_run *run = s->reform;
    size_t dim = (size_t)e->o.n_embed_heads * e->info.head_dim;
    if (!got->embeddings) {
        slots_fail_stream(e, s, status_make(STATUS_INTERNAL, "embeddings are missing"));
        return;
    }
    uint32_t skip = run->n_before > run->n_rows ? run->n_before - run->n_rows : 0;
    if (skip > share->n_tokens) skip = share->n_tokens;
    uint32_t n = share->n_tokens - skip;
    if (!gather_are_finite(got->embeddings + skip * dim, n * dim)) {
        loop_fail_undefined(e, s, "embeddings", "the reading of the prompt");
        return;
    }
    memcpy(run->text.values + run->text.n * dim, got->embeddings + skip * dim,
           n * dim * sizeof *run->text.values);
    memcpy(run->text.tokens + run->text.n, s->tokens + run->text.n, n * sizeof *s->tokens);
    run->text.n += n;
    run->report.read += n;
    run->n_rows += share->n_tokens;
    if (run->n_rows == run->n_read) end_reading(e, s);
}

void reform_end_readings(engine *e)
{
    for (uint32_t i = 0; i < e->n_readings; i++) {
        engine_stream *s = e->readings[i];
        reform_run *run = s->reform;
        sched_choice_info info = {.queued_us = 0};
        (void)sched_describe(e->sched, run->read_id, 0, &info);
        free(info.report.kept_json);
        run->queued_us = info.queued_us;
        run->report.kept = info.report.kept_tokens;
        run->report.read_ms = (double)(clock_now_us() - s->added_us - info.queued_us) / 1000.0;
        run->scoring_ms = info.report.scoring_ms;
        run->pages_dropped = info.report.pages_dropped;
        if (!s->failed) begin_gathering(e, s);
    }
    e->n_readings = 0;
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* Lists the gathered tokens, then the question and what is behind it. */
static status list_kept(engine_stream *s, const float *scores)
{
    reform_run *run = s->reform;
    uint32_t n = 0;
    run->kept = alloc_resize(NULL, NULL, run->n_kept, sizeof *run->kept);
    run->prompt = alloc_resize(NULL, NULL, run->n_kept, sizeof *run->prompt);
    if (!run->kept || !run->prompt) return status_make(STATUS_NO_MEMORY, "gathered tokens");
    RETURN_IF_ERROR(gather_select(scores, run->question, &run->fields, run->kept, &n));
    run->n_gathered = n;
    for (uint32_t at = run->question; at < s->n_tokens; at++) run->kept[n++] = at;
    run->n_kept = n;
    for (uint32_t i = 0; i < n; i++) run->prompt[i] = s->tokens[run->kept[i]];
    return STATUS_IS_OK;
}

void reform_gather(engine_stream *s)
{
    reform_run *run = s->reform;
    const engine *e = s->engine;
    uint32_t dim = e->o.n_embed_heads * e->info.head_dim;
    const uint16_t *values = run->text.values;
    float *scores = alloc_resize(NULL, NULL, run->question, sizeof *scores);
    const uint16_t *question = values + (size_t)run->question * dim;
    uint32_t background = gather_background(&run->fields);
    run->gathered = scores ? gather_scores(values, run->question, question, run->n_question, dim,
                                           background, scores)
                           : status_make(STATUS_NO_MEMORY, "gathered tokens");
    if (status_ok(run->gathered)) run->gathered = list_kept(s, scores);
    free(scores);
}

/* From here on another request of the session may have what was read. */
static void give_up_text(engine *e, reform_run *run)
{
    if (run->claimed) {
        if (run->text.n > 0 && !run->session_note) run->session_note = "stored";
        reform_store_keep(&e->embeddings, &run->claim, &run->text);
        run->claimed = false;
    } else {
        reform_store_release(&e->embeddings, &run->text);
    }
}

void reform_forget(engine_stream *s)
{
    if (s->reform && !s->reform->selecting) give_up_text(s->engine, s->reform);
}

void reform_answer(engine *e, engine_stream *s, bool known)
{
    reform_run *run = s->reform;
    run->selecting = false;
    if (!known) {
        reform_forget(s);
        return;
    }
    if (s->failed || s->choices[0].end_sent) return;
    /* Tokens of an aborted stream may not have been gathered, and the news of the abort may be on
     * its way. */
    if (atomic_load(&s->aborted)) {
        slots_end_stream(e, s, ENGINE_FINISH_ABORT);
        return;
    }
    if (!status_ok(run->gathered)) {
        slots_fail_stream(e, s, run->gathered);
        return;
    }
    give_up_text(e, run);
    run->phase = REFORM_ANSWER;
    run->answer_us = clock_now_us();
    run->report.gather_ms = (double)(run->answer_us - run->gather_us) / 1000.0;
    run->report.gathered = run->n_gathered;
    run->report.recomputed = run->n_kept;
    s->sched_request.prompt = run->prompt;
    s->sched_request.n_prompt = run->n_kept;
    s->sched_request.id = s->id;
    slots_add_event(e, (sched_event){.kind = SCHED_ADD, .add = &s->sched_request});
}

/* ---- the report, and the end ----------------------------------------------------------------- */

static void list_positions(const engine *e, const reform_run *run, sched_choice_info *info)
{
    strbuf json = {0};
    retention_same_json(&e->info.geometry, run->kept, run->n_kept, &json);
    info->lacks_kept = json.failed;
    if (json.failed) strbuf_destroy(&json);
    else info->report.kept_json = json.data;
}

void reform_describe(const engine *e, const engine_stream *s, sched_choice_info *info)
{
    const reform_run *run = s->reform;
    retention_report *out = &info->report;
    bool answers = run->phase == REFORM_ANSWER;
    out->method = retention_find("reform")->name;
    out->fields = run->shown;
    out->logical_tokens = s->n_tokens + (answers ? out->logical_tokens - run->n_kept : 0);
    out->scoring_ms += run->scoring_ms;
    out->pages_dropped += run->pages_dropped;
    if (run->session_note) snprintf(out->session, sizeof out->session, "%s", run->session_note);
    out->has_gathering = true;
    out->gathering = run->report;
    if (answers && s->first_token_us)
        out->gathering.recompute_ms = (double)(s->first_token_us - run->answer_us) / 1000.0;
    if (run->queued_us >= 0) info->queued_us = run->queued_us;
    /* Before the answer they may be a select thread's. */
    if (answers && run->report_positions && run->kept) list_positions(e, run, info);
}

void reform_release(engine_stream *s)
{
    reform_run *run = s->reform;
    if (!run) return;
    give_up_text(s->engine, run);
    free(run->read);
    free(run->kept);
    free(run->prompt);
    free(run);
    s->reform = NULL;
}
