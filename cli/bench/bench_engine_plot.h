#ifndef CLI_BENCH_BENCH_ENGINE_PLOT_H
#define CLI_BENCH_BENCH_ENGINE_PLOT_H

#include "cli/bench/bench_model.h"

/* Writes an SVG of the points of b. */
status bench_engine_plot(const bench *b, const char *path, error *err);

#endif
