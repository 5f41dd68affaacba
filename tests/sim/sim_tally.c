/* Counts of the events that the simulated worlds went through, and the minimum of each. */
#include "tests/sim/sim_world.h"

void tally_add(tally *t, const sched_stats *stats)
{
    t->swaps_out += stats->swaps_out;
    t->swaps_in += stats->swaps_in;
    t->refused += stats->pages.n_host_pages > 0 ? stats->swaps_refused : 0;
    t->pages_in += stats->pages.pages_swapped_in;
    t->pages_retaken += stats->pages.pages_retaken;
    t->stored += stats->sessions_stored;
    t->continued += stats->sessions_continued;
    t->ignored += stats->sessions_ignored;
    t->expired += stats->sessions_expired;
    t->forced += stats->forced_tokens;
}

bool has_seq_of(const step_plan *plan, const step_seq *share)
{
    for (uint32_t i = 0; plan && i < plan->n_seqs; i++) {
        if (plan->seqs[i].seq == share->seq && plan->seqs[i].request == share->request) return true;
    }
    return false;
}

void tally_ahead(world *w, const step_plan *plan)
{
    const step_plan *before = w->plans[0];
    w->t->ahead++;
    w->t->ahead_starts += plan->n_opens;
    for (uint32_t i = 0; i < plan->n_seqs; i++) w->t->ahead_chunks += plan->seqs[i].n_tokens > 1;
    for (uint32_t i = 0; i < before->n_seqs; i++) {
        const step_seq *q = &before->seqs[i];
        bool waits = q->n_samples > 1 || q->measure.kind != MEASURE_NONE;
        w->t->left_out += waits && w->requests[q->request].live > 0 && !has_seq_of(plan, q);
    }
}

void tally_joined(world *w, const step_plan *plan, const step_seq *q)
{
    world_request *r = &w->requests[q->request];
    world_choice *c = &r->choices[q->choice];
    if (q->n_samples > 1) r->fork_step = plan->step;
    if (!r->forked || c->joined || r->request.n == 1) return;
    c->joined = true;
    w->t->joined_late +=
        plan->step > r->fork_step + 1 && q->n_tokens == 1 && q->position >= r->request.n_prompt;
}

static void need(bool *ok, const char *what, uint64_t n, uint64_t least)
{
    printf("sim: %s: %llu\n", what, (unsigned long long)n);
    if (n >= least) return;
    fprintf(stderr, "sim: %s: fewer than %llu\n", what, (unsigned long long)least);
    *ok = false;
}

bool tally_print(const tally *t, uint32_t n_requests)
{
    bool ok = true;
    size_t n;
    const retention_preset *presets = retention_presets(&n);
    need(&ok, "requests", n_requests, 0);
    need(&ok, "readings", t->readings, 100);
    need(&ok, "readings by some layers", t->readings_of_some, 100);
    need(&ok, "prompts pooled", t->pooled, 100);
    need(&ok, "readings preempted", t->readings_preempted, 20);
    need(&ok, "readings by some layers preempted", t->some_preempted, 10);
    need(&ok, "swapped", t->swaps_out, 0);
    need(&ok, "swapped back", t->swaps_in, 300);
    need(&ok, "found the tier full", t->refused, 40);
    need(&ok, "pages copied back", t->pages_in, 3000);
    need(&ok, "pages still there", t->pages_retaken, 500);
    need(&ok, "sessions stored", t->stored, 500);
    need(&ok, "sessions continued", t->continued, 150);
    need(&ok, "sessions ignored", t->ignored, 100);
    need(&ok, "sessions expired", t->expired, 100);
    need(&ok, "choices under pressure", t->pressure_drops, 50);
    need(&ok, "times a request was passed", t->passed, 1000);
    need(&ok, "steps with costly logits", t->costly, 1000);
    need(&ok, "choices that waited for a slot", t->joined_late, 50);
    need(&ok, "prompts longer than the context", t->beyond, 100);
    need(&ok, "of these, choices preempted", t->beyond_preempted, 20);
    need(&ok, "prompts that were cut", t->cuts, 50);
    need(&ok, "forced tokens", t->forced, 2000);
    need(&ok, "kept sets compared", t->kept_compared, 200);
    need(&ok, "looks at a row's attention", t->watched, 500);
    need(&ok, "steps planned ahead", t->ahead, 40000);
    need(&ok, "rows planned ahead in vain", t->wasted, 1000);
    need(&ok, "failures of steps with one behind", t->failed_ahead, 100);
    need(&ok, "chunks planned ahead", t->ahead_chunks, 8000);
    need(&ok, "requests started ahead", t->ahead_starts, 2500);
    need(&ok, "sequences left out of a step ahead", t->left_out, 60);
    need(&ok, "shares that outlived a failed step", t->outlived, 10);
    need(&ok, "selections handed out", t->handed_out, 500);
    need(&ok, "selections whose request ended first", t->dropped, 10);
    need(&ok, "blocks saved to disk", t->saved, 5000);
    need(&ok, "blocks loaded", t->loaded, 150);
    need(&ok, "loads that ended short", t->short_loads, 40);
    need(&ok, "loads whose request ended first", t->orphan_loads, 3);
    need(&ok, "steps beside loads", t->beside_loads, 500);
    need(&ok, "prompts handed over", t->exports, 300);
    need(&ok, "prompts taken over", t->taken, 300);
    need(&ok, "prompts whose pages were not filled", t->takings_failed, 20);
    need(&ok, "prompts whose request ended first", t->takings_orphaned, 5);
    for (size_t i = 0; i < n; i++) need(&ok, presets[i].name, t->by_preset[i], 50);
    return ok;
}
