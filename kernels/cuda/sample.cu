/* Draws from whole rows, and the parts of draws that a rank finds in its own tokens. */
#include "kernels/cuda/draws.cuh"

/* ---- one draw -------------------------------------------------------------------------------- */

static DEVICE float penalised(const gpu_draw &d, float v, uint32_t outputs)
{
    v = v > 0.0f ? v / d.repetition : product_rounded(v, d.repetition);
    v -= product_rounded(d.frequency, (float)outputs);
    return outputs ? v - d.presence : v;
}

/* Tokens of other ranks wrap to indices beyond n_vocab. */
static DEVICE void edit(const gpu_sampling &s, const gpu_draw &d, float *x)
{
    __shared__ uint32_t is_known; /* the last token is among the seen ones */
    const gpu_edit *banned = s.edits + d.first_edit, *biased = banned + d.n_banned;
    const gpu_edit *seen = biased + d.n_biased;
    const float *row = s.logits + (size_t)d.row * s.stride;
    for_each(row, s.n_vocab, [=](float v, uint32_t i) { x[i] = v; });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < d.n_banned; i += DRAW_THREADS)
        if (banned[i].token - s.first < s.n_vocab) x[banned[i].token - s.first] = -INFINITY;
    __syncthreads();
    /* One thread adds all biases of a token, in their order, so that the sum is deterministic. */
    for (uint32_t i = 0; i < d.n_biased; i++) {
        uint32_t at = biased[i].token - s.first;
        if (at % DRAW_THREADS == threadIdx.x && at < s.n_vocab) x[at] += biased[i].bias;
    }
    __syncthreads();
    uint32_t last = d.last ? s.drawn[d.last - 1].token : GPU_NO_TOKEN;
    last -= s.first;
    if (threadIdx.x == 0) is_known = last >= s.n_vocab;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < d.n_seen; i += DRAW_THREADS) {
        uint32_t at = seen[i].token - s.first;
        if (at >= s.n_vocab) continue;
        x[at] = penalised(d, x[at], seen[i].outputs + (at == last));
        if (at == last) is_known = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0 && !is_known) x[last] = penalised(d, x[last], 1);
    __syncthreads();
}

static DEVICE void keep_top_p(digits &all, const float *x, uint32_t n, float max, float top_p,
                              kept *k)
{
    const kept before = *k;
    u64 total = 0;
    for_each(x, n, [&](float v, uint32_t i) {
        if (is_kept(before, v, i)) total += mass_of(v, max);
    });
    total = block_total(total);
    u64 target = find_target(total, top_p);
    if (target == 0) return;
    crossing c =
        find_in_row(all, x, n, target, [=](float v, uint32_t i, uint32_t *key, u64 *weight) {
            *key = key_of(v);
            *weight = mass_of(v, max);
            return is_kept(before, v, i);
        });
    k->key = c.key;
    /* Keeps the lowest ids of the equal tokens at the crossing, as many as needed. */
    uint32_t equal = 0;
    u64 mass = 0;
    for_each(x, n, [&](float v, uint32_t i) {
        if (!is_kept(before, v, i) || key_of(v) != c.key) return;
        equal++;
        mass += mass_of(v, max);
    });
    equal = block_total(equal);
    mass = block_total(mass);
    if (mass == 0 || equal < 2) return;
    u64 each = mass / equal, need = (target - c.before + each - 1) / each;
    if (need < equal) k->id = find_index(all, x, n, c.key, need);
}

/* The draw's row, edited, and divided by the temperature unless the draw is greedy: in
 * scratch [n_vocab], but for a row that stays as it is, which is not copied. */
static DEVICE const float *prepare(const gpu_sampling &s, const gpu_draw &d, float *scratch)
{
    const float *row = s.logits + (size_t)d.row * s.stride;
    if (d.n_banned + d.n_biased + d.n_seen > 0) {
        edit(s, d, scratch);
        row = scratch;
    }
    if (d.temperature < GPU_GREEDY_BELOW) return row;
    for_each(row, s.n_vocab, [=](float v, uint32_t i) { scratch[i] = v / d.temperature; });
    __syncthreads();
    return scratch;
}

static DEVICE uint32_t draw(digits &all, const gpu_sampling &s, const gpu_draw &d, float *scratch,
                            uint32_t *undefined)
{
    uint32_t n = s.n_vocab;
    const float *x = prepare(s, d, scratch);
    const peak of_row = row_peak(x, n);
    best top = of_row.top;
    *undefined = !has_softmax(top.value, of_row.is_nan);
    uint32_t greedy = top.id == NO_TOKEN ? 0 : top.id;
    if (d.temperature < GPU_GREEDY_BELOW) return greedy;
    kept k = {top.value + d.log_min_p, 0, NO_TOKEN};
    uint32_t left = count_kept(x, n, k);
    if (left == 0) return greedy; /* every logit is -inf or NaN: the draw is undefined */
    if (d.top_k > 0 && d.top_k < left) {
        const kept before = k;
        auto each = [=](float v, uint32_t i, uint32_t *key, u64 *weight) {
            *key = key_of(v);
            *weight = 1;
            return is_kept(before, v, i);
        };
        k.key = find_in_row(all, x, n, d.top_k, each).key;
    }
    if (d.top_p < 1.0f && left > 1) keep_top_p(all, x, n, top.value, d.top_p, &k);
    uint32_t token = draw_token(x, 0, n, d, k).id;
    return token == NO_TOKEN ? greedy : token;
}

/* Sets logprob, rank and top tokens from the raw logits. */
static DEVICE void score(const float *x, uint32_t n, uint32_t token, uint32_t n_top, gpu_drawn *out)
{
    best top = row_best(x, n, NULL);
    double sum = 0.0;
    uint32_t greater = 0;
    float own = x[token];
    for_each(x, n, [&](float v, uint32_t) {
        sum += (double)expf(v - top.value);
        greater += v > own;
    });
    double lse = (double)top.value + log(block_total(sum));
    greater = block_total(greater);
    if (threadIdx.x == 0) {
        out->logprob = (float)((double)own - lse);
        out->rank = greater + 1;
    }
    if (n_top > GPU_LOGPROBS_MAX) n_top = GPU_LOGPROBS_MAX;
    uint32_t have = 0;
    for (; have < n_top; have++) {
        if (have > 0) {
            best after = top;
            top = row_best(x, n, &after);
        }
        if (top.id == NO_TOKEN) break;
        if (threadIdx.x == 0) {
            out->top_ids[have] = top.id;
            out->top_logprobs[have] = (float)((double)top.value - lse);
        }
    }
    if (threadIdx.x == 0) out->n_top = have;
}

static __global__ void __launch_bounds__(DRAW_THREADS) draw_kernel(gpu_sampling s)
{
    await_previous();
    __shared__ digits all;
    const gpu_draw d = s.draws[blockIdx.x];
    if (d.row == GPU_NO_DRAW || d.by_parts) return; /* the whole block */
    gpu_drawn *out = s.drawn + d.result;
    uint32_t token = d.given, undefined = 0;
    if (token == GPU_NO_TOKEN)
        token = draw(all, s, d, s.scratch + (size_t)blockIdx.x * s.n_vocab, &undefined);
    if (threadIdx.x == 0) {
        out->token = token;
        out->undefined = undefined;
        out->logprob = NAN;
        out->rank = out->n_top = 0;
    }
    if (d.n_logprobs < 0) return; /* the whole block */
    score(s.logits + (size_t)d.row * s.stride, s.n_vocab, token, (uint32_t)d.n_logprobs, out);
}

/* Lists the likeliest tokens of a rank's part of a row. */
static DEVICE void list_top(digits &all, const float *x, uint32_t n, uint32_t top_k,
                            gpu_opening *out)
{
    __shared__ uint32_t n_listed;
    const kept any = {-INFINITY, 0, NO_TOKEN};
    uint32_t left = count_kept(x, n, any), equal = 0;
    if (threadIdx.x == 0) out->n_above = out->n_last = n_listed = 0;
    if (left == 0) return; /* the whole block */
    u64 most = left < top_k ? left : top_k;
    crossing c = find_in_row(all, x, n, most, [=](float v, uint32_t i, uint32_t *key, u64 *weight) {
        *key = key_of(v);
        *weight = 1;
        return is_kept(any, v, i);
    });
    for_each(x, n, [&](float v, uint32_t i) {
        if (!is_kept(any, v, i)) return;
        uint32_t key = key_of(v);
        if (key > c.key) out->list[atomicAdd(&n_listed, 1u)] = v;
        equal += key == c.key;
    });
    equal = block_total(equal);
    if (threadIdx.x > 0) return;
    out->n_above = (uint32_t)c.before;
    out->n_last = equal;
    out->list[GPU_LIST_MOST - 1] = value_of(c.key);
}

static __global__ void __launch_bounds__(DRAW_THREADS)
    part_kernel(gpu_sampling s, gpu_part *parts, gpu_opening *openings)
{
    __shared__ digits all;
    const gpu_draw d = s.draws[blockIdx.x];
    if (d.row == GPU_NO_DRAW || !d.by_parts) return; /* the whole block */
    const float *x = prepare(s, d, s.scratch + (size_t)blockIdx.x * s.n_vocab);
    const peak of_part = row_peak(x, s.n_vocab);
    best top = of_part.top, drawn = {-INFINITY, NO_TOKEN};
    if (top.id != NO_TOKEN) top.id += s.first;
    if (d.temperature >= GPU_GREEDY_BELOW && !(d.by_parts & GPU_LIMITED))
        drawn = draw_token(x, s.first, s.n_vocab, d, kept{-INFINITY, 0, NO_TOKEN});
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = gpu_part{top.value, top.id, drawn.value, drawn.id, of_part.is_nan};
        if (d.by_parts & GPU_LIMITED) openings[blockIdx.x].largest = top.value;
    }
    if (d.by_parts & GPU_LISTED) list_top(all, x, s.n_vocab, d.top_k, openings + blockIdx.x);
}

gpu_status gpu_draw_parts(gpu *g, const gpu_sampling *s, gpu_part *parts, gpu_opening *openings)
{
    if (s->n) LAUNCH(part_kernel, s->n, DRAW_THREADS, 0, g, *s, parts, openings);
    return gpu_launched(g, "parts of draws");
}

gpu_status gpu_sample(gpu *g, const gpu_sampling *s)
{
    if (s->n) LAUNCH_EARLY(draw_kernel, s->n, DRAW_THREADS, 0, g, *s);
    return gpu_launched(g, "draws");
}

GPU_CODE(sample, draw_kernel)
