/* A build without servers. */
#include "cli/bench/bench_front.h"

status bench_front_open(const bench_front_options *options, bench_front **out, error *err)
{
    (void)options;
    (void)out;
    return error_set(err, STATUS_UNSUPPORTED, "--http and --grpc: this build has no servers");
}

void bench_front_close(bench_front *f) { (void)f; }
