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
    need(&ok, "prompts that were cut", t->cuts, 50);
    need(&ok, "kept sets compared", t->kept_compared, 200);
    need(&ok, "steps planned ahead", t->ahead, 12000);
    need(&ok, "rows planned ahead in vain", t->wasted, 300);
    need(&ok, "failures of steps with one behind", t->failed_ahead, 40);
    for (size_t i = 0; i < n; i++) need(&ok, presets[i].name, t->by_preset[i], 50);
    return ok;
}
