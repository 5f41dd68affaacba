/* Mass of slots and pages from what decode attention has kept of its rows, in place of K. A thread
 * sums a slot or a page over the measured rows, in the reference's order: over a row's query heads,
 * then over rows. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/measured.cuh"

/* The most blocks of GPU_KEPT_TURN threads that a multiprocessor runs at once. */
enum { BLOCKS_OF_SM = 16 };

/* The kept floats of the strip that has `slot`, of the sequence's row i in the step and its first
 * query head. Each query head's `floats` follow those of the one before. */
static DEVICE const float *strip_of(const gpu_measure &m, const gpu_measured &s, uint32_t head,
                                    uint32_t slot, uint32_t i, uint32_t floats)
{
    size_t strip = (size_t)head * s.kept.strips + slot / STRIP;
    return m.kept + s.kept.at + (strip * s.seq.n_rows + i) * m.q_heads * floats;
}

/* The log2 sums of exponentials of row i, for the KV head's query heads. */
static DEVICE const float *lse_of(const gpu_measure &m, const gpu_measured &s, uint32_t head,
                                  uint32_t i)
{
    return m.lse + ((size_t)(s.seq.first_row + i) * m.kv_heads + head) * m.q_heads;
}

/* Whether a row that sits at `last` sees one of the slots [from, to). */
static DEVICE bool sees(const gpu_measure &m, uint32_t last, uint32_t from, uint32_t to)
{
    return from <= last && (m.layer.window == 0 || to - 1 + m.layer.window > last);
}

static DEVICE float mass_of_slot(const gpu_measure &m, const gpu_measured &s, uint32_t length,
                                 uint32_t head, uint32_t slot)
{
    float sum = 0.0f;
    for (uint32_t i = s.seq.n_rows - s.rows; i < s.seq.n_rows; i++) {
        if (!sees(m, length - s.seq.n_rows + i, slot, slot + 1)) continue;
        const float *score = strip_of(m, s, head, slot, i, STRIP) + slot % STRIP;
        const float *lse = lse_of(m, s, head, i);
        float of_heads = 0.0f;
        for (uint32_t h = 0; h < m.q_heads; h++)
            of_heads += exp2_fast(fmaf(score[h * STRIP], m.scale * LOG2E, -lse[h]));
        sum += of_heads;
    }
    return sum;
}

static DEVICE float mass_of_strip(const gpu_measure &m, const gpu_measured &s, uint32_t length,
                                  uint32_t head, uint32_t slot)
{
    float sum = 0.0f;
    for (uint32_t i = s.seq.n_rows - s.rows; i < s.seq.n_rows; i++) {
        if (!sees(m, length - s.seq.n_rows + i, slot, slot + STRIP)) continue;
        const vec8 *kept = (const vec8 *)strip_of(m, s, head, slot, i, 2);
        const float *lse = lse_of(m, s, head, i);
        float of_heads = 0.0f;
        for (uint32_t h = 0; h < m.q_heads; h++)
            of_heads +=
                float_of_bits(kept[h].w[0]) * exp2_fast(float_of_bits(kept[h].w[1]) - lse[h]);
        sum += of_heads;
    }
    return sum;
}

/* ---- work ------------------------------------------------------------------------------------
 * Blocks are as many as the device runs at once, whatever is measured, and share out the turns of
 * all sequences: a captured launch suits every step. */

/* The first sequence whose work ends behind the turn. */
static DEVICE uint32_t find_work(const gpu_measure &m, uint32_t turn)
{
    uint32_t from = 0, to = m.list.n - 1;
    while (from < to) {
        uint32_t middle = (from + to) / 2;
        if (measured_at(m, middle).work > turn) to = middle;
        else from = middle + 1;
    }
    return from;
}

/* The thread measures slot or page i of a sequence. */
static DEVICE void measure_kept(const gpu_measure &m, const gpu_measured &s, uint32_t head,
                                uint32_t i)
{
    table_view t = view_measured(m, s, head);
    bool by_page = s.out == GPU_OUT_PAGES;
    uint32_t from = by_page ? i * m.pages.page_tokens : i;
    if (from >= t.length) return;
    float sum = 0.0f;
    if (by_page) {
        for (uint32_t slot = from; slot < from + m.pages.page_tokens && slot < t.length;
             slot += STRIP)
            sum += mass_of_strip(m, s, t.length, head, slot);
    } else sum = mass_of_slot(m, s, t.length, head, from);
    if (s.sum != GPU_SUM_NONE) sum = add_to_sum(m, s, t, head, from, sum);
    if (s.out != GPU_OUT_SUMS) results_of(m, s, head)[i] = sum;
}

static __global__ void __launch_bounds__(GPU_KEPT_TURN) kept_kernel(gpu_measure m)
{
    uint64_t all = measured_at(m, m.list.n - 1).work;
    uint32_t turn = (uint32_t)(all * blockIdx.x / gridDim.x);
    uint32_t end = (uint32_t)(all * (blockIdx.x + 1) / gridDim.x);
    if (turn == end) return;
    uint32_t i = find_work(m, turn), before = i > 0 ? measured_at(m, i - 1).work : 0;
    while (turn < end) {
        gpu_measured s = measured_at(m, i++);
        for (uint32_t j = turn; is_due(m, s) && j < s.work && j < end; j++)
            measure_kept(m, s, blockIdx.y, (j - before) * GPU_KEPT_TURN + threadIdx.x);
        if (s.work > turn) turn = s.work;
        before = s.work;
    }
}

gpu_status gpu_mass_kept(gpu *g, const gpu_measure *m)
{
    uint32_t blocks = (BLOCKS_OF_SM * gpu_sms(g) + m->kv_heads - 1) / m->kv_heads;
    LAUNCH(kept_kernel, dim3(blocks, m->kv_heads), GPU_KEPT_TURN, 0, g, *m);
    return gpu_launched(g, "mass of what attention kept");
}

GPU_CODE(kept, kept_kernel)
