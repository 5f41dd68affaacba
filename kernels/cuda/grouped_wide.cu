/* Products of many rows of experts with wgmma, of operands of bf16, for compute capability 9.0:
 * compiled for sm_90a alone.
 *
 * A warp has a panel of 16 rows of W in registers, where quantised W becomes operands; two
 * warpgroups share the rows of x, which lie in shared memory as wgmma reads them. So each weight is
 * made an operand once for 128 rows. Operands of 32 columns are made while the tensor core
 * multiplies those before, from two sets of registers. A tile of up to 64 rows has products of half
 * the size. */
#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/wgmma.cuh"

/* A thread's part of a block whose tile has up to 8 * EIGHTS rows. */
template <class W, int EIGHTS> struct wide_product {
    typedef grouped_stages<W, true> stages;

    uint32_t a[2][2][4];
    float sums[EIGHTS][4];

    /* Starts the products of the s-th 32 columns of stage n, and waits for those before. */
    DEVICE void add(const unsigned char *stage, int s, bool is_first)
    {
        uint64_t x = group_operand(stage, 0, SWIZZLED);
        W::in_order(stage + stages::X_BYTES, threadIdx.x / WARP, s, a[s]);
        hold(a[s]);
        hold(sums);
        group_fence();
#pragma unroll
        for (int j = 0; j < 2; j++)
            multiply_group<false>(sums, a[s][j], x + (s * 64 + j * 32) / 16, !is_first || j > 0,
                                  bf16());
        group_commit();
        group_wait<1>();
    }

    DEVICE void run(const stages &of)
    {
#pragma unroll
        for (uint32_t n = 0; n + 1 < GROUPED_STAGES; n++) of.template fetch<EIGHTS * 8>(n);
        for (uint32_t n = 0; n < of.count(); n++) {
            copy_wait<GROUPED_STAGES - 2>();
            fence_operands();
            __syncthreads();
            add(of.at(n), 0, n == 0);
            __syncthreads(); /* all are done with stage n - 1 */
            of.template fetch<EIGHTS * 8>(n + GROUPED_STAGES - 1);
            add(of.at(n), 1, false);
        }
        group_wait<0>();
        hold(sums);
        copy_wait<0>();
        __syncthreads();
    }

    /* Writes y to shared memory. */
    DEVICE void put(float *y) const
    {
        put_sums(sums, 0, y);
        __syncthreads();
    }
};

template <class W> struct wide_memory {
    typedef grouped_stages<W, true> stages;
    static constexpr size_t STAGES_BYTES = GROUPED_STAGES * stages::STAGE_BYTES;
    static constexpr size_t Y_BYTES = ROWS * LINE * sizeof(float);
    /* The first stage begins at a multiple of SWIZZLED. */
    static constexpr size_t BYTES = SWIZZLED + (STAGES_BYTES > Y_BYTES ? STAGES_BYTES : Y_BYTES);
};

template <class W>
static __global__ void __launch_bounds__(GROUPED_THREADS, 2) grouped_wide_kernel(grouped_job job)
{
    DYNAMIC_SHARED(shared);
    __shared__ uint32_t rows[ROWS];
    const block_place at(job, OUTS);
    const gpu_expert_tile tile = tile_of(job, at.tile);
    if (tile.n == 0) return; /* the whole block */
    list_rows(job, tile, rows);
    unsigned char *aligned = shared + (SWIZZLED - shared_address(shared) % SWIZZLED) % SWIZZLED;
    const grouped_stages<W, true> stages(job, matrix_of(job.w, tile.expert), at.out, rows, aligned);
    if (tile.n > ROWS / 2) {
        wide_product<W, ROWS / 8> product;
        product.run(stages);
        product.put((float *)aligned);
    } else {
        wide_product<W, ROWS / 16> product;
        product.run(stages);
        product.put((float *)aligned);
    }
    store_rows<bf16>(job, tile, at.out, (const float *)aligned);
}

template <class W> static gpu_status launch(gpu *g, const grouped_job &job)
{
    gpu_status s = gpu_allow_shared(g, (const void *)grouped_wide_kernel<W>, wide_memory<W>::BYTES);
    if (s != GPU_OK) return s;
    LAUNCH(grouped_wide_kernel<W>, grouped_blocks(job, OUTS), GROUPED_THREADS,
           wide_memory<W>::BYTES, g, job);
    return gpu_launched(g, "product of experts with wgmma");
}

gpu_status gpu_grouped_wide(gpu *g, const grouped_job &job)
{
    if (job.w.is_float) return launch<quant_stage<bf16, 8, true>>(g, job);
    if (job.w.bits == 8) return launch<quant_stage<bf16, 8, false>>(g, job);
    if (job.w.bits == 4) return launch<quant_stage<bf16, 4, false>>(g, job);
    return launch<plain_stage<bf16, true>>(g, job);
}

GPU_CODE(grouped_wide, grouped_wide_kernel<plain_stage<bf16, true>>)
