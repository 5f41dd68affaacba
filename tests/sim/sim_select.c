/* Selections that the scheduler hands out. They run at once, or when they are given back, turns
 * later: tables of other sequences and measures of other steps have changed by then. */
#include "tests/sim/sim_world.h"

void add_event(world *w, sched_event event)
{
    if (w->n_events == EVENTS_MAX) FAIL(w, "the test has too many events");
    w->events[w->n_events++] = event;
}

/* Sets which of these some choice of the request does. */
static void look_at(world *w, const world_request *r, bool *selects, bool *arrives)
{
    *selects = *arrives = false;
    for (uint32_t c = 0; c < r->request.n; c++) {
        sched_choice_info info = {0};
        if (r->choices[c].ended) continue;
        sched_describe(w->s, r->request.id, c, &info);
        free(info.report.kept_json);
        *selects |= info.selecting;
        *arrives |= info.arriving;
    }
}

bool some_select(const world *w)
{
    bool some = w->n_selections > 0;
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) some |= w->requests[i].selecting;
    return some;
}

static void run(world_selection *x)
{
    sched_selection_run(x->selection);
    x->has_run = true;
}

void take_selections(world *w)
{
    for (uint32_t i = w->first_live; i < w->n_arrived; i++) {
        world_request *r = &w->requests[i];
        bool may = r->selecting || w->options.hand_out_slots > 0, selects = false;
        r->arriving = false;
        if (may && r->live > 0) look_at(w, r, &selects, &r->arriving);
        r->selecting &= selects;
    }
    for (sched_selection *x; (x = sched_next_selection(w->s)) != NULL;) {
        if (w->n_selections == SELECTIONS_MAX) FAIL(w, "the test has too many selections");
        world_selection *out = &w->selections[w->n_selections++];
        *out = (world_selection){.selection = x, .back_at = w->turn + between(w, 1, 12)};
        world_request *r = &w->requests[sched_selection_request(x)];
        r->selecting = true;
        w->t->handed_out++;
        /* Some are aborted meanwhile. */
        if (chance(w, 1, 20)) r->abort_at = w->turn + between(w, 1, 12);
        if (chance(w, 1, 3)) run(out);
    }
}

void give_selections(world *w)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < w->n_selections; i++) {
        world_selection out = w->selections[i];
        if (w->turn < out.back_at) {
            w->selections[left++] = out;
            continue;
        }
        if (!out.has_run) run(&out);
        w->t->dropped += w->requests[sched_selection_request(out.selection)].live == 0;
        add_event(w, (sched_event){.kind = SCHED_SELECTED, .selection = out.selection});
    }
    w->n_selections = left;
}
