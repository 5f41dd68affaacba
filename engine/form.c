/* Forms: compiled and kept, followed, and turned into the masks of a plan. */
#include "engine/form.h"

#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- compiled forms (prepare threads) -------------------------------------------------------- */

static void forget_form(kept_form *k)
{
    free(k->text);
    grammar_release(k->grammar);
    *k = (kept_form){0};
}

void form_cache_destroy(form_cache *c)
{
    for (uint32_t i = 0; i < FORMS_KEPT; i++) forget_form(&c->kept[i]);
    grammar_vocab_destroy(c->vocab);
    free(c->masks[0]);
    free(c->masks[1]);
}

/* The tokens' bytes; special tokens and ids without a text have none. Under the lock. */
static status make_vocab(engine *e)
{
    if (e->forms.vocab) return STATUS_IS_OK;
    uint32_t n = e->info.vocab_size, known = tok_vocab_size(e->o.tokenizer);
    grammar_token *tokens = calloc(n, sizeof *tokens);
    if (!tokens) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t t = 0; t < n && t < known; t++) {
        const char *bytes;
        size_t size;
        if (tok_is_special(e->o.tokenizer, t) ||
            !status_ok(tok_token_bytes(e->o.tokenizer, t, &bytes, &size)))
            continue;
        tokens[t] = (grammar_token){bytes, (uint32_t)size};
    }
    status s = grammar_vocab_create(tokens, n, &e->forms.vocab);
    free(tokens);
    return s;
}

static kept_form *find_kept(form_cache *c, const engine_form *f, uint64_t hash)
{
    for (uint32_t i = 0; i < FORMS_KEPT; i++) {
        kept_form *k = &c->kept[i];
        if (k->grammar && k->hash == hash && k->kind == f->kind && k->compact == f->compact &&
            k->n == f->n && memcmp(k->text, f->text, f->n) == 0)
            return k;
    }
    return NULL;
}

static kept_form *find_oldest(form_cache *c)
{
    kept_form *oldest = NULL;
    for (uint32_t i = 0; i < FORMS_KEPT; i++) {
        kept_form *k = &c->kept[i];
        if (k->grammar && (!oldest || k->used < oldest->used)) oldest = k;
    }
    return oldest;
}

/* Releases the least recently used forms until so many bytes more fit beside the others. */
static void make_fit(form_cache *c, size_t bytes)
{
    for (kept_form *oldest; (oldest = find_oldest(c)) != NULL; forget_form(oldest)) {
        size_t all = bytes;
        for (uint32_t i = 0; i < FORMS_KEPT; i++)
            if (c->kept[i].grammar) all += c->kept[i].n + grammar_bytes(c->kept[i].grammar);
        if (all <= FORMS_BYTES_MAX) return;
    }
}

/* The place of another form, for which the least recently used ones may have to go. */
static kept_form *make_room(form_cache *c, size_t bytes)
{
    make_fit(c, bytes);
    for (uint32_t i = 0; i < FORMS_KEPT; i++)
        if (!c->kept[i].grammar) return &c->kept[i];
    kept_form *oldest = find_oldest(c);
    forget_form(oldest);
    return oldest;
}

/* Keeps a grammar in place of the least recently used ones. When memory is out it is not kept. */
static void keep_form(form_cache *c, const engine_form *f, uint64_t hash, grammar *g)
{
    char *text = malloc(f->n + 1);
    if (!text) return;
    kept_form *place = make_room(c, f->n + grammar_bytes(g));
    memcpy(text, f->text, f->n);
    *place = (kept_form){hash, ++c->clock, f->kind, f->compact, text, f->n, grammar_hold(g)};
}

/* ---- forms that failed ----------------------------------------------------------------------- */

static void name_form(const engine_form *f, char key[SHA256_HEX_BYTES])
{
    const uint8_t head[] = {(uint8_t)f->kind, f->compact};
    sha256 hash;
    sha256_init(&hash);
    sha256_add(&hash, head, sizeof head);
    sha256_add(&hash, f->text, f->n);
    sha256_finish(&hash, key);
}

static const failed_form *find_failed(const form_cache *c, const char key[SHA256_HEX_BYTES])
{
    for (uint32_t i = 0; i < FORMS_FAILED; i++)
        if (memcmp(c->failed[i].key, key, SHA256_HEX_BYTES) == 0) return &c->failed[i];
    return NULL;
}

/* Another try after a lack of memory may succeed. */
static void keep_failed(form_cache *c, const char key[SHA256_HEX_BYTES], status s, const error *err)
{
    if (s.code == STATUS_NO_MEMORY || find_failed(c, key)) return;
    failed_form *f = &c->failed[c->n_failed++ % FORMS_FAILED];
    memcpy(f->key, key, SHA256_HEX_BYTES);
    f->code = s.code;
    f->err = *err;
}

/* ---- turns to compile ------------------------------------------------------------------------ */

form_turn form_take_turn(engine *e, engine_stream *s)
{
    const engine_form *f = &s->request.form;
    form_cache *c = &e->forms;
    uint32_t most = e->o.tokenizer_threads > 1 ? e->o.tokenizer_threads - 1 : 1;
    form_turn turn = FORM_TURN_TAKEN;
    if (!f->given || s->request.score_only) return FORM_TURN_NONE;
    uint64_t hash = hash_bytes(f->text, f->n, f->kind);
    pthread_mutex_lock(&c->lock);
    if (find_kept(c, f, hash)) {
        turn = FORM_TURN_NONE;
    } else if (atomic_load(&s->aborted)) {
        turn = FORM_TURN_NONE; // form_take_back may have looked for it already
    } else if (c->n_compiling < most) {
        c->n_compiling++;
    } else {
        turn = FORM_TURN_PARKED;
        s->place.newer = NULL;
        if (c->parked) c->last_parked->place.newer = s;
        else c->parked = s;
        c->last_parked = s;
    }
    pthread_mutex_unlock(&c->lock);
    return turn;
}

/* Takes s out of the list; `before` is the stream in front of it. */
static void unpark(form_cache *c, engine_stream *before, engine_stream *s)
{
    *(before ? &before->place.newer : &c->parked) = s->place.newer;
    if (c->last_parked == s) c->last_parked = before;
    s->place.newer = NULL;
}

engine_stream *form_pass_turn(engine *e)
{
    form_cache *c = &e->forms;
    pthread_mutex_lock(&c->lock);
    engine_stream *s = c->parked;
    if (s) unpark(c, NULL, s);
    else c->n_compiling--;
    pthread_mutex_unlock(&c->lock);
    return s;
}

bool form_take_back(engine *e, engine_stream *s)
{
    form_cache *c = &e->forms;
    engine_stream *before = NULL;
    pthread_mutex_lock(&c->lock);
    engine_stream *x = c->parked;
    for (; x && x != s; x = x->place.newer) before = x;
    if (x) unpark(c, before, s);
    pthread_mutex_unlock(&c->lock);
    return x;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static status compile(engine *e, const engine_form *f, grammar **out, error *err)
{
    form_cache *c = &e->forms;
    char key[SHA256_HEX_BYTES];
    uint64_t hash = hash_bytes(f->text, f->n, f->kind);
    name_form(f, key);
    pthread_mutex_lock(&c->lock);
    status s = make_vocab(e);
    kept_form *kept = status_ok(s) ? find_kept(c, f, hash) : NULL;
    const failed_form *failed = find_failed(c, key);
    if (kept) {
        kept->used = ++c->clock;
        *out = grammar_hold(kept->grammar);
        make_fit(c, 0); // masks that answers needed have been added since
    } else if (failed) {
        *err = failed->err;
        s = status_make(failed->code, NULL);
    }
    pthread_mutex_unlock(&c->lock);
    if (kept || failed) return s;
    if (!status_ok(s)) return error_set(err, s.code, "out of memory");
    const grammar_source source = {f->kind, f->text, f->n, f->compact};
    s = grammar_create(&source, c->vocab, out, err);
    pthread_mutex_lock(&c->lock);
    if (!status_ok(s)) keep_failed(c, key, s, err);
    else if (!find_kept(c, f, hash)) keep_form(c, f, hash, *out);
    pthread_mutex_unlock(&c->lock);
    return s;
}

status form_prepare(engine *e, engine_stream *s, error *err)
{
    const engine_form *f = &s->request.form;
    grammar *g = NULL;
    if (!f->given || s->request.score_only) return STATUS_IS_OK;
    if (e->o.n_stop_ids == 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: the model has no end token", f->field);
    status st = compile(e, f, &g, err);
    if (!status_ok(st)) {
        error_prefix(err, "%s", f->field);
        return st;
    }
    for (uint32_t i = 0; i < s->request.n && status_ok(st); i++) {
        s->choices[i].matcher = grammar_matcher_create(g);
        if (!s->choices[i].matcher)
            st = error_set(err, STATUS_NO_MEMORY, "%s: out of memory", f->field);
    }
    grammar_release(g); // the matchers hold it
    return st;
}

/* ---- masks (engine thread) ------------------------------------------------------------------- */

static bool has_tokens(const uint32_t *mask, uint32_t words)
{
    for (uint32_t w = 0; w < words; w++)
        if (mask[w]) return true;
    return false;
}

/* Allows the tokens, or bans them. */
static void set_tokens(uint32_t *mask, const uint32_t *ids, uint32_t n, uint32_t vocab,
                       bool allowed)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= vocab) continue;
        mask[ids[i] / 32] &= ~(1u << ids[i] % 32);
        if (allowed) mask[ids[i] / 32] |= 1u << ids[i] % 32;
    }
}

/* Whether a token ends answers: such a token is drawn or not, but not forced. */
static bool is_stop(const engine *e, const engine_stream *s, uint32_t token)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == token) return true;
    for (uint32_t i = 0; i < e->o.n_stop_ids; i++)
        if (e->stop_ids[i] == token) return true;
    return false;
}

/* The run of forced tokens behind those that the choice has. bad_words are texts that other tokens
 * can make up, so a request that has some is forced to none. */
static const forced_run *forced_behind(engine *e, const engine_stream *s, choice_state *c)
{
    if (s->bad.n == 0 && !c->forced.known) forced_find(e->o.tokenizer, c->matcher, &c->forced);
    return &c->forced;
}

/* The token that has to come next, if there is one. */
static bool next_forced(engine *e, const engine_stream *s, choice_state *c, uint32_t *token)
{
    const forced_run *run = forced_behind(e, s, c);
    if (forced_left(run) == 0) return false;
    *token = run->ids.ids[run->at];
    return *token < e->info.vocab_size && !is_stop(e, s, *token);
}

uint32_t form_forced(engine *e, engine_stream *s, uint32_t choice, const uint32_t **tokens)
{
    choice_state *c = &s->choices[choice];
    if (!c->matcher) return 0;
    const forced_run *run = forced_behind(e, s, c);
    uint32_t n = 0, left = forced_left(run);
    *tokens = left ? run->ids.ids + run->at : NULL;
    while (n < left && (*tokens)[n] < e->info.vocab_size && !is_stop(e, s, (*tokens)[n])) n++;
    return n;
}

/* The model's end tokens are allowed where the answer may end, and nowhere else. min_tokens and
 * ignore_eos hold as long as the form lets the answer go on. */
static status make_mask(engine *e, const engine_stream *s, choice_state *c, uint32_t *mask)
{
    uint32_t vocab = e->info.vocab_size, words = step_mask_words(vocab), forced;
    if (next_forced(e, s, c, &forced)) {
        memset(mask, 0, words * sizeof *mask);
        set_tokens(mask, &forced, 1, vocab, true);
        return STATUS_IS_OK;
    }
    RETURN_IF_ERROR(grammar_mask(c->matcher, mask));
    bad_words_ban(&s->bad, &c->tail, mask, vocab);
    bool may_end = grammar_may_end(c->matcher), early = c->n_tokens < s->request.min_tokens;
    if (early) set_tokens(mask, s->stop_ids, s->n_stop_ids, vocab, false);
    set_tokens(mask, e->stop_ids, e->o.n_stop_ids, vocab,
               may_end && !early && !s->request.ignore_eos);
    if (!has_tokens(mask, words) && may_end)
        set_tokens(mask, e->stop_ids, e->o.n_stop_ids, vocab, true);
    return has_tokens(mask, words)
               ? STATUS_IS_OK
               : status_make(STATUS_INVALID, "no token fits the form of the answer here");
}

/* allowed_token_ids and bad_words. min_tokens does not bind a masked draw, so the mask leaves out
 * what would end the answer too early. */
static status make_list_mask(engine *e, const engine_stream *s, const choice_state *c,
                             uint32_t *mask)
{
    const engine_request *r = &s->request;
    uint32_t vocab = e->info.vocab_size, words = step_mask_words(vocab);
    memset(mask, r->allowed_token_ids ? 0 : 255, words * sizeof *mask);
    if (vocab % 32) mask[words - 1] &= (1u << vocab % 32) - 1;
    set_tokens(mask, r->allowed_token_ids, r->n_allowed_token_ids, vocab, true);
    bad_words_ban(&s->bad, &c->tail, mask, vocab);
    if (c->n_tokens < r->min_tokens) set_tokens(mask, s->stop_ids, s->n_stop_ids, vocab, false);
    if (s->bad.n && !has_tokens(mask, words))
        return status_make(STATUS_INVALID, "bad_words: no other token may be drawn here");
    return has_tokens(mask, words)
               ? STATUS_IS_OK
               : status_make(STATUS_INVALID, "allowed_token_ids: are end tokens alone, which "
                                             "min_tokens does not allow yet");
}

static bool is_listed(engine *e, const engine_stream *s, uint32_t token)
{
    uint32_t *mask = malloc(step_mask_words(e->info.vocab_size) * sizeof *mask);
    bool listed = mask && status_ok(make_list_mask(e, s, &s->choices[0], mask)) &&
                  (mask[token / 32] >> token % 32 & 1);
    free(mask);
    return listed;
}

bool form_may_begin(engine *e, engine_stream *s, uint32_t token)
{
    grammar_matcher *m = s->choices[0].matcher;
    if (!m) return (!s->request.allowed_token_ids && !s->bad.n) || is_listed(e, s, token);
    if (status_ok(grammar_accept(m, token))) {
        grammar_rollback(m, 0);
        return true;
    }
    bool ends = false;
    for (uint32_t i = 0; i < e->o.n_stop_ids; i++) ends |= e->stop_ids[i] == token;
    return ends && grammar_may_end(m);
}

static status mask_share(engine *e, engine_stream *s, const step_seq *share, uint32_t *mask)
{
    choice_state *c = &s->choices[share->choice];
    return c->matcher ? make_mask(e, s, c, mask) : make_list_mask(e, s, c, mask);
}

/* The stream of a share whose draws need a mask; NULL: they are free. */
static engine_stream *masked_stream(engine *e, const step_seq *share)
{
    engine_stream *s = share->n_samples > 0 ? slots_find(e, share->request) : NULL;
    if (!s || s->failed) return NULL;
    bool masked = s->choices[share->choice].matcher || s->request.allowed_token_ids || s->bad.n;
    return masked ? s : NULL;
}

static bool reserve(form_cache *c, uint32_t turn, size_t words)
{
    if (words <= c->room[turn]) return true;
    uint32_t *grown = realloc(c->masks[turn], words * sizeof *grown);
    if (!grown) return false;
    c->masks[turn] = grown;
    c->room[turn] = words;
    return true;
}

void form_mask_plan(engine *e, const step_plan *plan)
{
    form_cache *c = &e->forms;
    uint32_t words = step_mask_words(e->info.vocab_size), turn = plan->step & 1;
    size_t n = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) n += masked_stream(e, &plan->seqs[i]) != NULL;
    if (n == 0) return;
    bool room = reserve(c, turn, n * words);
    uint32_t *mask = c->masks[turn];
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        engine_stream *s = masked_stream(e, &plan->seqs[i]);
        if (!s) continue;
        status st =
            room ? mask_share(e, s, &plan->seqs[i], mask) : status_make(STATUS_NO_MEMORY, "masks");
        if (!status_ok(st)) { // its draw is discarded
            slots_fail_stream(e, s, st);
            continue;
        }
        sched_set_mask(e->sched, i, mask, words);
        mask += words;
    }
}

engine_finish form_take(engine *e, engine_stream *s, uint32_t choice, uint32_t token,
                        engine_finish finish)
{
    choice_state *c = &s->choices[choice];
    if (!bad_words_take(&s->bad, &c->tail, token)) {
        slots_fail_stream(e, s, status_make(STATUS_NO_MEMORY, "bad_words"));
        return ENGINE_FINISH_NONE;
    }
    if (!c->matcher || finish != ENGINE_FINISH_NONE) return finish;
    status st = grammar_accept(c->matcher, token);
    if (status_ok(st)) {
        forced_take(&c->forced, token);
        return ENGINE_FINISH_NONE;
    }
    for (uint32_t i = 0; grammar_may_end(c->matcher) && i < e->o.n_stop_ids; i++) {
        if (e->stop_ids[i] != token) continue;
        c->stop_token = token; // although min_tokens or ignore_eos asked for more
        return ENGINE_FINISH_STOP;
    }
    slots_fail_stream(e, s, st);
    return ENGINE_FINISH_NONE;
}
