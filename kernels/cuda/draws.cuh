/* kernels/cuda, private: what draws from whole rows and from parts of them have in common, one
 * block for each draw. The CPU sorts the logits; here passes over the row, by digits of a key, find
 * where a count or a mass is reached. Masses are integers, so the order of adding them does not
 * matter. */
#ifndef KERNELS_CUDA_DRAWS_CUH
#define KERNELS_CUDA_DRAWS_CUH

#include "kernels/cuda/simt.cuh"

enum { DRAW_THREADS = 1024, BINS = 2048 };

typedef unsigned long long u64;

/* ---- over a block ---------------------------------------------------------------------------- */

template <class T> static DEVICE T block_total(T v)
{
    __shared__ T of_warp[WARP];
    unsigned lane = threadIdx.x % WARP;
    v = warp_fold(v, sum_of_two());
    __syncthreads(); /* the previous call's of_warp may still be read */
    if (lane == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    /* a block has as many warps as a warp has lanes */
    return warp_fold(of_warp[lane], sum_of_two());
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

struct better_of_two {
    DEVICE best operator()(best a, best b) const { return better(a, b.value, b.id); }
};

DEVICE best shuffle_xor(best b, int mask)
{
    return best{shuffle_xor(b.value, mask), shuffle_xor(b.id, mask)};
}

static DEVICE best block_best(best b)
{
    __shared__ best of_warp[WARP];
    unsigned lane = threadIdx.x % WARP;
    for (int round = 0; round < 2; round++) {
        b = warp_fold(b, better_of_two());
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

static DEVICE float value_of(uint32_t key)
{
    return float_of_bits(key >> 31 ? key & 0x7fffffffu : ~key);
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
 * together do. each(add) calls add(key, weight) for the thread's part of all candidates. */
template <class EACH> static DEVICE crossing find_crossing(digits &all, u64 target, EACH each)
{
    const int shifts[] = {21, 10, 0};
    crossing c = {0, 0};
    for (int digit = 0; digit < 3; digit++) {
        int shift = shifts[digit], above = digit ? shifts[digit - 1] : 32;
        uint32_t width = above - shift, mask = (1u << width) - 1;
        for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS) all.low[i] = all.high[i] = 0;
        __syncthreads();
        each([&](uint32_t key, u64 weight) {
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

/* The same over x [n], where at(x[i], i, &key, &weight) returns false for what is no candidate. */
template <class AT>
static DEVICE crossing find_in_row(digits &all, const float *x, uint32_t n, u64 target, AT at)
{
    return find_crossing(all, target, [=](auto add) {
        for_each(x, n, [&](float v, uint32_t i) {
            uint32_t key;
            u64 weight;
            if (at(v, i, &key, &weight)) add(key, weight);
        });
    });
}

/* ---- tokens that may be drawn ---------------------------------------------------------------- */

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

/* The mass at which a part top_p of the total is reached, that of one token at least; 0: never. */
static DEVICE u64 find_target(u64 total, float top_p)
{
    u64 target = (u64)ceil((double)top_p * (double)total);
    if (target == 0) target = 1;
    return target > total ? 0 : target;
}

/* The index of the want-th token of x [n] that has this key. */
static DEVICE uint32_t find_index(digits &all, const float *x, uint32_t n, uint32_t key, u64 want)
{
    return ~find_in_row(all, x, n, want, [=](float v, uint32_t i, uint32_t *at, u64 *weight) {
                *at = ~i;
                *weight = 1;
                return key_of(v) == key;
            }).key;
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

#endif
