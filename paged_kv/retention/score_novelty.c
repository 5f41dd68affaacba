/* InfiniPot's novelty under compression: - log p of the token where it was read. What attends to it
 * comes after, for the other half of the budget. */
#include "paged_kv/retention/method.h"

void score_novelty(const score_input *in, float *scores)
{
    for (uint32_t i = 0; i < in->n; i++)
        scores[i] = in->novelty[in->positions ? in->positions[i] : i];
}
