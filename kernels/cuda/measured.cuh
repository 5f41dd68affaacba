/* kernels/cuda, private: what kernels of measures read of a sequence. Their grids have the
 * sequences along z. */
#ifndef KERNELS_CUDA_MEASURED_CUH
#define KERNELS_CUDA_MEASURED_CUH

#include "kernels/cuda/pages.cuh"

/* The block's sequence. */
static DEVICE gpu_measured measured_of(const gpu_measure &m)
{
    return m.list.seqs ? m.list.seqs[blockIdx.z] : m.one;
}

static DEVICE table_view view_measured(const gpu_measure &m, const gpu_measured &s, uint32_t head)
{
    return view_table(m.pages, m.tables, m.layer, s.seq, m.lengths, head);
}

/* Index in the step of the first row that is measured. */
static DEVICE size_t first_measured(const gpu_measured &s)
{
    return s.seq.first_row + s.seq.n_rows - s.rows;
}

static DEVICE float *results_of(const gpu_measure &m, const gpu_measured &s, uint32_t head)
{
    return m.values + s.values + ((size_t)m.array * m.kv_heads + head) * s.stride;
}

/* Whether attention has kept what the measure needs of the sequence: kept.cu measures it alone. */
static DEVICE bool is_kept(const gpu_measure &m, const gpu_measured &s)
{
    return m.kind == GPU_MEASURE_MASS && s.kept.strips > 0;
}

/* Adds a slot's value to its running sum, and returns this. */
static DEVICE float add_to_sum(const gpu_measure &m, const gpu_measured &s, const table_view &t,
                               uint32_t head, uint32_t slot, float value)
{
    uint32_t tile = m.layer.first_tile + head % m.layer.heads_per_group;
    uint32_t cell = t.pages[slot / m.pages.page_tokens] + t.cell;
    float *sum = m.pages.sums + sums_at(m.pages, cell, tile) + slot % m.pages.page_tokens;
    bool old = m.sum == GPU_SUM_ADD && slot + s.seq.n_rows < t.length;
    return *sum = value + (old ? *sum : 0.0f);
}

/* A KV head's values by slot: results, or scratch. */
static DEVICE float *slots_of(const gpu_measure &m, const gpu_measured &s, uint32_t head)
{
    if (m.out == GPU_OUT_SLOTS) return results_of(m, s, head);
    return m.scratch + s.scratch + (size_t)head * s.longest;
}

/* The rest of the sequence's scratch. */
static DEVICE float *scratch_of(const gpu_measure &m, const gpu_measured &s)
{
    size_t by_slot = m.out == GPU_OUT_SLOTS ? 0 : (size_t)m.kv_heads * s.longest;
    return m.scratch + s.scratch + by_slot;
}

#endif
