/* Closed loops of clients: how many steps are planned while the one before is in flight. */
#include "tests/unit/scheduler_fixture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LOOP_MOST = 512, LOOP_PROMPT = 1024, LOOP_OUTPUT = 256 };

/* Clients of which each sends its next request when the last one is answered. */
typedef struct loop {
    uint32_t n_clients, n_sent, n_done, n_events;
    uint32_t n_tokens[LOOP_MOST], ended[LOOP_MOST], n_ended;
    sched_request requests[LOOP_MOST]; // of each client
    sched_event events[2 * LOOP_MOST + 1];
    step_seq_result results[LOOP_MOST];
    step_sample samples[LOOP_MOST];
    step_result result;
} loop;

static void send_request(loop *l, uint32_t client)
{
    sched_request *r = &l->requests[client];
    r->id = (uint64_t)l->n_sent * LOOP_MOST + client;
    r->salt = r->arrival = l->n_sent++; /* no two share a prefix */
    l->n_tokens[client] = 0;
    l->events[l->n_events++] = (sched_event){.kind = SCHED_ADD, .add = r};
}

/* The result of the oldest step. The answers that it completes end with it; their clients send the
 * next requests one call later. */
static void hear(loop *l, const step_plan *plan)
{
    uint32_t n_samples = 0;
    l->result = (step_result){.step = plan->step, .seqs = l->results, .n_seqs = plan->n_seqs};
    l->events[l->n_events++] = (sched_event){.kind = SCHED_RESULT, .result = &l->result};
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *q = &plan->seqs[i];
        uint32_t client = q->request % LOOP_MOST;
        l->results[i] =
            (step_seq_result){.samples = &l->samples[n_samples], .n_samples = q->n_samples};
        n_samples += q->n_samples;
        bool stale = q->request != l->requests[client].id;
        if (stale || q->n_samples == 0 || ++l->n_tokens[client] < LOOP_OUTPUT) continue;
        l->n_done++;
        l->ended[l->n_ended++] = client;
        l->events[l->n_events++] =
            (sched_event){.kind = SCHED_END, .request = q->request, .finished = true};
    }
}

static sched_stats run_loop(loop *l, sched *s)
{
    const step_plan *plans[2];
    uint32_t n_plans = 0;
    while (l->n_done < 2 * l->n_clients) {
        uint32_t n_ended = l->n_ended;
        l->n_ended = 0;
        const step_plan *p = sched_step(s, 0, l->events, l->n_events);
        bool is_new = !sched_plan_empty(p);
        l->n_events = 0;
        for (uint32_t i = 0; i < n_ended; i++) send_request(l, l->ended[i]);
        if (is_new) plans[n_plans++] = p;
        if (is_new && n_plans < 2) continue;
        assert_true(n_plans > 0);
        hear(l, plans[0]);
        plans[0] = plans[--n_plans];
    }
    return sched_get_stats(s);
}

/* Prompts of 1,024 tokens, answers of 256: the steps that do not wait for the one before. */
static void a_closed_loop_is_planned_ahead(void **state)
{
    (void)state;
    static const uint32_t clients[] = {64, 256, 512};
    static uint32_t prompt[LOOP_PROMPT];
    fixture *f = begin(small_options());
    for (int i = 0; i < 3; i++) {
        sched_options o = small_options();
        sched *s;
        loop *l = calloc(1, sizeof *l);
        assert_non_null(l);
        o.geometry.layers_per_group = o.geometry.n_layers;
        o.n_pages = 1 + clients[i] * (LOOP_PROMPT + LOOP_OUTPUT) / 16;
        o.max_seqs = l->n_clients = clients[i];
        o.max_requests = 2 * clients[i];
        o.prefill_chunk = 512;
        o.max_model_len = LOOP_PROMPT + LOOP_OUTPUT;
        o.max_in_flight = 2;
        assert_true(status_ok(sched_create(&o, &s, NULL)));
        for (uint32_t c = 0; c < clients[i]; c++) {
            l->requests[c] = request(f, 1, 0, 1, LOOP_OUTPUT);
            l->requests[c].prompt = prompt;
            l->requests[c].n_prompt = LOOP_PROMPT;
            send_request(l, c);
        }
        sched_stats stats = run_loop(l, s);
        printf("closed loop of %u: %u of %u steps planned ahead\n", clients[i],
               (unsigned)stats.steps_ahead, (unsigned)stats.steps);
        assert_true(stats.steps_ahead * 100 >= stats.steps * 95);
        assert_int_equal(stats.preemptions, 0);
        sched_destroy(s);
        free(l);
    }
    finish(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_loop_is_planned_ahead),
    };
    return cmocka_run_group_tests_name("scheduler, closed loops", tests, NULL, NULL);
}
