/* The best of a list, by radix selection: no sorting, no memory. */
#include "paged_kv/retention/select.h"
#include <string.h>

uint32_t rank_key(float score)
{
    if (score != score) return KEY_NONE + 1;
    if (score == 0) score = 0; /* -0 */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

static bool is_candidate(uint32_t key) { return key != KEY_NONE && key != KEY_SELECTED; }

/* The want-th greatest key (0 < want <= all); *ties of the keys equal to it are selected. */
static uint32_t threshold_of(const uint32_t *keys, uint32_t n, uint32_t want, uint32_t *ties)
{
    uint32_t threshold = 0, known = 0; /* bits of threshold found so far */
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0};
        for (uint32_t i = 0; i < n; i++) {
            if (is_candidate(keys[i]) && (keys[i] & known) == threshold)
                counts[keys[i] >> shift & 255]++;
        }
        uint32_t byte = 255;
        for (; counts[byte] < want; byte--) want -= counts[byte];
        threshold |= byte << shift;
        known |= UINT32_C(255) << shift;
    }
    *ties = want;
    return threshold;
}

uint32_t rank_select(uint32_t *keys, uint32_t n, uint32_t want)
{
    uint32_t candidates = 0, threshold = KEY_NONE + 1, ties = n;
    for (uint32_t i = 0; i < n; i++) candidates += is_candidate(keys[i]);
    want = smaller(want, candidates);
    if (want == 0) return 0;
    if (want < candidates) threshold = threshold_of(keys, n, want, &ties);
    for (uint32_t i = 0; i < n; i++) {
        if (!is_candidate(keys[i]) || keys[i] < threshold) continue;
        if (keys[i] == threshold && ties-- == 0) {
            ties = 0;
            continue;
        }
        keys[i] = KEY_SELECTED;
    }
    return want;
}
