/* Sequences that are opened on what the prefix cache has, at once and in portions. */
#include "tests/sim/paging.h"

/* The KV groups of a sequence of some layers, or of all. */
static uint32_t fill_layers(sim *s, uint32_t id)
{
    uint32_t layers = s->geometry.n_layers, of_group = s->geometry.layers_per_group;
    uint32_t n = rng_below(&s->random, layers + 1);
    if (n == 0 && rng_below(&s->random, 2)) return s->groups;
    pkv_seq_fill_layers(s->kv, id, n);
    uint32_t groups = (n + of_group - 1) / of_group * s->heads;
    s->done[DONE_OPEN_SOME] += groups > 0 && groups < s->groups;
    return groups > 0 ? groups : s->groups;
}

/* The tokens of the blocks that a portion of at most `most` pages has, of those of a hit. */
static uint32_t portion_of(const sim *s, pkv_grain grain, uint32_t tokens, uint32_t most)
{
    uint32_t blocks = most / (table_of(s, grain, s->groups - 1) + 1);
    uint32_t portion = (blocks > 0 ? blocks : 1) * s->page_tokens;
    return tokens < portion ? tokens : portion;
}

/* Enters tokens that were hit. */
static void enter_hit(sim *s, model_seq *m, const uint32_t *tokens, uint32_t n)
{
    memcpy(m->tokens + m->length, tokens + m->length, n * sizeof *tokens);
    for (uint32_t i = m->length; i < m->length + n; i++) {
        m->tail = m->context[i] = next_context(m->tail, tokens[i]);
        for (uint32_t g = 0; g < s->groups; g++) m->kept[g][i] = (uint16_t)i;
    }
    m->length = m->computed = m->published = m->hits += n;
    for (uint32_t g = 0; g < s->groups; g++) m->n_kept[g] = m->length;
}

/* More of a hit, also of blocks that others have published since. On the finest pages it stops
 * where the cache does; on others blocks of finer pages may end it, and behind pages of its own the
 * blocks that they were copied from may have left the cache. */
void op_hit_more(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (m->hits == 0 || m->hits != m->length || m->hits != m->published || m->dropped) return;
    uint32_t tokens[LEN_MAX], n = 120 + rng_below(&s->random, 121), hit;
    uint32_t most = 1 + rng_below(&s->random, 24);
    /* A fork goes on with another document than its own first tokens are of. */
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i < m->length ? m->tokens[i] : document_token(m->document, i);
    bool mixed;
    uint32_t want = model_hit(s, tokens, n, m->salt, &mixed).tokens;
    pkv_grain grain = pkv_seq_grain(s->kv, id);
    want = m->sealed || want <= m->length ? 0 : portion_of(s, grain, want - m->length, most);
    uint64_t before = pkv_checksum(s->kv);
    if (!went(s, pkv_seq_hit_more(s->kv, id, tokens, n, most, &hit), true, before)) {
        CHECK(s, hit == 0);
        return;
    }
    CHECK(s, hit <= want && (hit == want || grain != PKV_HEAD || m->unshared));
    enter_hit(s, m, tokens, hit);
    s->done[DONE_HIT_SOME] += hit > 0;
}

void op_open(sim *s, uint32_t id)
{
    model_seq *m = &s->seqs[id];
    if (m->open) return;
    uint32_t document = 1 + rng_below(&s->random, 12), n = 1 + rng_below(&s->random, 240);
    uint64_t salt = rng_below(&s->random, 8) == 0;
    uint32_t tokens[LEN_MAX];
    for (uint32_t i = 0; i < n; i++) tokens[i] = document_token(document, i);

    uint32_t hit;
    bool mixed;
    pkv_hit want = model_hit(s, tokens, n, salt, &mixed), seen = pkv_lookup(s->kv, tokens, n, salt);
    CHECK(s, seen.tokens == want.tokens);
    CHECK_WHOLE(s, seen.cached_pages == want.cached_pages);
    CHECK_WHOLE(s, seen.parked_pages == want.parked_pages);
    uint64_t before = pkv_checksum(s->kv);
    uint32_t expect = rng_below(&s->random, 2) ? LEN_MAX : n;
    static const pkv_grain grains[] = {PKV_ALL, PKV_ALL, PKV_LAYER, PKV_HEAD};
    pkv_grain grain = grains[rng_below(&s->random, 4)];
    uint32_t most = rng_below(&s->random, 2) ? UINT32_MAX : 1 + rng_below(&s->random, 24);
    if (!went(s, pkv_seq_open_some(s->kv, id, grain, tokens, n, salt, expect, most, &hit), true,
              before))
        return;
    CHECK(s, hit == portion_of(s, pkv_seq_grain(s->kv, id), want.tokens, most));
    grain = pkv_grain_fit(&s->geometry, grain);
    CHECK(s, hit ? pkv_seq_grain(s->kv, id) >= grain : pkv_seq_grain(s->kv, id) == grain);
    s->done[DONE_HIT] += hit > 0;
    s->done[DONE_HIT_MIXED] += mixed;
    *m = (model_seq){.open = true,
                     .salt = salt,
                     .key = ++s->n_keys,
                     .document = document,
                     .groups = s->groups,
                     .repositions = rng_below(&s->random, 4) == 0,
                     .tail = first_context(salt)};
    enter_hit(s, m, tokens, hit);
    m->hit_to = want.tokens;
    if (hit == 0 && grain != PKV_ALL) m->groups = fill_layers(s, id);
    s->done[DONE_OPEN]++;
}
