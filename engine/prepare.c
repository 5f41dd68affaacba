/* The tokenizer threads: each turns a submitted request into tokens and a scheduler request, or
 * fails that request. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* The most tokens of prompt and output together. */
static uint32_t longest_of(const engine *e, const retention_policy *policy)
{
    return policy->contiguous ? e->o.max_logical_len : e->o.max_model_len;
}

/* The name of the limit that a number of tokens is compared with, for messages. */
static const char *limit_name(const retention_policy *policy)
{
    return policy->contiguous ? "with this retention method --max-logical-len"
                              : "the maximum context length";
}

/* Refuses a text whose byte count alone exceeds what the policy may be given, because encoding
 * megabytes takes a second. */
static status check_bytes(const engine *e, const retention_policy *policy, size_t n, error *err)
{
    size_t most = e->bytes_per_token;
    if (!most || n / most < longest_of(e, policy)) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "prompt: %zu bytes make at least %zu tokens; %s is %u", n,
                     n / most, limit_name(policy), longest_of(e, policy));
}

/* must_fit: refuses a text that is too long for this policy before it is encoded, if its byte count
 * shows that; NULL for a text that need not fit. question: where the last user message is in it;
 * may be NULL. */
static status encode_prompt(engine *e, engine_request *r, const retention_policy *must_fit,
                            question_place *question, tok_ids *ids, error *err)
{
    if (r->prompt) {
        if (must_fit) RETURN_IF_ERROR(check_bytes(e, must_fit, r->prompt_bytes, err));
        return tok_encode(e->o.tokenizer, r->prompt, r->prompt_bytes, r->add_special_tokens, ids,
                          err);
    }
    strbuf text = {0};
    status s = engine_render(e, r, &text, err);
    if (status_ok(s) && must_fit) s = check_bytes(e, must_fit, text.size, err);
    if (status_ok(s) && question)
        s = reform_find_message(r->messages, text.data ? text.data : "", text.size, question, err);
    /* The template writes its own BOS. */
    if (status_ok(s))
        s = tok_encode(e->o.tokenizer, text.data ? text.data : "", text.size, false, ids, err);
    strbuf_destroy(&text);
    return s;
}

static status copy_ids(const engine_request *r, tok_ids *out, error *err)
{
    size_t n = r->n_prompt_token_ids, wanted = out->n + n;
    uint32_t *ids = alloc_resize(NULL, out->ids, wanted, sizeof *ids);
    if (!ids) return error_set(err, STATUS_NO_MEMORY, "prompt_token_ids: out of memory");
    memcpy(ids + out->n, r->prompt_token_ids, n * sizeof *ids);
    *out = (tok_ids){.ids = ids, .n = wanted, .capacity = wanted};
    return STATUS_IS_OK;
}

status engine_tokenize(engine *e, const engine_request *r, tok_ids *out, error *err)
{
    engine_request copy;
    RETURN_IF_ERROR(engine_request_check(r, &e->info, e->o.chat, err));
    if (r->prompt_token_ids) return copy_ids(r, out, err);
    /* A copy, because rendering changes the messages. */
    status s = engine_request_copy(r, &copy);
    if (!status_ok(s)) return error_set(err, s.code, "request: out of memory");
    s = encode_prompt(e, &copy, NULL, NULL, out, err);
    engine_request_destroy(&copy);
    return s;
}

/* truncate_prompt_tokens: drops the first tokens of the prompt. */
static void truncate_prompt(const engine *e, engine_stream *s)
{
    const engine_request *r = &s->request;
    uint32_t longest = longest_of(e, &s->policy), keep = (uint32_t)r->truncate_prompt_tokens;
    if (r->truncate_prompt_tokens == 0) return;
    if (r->truncate_prompt_tokens < 0) {
        uint32_t answer = r->max_tokens ? r->max_tokens : r->open_max_tokens;
        if (answer == 0) answer = r->min_tokens ? r->min_tokens : 1;
        keep = longest > answer ? longest - answer : 1;
        if (retention_input_tokens(&s->policy, s->n_tokens) <= keep) return;
    }
    if (s->n_tokens <= keep) return;
    memmove(s->tokens, s->tokens + (s->n_tokens - keep), keep * sizeof *s->tokens);
    s->n_tokens = keep;
}

static status make_tokens(engine *e, engine_stream *s, question_place *question, error *err)
{
    engine_request *r = &s->request;
    if (r->prompt_token_ids) {
        s->tokens = r->prompt_token_ids;
        s->n_tokens = r->n_prompt_token_ids;
        r->prompt_token_ids = NULL;
        r->n_prompt_token_ids = 0;
    } else {
        tok_ids ids = {0};
        bool is_cut =
            s->policy.schedule == RETENTION_SCHEDULE_INPUT || r->truncate_prompt_tokens != 0;
        status st = encode_prompt(e, r, is_cut ? NULL : &s->policy, question, &ids, err);
        s->tokens = ids.ids;
        s->n_tokens = (uint32_t)ids.n;
        RETURN_IF_ERROR(st);
    }
    if (s->n_tokens == 0) return error_set(err, STATUS_INVALID, "prompt: has no tokens");
    /* A tokenizer may know ids that the weights do not. */
    for (uint32_t i = 0; i < s->n_tokens; i++)
        if (s->tokens[i] >= e->info.vocab_size)
            return error_set(err, STATUS_INVALID,
                             "prompt: token %u is outside the model's vocabulary (%u)",
                             s->tokens[i], e->info.vocab_size);
    truncate_prompt(e, s);
    uint32_t n = retention_input_tokens(&s->policy, s->n_tokens);
    if (n >= longest_of(e, &s->policy))
        return error_set(err, STATUS_LIMIT, "prompt: %u tokens; %s is %u", n,
                         limit_name(&s->policy), longest_of(e, &s->policy));
    return STATUS_IS_OK;
}

static int compare_ids(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The stop ids are sorted, because the engine thread looks up each token of each choice. */
static status make_stops(engine *e, engine_stream *s)
{
    const engine_request *r = &s->request;
    uint32_t n_eos = r->ignore_eos ? 0 : e->o.n_stop_ids;
    s->stop_ids = malloc(((size_t)n_eos + r->n_stop_token_ids + 1) * sizeof *s->stop_ids);
    if (!s->stop_ids) return status_make(STATUS_NO_MEMORY, "stop ids");
    if (n_eos) memcpy(s->stop_ids, e->stop_ids, n_eos * sizeof *s->stop_ids);
    if (r->n_stop_token_ids)
        memcpy(s->stop_ids + n_eos, r->stop_token_ids, r->n_stop_token_ids * sizeof *s->stop_ids);
    s->n_stop_ids = n_eos + r->n_stop_token_ids;
    qsort(s->stop_ids, s->n_stop_ids, sizeof *s->stop_ids, compare_ids);
    return STATUS_IS_OK;
}

/* Whether min_tokens would keep every token from being drawn. Masks are looked at as they are made
 * (form.c). */
static bool bans_all(const engine *e, const engine_stream *s)
{
    uint32_t n = 0;
    if (s->request.min_tokens == 0 || s->sched_request.masked) return false;
    const uint32_t *ids = s->stop_ids;
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        n += ids[i] < e->info.vocab_size && (i == 0 || ids[i] != ids[i - 1]);
    return n == e->info.vocab_size;
}

/* Less would divide finite logits to infinity. */
static float penalty_of(const engine_request *r)
{
    const float least = 1e-4f;
    return r->repetition_penalty < least ? least : r->repetition_penalty;
}

static void fill_sched_request(engine *e, engine_stream *s)
{
    const engine_request *r = &s->request;
    s->sched_request = (sched_request){
        .priority = r->priority,
        .arrival = s->arrival,
        .want_scores = r->prompt_logprobs >= 0 ? 1 + (uint32_t)r->prompt_logprobs : 0,
        .pooling = r->pooling,
        .prompt = s->tokens,
        .n_prompt = s->n_tokens,
        .n = r->n,
        .retrieval = s->retrieval,
        .salt = session_salt(r, e->o.identities_apart),
        .params =
            {
                .temperature = r->temperature,
                .top_p = r->top_p,
                .min_p = r->min_p,
                .top_k = r->top_k > 0 ? (uint32_t)r->top_k : 0,
                .presence_penalty = r->presence_penalty,
                .frequency_penalty = r->frequency_penalty,
                .repetition_penalty = penalty_of(r),
                .seed = r->has_seed ? r->seed : atomic_fetch_add(&e->next_seed, 1),
                .n_logprobs = r->logprobs,
                .min_tokens = r->min_tokens,
                .stop_ids = s->stop_ids,
                .n_stop_ids = s->n_stop_ids,
                .bias_ids = r->bias_ids,
                .bias = r->bias,
                .n_bias = r->n_bias,
            },
    };
    session_key(r, s->sched_request.session);
    if (r->session) s->sched_request.owner = session_owner(r);
    s->sched_request.hidden = s->sched_request.salt != 0 || r->session;
    s->sched_request.masked = s->choices[0].matcher || r->allowed_token_ids || s->bad.n;
}

static void set_length(engine_stream *s, uint32_t max_new_tokens)
{
    s->sched_request.max_new_tokens = max_new_tokens;
    s->sched_request.policy = s->policy;
    retention_policy_resolve(&s->sched_request.policy, max_new_tokens);
}

/* For max_tokens left open: as many as the context and the pool have room for. A method whose
 * positions close up could go on for very much longer than the context, so that is the end. */
static uint32_t most_new_tokens(engine *e, engine_stream *s)
{
    uint32_t computed = retention_input_tokens(&s->policy, s->sched_request.n_prompt);
    uint32_t lowest = 1, highest = longest_of(e, &s->policy) - computed;
    if (highest > e->o.max_model_len) highest = e->o.max_model_len;
    if (s->request.open_max_tokens && highest > s->request.open_max_tokens)
        highest = s->request.open_max_tokens;
    while (lowest < highest) {
        uint32_t middle = lowest + (highest - lowest + 1) / 2;
        set_length(s, middle);
        if (status_ok(sched_check(e->sched, &s->sched_request, NULL))) lowest = middle;
        else highest = middle - 1;
    }
    return lowest;
}

/* Fits the request to the present scheduler, which may be replaced later (watch.c). */
static status check_fit(engine *e, engine_stream *s, error *err)
{
    pthread_rwlock_rdlock(&e->sched_lock);
    s->sched_request.open_length = s->request.max_tokens == 0;
    if (s->max_new_tokens == 0) s->max_new_tokens = most_new_tokens(e, s);
    set_length(s, s->max_new_tokens);
    s->made_for = e->n_backends;
    status st =
        s->reform ? reform_check_fit(e, s, err) : sched_check(e->sched, &s->sched_request, err);
    pthread_rwlock_unlock(&e->sched_lock);
    return st;
}

static status prepare_stream(engine *e, engine_stream *s, error *err)
{
    question_place question = {.known = false};
    bool gathers = s->policy.gather_tokens > 0;
    RETURN_IF_ERROR(make_tokens(e, s, gathers ? &question : NULL, err));
    if (gathers) RETURN_IF_ERROR(reform_prepare(e, s, &question, err));
    RETURN_IF_ERROR(form_prepare(e, s, err));
    if (!s->request.score_only)
        RETURN_IF_ERROR(bad_words_create(e->o.tokenizer, s->request.bad_words, &s->bad, err));
    status st = make_stops(e, s);
    if (!status_ok(st)) return error_set(err, st.code, "request: out of memory");
    /* Scoring ends with the first draw, which is not returned. */
    s->max_new_tokens = s->request.score_only ? 1 : s->request.max_tokens;
    fill_sched_request(e, s);
    if (bans_all(e, s))
        return error_set(err, STATUS_INVALID,
                         "stop_token_ids: are all tokens, which min_tokens does not allow yet");
    if (s->reform) reform_fill(e, s);
    RETURN_IF_ERROR(check_fit(e, s, err));
    if (!s->reform) session_recall(e, s);

    /* A ring of `most` items has room for all outputs, so no choice ever waits for its reader
     * (pause_if_full). A smaller ring needs room for a token and an end of each choice in every
     * step, and a pause takes effect only after the steps that are in flight. */
    uint64_t most = ((uint64_t)s->max_new_tokens + engine_in_flight(e)) * s->request.n;
    uint32_t least = 2 * (1 + engine_in_flight(e)) * s->request.n;
    uint32_t wanted = e->o.ring_capacity > least ? e->o.ring_capacity : least;
    st = stream_make_ring(s, most < wanted ? (uint32_t)most : wanted);
    return status_ok(st) ? st : error_set(err, st.code, "request: out of memory");
}

static void prepare_one(engine *e, engine_stream *s)
{
    error err = {{0}};
    status st = STATUS_IS_OK;
    if (!atomic_load(&s->aborted)) st = prepare_stream(e, s, &err);
    if (status_ok(st)) {
        if (!hand_prepare(e, s)) inbox_put(e, INBOX_ADD, s);
    } else {
        engine_count_out(e, ENGINE_FINISH_ERROR);
        stream_fail(s, st.code, err.text);
    }
    stream_unref(s);
}

void *prepare_loop(void *arg)
{
    engine *e = arg;
    thread_set_name("oct-prepare");
    for (engine_stream *s; (s = prepare_next(e)) != NULL;) {
        form_turn turn = form_take_turn(e, s);
        if (turn == FORM_TURN_PARKED) continue;
        prepare_one(e, s);
        while (turn == FORM_TURN_TAKEN && (s = form_pass_turn(e)) != NULL) prepare_one(e, s);
    }
    return NULL;
}
