#include "cli/bench/bench_model.h"

#include <stdio.h>
#include <string.h>

static status open_limits(bench *b, error *err)
{
    if (b->model.gpu) return bench_gpu_open(b->model.gpu, b->model.gpu_ordinal, &b->gpu, err);
    thread_pool_options threads = {.n_threads = b->model.facts.n_threads, .pin = true};
    status st = thread_pool_create(&threads, &b->pool);
    if (!status_ok(st)) return error_set(err, st.code, "threads: %s", status_text(st.code));
    kern_options o = {
        .pool = b->pool, .isa = b->model.facts.isa, .precision = b->model.options.precision};
    return kern_create(&o, &b->kernels, err);
}

status bench_limits(bench *b, kern_limits *out, error *err)
{
    static const gpu_type types[] = {
        [DTYPE_F32] = GPU_F32, [DTYPE_BF16] = GPU_BF16, [DTYPE_F16] = GPU_F16};
    if (!b->model.gpu) {
        status st = kern_measure_limits(b->kernels, out);
        return status_ok(st) ? st : error_set(err, st.code, "limits: %s", status_text(st.code));
    }
    RETURN_IF_ERROR(bench_gpu_limits(&b->gpu, types[b->model.options.weight_type], err));
    double gflop_s = b->gpu.product_tflop_s * 1e3;
    *out = (kern_limits){b->gpu.copy_gb_s, gflop_s, gflop_s, gflop_s, gflop_s};
    return STATUS_IS_OK;
}

static status open_dir(bench *b, const model_flags *flags, error *err)
{
    RETURN_IF_ERROR(model_open(flags, false, &b->model, err));
    model_log(&b->model, b->title);
    status st = open_limits(b, err);
    if (status_ok(st)) st = bench_seqs_create(&b->model, &b->seqs, err);
    if (!status_ok(st)) bench_close(b);
    return st;
}

status bench_open(bench *b, const model_flags *flags, const char *shape, error *err)
{
    model_flags m = *flags;
    b->title = shape ? shape : flags->dir;
    if (!shape) return open_dir(b, &m, err);
    bench_shape folder;
    RETURN_IF_ERROR(bench_shape_create(shape, &folder, err));
    m.dir = folder.dir;
    m.load_format = "dummy";
    status st = open_dir(b, &m, err);
    bench_shape_remove(&folder);
    return st;
}

void bench_close(bench *b)
{
    bench_seqs_destroy(&b->seqs);
    kern_destroy(b->kernels);
    thread_pool_destroy(b->pool);
    bench_gpu_close(&b->gpu);
    model_close(&b->model);
    bench_report_destroy(&b->report);
}

status bench_write(bench *b, error *err)
{
    strbuf *head = &b->report.head;
    strbuf_puts(head, "\"model\":");
    strbuf_json_string(head, b->title, strlen(b->title));
    strbuf_printf(head, ",\"isa\":\"%s\",\"threads\":%u,\"kv_type\":\"%s\",\"rounds\":%u",
                  b->model.facts.isa, b->model.facts.n_threads, b->model.kv_name, b->rounds);
    return bench_report_write(&b->report, b->as_json, b->out, err);
}
