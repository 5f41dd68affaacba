/* Opening a model at a terminal: its progress bar, and lines on stderr. */
#include "cli/cli.h"
#include "cli/model_open.h"

#include <stdio.h>
#include <unistd.h>

static void print_note(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "octavo: %s\n", line);
}

static void draw_bar(void *ctx, uint64_t done, uint64_t total)
{
    enum { PAUSE_US = 100 * 1000 };
    loaded_model *m = ctx;
    int64_t now = clock_now_us();
    if (done >= total) {
        if (m->bar_us) cli_clear_bar();
        m->bar_us = 0;
        return;
    }
    if (m->bar_us && now - m->bar_us < PAUSE_US) return;
    m->bar_us = now;
    cli_draw_bar("loading weights", done, total);
}

status model_open(const model_flags *flags, bool with_text, loaded_model *out, error *err)
{
    bool bar = !flags->quiet && isatty(STDERR_FILENO);
    const model_listener terminal = {
        .note = print_note, .progress = bar ? draw_bar : NULL, .ctx = out};
    RETURN_IF_ERROR(model_open_with(flags, with_text, &terminal, out, err));
    out->quiet = flags->quiet;
    return STATUS_IS_OK;
}

void format_bytes(char *out, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int unit = 0;
    for (; v >= 1024.0 && unit < 4; unit++) v /= 1024.0;
    snprintf(out, size, unit && v < 100 ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

void model_log(const loaded_model *m, const char *dir)
{
    char weights[32], pool[32], tier[32], ranks[32] = "", swap[64] = "", bits[16] = "",
                                          filling[80] = "", disk[80] = "";
    if (m->quiet) return;
    if (m->options.quant_attention) snprintf(bits, sizeof bits, "mixed ");
    else if (m->options.quant_bits) snprintf(bits, sizeof bits, "int%u ", m->options.quant_bits);
    if (m->n_ranks > 1) snprintf(ranks, sizeof ranks, "%u ranks, ", m->n_ranks);
    format_bytes(weights, sizeof weights, m->facts.weight_bytes);
    format_bytes(pool, sizeof pool, m->facts.pool_bytes);
    if (m->facts.filling_bytes) {
        format_bytes(tier, sizeof tier, m->facts.filling_bytes);
        snprintf(filling, sizeof filling, " and up to %s of bf16 for the newest pages", tier);
    }
    format_bytes(tier, sizeof tier, m->facts.disk_bytes);
    if (m->facts.disk_bytes) snprintf(disk, sizeof disk, " in memory, of %s on disk", tier);
    format_bytes(tier, sizeof tier, m->facts.host_bytes);
    if (m->facts.host_bytes)
        snprintf(disk, sizeof disk, " on the device and %s in host memory", tier);
    format_bytes(tier, sizeof tier, m->facts.swap_bytes);
    if (m->facts.swap_bytes) snprintf(swap, sizeof swap, ", %s of host memory to swap", tier);
    const backend_info *info = m->backend.ops->info(m->backend.ctx);
    uint32_t pages = info->n_pages - 1;
    uint32_t blocks = pages / pkv_groups(&info->geometry);
    fprintf(
        stderr,
        "octavo: %s: %s, %s of %sweights; KV pool %s%s%s%s: %u %s pages, room for %llu tokens%s; "
        "%s, "
        "%s%u thread%s; weights %s in %.2f s, ready in %.2f s\n",
        dir, m->config.architecture, weights, bits, pool,
        !m->default_pool ? ""
        : m->on_gpu      ? " (85 % of what the GPU has left)"
                    : " (with representatives, 60 % of what the cgroup leaves after the weights)",
        filling, disk, pages, m->kv_name, (unsigned long long)blocks * info->geometry.page_tokens,
        swap, m->facts.isa, ranks, m->facts.n_threads, m->facts.n_threads == 1 ? "" : "s",
        m->facts.from_cache ? "from the cache" : "packed", (double)m->facts.load_us / 1e6,
        (double)m->open_us / 1e6);
    if (m->facts.narrow) fprintf(stderr, "octavo: e4m3 weights: %s\n", m->facts.narrow);
    if (m->facts.sums) fprintf(stderr, "octavo: sums of ranks: %s\n", m->facts.sums);
    if (m->workers) workers_log(m->workers);
}
