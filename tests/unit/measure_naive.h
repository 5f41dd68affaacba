/* The measures of docs/retention.md, section 4, as plain float64 loops over one KV head's K, V and
 * Q. Kernels and backends are compared with them. */
#ifndef TESTS_UNIT_MEASURE_NAIVE_H
#define TESTS_UNIT_MEASURE_NAIVE_H

#include "kernels/measure.h"
#include "tests/unit/kernels_tables.h"

#include <math.h>

static inline double *doubles(size_t n)
{
    double *x = calloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static inline double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* ---- measured under rows -------------------------------------------------------------------- */

/* a [n_slots]: attention of one query row over slots [0, end): a softmax at the model's scale, with
 * the scores divided by a temperature. */
static inline void attention_row(const sequence *s, const float *q, uint32_t end, double temper,
                                 double *a)
{
    uint32_t dim = s->shape.head_dim;
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < s->n_slots; j++) a[j] = 0;
    for (uint32_t j = 0; j < end; j++) {
        a[j] = dot(q, s->k + (size_t)j * dim, dim) / sqrt(dim) / temper;
        max = fmax(max, a[j]);
    }
    for (uint32_t j = 0; j < end; j++) sum += a[j] = exp(a[j] - max);
    for (uint32_t j = 0; j < end; j++) a[j] /= sum;
}

static inline void max_pool(double *a, uint32_t n, uint32_t kernel)
{
    double *from = doubles(n);
    memcpy(from, a, n * sizeof *a);
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = j > kernel / 2 ? j - kernel / 2 : 0; i < n && i <= j + kernel / 2; i++)
            a[j] = fmax(a[j], from[i]);
    free(from);
}

/* True for slots whose weighted values are part of y. */
static inline bool in_output(const kern_rows_item *it, uint32_t n, uint32_t j)
{
    if (it->kind == KERN_MEASURE_OUTSIDE) return j + it->window < n;
    if (it->kind != KERN_MEASURE_POOLED) return true;
    uint32_t chunk = j / it->chunk;
    uint32_t end = n / it->chunk + (n % it->chunk > 0);
    return chunk >= 1 && chunk + it->window / it->chunk < end;
}

/* want [n_slots] += what one row and query head contribute; *scale grows by its largest term. */
static inline void naive_row(const sequence *s, const kern_rows_item *it, uint32_t row,
                             uint32_t head, double *want, double *scale)
{
    uint32_t dim = s->shape.head_dim, n = s->n_slots, end = row + 1;
    const float *q = s->q + ((size_t)row * s->q_heads + head) * dim;
    double *a = doubles(n), *anchor = doubles(n), *y = doubles(dim), most = 0;
    if (it->kind == KERN_MEASURE_RAW) {
        for (uint32_t j = 0; j < n; j++) a[j] = dot(q, s->k + (size_t)j * dim, dim);
    } else {
        if (it->kind == KERN_MEASURE_OUTSIDE && end + it->window > n)
            end = n > it->window ? n - it->window : 0;
        attention_row(s, q, end, 1, a);
        attention_row(s, q, end, it->theta > 0 ? (double)it->theta : 1, anchor);
    }
    if (it->kind == KERN_MEASURE_POOLED) max_pool(a, n, 7), max_pool(anchor, n, 7);
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t d = 0; d < dim && in_output(it, n, j); d++)
            y[d] += anchor[j] * s->v[(size_t)j * dim + d];
    for (uint32_t j = 0; j < n; j++) {
        double yv = 0;
        for (uint32_t d = 0; d < dim; d++) yv += y[d] * s->v[(size_t)j * dim + d];
        if (it->kind >= KERN_MEASURE_PROJECTION) a[j] *= yv + (double)it->bias;
        want[j] += a[j];
        most = fmax(most, fabs(a[j]));
    }
    *scale += most;
    free(a);
    free(anchor);
    free(y);
}

/* ---- measured from a table alone ------------------------------------------------------------ */

static inline double norm(const float *x, uint32_t dim) { return sqrt(dot(x, x, dim)); }

static inline void naive_cosines(const sequence *s, double *want)
{
    uint32_t dim = s->shape.head_dim;
    double *mean = doubles(dim), square = 0;
    for (uint32_t j = 0; j < s->n_slots; j++)
        for (uint32_t d = 0; d < dim; d++)
            mean[d] += s->k[(size_t)j * dim + d] / norm(s->k + (size_t)j * dim, dim) / s->n_slots;
    for (uint32_t d = 0; d < dim; d++) square += mean[d] * mean[d];
    for (uint32_t j = 0; j < s->n_slots; j++) {
        double sum = 0;
        for (uint32_t d = 0; d < dim; d++) sum += mean[d] * s->k[(size_t)j * dim + d];
        want[j] = sum / sqrt(square) / norm(s->k + (size_t)j * dim, dim);
    }
    free(mean);
}

/* want [n_slots] += the 1-norm of W v; W [hidden] rows of head_dim, w_stride apart. */
static inline void naive_weight(const sequence *s, const float *w, uint32_t hidden, size_t w_stride,
                                double *want)
{
    uint32_t dim = s->shape.head_dim;
    for (uint32_t j = 0; j < s->n_slots; j++)
        for (uint32_t o = 0; o < hidden; o++)
            want[j] += fabs(dot(w + o * w_stride, s->v + (size_t)j * dim, dim));
}

/* ---- measured under expected queries -------------------------------------------------------- */

/* out [dim] = the mean rotation of x: pair i is (i, i + dim / 2). */
static inline void rotate(const float *mean_rope, uint32_t dim, const double *x, double *out)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        double c = mean_rope[i], s = mean_rope[dim / 2 + i];
        out[i] = c * x[i] - s * x[i + dim / 2];
        out[i + dim / 2] = s * x[i] + c * x[i + dim / 2];
    }
}

/* The formula's M as a matrix, and M C M' as matrix products. */
static inline void rotate_covariance(const float *mean_rope, uint32_t dim, const double *c,
                                     double *out)
{
    double *half = doubles((size_t)dim * dim), *column = doubles(dim), *result = doubles(dim);
    for (uint32_t j = 0; j < dim; j++) { /* M C */
        for (uint32_t i = 0; i < dim; i++) column[i] = c[i * dim + j];
        rotate(mean_rope, dim, column, result);
        for (uint32_t i = 0; i < dim; i++) half[i * dim + j] = result[i];
    }
    for (uint32_t i = 0; i < dim; i++)
        rotate(mean_rope, dim, half + (size_t)i * dim, out + i * dim);
    free(half);
    free(column);
    free(result);
}

static inline void naive_expected(const sequence *s, const kern_expected_item *it, uint32_t head,
                                  double *want)
{
    uint32_t dim = s->shape.head_dim, n = it->n_rows;
    size_t stride = (size_t)s->q_heads * dim;
    double *mean = doubles(dim), *m = doubles(dim), *logits = doubles(s->n_slots), sum = 0;
    double *c = doubles((size_t)dim * dim), *cov = doubles((size_t)dim * dim), max = -INFINITY;
    const float *q = it->q + head * dim;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d++) mean[d] += (double)q[i * stride + d] / n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t a = 0; a < dim; a++)
            for (uint32_t b = 0; b < dim; b++)
                c[a * dim + b] += (q[i * stride + a] - mean[a]) * (q[i * stride + b] - mean[b]) / n;
    rotate(it->mean_rope, dim, mean, m);
    rotate_covariance(it->mean_rope, dim, c, cov);
    for (uint32_t j = it->sinks; j < s->n_slots; j++) {
        const float *k = s->k + (size_t)j * dim;
        double km = 0, kck = 0;
        for (uint32_t a = 0; a < dim; a++) {
            km += k[a] * m[a];
            for (uint32_t b = 0; b < dim; b++) kck += k[a] * cov[a * dim + b] * k[b];
        }
        logits[j] = (km + kck / (2 * sqrt(dim))) / sqrt(dim);
        max = fmax(max, logits[j]);
    }
    for (uint32_t j = it->sinks; j < s->n_slots; j++) sum += exp(logits[j] - max);
    for (uint32_t j = it->sinks; j < s->n_slots; j++) want[j] += exp(logits[j] - max) / sum;
    free(mean);
    free(m);
    free(logits);
    free(c);
    free(cov);
}

#endif
