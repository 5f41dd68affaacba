/* The lines of `octavo bench kernels` for attention. */
#ifndef CLI_BENCH_BENCH_ATTENTION_H
#define CLI_BENCH_BENCH_ATTENTION_H

#include "kernels/kernels.h"

/* Prints decode and prefill on cold pages of `format`, with bytes and operations beside the limits,
 * and what page mass adds. */
status bench_attention(kern_context *kc, kern_kv_format format);

#endif
