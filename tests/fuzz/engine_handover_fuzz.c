/* Property: the record of a prompt from another server is refused with a reason, or what was read
 * of it is an image that a sequence can have, of the prompt that was asked for, with K and V of all
 * its cells within the bytes. The input is bytes that a good record is changed by; its first two
 * choose how much of that is there. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/engine_handover_fixture.h"

static void check_taken(const ho_prompt *p, const takeover *t, const uint8_t *bytes, size_t n)
{
    const sched_handed *h = &t->handed;
    FUZZ_CHECK(pkv_image_fits(&p->geometry, &h->image));
    FUZZ_CHECK(h->n_tokens == HO_TOKENS);
    FUZZ_CHECK(memcmp(h->tokens, p->tokens, HO_TOKENS * sizeof *h->tokens) == 0);
    FUZZ_CHECK(h->first_token < p->terms.vocab_size && t->first.n_top <= SAMPLE_LOGPROBS_MAX);
    FUZZ_CHECK(t->cells >= bytes && t->cells <= bytes + n);
    FUZZ_CHECK(t->cells + pkv_image_cells(&p->geometry, &h->image) * HO_CELL == bytes + n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ho_prompt p;
    takeover t = {0};
    size_t n;
    if (size < 2) return 0;
    ho_make(&p);
    uint8_t *record = ho_record(&p, &n);
    size_t left = n - (data[0] | (size_t)(data[1] & 1) << 8) % (n + 1);
    if (data[1] < 128) left = n;
    uint8_t *bytes = malloc(left + 1); /* of their own, so that a read behind them is found */
    memcpy(bytes, record, left);
    for (size_t i = 2; i + 3 <= size; i += 3) {
        size_t at = data[i] | (size_t)data[i + 1] << 8;
        if (at < left) bytes[at] = data[i + 2];
    }
    const char *why = handover_read(&p.terms, bytes, left, &t);
    if (!why) check_taken(&p, &t, bytes, left);
    else FUZZ_CHECK(*why != '\0');
    alloc_free(NULL, t.tables);
    free(bytes);
    free(record);
    return 0;
}
