/* What backends have in common (private to model/): a plan's truth, and the shapes of what it
 * measures. Plans may come from another process: what would index out of bounds is refused here. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "model/model.h"

/* Once the mirror has the plan's deltas. info as the backend gives it. */
status plan_check(const backend_info *info, const pkv_mirror *mirror, const step_plan *plan);

/* Slots or pages of a sequence's longest table: the stride of what is measured of it. */
uint32_t plan_longest_table(const backend_info *info, const pkv_mirror *mirror, uint32_t seq,
                            bool slots);
/* One array of values. */
size_t plan_measure_floats(const measure_result *m);

#endif
