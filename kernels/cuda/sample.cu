/* Draws: one block for each. The CPU sorts the logits; here three passes over the row, by digits of
 * a key, find where a count or a mass is reached. Masses are integers, so the order of adding them
 * does not matter. */
#include "kernels/cuda/simt.cuh"

enum { DRAW_THREADS = 1024, BINS = 2048 };

#define GREEDY_BELOW 1e-5f

typedef unsigned long long u64;

/* ---- over a block ---------------------------------------------------------------------------- */

template <class T> static DEVICE T block_total(T v)
{
    __shared__ T of_warp[WARP];
    unsigned lane = threadIdx.x % WARP;
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    __syncthreads(); /* the previous call's of_warp may still be read */
    if (lane == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    v = of_warp[lane]; /* a block has as many warps as a warp has lanes */
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    return v;
}

struct best {
    float value;
    uint32_t id;
};

/* The better of two: the larger value, then the lower id. NaN never wins. */
static DEVICE best better(best a, float value, uint32_t id)
{
    bool wins = value > a.value || (value == a.value && id < a.id);
    return wins ? best{value, id} : a;
}

static DEVICE best block_best(best b)
{
    __shared__ best of_warp[WARP];
    unsigned lane = threadIdx.x % WARP;
    for (int round = 0; round < 2; round++) {
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            float value = shuffle_xor(b.value, mask);
            uint32_t id = shuffle_xor(b.id, mask);
            b = better(b, value, id);
        }
        if (round == 1) break;
        __syncthreads();
        if (lane == 0) of_warp[threadIdx.x / WARP] = b;
        __syncthreads();
        b = of_warp[lane];
    }
    return b;
}

static const uint32_t NO_TOKEN = 0xffffffffu;

/* The largest of x [n]. With `after`, only elements that follow it, by value and then by id,
 * count. */
static DEVICE best row_best(const float *x, uint32_t n, const best *after)
{
    best b = {-INFINITY, NO_TOKEN};
    for_each(x, n, [&](float v, uint32_t i) {
        if (!after || v < after->value || (v == after->value && i > after->id)) b = better(b, v, i);
    });
    return block_best(b);
}

struct peak {
    best top; /* the largest that is not NaN */
    bool is_nan;
};

static DEVICE peak row_peak(const float *x, uint32_t n)
{
    best b = {-INFINITY, NO_TOKEN};
    uint32_t nans = 0;
    for_each(x, n, [&](float v, uint32_t i) {
        b = better(b, v, i);
        nans |= v != v;
    });
    b = block_best(b);
    return peak{b, block_total(nans) > 0};
}

/* ---- by digits ------------------------------------------------------------------------------- */

/* Maps larger floats to larger keys; both zeros have one key. */
static DEVICE uint32_t key_of(float x)
{
    uint32_t bits = bits_of_float(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct crossing {
    uint32_t key;
    u64 before; /* weight of all larger keys */
};

/* Shared by a block. A bin is two halves, because shared memory adds 32 bits natively, but 64 bits
 * by a loop of compare and swap, in which threads of one bin wait for each other. */
struct digits {
    uint32_t low[BINS], high[BINS];
    u64 of_64[BINS / 64];
    crossing found;
};

static DEVICE u64 bin_of(const digits &all, uint32_t bin)
{
    return (u64)all.high[bin] << 32 | all.low[bin];
}

/* The thread whose addition overflows the lower half adds the carry. */
static DEVICE void add_to_bin(digits &all, uint32_t bin, u64 weight)
{
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);
    uint32_t before = atomicAdd(&all.low[bin], low);
    high += before + low < before;
    if (high) atomicAdd(&all.high[bin], high);
}

/* The bin, going from the last to the first, at which the sum reaches `target`. Called by thread
 * 0. */
static DEVICE uint32_t find_bin(const digits &all, u64 target, u64 *before)
{
    uint32_t group = 0, bin = BINS - 1;
    while (group + 1 < BINS / 64 && *before + all.of_64[group] < target)
        *before += all.of_64[group++];
    bin -= group * 64;
    for (uint32_t i = 0; i < 63 && *before + bin_of(all, bin) < target; i++)
        *before += bin_of(all, bin--);
    return bin;
}

/* The key at which the weight, summed from the largest key down, reaches `target`; all weights
 * together do. at(x[i], i, &key, &weight) returns false where i is no candidate. */
template <class AT>
static DEVICE crossing find_crossing(digits &all, const float *x, uint32_t n, u64 target, AT at)
{
    const int shifts[] = {21, 10, 0};
    crossing c = {0, 0};
    for (int digit = 0; digit < 3; digit++) {
        int shift = shifts[digit], above = digit ? shifts[digit - 1] : 32;
        uint32_t width = above - shift, mask = (1u << width) - 1;
        for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS) all.low[i] = all.high[i] = 0;
        __syncthreads();
        for_each(x, n, [&](float v, uint32_t i) {
            uint32_t key;
            u64 weight;
            if (!at(v, i, &key, &weight)) return;
            if (digit && key >> above != c.key >> above) return;
            add_to_bin(all, key >> shift & mask, weight);
        });
        __syncthreads();
        if (threadIdx.x < BINS / 64) {
            u64 sum = 0;
            for (uint32_t i = 0; i < 64; i++) /* each thread starts at another bank */
                sum += bin_of(all, BINS - 1 - threadIdx.x * 64 - (i + threadIdx.x) % 64);
            all.of_64[threadIdx.x] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            all.found = c;
            all.found.key |= find_bin(all, target, &all.found.before) << shift;
        }
        __syncthreads();
        c = all.found;
    }
    return c;
}

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

/* The tokens that may be drawn: of logit `floor` or more, and with a key above `key`, or equal to
 * it and an id not above `id`. */
struct kept {
    float floor;
    uint32_t key, id;
};

static DEVICE bool is_kept(const kept &k, float x, uint32_t id)
{
    if (!(x >= k.floor && x > -INFINITY)) return false;
    uint32_t key = key_of(x);
    return key > k.key || (key == k.key && id <= k.id);
}

/* The weight of x, in units of 2^-40 of the likeliest token's. */
static DEVICE u64 mass_of(float x, float max) { return (u64)((double)expf(x - max) * 0x1p40); }

static DEVICE uint32_t count_kept(const float *x, uint32_t n, const kept &k)
{
    uint32_t count = 0;
    for_each(x, n, [&](float v, uint32_t i) { count += is_kept(k, v, i); });
    return block_total(count);
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
    u64 target = (u64)ceil((double)top_p * (double)total);
    if (target == 0) target = 1; /* at least one token */
    if (target > total) return;
    crossing c =
        find_crossing(all, x, n, target, [=](float v, uint32_t i, uint32_t *key, u64 *weight) {
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
    if (need >= equal) return;
    crossing last =
        find_crossing(all, x, n, need, [=](float v, uint32_t i, uint32_t *key, u64 *weight) {
            *key = ~i;
            *weight = 1;
            return is_kept(before, v, i) && key_of(v) == c.key;
        });
    k->id = ~last.key;
}

struct noise {
    uint32_t v[4];
};

static DEVICE noise philox(u64 key, u64 low, u64 high)
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = (uint32_t)high;
    uint32_t c3 = (uint32_t)(high >> 32), k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)0xd2511f53u * c0, p1 = (u64)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return noise{{c0, c1, c2, c3}};
}

/* The best of x [n], the tokens from `first` on, with noise. A thread takes four tokens, which one
 * block of noise serves. Noise is at most 16.7, so tokens that cannot win any more are skipped. */
static DEVICE best draw_token(const float *x, uint32_t first, uint32_t n, const gpu_draw &d,
                              const kept &k)
{
    best b = {-INFINITY, NO_TOKEN};
    for (uint32_t at = first / 4 * 4 + threadIdx.x * 4; at < first + n; at += DRAW_THREADS * 4) {
        noise r = {{0, 0, 0, 0}};
        bool made = false;
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t i = at + j - first; /* wraps below the first one */
            if (i >= n) continue;
            float v = x[i];
            if (!is_kept(k, v, at + j) || v + 17.0f < b.value) continue;
            if (!made) r = philox(d.key, d.sample_index, at / 4);
            made = true;
            /* 23 bits plus a half: exact in f32, never 0 or 1 */
            float u = ((float)(r.v[j] >> 9) + 0.5f) * 0x1p-23f;
            b = better(b, v - logf(-logf(u)), at + j);
        }
    }
    return block_best(b);
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
    if (d.temperature < GREEDY_BELOW) return row;
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
    if (d.temperature < GREEDY_BELOW) return greedy;
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
        k.key = find_crossing(all, x, n, d.top_k, each).key;
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

static __global__ void __launch_bounds__(DRAW_THREADS) part_kernel(gpu_sampling s, gpu_part *parts)
{
    const gpu_draw d = s.draws[blockIdx.x];
    if (d.row == GPU_NO_DRAW || !d.by_parts) return; /* the whole block */
    const float *x = prepare(s, d, s.scratch + (size_t)blockIdx.x * s.n_vocab);
    const peak of_part = row_peak(x, s.n_vocab);
    best top = of_part.top, drawn = {-INFINITY, NO_TOKEN};
    if (top.id != NO_TOKEN) top.id += s.first;
    if (d.temperature >= GREEDY_BELOW)
        drawn = draw_token(x, s.first, s.n_vocab, d, kept{-INFINITY, 0, NO_TOKEN});
    if (threadIdx.x == 0)
        parts[blockIdx.x] = gpu_part{top.value, top.id, drawn.value, drawn.id, of_part.is_nan};
}

gpu_status gpu_draw_parts(gpu *g, const gpu_sampling *s, gpu_part *parts)
{
    if (s->n) LAUNCH(part_kernel, s->n, DRAW_THREADS, 0, g, *s, parts);
    return gpu_launched(g, "parts of draws");
}

gpu_status gpu_sample(gpu *g, const gpu_sampling *s)
{
    if (s->n) LAUNCH_EARLY(draw_kernel, s->n, DRAW_THREADS, 0, g, *s);
    return gpu_launched(g, "draws");
}

GPU_CODE(sample, draw_kernel)
