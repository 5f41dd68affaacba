/* Memory: how much stays resident, and whether steady decode steps allocate from the heap. */
#include "cli/bench/bench_model.h"
#include "cli/steps.h"

#include <stdio.h>
#include <unistd.h>

uint64_t bench_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long size = 0, resident = 0;
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* jemalloc's control function; NULL when malloc is another. */
extern int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size)
    __attribute__((weak));

/* Bytes that this thread has ever allocated; false when the allocator does not count them. */
static bool allocated_bytes(uint64_t *out)
{
    size_t size = sizeof *out;
    return mallctl && mallctl("thread.allocated", out, &size, NULL, 0) == 0;
}

enum { STEADY_SEQS = 4, STEADY_WARM = 40, STEADY_STEPS = 64 };

/* Bytes that scheduler and backend allocate from the heap while a batch decodes; -1 = not known. */
static status steady_allocations(bench *b, int64_t *bytes, error *err)
{
    *bytes = -1;
    steps s;
    uint32_t prompt[32] = {0}, length = 32 + STEADY_WARM + STEADY_STEPS + 8;
    if (length > b->model.max_model_len || b->model.max_batch < STEADY_SEQS) return STATUS_IS_OK;
    RETURN_IF_ERROR(steps_create(&b->model, length, false, &s, err));
    sched_request requests[STEADY_SEQS];
    sched_event adds[STEADY_SEQS];
    retention_limits limits = {b->seqs.info->geometry, b->model.prefill_chunk,
                               b->model.max_model_len};
    for (uint32_t i = 0; i < STEADY_SEQS; i++) {
        requests[i] =
            (sched_request){.id = i + 1,
                            .prompt = prompt,
                            .n_prompt = 32,
                            .max_new_tokens = length - 32,
                            .n = 1,
                            .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1}};
        retention_parse(NULL, &limits, &requests[i].policy, NULL);
        adds[i] = (sched_event){.kind = SCHED_ADD, .add = &requests[i]};
    }
    status st = steps_next(&s, adds, STEADY_SEQS, err);
    for (int i = 0; status_ok(st) && i < STEADY_WARM; i++) st = steps_next(&s, NULL, 0, err);
    uint64_t before, after;
    bool counted = allocated_bytes(&before);
    for (int i = 0; status_ok(st) && i < STEADY_STEPS; i++) st = steps_next(&s, NULL, 0, err);
    if (counted && allocated_bytes(&after)) *bytes = (int64_t)(after - before);
    for (uint32_t i = 0; i < STEADY_SEQS; i++)
        adds[i] = (sched_event){.kind = SCHED_END, .request = i + 1, .choice = SCHED_ALL_CHOICES};
    if (status_ok(st)) st = steps_next(&s, adds, STEADY_SEQS, err);
    if (status_ok(st)) st = steps_drain(&s, err);
    steps_destroy(&s);
    return st;
}

status bench_memory(bench *b, uint64_t loaded, error *err)
{
    int64_t steady;
    RETURN_IF_ERROR(steady_allocations(b, &steady, err));
    uint64_t rss = bench_resident_bytes();
    const backend_facts *f = &b->model.facts;
    if (!b->as_json) {
        char now[32], then[32], weights[32], pool[32];
        format_bytes(now, sizeof now, rss);
        format_bytes(then, sizeof then, loaded);
        format_bytes(weights, sizeof weights, f->weight_bytes);
        format_bytes(pool, sizeof pool, f->pool_bytes);
        printf("memory: resident %s after loading, %s now; weights %s, pool %s; ready in %.3f s\n",
               then, now, weights, pool, (double)b->model.open_us / 1e6);
        if (steady >= 0)
            printf("heap: %lld bytes allocated in %d steady decode steps\n", (long long)steady,
                   STEADY_STEPS);
    }
    bench_report_row(&b->report, "memory");
    strbuf_printf(&b->report.rows,
                  ",\"resident_loaded\":%llu,\"resident\":%llu,\"weights\":%llu,\"pool\":%llu,"
                  "\"ready_ms\":%.3f,"
                  "\"steady_heap_bytes\":%lld}",
                  (unsigned long long)loaded, (unsigned long long)rss,
                  (unsigned long long)f->weight_bytes, (unsigned long long)f->pool_bytes,
                  (double)b->model.open_us / 1e3, (long long)steady);
    return STATUS_IS_OK;
}
