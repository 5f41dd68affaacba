/* kernels/cuda, private: what kernels of measures read of a sequence. Their grids have the
 * sequences along z. */
#ifndef KERNELS_CUDA_MEASURED_CUH
#define KERNELS_CUDA_MEASURED_CUH

#include "kernels/cuda/pages.cuh"

static DEVICE gpu_measured measured_at(const gpu_measure &m, uint32_t i)
{
    return m.list.seqs ? m.list.seqs[i] : m.one;
}

/* The block's sequence. */
static DEVICE gpu_measured measured_of(const gpu_measure &m) { return measured_at(m, blockIdx.z); }

/* Whether the sequence is measured in this layer. */
static DEVICE bool is_due(const gpu_measure &m, const gpu_measured &s)
{
    return s.step > 0 && m.selecting % s.step == 0;
}

/* Whether the sequence is measured in this layer from K and V. kept.cu measures what attention has
 * kept. */
static DEVICE bool is_measured(const gpu_measure &m, const gpu_measured &s)
{
    return is_due(m, s) && (m.kind != GPU_MEASURE_MASS || s.kept.strips == 0);
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
    size_t array = s.arrays + m.selecting / s.step;
    return m.values + s.values + (array * m.kv_heads + head) * s.stride;
}

/* Adds a slot's value to its running sum, and returns this. */
static DEVICE float add_to_sum(const gpu_measure &m, const gpu_measured &s, const table_view &t,
                               uint32_t head, uint32_t slot, float value)
{
    uint32_t tile = m.layer.first_tile + head % m.layer.heads_per_group;
    uint32_t cell = t.pages[slot / m.pages.page_tokens] + t.cell;
    float *sum = m.pages.sums + sums_at(m.pages, cell, tile) + slot % m.pages.page_tokens;
    bool old = s.sum == GPU_SUM_ADD && slot + s.seq.n_rows < t.length;
    return *sum = value + (old ? *sum : 0.0f);
}

/* A KV head's values by slot: results, or scratch. */
static DEVICE float *slots_of(const gpu_measure &m, const gpu_measured &s, uint32_t head)
{
    if (s.out == GPU_OUT_SLOTS) return results_of(m, s, head);
    return m.scratch + s.scratch + (size_t)head * s.longest;
}

/* The rest of the sequence's scratch. */
static DEVICE float *scratch_of(const gpu_measure &m, const gpu_measured &s)
{
    size_t by_slot = s.out == GPU_OUT_SLOTS ? 0 : (size_t)m.kv_heads * s.longest;
    return m.scratch + s.scratch + by_slot;
}

#endif
