/* How a plan's tables are applied and how it is checked, and the shapes of its measures, which all
 * backends share (private to model/). A plan may come from another process: one that would index
 * out of bounds is refused here. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "model/model.h"

/* Applies the plan's deltas to the mirror, whose tables are the coordinator's then. After a failure
 * they are not, and the next plan counts on them, so the backend has to be made again:
 * STATUS_UNAVAILABLE when memory was out, which says nothing about the next backend, else
 * STATUS_INTERNAL. */
status plan_follow(pkv_mirror *mirror, const step_plan *plan);
/* Called after plan_follow. info is the backend's own. */
status plan_check(const backend_info *info, const pkv_mirror *mirror, const step_plan *plan);

/* How many rows of the share, the first ones, read everything. */
uint32_t plan_dense_rows(const pkv_mirror *mirror, const step_seq *s);
/* Slots or pages of a sequence's longest table: the stride of the sequence's measures. */
uint32_t plan_longest_table(const pkv_mirror *mirror, uint32_t seq, bool slots);
/* Floats in one of the measure's arrays of values. */
size_t plan_measure_floats(const measure_result *m);

#endif
