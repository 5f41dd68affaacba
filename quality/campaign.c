/* Makes documents, sends their requests in order, and records the answers. */
#include "quality/campaign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 200, LOG_US = 1000 * 1000 };

static status out_of_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "out of memory");
}

/* ---- documents ------------------------------------------------------------------------------- */

static void live_destroy(live *l)
{
    document_destroy(&l->own);
    for (uint32_t i = 0; l->full && i < l->n_asked; i++) free(l->full[i].samples);
    free(l->full);
    for (size_t i = 0; i < l->n_second; i++) {
        free(l->second[i].tokens);
        free(l->second[i].answer);
    }
    free(l->second);
    *l = (live){0};
}

/* A document's seed depends on its task, length and number alone, so adding tasks changes no other
 * document. */
static uint64_t document_seed(const campaign *c, const source *s)
{
    char name[128];
    int n = snprintf(name, sizeof name, "%s/%u/%u", s->name, s->length, c->number);
    return hash_bytes(name, (size_t)n, c->o->seed);
}

static status make_document(campaign *c, live *l, error *err)
{
    const source *s = &c->sources.items[c->row];
    if (!s->task) {
        l->doc = &s->documents[c->number];
        return STATUS_IS_OK;
    }
    task_context ctx = {
        .text = c->sources.has_text ? &c->sources.text : NULL,
        .max_questions = c->o->questions,
        .target_tokens = s->length,
    };
    l->doc = &l->own;
    return task_fit(s->task, &ctx, document_seed(c, s), ask_count, c, &l->own, err);
}

/* With two turns each question is followed by the next one of its document, so there must be
 * two. */
static uint32_t askable(const campaign *c, const document *d)
{
    return c->o->turns > 1 && d->n_questions < 2 ? 0 : (uint32_t)d->n_questions;
}

static status refuse_row(campaign *c, const char *why, error *err)
{
    for (uint32_t i = 0; i < c->variants.n; i++)
        RETURN_IF_ERROR(records_refuse(&c->records, c->row, i, why, err));
    return STATUS_IS_OK;
}

static void next_row(campaign *c)
{
    c->row++;
    c->number = c->n_asked_of_row = 0;
}

/* Goes on to the first row that has another document; false when none has. */
static bool find_row(campaign *c)
{
    for (; c->row < c->sources.n; next_row(c)) {
        const source *s = &c->sources.items[c->row];
        bool more = s->task || c->number < s->n_documents;
        if (more && c->n_asked_of_row < c->o->samples) return true;
    }
    return false;
}

static status skip_row(campaign *c, const char *why, error *err)
{
    status st = refuse_row(c, why, err);
    next_row(c);
    return st;
}

enum { FRUITLESS_MAX = 64 }; // documents in a row with too few questions for two turns

/* Makes the next document into l, which stays unused when the document has nothing to ask. */
static status open_document(campaign *c, live *l, error *err)
{
    static const char one_turn[] = "asks one question of a context: no second turn";
    if (c->o->turns > 1 && !c->sources.items[c->row].between) return skip_row(c, one_turn, err);
    *l = (live){.row = c->row, .number = c->number, .serial = c->n_made++};
    error why = {{0}};
    status st = make_document(c, l, &why);
    if (!status_ok(st)) {
        live_destroy(l);
        return st.code == STATUS_LIMIT ? skip_row(c, why.text, err)
                                       : error_set(err, st.code, "%s", why.text);
    }
    uint32_t n = askable(c, l->doc), left = c->o->samples - c->n_asked_of_row;
    l->n_asked = n < left ? n : left;
    l->measured = c->number < c->o->measured;
    l->n_units = (uint64_t)l->n_asked * c->variants.n;
    c->number++;
    c->n_asked_of_row += l->n_asked;
    if (l->n_asked == 0) {
        live_destroy(l);
        bool fruitless = c->n_asked_of_row == 0 && c->number == FRUITLESS_MAX;
        return fruitless ? skip_row(c, one_turn, err) : STATUS_IS_OK;
    }
    if (l->measured) l->full = calloc(l->n_asked, sizeof *l->full);
    l->used = true;
    return l->measured && !l->full ? out_of_memory(err) : STATUS_IS_OK;
}

static status fill_lives(campaign *c, error *err)
{
    for (int i = 0; i < LIVE_MAX; i++) {
        live *l = &c->lives[i];
        if (l->used && l->next == l->n_units && l->n_running == 0 && l->n_second == 0)
            live_destroy(l);
        while (!l->used && !c->stopping && find_row(c)) RETURN_IF_ERROR(open_document(c, l, err));
    }
    return STATUS_IS_OK;
}

/* ---- the next unit of work ------------------------------------------------------------------- */

static bool arm_done(const campaign *c, const live *l, const job *j, record_arm arm)
{
    record key = {
        .row = l->row, .column = j->column, .arm = arm, .document = l->number, .question = j->pair};
    return records_done(&c->records, &key);
}

static bool unit_done(const campaign *c, const live *l, const job *j)
{
    if (records_refused(&c->records, l->row, j->column)) return true;
    if (c->o->turns < 2) return arm_done(c, l, j, ARM_SINGLE);
    return arm_done(c, l, j, ARM_SESSION) && arm_done(c, l, j, ARM_FRESH) &&
           (j->column == 0 || arm_done(c, l, j, ARM_FULL));
}

/* Units are numbered: the full cache's questions first, then all methods of the first question, of
 * the second, and so on. */
static job unit_job(const campaign *c, live *l, uint64_t unit)
{
    uint64_t others = c->variants.n - 1;
    job j = {.live = l, .arm = c->o->turns > 1 ? ARM_FIRST : ARM_SINGLE};
    if (unit < l->n_asked) {
        j.question = (uint32_t)unit;
    } else {
        j.question = (uint32_t)((unit - l->n_asked) / others);
        j.column = 1 + (uint32_t)((unit - l->n_asked) % others);
    }
    j.pair = j.question;
    return j;
}

/* False when no unit of this document can start now. */
static bool next_unit(campaign *c, live *l, job *out)
{
    for (; l->next < l->n_units; l->next++) {
        *out = unit_job(c, l, l->next);
        if (unit_done(c, l, out)) continue;
        if (l->lead == LEAD_RUNNING) return false;
        if (out->column > 0 && l->n_full_running > 0) return false;
        return true;
    }
    return false;
}

/* ---- starting and ending --------------------------------------------------------------------- */

static job *free_job(campaign *c)
{
    for (uint32_t i = 0; i < c->o->in_flight; i++)
        if (!c->jobs[i].stream) return &c->jobs[i];
    return NULL;
}

static void job_clear(job *j)
{
    engine_stream_release(j->stream);
    strbuf_destroy(&j->text);
    free(j->samples);
    *j = (job){0};
}

/* Enters a submitted job into its slot. *later: the engine's queue is full. */
static status started(campaign *c, job *slot, job *j, status st, const error *why, bool *later,
                      error *err)
{
    *later = st.code == STATUS_QUEUE_FULL;
    if (*later) return STATUS_IS_OK;
    if (!status_ok(st)) {
        status noted;
        if (judge_refusal(c, j, st, why, &noted, err)) return noted;
        return error_set(err, st.code, "%s", why->text);
    }
    live *l = j->live;
    j->is_lead = l->lead == LEAD_TO_COME;
    if (j->is_lead) l->lead = LEAD_RUNNING;
    l->n_running++;
    l->n_full_running += j->column == 0;
    c->n_running++;
    *slot = *j;
    return STATUS_IS_OK;
}

static status start_unit(campaign *c, live *l, job *slot, bool *any, bool *later, error *err)
{
    job j;
    *any = next_unit(c, l, &j);
    if (!*any) return STATUS_IS_OK;
    error why = {{0}};
    status st = ask_first(c, &j, &why);
    RETURN_IF_ERROR(started(c, slot, &j, st, &why, later, err));
    if (!*later) l->next++;
    return STATUS_IS_OK;
}

static status start_second(campaign *c, live *l, job *slot, bool *any, bool *later, error *err)
{
    *any = l->n_second > 0;
    if (!*any) return STATUS_IS_OK;
    second_turn *turn = &l->second[l->n_second - 1];
    job j = {.live = l,
             .column = turn->column,
             .pair = turn->question,
             .question = (turn->question + 1) % (uint32_t)l->doc->n_questions,
             .arm = turn->arm};
    if (!arm_done(c, l, &j, j.arm)) {
        error why = {{0}};
        status st = ask_second(c, &j, turn, &why);
        RETURN_IF_ERROR(started(c, slot, &j, st, &why, later, err));
        if (*later) return STATUS_IS_OK;
    }
    free(turn->tokens);
    free(turn->answer);
    l->n_second--;
    return STATUS_IS_OK;
}

/* Lists the documents in work, the oldest first. */
static size_t by_age(campaign *c, live *out[LIVE_MAX])
{
    size_t n = 0;
    for (int i = 0; i < LIVE_MAX; i++) {
        live *l = &c->lives[i];
        if (!l->used) continue;
        size_t at = n++;
        for (; at > 0 && out[at - 1]->serial > l->serial; at--) out[at] = out[at - 1];
        out[at] = l;
    }
    return n;
}

/* Each pass goes over all documents in work, the oldest first, and starts one kind of request. */
typedef enum start_pass {
    PASS_SECOND, // first, because sessions wait for them
    PASS_LEAD,   // second, so that the methods of the next document need not wait for it
    PASS_UNITS,
    PASSES,
} start_pass;

/* Starts requests until no slot is free (*full) or nothing is left to start. */
static status start_live(campaign *c, live *l, start_pass pass, bool *full, error *err)
{
    bool any = pass != PASS_LEAD || l->lead == LEAD_TO_COME;
    while (any) {
        job *slot = free_job(c);
        *full = !slot;
        if (!slot) return STATUS_IS_OK;
        bool later = false;
        RETURN_IF_ERROR(pass == PASS_SECOND ? start_second(c, l, slot, &any, &later, err)
                                            : start_unit(c, l, slot, &any, &later, err));
        *full = later;
        if (later) return STATUS_IS_OK;
        any &= pass != PASS_LEAD;
    }
    return STATUS_IS_OK;
}

static status start_some(campaign *c, error *err)
{
    live *order[LIVE_MAX];
    size_t n = c->stopping ? 0 : by_age(c, order);
    bool full = false;
    for (start_pass pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i < n; i++) {
            RETURN_IF_ERROR(start_live(c, order[i], pass, &full, err));
            if (full) return STATUS_IS_OK;
        }
    return STATUS_IS_OK;
}

static status read_all(campaign *c, bool *progressed, error *err)
{
    for (uint32_t i = 0; i < c->o->in_flight; i++) {
        job *j = &c->jobs[i];
        bool ended = false;
        if (!j->stream) continue;
        status st = judge_read(c, j, &ended, progressed, err);
        if (ended) {
            live *l = j->live;
            if (j->is_lead) l->lead = LEAD_DONE;
            l->n_running--;
            l->n_full_running -= j->column == 0;
            c->n_running--;
            job_clear(j);
        }
        RETURN_IF_ERROR(st);
    }
    return STATUS_IS_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

static uint64_t expected(const campaign *c)
{
    uint64_t prompts = 0;
    for (size_t i = 0; i < c->sources.n; i++) {
        const source *s = &c->sources.items[i];
        uint64_t has = 0;
        for (size_t k = 0; k < s->n_documents; k++) has += s->documents[k].n_questions;
        prompts += s->task || has > c->o->samples ? c->o->samples : has;
    }
    return prompts * c->variants.n * (c->o->turns > 1 ? 4 : 1);
}

static void log_progress(campaign *c, bool last)
{
    int64_t now = clock_now_us();
    if (!last && now - c->logged_us < LOG_US) return;
    c->logged_us = now;
    fflush(c->records.file);
    double seconds = (double)(now - c->start_us) / 1e6;
    char text[256];
    const source *s = c->row < c->sources.n ? &c->sources.items[c->row] : NULL;
    snprintf(text, sizeof text,
             "%llu answers (%zu before) of about %llu, %.1f a second, %u running%s%s%s%s",
             (unsigned long long)c->n_done, c->records.n_loaded, (unsigned long long)c->n_expected,
             seconds > 0 ? (double)c->n_done / seconds : 0, c->n_running,
             c->n_refused ? ", some cells refused" : "", s ? ", at " : "", s ? s->name : "",
             last ? "\n" : "");
    if (c->o->hooks.progress) c->o->hooks.progress(c->o->hooks.ctx, text);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void stop(campaign *c)
{
    if (c->stopping) return;
    c->stopping = true;
    for (uint32_t i = 0; i < c->o->in_flight; i++)
        if (c->jobs[i].stream) engine_stream_abort(c->jobs[i].stream);
}

static status loop(campaign *c, error *err)
{
    for (;;) {
        bool progressed = false;
        RETURN_IF_ERROR(fill_lives(c, err));
        RETURN_IF_ERROR(start_some(c, err));
        RETURN_IF_ERROR(read_all(c, &progressed, err));
        if (c->o->hooks.stopped(c->o->hooks.ctx)) stop(c);
        bool more = false;
        for (int i = 0; i < LIVE_MAX; i++) more |= c->lives[i].used;
        if (c->n_running == 0 && (c->stopping || (!more && !find_row(c)))) return STATUS_IS_OK;
        log_progress(c, false);
        if (!progressed && c->n_running > 0) c->o->hooks.wait(c->o->hooks.ctx, WAIT_MS);
    }
}

status campaign_run(campaign *c, error *err)
{
    c->jobs = calloc(c->o->in_flight, sizeof *c->jobs);
    if (!c->jobs) return out_of_memory(err);
    c->start_us = c->logged_us = clock_now_us();
    c->n_expected = expected(c);
    status st = loop(c, err);
    log_progress(c, true);
    for (uint32_t i = 0; i < c->o->in_flight; i++)
        if (c->jobs[i].stream) job_clear(&c->jobs[i]);
    for (int i = 0; i < LIVE_MAX; i++) live_destroy(&c->lives[i]);
    free(c->jobs);
    c->jobs = NULL;
    if (status_ok(st) && c->stopping)
        return error_set(err, STATUS_ABORTED, "stopped: --resume goes on from here");
    return st;
}
