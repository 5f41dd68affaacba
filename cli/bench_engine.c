/* `octavo bench engine`: prefill and decode beside this machine's limits, and what the rest costs.
 */
#include "cli/bench_engine.h"
#include "cli/bench_sched.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char bench_engine_name[] = "octavo bench engine";

enum {
    LIST_MAX = 16,
    SCHED_RUNNING = 256,
};

/* TinyLlama's shape with room for long contexts. */
static const char shape_1_1b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":32000,"
    "\"hidden_size\":2048,\"intermediate_size\":5632,\"num_hidden_layers\":22,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"hidden_act\":\"silu\","
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"max_position_embeddings\":16384,"
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"
    "\"torch_dtype\":\"bfloat16\"}";

static const char *const shapes[] = {"1.1b", NULL};

static const arg_flag flags_table[] = {
    ARG_ROW("shape", "NAME", ARG_CHOICE, bench_flags, shape,
            "instead of --model: random bf16 weights of a known shape", .choices = shapes),
    ARG_ROW("batch", "LIST", ARG_TEXT, bench_flags, batch, "sequences that decode together",
            .initial = "1,4,8,16,32"),
    ARG_ROW("context", "LIST", ARG_TEXT, bench_flags, context, "tokens each of them holds",
            .initial = "128,1024"),
    ARG_ROW("prefill", "LIST", ARG_TEXT, bench_flags, prefill, "prompt lengths", .initial = "512"),
    ARG_ROW("retention-tokens", "N", ARG_COUNT, bench_flags, retention_tokens,
            "prompt length at which chunkkv's scoring and selection are timed; 0 leaves it out",
            .max = 1 << 20, .initial = "8192"),
    ARG_ROW("rounds", "N", ARG_COUNT, bench_flags, rounds, "repetitions; medians are printed",
            .min = 1, .max = BENCH_ROUNDS_MAX, .initial = "5"),
    ARG_ROW("json", NULL, ARG_SWITCH, bench_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, bench_flags, out, "write the JSON there as well"),
};

typedef struct list {
    uint32_t values[LIST_MAX];
    size_t n;
} list;

typedef struct lists {
    list batches, contexts, prefills;
} lists;

/* "1,4,8" */
static status read_list(const char *flag, const char *text, list *out, error *err)
{
    out->n = 0;
    for (;;) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || v == 0 || v > 1 << 20 || out->n == LIST_MAX ||
            (*end && *end != ','))
            return error_set(err, STATUS_INVALID,
                             "--%s: must be up to %d numbers with commas between", flag, LIST_MAX);
        out->values[out->n++] = (uint32_t)v;
        if (!*end) return STATUS_IS_OK;
        text = end + 1;
    }
}

void bench_start_row(bench *b, const char *what)
{
    strbuf_printf(&b->json, "%s{\"what\":\"%s\"", b->n_rows++ ? ",\n " : "", what);
}

/* ---- scheduler ------------------------------------------------------------------------------- */

static status bench_scheduler(bench *b, error *err)
{
    bench_sched_cost cost;
    RETURN_IF_ERROR(
        bench_sched(&b->seqs.info->geometry, SCHED_RUNNING, b->flags->rounds, &cost, err));
    if (!b->flags->json)
        printf("scheduler: %.2f us for each running sequence and step at %d running; page append "
               "and close "
               "%.1f ns\n",
               cost.us_per_seq_step, SCHED_RUNNING, cost.ns_per_page);
    bench_start_row(b, "scheduler");
    strbuf_printf(&b->json, ",\"running\":%d,\"us_per_seq_step\":%.4g,\"ns_per_page\":%.4g}",
                  SCHED_RUNNING, cost.us_per_seq_step, cost.ns_per_page);
    return STATUS_IS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static status open_limits(bench *b, error *err)
{
    thread_pool_options threads = {.n_threads = b->model.facts.n_threads, .pin = true};
    status st = thread_pool_create(&threads, &b->pool);
    if (!status_ok(st)) return error_set(err, st.code, "threads: %s", status_text(st.code));
    kern_options o = {.pool = b->pool, .isa = b->model.facts.isa};
    return kern_create(&o, &b->kernels, err);
}

static status decode_all(bench *b, const list *batches, const list *contexts, error *err)
{
    for (size_t c = 0; c < contexts->n; c++) {
        double alone = 0;
        for (size_t i = 0; i < batches->n; i++) {
            uint32_t batch = batches->values[i];
            double tokens_s;
            status st = bench_decode(b, batch, contexts->values[c], &tokens_s, err);
            if (st.code == STATUS_NO_PAGES) {
                fprintf(stderr, "%s: left out: %s\n", bench_engine_name, err->text);
                continue;
            }
            RETURN_IF_ERROR(st);
            if (batch == 1) alone = tokens_s;
            else if (alone > 0 && !b->flags->json)
                printf("%23s batch %u is %.2f times batch 1\n", "", batch, tokens_s / alone);
        }
    }
    return STATUS_IS_OK;
}

static status run_all(bench *b, const lists *l, error *err)
{
    uint64_t loaded = bench_resident_bytes();
    RETURN_IF_ERROR(open_limits(b, err));
    RETURN_IF_ERROR(bench_seqs_create(&b->model, &b->seqs, err));
    if (!b->flags->json)
        printf("%-8s %5s %7s %9s %9s %7s %7s %8s %7s\n", "what", "batch", "tokens", "tokens/s",
               "step ms", "GB/s", "of read", "GFLOP/s", "of FMA");
    double unused;
    for (size_t i = 0; i < l->prefills.n; i++)
        RETURN_IF_ERROR(bench_prefill(b, l->prefills.values[i], b->flags->rounds, &unused, err));
    RETURN_IF_ERROR(decode_all(b, &l->batches, &l->contexts, err));
    if (b->flags->retention_tokens) RETURN_IF_ERROR(bench_retention(b, err));
    RETURN_IF_ERROR(bench_scheduler(b, err));
    return bench_memory(b, loaded, err);
}

static status write_json(bench *b, const char *dir, error *err)
{
    strbuf all = {0};
    strbuf_puts(&all, "{\"model\":");
    strbuf_json_string(&all, b->flags->shape ? b->flags->shape : dir,
                       strlen(b->flags->shape ? b->flags->shape : dir));
    strbuf_printf(&all,
                  ",\"isa\":\"%s\",\"threads\":%u,\"kv_type\":\"%s\",\"rounds\":%u,\"rows\":[\n ",
                  b->model.facts.isa, b->model.facts.n_threads, dtype_name(b->model.kv_type),
                  b->flags->rounds);
    strbuf_append(&all, b->json.data, b->json.size);
    strbuf_puts(&all, "]}\n");
    status st = all.failed ? error_set(err, STATUS_NO_MEMORY, "out of memory") : STATUS_IS_OK;
    if (status_ok(st) && b->flags->json) fwrite(all.data, 1, all.size, stdout);
    if (status_ok(st) && b->flags->out) {
        FILE *f = fopen(b->flags->out, "we");
        bool ok = f && fwrite(all.data, 1, all.size, f) == all.size;
        if (f && fclose(f) != 0) ok = false;
        if (!ok) st = error_set(err, STATUS_IO, "%s: %s", b->flags->out, strerror(errno));
    }
    strbuf_destroy(&all);
    return st;
}

static status bench_model(const model_flags *model, const bench_flags *flags, const lists *l,
                          const char *dir, error *err)
{
    model_flags m = *model;
    m.dir = dir;
    if (flags->shape) m.load_format = "dummy";
    for (size_t i = 0; i < l->batches.n; i++)
        if (l->batches.values[i] > m.max_batch) m.max_batch = l->batches.values[i];
    bench b = {.flags = flags};
    RETURN_IF_ERROR(model_open(&m, false, &b.model, err));
    model_tell(&b.model, flags->shape ? flags->shape : dir);
    status st = run_all(&b, l, err);
    if (status_ok(st)) st = write_json(&b, dir, err);
    bench_seqs_destroy(&b.seqs);
    kern_destroy(b.kernels);
    thread_pool_destroy(b.pool);
    model_close(&b.model);
    strbuf_destroy(&b.json);
    return st;
}

/* A folder that holds nothing but the shape's config.json, for as long as the bench runs. */
static status bench_shape(const model_flags *model, const bench_flags *flags, const lists *l,
                          error *err)
{
    const char *base = getenv("TMPDIR");
    char dir[256], path[300];
    snprintf(dir, sizeof dir, "%s/octavo-shape-XXXXXX",
             base && strlen(base) < 200 ? base : P_tmpdir);
    if (!mkdtemp(dir)) return error_set(err, STATUS_IO, "%s: %s", dir, strerror(errno));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "we");
    bool ok = f && fputs(shape_1_1b, f) >= 0;
    if (f && fclose(f) != 0) ok = false;
    status st = ok ? bench_model(model, flags, l, dir, err)
                   : error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    unlink(path);
    rmdir(dir);
    return st;
}

static status read_lists(const bench_flags *f, lists *out, error *err)
{
    RETURN_IF_ERROR(read_list("batch", f->batch, &out->batches, err));
    RETURN_IF_ERROR(read_list("context", f->context, &out->contexts, err));
    return read_list("prefill", f->prefill, &out->prefills, err);
}

int cli_bench_engine(int argc, char **argv)
{
    model_flags model = {0};
    bench_flags flags = {0};
    lists l;
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
        model_flags_group(&model),
    };
    const arg_command command = {
        .name = bench_engine_name,
        .usage = "(--model DIR | --shape 1.1b) [flags]",
        .about = "Prefill and decode of a whole model: tokens per second, bytes of weights and KV "
                 "read and\n"
                 "floating-point operations per second, each beside the limit of this machine "
                 "measured right\n"
                 "after each round (read bandwidth; f32 FMA rate of this instruction set). Then "
                 "what retention\n"
                 "adds to a long prefill, what scheduling costs, and memory. Contexts are filled "
                 "with copies\n"
                 "of one page, which costs no prefill and changes no time.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, argc, argv, NULL, &result)) {
        result = CLI_OK;
        if (!model.dir == !flags.shape)
            result = cli_complain(bench_engine_name, CLI_USAGE,
                                  "one of --model and --shape must be given");
        else if (!status_ok(read_lists(&flags, &l, &err)))
            result = cli_complain(bench_engine_name, CLI_USAGE, err.text);
        else if (!status_ok(flags.shape ? bench_shape(&model, &flags, &l, &err)
                                        : bench_model(&model, &flags, &l, model.dir, &err)))
            result = cli_complain(bench_engine_name, CLI_FAILED, err.text);
        else if (!cli_finish_output(bench_engine_name)) result = CLI_FAILED;
    }
    model_flags_destroy(&model);
    return result;
}
