/* Products of a text's rows with a question's, in plain C. */
#include "base/half.h"
#include "kernels/isa.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static void widen_rows(const uint16_t *rows, size_t n, size_t dim, size_t stride, float *out,
                       float *squares)
{
    for (size_t i = 0; i < n; i++, rows += dim, out += stride) {
        float lanes[LANES] = {0};
        for (size_t d = 0; d < stride; d++) {
            out[d] = d < dim ? f16_to_f32(rows[d]) : 0;
            lanes[d % LANES] = fmaf(out[d], out[d], lanes[d % LANES]);
        }
        for (size_t half = LANES / 2; half > 0; half /= 2)
            for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
        squares[i] = lanes[0];
    }
}

static void row_products(const float *rows, size_t stride, size_t n, const float *question,
                         size_t dim, float *out)
{
    for (size_t i = 0; i < n; i++, rows += stride, out += LANES) {
        memset(out, 0, LANES * sizeof *out);
        for (size_t d = 0; d < dim; d++)
            for (size_t l = 0; l < LANES; l++)
                out[l] = fmaf(rows[d], question[d * LANES + l], out[l]);
    }
}

void kern_cosines_fill_ref(kern_isa *isa)
{
    isa->widen_rows = widen_rows;
    isa->row_products = row_products;
}
