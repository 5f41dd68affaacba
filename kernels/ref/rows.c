/* Row operations in plain C. */
#include "kernels/isa.h"

#include <math.h>

static void rmsnorm(const float *x, const float *weight, float eps, size_t d, float *out)
{
    double sum = 0.0;
    for (size_t i = 0; i < d; i++) sum += (double)x[i] * x[i];
    float scale = (float)(1.0 / sqrt(sum / (double)d + eps));
    for (size_t i = 0; i < d; i++) out[i] = x[i] * scale * weight[i];
}

static void add_rmsnorm(float *x, const float *delta, const float *weight, float eps, size_t d,
                        float *out)
{
    for (size_t i = 0; i < d; i++) x[i] += delta[i];
    rmsnorm(x, weight, eps, d, out);
}

static void swiglu(const float *gate, const float *up, size_t d, float *out)
{
    for (size_t i = 0; i < d; i++) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void rope(float *x, const float *cos_sin, size_t n_heads, size_t head_dim)
{
    size_t half = head_dim / 2;
    for (size_t h = 0; h < n_heads; h++, x += head_dim)
        for (size_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[half + i];
            x[i] = a * c - b * s;
            x[i + half] = b * c + a * s;
        }
}

void kern_rows_fill_ref(kern_isa *isa)
{
    isa->rmsnorm = rmsnorm;
    isa->add_rmsnorm = add_rmsnorm;
    isa->swiglu = swiglu;
    isa->rope = rope;
}
