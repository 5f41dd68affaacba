#include "cli/bench/bench_drive.h"

#include <stdlib.h>

/* ---- the mirror ------------------------------------------------------------------------------ */

status bench_mirror_create(const pkv_geometry *geometry, uint32_t n_pages, uint32_t max_seqs,
                           bench_mirror *out)
{
    *out = (bench_mirror){.geometry = *geometry};
    out->lengths = calloc((size_t)max_seqs * pkv_groups(geometry), sizeof *out->lengths);
    if (!out->lengths) return status_make(STATUS_NO_MEMORY, "page tables");
    return pkv_mirror_create(geometry, n_pages, max_seqs, NULL, &out->tables);
}

void bench_mirror_destroy(bench_mirror *m)
{
    pkv_mirror_destroy(m->tables);
    free(m->lengths);
    *m = (bench_mirror){0};
}

/* Reads the lengths of a sequence's tables, as a backend sends them to its device. */
static void read_lengths(bench_mirror *m, uint32_t seq, uint32_t index)
{
    pkv_geometry at = pkv_geometry_at(&m->geometry, pkv_mirror_grain(m->tables, seq));
    uint32_t groups = pkv_groups(&m->geometry), n = pkv_groups(&at), parts = groups / n;
    for (uint32_t t = 0; t < n; t++)
        m->lengths[(size_t)index * groups + t] =
            pkv_mirror_table(m->tables, seq, t * parts).kept_tokens;
}

status bench_mirror_apply(bench_mirror *m, const step_plan *plan)
{
    RETURN_IF_ERROR(pkv_mirror_apply(m->tables, plan->deltas.words, plan->deltas.n_words));
    if (pkv_mirror_checksum(m->tables) != plan->checksum)
        return status_make(STATUS_INTERNAL, "page tables differ from the scheduler's");
    for (uint32_t i = 0; i < plan->n_seqs; i++) read_lengths(m, plan->seqs[i].seq, i);
    return STATUS_IS_OK;
}

/* ---- the scheduler --------------------------------------------------------------------------- */

status bench_drive_create(const sched_options *options, uint64_t room, bool with_mirror,
                          bench_drive *out, error *err)
{
    retention_limits limits = {options->geometry, options->prefill_chunk, options->max_model_len};
    *out = (bench_drive){.depth = options->max_in_flight < 2 ? 1 : 2,
                         .sample = {.token = 1},
                         .room = room,
                         /* A RESULT, and each request's ADD and END. */
                         .most_events = 1 + 2 * room};
    RETURN_IF_ERROR(retention_parse(NULL, &limits, &out->policy, err));
    RETURN_IF_ERROR(sched_create(options, &out->sched, err));
    out->seqs = calloc(options->max_seqs, sizeof *out->seqs);
    out->requests = calloc(room, sizeof *out->requests);
    out->events = calloc(out->most_events, sizeof *out->events);
    status st = out->seqs && out->requests && out->events ? STATUS_IS_OK
                                                          : status_make(STATUS_NO_MEMORY, NULL);
    if (status_ok(st) && with_mirror)
        st = bench_mirror_create(&options->geometry, options->n_pages, options->max_seqs,
                                 &out->mirror);
    if (status_ok(st)) return st;
    bench_drive_destroy(out);
    return error_set(err, st.code, "scheduler: %s", status_text(st.code));
}

void bench_drive_destroy(bench_drive *d)
{
    sched_destroy(d->sched);
    bench_mirror_destroy(&d->mirror);
    free(d->seqs);
    free(d->requests);
    free(d->events);
    *d = (bench_drive){0};
}

status bench_drive_add(bench_drive *d, const uint32_t *prompt, uint32_t n_prompt, uint32_t max_new,
                       uint64_t session, error *err)
{
    if (d->n_requests == d->room) return error_set(err, STATUS_LIMIT, "too many requests");
    sched_request *r = &d->requests[d->n_requests++];
    *r = (sched_request){.id = d->n_requests,
                         .arrival = d->n_requests,
                         .prompt = prompt,
                         .n_prompt = n_prompt,
                         .max_new_tokens = max_new,
                         .n = 1,
                         .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                         .policy = d->policy,
                         .session = {session, session}};
    RETURN_IF_ERROR(sched_check(d->sched, r, err));
    d->events[d->n_events++] = (sched_event){.kind = SCHED_ADD, .add = r};
    return STATUS_IS_OK;
}

/* Makes the result of the oldest step in flight the first event of the next turn, and its last
 * tokens the ENDs behind it. */
static void collect(bench_drive *d)
{
    const step_plan *plan = d->in_flight[0];
    d->in_flight[0] = d->in_flight[--d->n_in_flight];
    d->result = (step_result){
        .step = plan->step, .seqs = d->seqs, .n_seqs = plan->n_seqs, .checksum = plan->checksum};
    d->events[d->n_events++] = (sched_event){.kind = SCHED_RESULT, .result = &d->result};
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        d->seqs[i] = (step_seq_result){.samples = &d->sample, .n_samples = s->n_samples};
        bool last =
            s->n_samples > 0 && s->sample_index + 1 == d->requests[s->request - 1].max_new_tokens;
        if (last)
            d->events[d->n_events++] =
                (sched_event){.kind = SCHED_END, .request = s->request, .finished = true};
    }
}

status bench_drive_turn(bench_drive *d, error *err)
{
    int64_t start = clock_now_ns();
    d->plan = sched_step(d->sched, start / 1000, d->events, d->n_events);
    int64_t planned = clock_now_ns();
    d->step_ns = planned - start;
    d->n_events = 0;
    bool is_new = !sched_plan_empty(d->plan);
    if (is_new) d->in_flight[d->n_in_flight++] = d->plan;
    if (is_new && d->mirror.tables) {
        status st = bench_mirror_apply(&d->mirror, d->plan);
        if (!status_ok(st)) return error_set(err, st.code, "mirror: %s", st.message);
    }
    d->mirror_ns = clock_now_ns() - planned;
    if (d->n_in_flight > 0 && (!is_new || d->n_in_flight == d->depth)) collect(d);
    return STATUS_IS_OK;
}

status bench_drive_settle(bench_drive *d, uint32_t n, error *err)
{
    do {
        RETURN_IF_ERROR(bench_drive_turn(d, err));
        if (sched_plan_empty(d->plan) && d->n_in_flight + d->n_events == 0)
            return error_set(err, STATUS_INTERNAL, "the scheduler did not keep %u running", n);
    } while (d->plan->n_seqs != n || d->plan->n_tokens != n || d->n_in_flight + 1 < d->depth);
    return STATUS_IS_OK;
}

status bench_drive_finish(bench_drive *d, error *err)
{
    do RETURN_IF_ERROR(bench_drive_turn(d, err));
    while (!sched_plan_empty(d->plan) || d->n_in_flight + d->n_events > 0);
    return STATUS_IS_OK;
}
