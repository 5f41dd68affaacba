/* What backends have in common (private to model/): a plan's truth. Plans may come from another
 * process: what would index out of bounds is refused here. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "model/model.h"

/* Once the mirror has the plan's deltas. info as the backend gives it. */
status plan_check(const backend_info *info, const pkv_mirror *mirror, const step_plan *plan);

#endif
