/* cuda_draws: draws of tokens from rows of logits, and from parts of rows that several ranks have
 * (the functions `sample`, `draw_parts`, `search`, `draw_kept`, `decide` and `join` of
 * cuda_kernels.h). model/sampler.h says what a draw is; equal logits give equal tokens.
 *
 * Owner    all memory is the caller's.
 * Threads  the rules of cuda_kernels.h.
 * Units    elements; pointers are the device's. */
#ifndef KERNELS_CUDA_CUDA_DRAWS_H
#define KERNELS_CUDA_CUDA_DRAWS_H

#include <math.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_LOGPROBS_MAX = 20, GPU_NO_TOKEN = 0xffffffff, GPU_NO_DRAW = 0xffffffff };

/* A draw of less than this temperature takes the largest logit. */
#define GPU_GREEDY_BELOW 1e-5f

/* Kinds of draws from parts of a row, each with the functions that it takes beside draw_parts,
 * which comes first, and `decide`, which comes last. After each function the ranks gather its
 * output. */
enum {
    GPU_BY_PARTS = 1, /* 0: a draw from a whole row, which `sample` makes */
    GPU_LIMITED = 2,  /* draw_kept, since its tokens follow from what all ranks have */
    GPU_LISTED = 4,   /* of these: top_k of few tokens, which draw_parts lists */
    GPU_COUNTED = 8,  /* rounds of `search` until top_k tokens are found */
    GPU_WEIGHED = 16, /* rounds of `search` until tokens of mass top_p are found */
};

/* A list has GPU_LIST_MOST logits. A round of `search` finds 8 bits of a key. */
enum { GPU_LIST_MOST = 64, GPU_BINS = 256, GPU_KEY_ROUNDS = 4, GPU_ROUNDS = 2 * GPU_KEY_ROUNDS };

/* Which draws have a round. */
#define GPU_KIND_OF_ROUND(round) ((round) < GPU_KEY_ROUNDS ? GPU_COUNTED : GPU_WEIGHED)

/* An edit of one logit of a draw. Banned logits become -inf, then biases are added, then seen
 * tokens are penalised. */
typedef struct gpu_edit {
    uint32_t token;
    uint32_t outputs; /* seen: how often it was sampled */
    float bias;
} gpu_edit;

typedef struct gpu_draw {
    uint64_t key;
    uint32_t row; /* GPU_NO_DRAW: an unused draw, which has no result */
    uint32_t sample_index;
    uint32_t first_edit, n_banned, n_biased, n_seen;
    uint32_t given; /* this token instead of a draw, or GPU_NO_TOKEN */
    uint32_t top_k; /* 0: all */
    float temperature, top_p;
    float log_min_p; /* -inf: off */
    float presence, frequency, repetition;
    int32_t n_logprobs; /* -1: none */
    uint32_t last;      /* 0, or 1 + the result of an earlier step whose token is seen too */
    uint32_t result;    /* where the result goes */
    uint32_t by_parts;  /* 0, or gpu_draw_by_parts */
} gpu_draw;

/* The kinds of a draw without logprobs that is made from parts. */
static inline uint32_t gpu_draw_by_parts(const gpu_draw *d)
{
    uint32_t kinds = GPU_BY_PARTS;
    if (d->temperature < GPU_GREEDY_BELOW) return kinds;
    if (d->top_k || d->top_p < 1 || d->log_min_p > -INFINITY) kinds |= GPU_LIMITED;
    if (d->top_k) kinds |= d->top_k <= GPU_LIST_MOST ? GPU_LISTED : GPU_COUNTED;
    if (d->top_p < 1 && !(kinds & GPU_LISTED)) kinds |= GPU_WEIGHED;
    return kinds;
}

/* The result of a draw, like backend/backend.h's step_sample. */
typedef struct gpu_drawn {
    uint32_t token;
    float logprob;
    uint32_t rank, n_top, undefined;
    uint32_t top_ids[GPU_LOGPROBS_MAX];
    float top_logprobs[GPU_LOGPROBS_MAX];
} gpu_drawn;

/* Draws from rows of logits, or from a rank's part of them: of tokens [first, first + n_vocab). */
typedef struct gpu_sampling {
    const float *logits; /* [rows, stride], of which n_vocab are used */
    uint32_t first, n_vocab, stride, n;
    const gpu_draw *draws; /* [n] */
    const gpu_edit *edits;
    float *scratch; /* [n, n_vocab] */
    /* The results of these draws, and those of the step before. A graph is replayed with other
     * draws, which say in their turn where their results go. */
    gpu_drawn *drawn;
} gpu_sampling;

/* The tokens of rows: tokens [n], or where draws [n] has 1 + a result, that one's, counted from
 * `first`. draws may be NULL. */
typedef struct gpu_tokens {
    const uint32_t *tokens, *draws;
    const gpu_drawn *drawn;
    uint32_t first;
} gpu_tokens;

/* A rank's part of a row, as `decide` reads it: the largest edited logit, the largest with noise of
 * the tokens that may be drawn, and whether a logit is NaN. GPU_NO_TOKEN: there is none. A draw
 * with limits has no `drawn` before draw_kept, and a greedy one has none at all. */
typedef struct gpu_part {
    float largest;
    uint32_t largest_token;
    float drawn;
    uint32_t drawn_token;
    uint32_t is_nan;
} gpu_part;

/* A rank's first message about a draw with limits: its largest edited logit and, for a draw that is
 * GPU_LISTED, the logits of its top_k likeliest tokens, or of all where it has fewer. n_above of
 * them are greater than the last one and come in any order; n_last tokens are as likely as the
 * last one. */
typedef struct gpu_opening {
    float largest;
    uint32_t n_above, n_last;
    float list[GPU_LIST_MOST]; /* n_above, then unused ones; the last one is at the end */
} gpu_opening;

/* Numbers of tokens, or their masses, by 8 bits of their keys. */
typedef struct gpu_bins {
    uint64_t of[GPU_BINS];
} gpu_bins;

/* Where the search of a draw stands. All ranks find the same. */
typedef struct gpu_search {
    uint64_t target, before; /* at which sum it ends, 0: nowhere; the sum of all greater keys */
    uint32_t key;            /* as many of its bits as were found */
    uint32_t least;          /* the key of the last token of top_k, 0: all */
} gpu_search;

/* The gathered messages of all ranks about n draws with limits. Ranks are in the order of their
 * tokens. */
typedef struct gpu_joint {
    uint32_t rank, ranks;
    const gpu_opening *openings; /* [ranks, n] */
    const gpu_bins *bins;        /* [ranks, n] of the round before this one */
    gpu_search *searches;        /* [n] */
    uint32_t round;              /* of draw_kept: the one behind the last, or 0 */
} gpu_joint;

#ifdef __cplusplus
}
#endif
#endif
