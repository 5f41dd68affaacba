/* Shared by the tests of retention's selections: a sequence whose tables have any state, measures
 * of any values, and the selection that docs/retention.md defines, implemented a second time by
 * sorting. */
#ifndef TESTS_UNIT_PAGED_KV_RETENTION_FIXTURE_H
#define TESTS_UNIT_PAGED_KV_RETENTION_FIXTURE_H

#include "paged_kv/retention/retention.h"

enum {
    FX_LAYERS = 8,
    FX_HEADS = 4,
    FX_GROUPS = FX_LAYERS * FX_HEADS,
    FX_SLOTS = 1024,
    FX_WORDS = FX_SLOTS / 64,
    FX_POSITIONS = 1 << 16,
};

typedef struct retention_fx {
    pkv_geometry geometry;
    pkv *kv; // sequence 0 is open
    float values[2 * FX_LAYERS * FX_HEADS * FX_SLOTS];
    float novelty[FX_POSITIONS];
    measure_result measures;
    uint64_t keep[FX_GROUPS * FX_WORDS];
    uint64_t want[FX_GROUPS * FX_WORDS];
    float scratch[(FX_HEADS + 7) * FX_SLOTS];
    retention_selection out;
    bool want_raised;
} retention_fx;

retention_fx *fx_create(const pkv_geometry *geometry, uint32_t n_tokens);
void fx_destroy(retention_fx *fx);
/* Parses a request; fails the test when it is refused. */
retention_policy fx_policy(const retention_fx *fx, const char *text);
/* Parses a request; false, with the text of the refusal in err, when it is refused. */
bool fx_try_policy(const pkv_geometry *geometry, const char *text, retention_policy *out,
                   error *err);
/* Number of layers below `end` that have no sliding window. */
uint32_t fx_selecting(const pkv_geometry *g, uint32_t end);
/* Fills in random measures; few levels make many ties. */
void fx_measure(retention_fx *fx, const retention_policy *policy, rng *r, uint32_t levels);
/* The value that one KV head measured at a slot, or page, of a measured layer. */
float *fx_value(retention_fx *fx, uint32_t kind, uint32_t measured_layer, uint32_t head,
                uint32_t slot);
/* Calls retention_select, which must succeed. */
void fx_select(retention_fx *fx, const retention_policy *policy, uint32_t n_prompt);
/* Makes the same selection from the definition, into fx->want (define.c). */
void fx_define(retention_fx *fx, const retention_policy *policy, uint32_t n_prompt);
bool fx_kept(const retention_fx *fx, uint32_t group, uint32_t slot);
uint32_t fx_count(const retention_fx *fx, uint32_t group);
/* Gives up what fx->keep does not keep. */
void fx_apply(retention_fx *fx, const retention_policy *policy);

/* A random accepted request: any preset, any overrides. */
typedef struct fx_drawn {
    retention_policy policy;
    pkv_geometry geometry;
    char text[512];
} fx_drawn;

fx_drawn fx_draw(rng *r);

#endif
