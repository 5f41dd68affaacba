/* Two steps in flight over the scripted backend of scheduler_fixture.h. */
#ifndef TESTS_UNIT_SCHEDULER_FLIGHT_H
#define TESTS_UNIT_SCHEDULER_FLIGHT_H

#include "tests/unit/scheduler_fixture.h"

/* The plans in flight, the oldest first; the fixture itself holds one step. */
extern const step_plan *flight[2];
extern uint32_t n_flight;

fixture *begin_ahead(sched_options options);
/* Delivers the posted events and plans. "": nothing to do, or a result is awaited. */
const char *plan(fixture *f);
/* Posts the result of the oldest step, before later events. */
void result(fixture *f, status st);
void fine(fixture *f);
/* Steps until nothing is in flight or to be done. */
void drain(fixture *f);
/* Two prompts are done, a step of both is in flight, and the next one is planned ahead of it. Their
 * first rows were planned ahead of the prompts' draws. */
void run_two(fixture *f, sched_request *a, sched_request *b);

#endif
