/* Property: for any source of a grammar, compiling ends, with a grammar or one line that says what
 * is wrong; the tokens of a mask are accepted, and those that are not in it are refused; going back
 * gives the same mask again.
 *
 * The first byte picks the kind, the second the form of JSON and the tokens that are drawn; the
 * rest is the source. */
#include "engine/grammar/grammar.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

enum { N_PAIRS = 64, N_TOKENS = 256 + N_PAIRS, N_WORDS = (N_TOKENS + 31) / 32, STEPS = 12 };

/* Made at the first input; never freed. */
static grammar_vocab *the_vocab(void)
{
    static const char pairs[] = "{\"\":\", \"}],[{}]\\\"\\na\"1,0]ab\xc3\xa9\"{:1true\"a\":[{\"\"b";
    static char bytes[N_TOKENS][2];
    static grammar_vocab *v;
    grammar_token tokens[N_TOKENS];
    if (v) return v;
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        uint32_t i = t < 256 ? 0 : (t - 256) % (sizeof pairs - 2);
        bytes[t][0] = t < 256 ? (char)t : pairs[i];
        bytes[t][1] = pairs[i + 1];
        tokens[t] = (grammar_token){bytes[t], t < 256 ? 1 : 2};
    }
    FUZZ_CHECK(status_ok(grammar_vocab_create(tokens, N_TOKENS, &v)));
    return v;
}

static bool has(const uint32_t *mask, uint32_t t) { return mask[t / 32] >> t % 32 & 1; }

/* Tries every token. */
static void check_mask(grammar_matcher *m, const uint32_t *mask)
{
    uint32_t n = grammar_accepted(m);
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        status s = grammar_accept(m, t);
        FUZZ_CHECK(s.code == STATUS_LIMIT || status_ok(s) == has(mask, t));
        grammar_rollback(m, n);
    }
}

static void follow(grammar *g, uint32_t seed)
{
    uint32_t mask[N_WORDS], again[N_WORDS];
    grammar_matcher *m = grammar_matcher_create(g);
    if (!m) return; // the empty text alone has too many readings
    for (uint32_t i = 0; i < STEPS; i++) {
        status s = grammar_mask(m, mask);
        FUZZ_CHECK(status_ok(s) || s.code == STATUS_LIMIT);
        if (!status_ok(s)) break;
        check_mask(m, mask);
        FUZZ_CHECK(status_ok(grammar_mask(m, again)) && memcmp(mask, again, sizeof mask) == 0);
        uint32_t t = seed * 37 % N_TOKENS, tries = 0;
        while (!has(mask, t) && tries++ < N_TOKENS) t = (t + 1) % N_TOKENS;
        FUZZ_CHECK(has(mask, t) || grammar_may_end(m));
        if (!has(mask, t) || !status_ok(grammar_accept(m, t))) break;
        seed = seed * 1103515245 + 12345;
    }
    grammar_matcher_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    grammar *g = NULL;
    error err = {{0}};
    if (size < 2 || size > 4096) return 0;
    grammar_source source = {.kind = (grammar_kind)(data[0] % 6),
                             .text = (const char *)data + 2,
                             .n = size - 2,
                             .compact = data[1] & 1};
    status s = grammar_create(&source, the_vocab(), &g, &err);
    FUZZ_CHECK(status_ok(s) == (g != NULL));
    if (g) follow(g, data[1]);
    else FUZZ_CHECK(err.text[0] && !strpbrk(err.text, "\r\n"));
    grammar_release(g);
    return 0;
}
