/* The library's products of e4m3 by e4m3 on the CPU: what cublasLt refuses is refused, what it
 * leaves undefined ends the program, and sums are made in f64. */
#include "kernels/cuda/narrow.cuh"
#include "tests/simt/device.h"
#include "tests/simt/strict.h"

#include <atomic>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { ALIGNED = 16, GROUP = 128 };

static int refuses;
static std::atomic<uint64_t> n_products;

void simt_refuse_narrow(int which) { refuses = which; }
uint64_t simt_narrow_products(void) { return n_products; }

/* Compute capability 8.9 and others multiply with one scale for the whole of an operand, 9.0 also
 * with one for each row or 128 columns of it. */
static gpu_scaled scales_of(const gpu *g, const gpu_floats *f, gpu_type y_type)
{
    uint32_t compute = gpu_compute(g);
    if (compute < 89 || refuses == SIMT_REFUSE_ALL) return GPU_SCALED_NEVER;
    if (compute == 90) return GPU_SCALED_HERE;
    return f->by_group || y_type == GPU_F16 ? GPU_SCALED_NEVER : GPU_SCALED_AFTER;
}

void simt_probe_narrow(const gpu *g, gpu_facts *facts)
{
    facts->narrow_rows = gpu_compute(g) >= 89;
    facts->narrow_groups = gpu_compute(g) == 90;
}

gpu_scaled gpu_library_scales(gpu *g, const gpu_floats *f, const void *, gpu_type y_type)
{
    return scales_of(g, f, y_type);
}

static void demand(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "simt: product of e4m3: %s\n", what);
    abort();
}

static void check_operands(const gpu_floats *f, const void *y)
{
    const void *all[] = {f->w, f->x, f->w_scales, f->x_scales, y};
    for (const void *at : all) demand((uintptr_t)at % ALIGNED == 0, "an address is not aligned");
    demand(f->m > 0 && f->n > 0 && f->k > 0, "an empty operand");
    demand(f->n % 16 == 0 && f->k % 16 == 0, "n and k must be multiples of 16");
    demand(!f->by_group || f->m % 4 == 0, "with scales of groups m must be a multiple of 4");
}

/* Widens [rows, k] and gives each element its scale. */
static std::vector<double> widen_all(const gpu_floats *f, const uint8_t *bytes, size_t rows,
                                     const float *scales)
{
    std::vector<double> out(rows * f->k);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < f->k; k++) {
            double scale = !scales ? 1.0 : scales[(f->by_group ? k / GROUP : 0) * rows + r];
            out[r * f->k + k] = to_float(e4m3{bytes[r * f->k + k]}) * scale;
        }
    return out;
}

static void multiply(const gpu_floats *f, void *y, gpu_type y_type, bool scaled)
{
    std::vector<double> w = widen_all(f, f->w, f->n, scaled ? f->w_scales : NULL);
    std::vector<double> x = widen_all(f, f->x, f->m, scaled ? f->x_scales : NULL);
    for (size_t r = 0; r < f->m; r++)
        for (size_t n = 0; n < f->n; n++) {
            double sum = 0.0;
            for (size_t k = 0; k < f->k; k++) sum += x[r * f->k + k] * w[n * f->k + k];
            size_t at = r * f->n + n;
            if (y_type == GPU_F32) ((float *)y)[at] = (float)sum;
            else if (y_type == GPU_BF16) ((bf16 *)y)[at] = from_float<bf16>((float)sum);
            else ((f16 *)y)[at] = from_float<f16>((float)sum);
        }
    simt_note_written(y, f->m * f->n * (y_type == GPU_F32 ? 4 : 2));
}

gpu_status gpu_library_floats(gpu *g, const gpu_floats *f, void *y, gpu_type y_type)
{
    gpu_scaled scaled = scales_of(g, f, y_type);
    demand(scaled != GPU_SCALED_NEVER, "the library was not asked for it");
    check_operands(f, y);
    gpu_floats own = *f;
    bool is_done = simt_count_launch();
    n_products += is_done;
    simt_submit(g, [=]() {
        if (is_done) multiply(&own, y, y_type, scaled == GPU_SCALED_HERE);
        simt_pass_time(g, {own.n * own.k, own.m * own.n * own.k});
    });
    return gpu_launched(g, "product of e4m3");
}
