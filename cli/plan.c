/* `octavo plan`: the memory that a model would take and how many sequences it would hold, before it
 * is there. */
#include "base/json.h"
#include "base/number.h"
#include "cli/cli.h"
#include "cli/plan_plot.h"
#include "cli/plan_sizes.h"
#include "cli/retention_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 1024, OUTPUT_TOKENS = 512 };

typedef struct plan_flags {
    const char *memory;
    bool gpu;
    uint32_t context, output, sequences;
    const char *retention, *plot;
    bool json;
} plan_flags;

typedef struct planning {
    plan_flags flags;
    model_flags model_flags;
    loaded_model model;
    plan_question question;
    json_t *retention;
    retention_policy policy, kept_policy;
    plan_answer full, kept; // kept, kept_policy: only with a policy
} planning;

static const char plan_name[] = "octavo plan";

static const char about[] =
    "Computes the memory that a model needs and how many sequences fit, from its folder or its\n"
    "config.json alone; nothing is loaded. Takes the model flags of serve, so that a command\n"
    "line can be tried, and computes the same sizes as serve. Missing weights are assumed to be\n"
    "stored in config.json's type, and not quantised.\n"
    "\n"
    "Exit status: 0 when the sequences fit, else 1.\n"
    "\n"
    "  octavo plan --model Llama-3-70B/config.json --gpu --memory 8x80G --context 8192\n"
    "\n"
    "A GPU's pool is 85 % of what driver, weights and step buffers leave, a machine's 60 % of\n"
    "what the weights leave, unless --kv-memory gives its size. The rest is for other\n"
    "processes, on a GPU also for arrays that grow with steps and for retention's measures, on\n"
    "a machine for step buffers.";

static const arg_flag flags_table[] = {
    ARG_ROW("memory", "[N x]BYTES", ARG_TEXT, plan_flags, memory,
            "memory of the machine, such as 64G; or 8x80G: a rank on each of 8 such devices "
            "(default: what this machine has free; a GPU's must be given)"),
    ARG_ROW("gpu", NULL, ARG_SWITCH, plan_flags, gpu, "the memory is a GPU's"),
    ARG_ROW("context", "N", ARG_COUNT, plan_flags, context,
            "tokens of a sequence, prompt and output (default: --max-model-len)", .min = 2,
            .max = 0x1p31 - 1),
    ARG_ROW("output", "N", ARG_COUNT, plan_flags, output,
            "tokens of output among them (default: 512, at most half)", .min = 1,
            .max = 0x1p31 - 2),
    ARG_ROW("concurrency", "N", ARG_COUNT, plan_flags, sequences,
            "sequences that are to run at once (default: --max-batch)", .min = 1, .max = 4096),
    ARG_ROW("retention", "METHOD:RATIO", ARG_TEXT, plan_flags, retention,
            "what sequences keep, such as chunkkv:0.25; a JSON object gives the method's parts"),
    ARG_ROW("plot", "FILE", ARG_TEXT, plan_flags, plot,
            "draw the memory of a sequence and how many fit, by context, as SVG"),
    ARG_ROW("json", NULL, ARG_SWITCH, plan_flags, json, "print one JSON object"),
};

/* ---- the question ---------------------------------------------------------------------------- */

/* Reads "80G", "8x80G" or "8 x 80G". */
static status read_memory(planning *p, error *err)
{
    const char *text = p->flags.memory;
    plan_question *q = &p->question;
    q->n_devices = 1;
    if (!text) {
        if (strncmp(p->model_flags.device, "cuda", 4) == 0)
            return error_set(err, STATUS_INVALID,
                             "--memory is missing: a GPU's memory, such as 80G or 8x80G");
        q->memory = memory_available_bytes();
        return STATUS_IS_OK;
    }
    uint64_t n = 0;
    const char *end = number_read_whole(text, &n);
    if (end) end += strspn(end, " ");
    bool counted = end && *end == 'x';
    if (counted) text = end + 1 + strspn(end + 1, " ");
    if ((counted && (n < 1 || n > DEVICES_MAX)) || !args_read_bytes(text, &q->memory) ||
        q->memory == 0 || q->memory > UINT64_C(1) << 50)
        return error_set(err, STATUS_INVALID, "--memory: '%.64s' is no size such as 64G or 8x80G",
                         p->flags.memory);
    if (counted) q->n_devices = (uint32_t)n;
    if (p->model_flags.tp == 1) p->model_flags.tp = q->n_devices;
    if (q->n_devices == 1 || q->n_devices == p->model_flags.tp) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "--memory: %u devices for --tp %u", q->n_devices,
                     p->model_flags.tp);
}

static status read_lengths(planning *p, error *err)
{
    const plan_flags *f = &p->flags;
    plan_question *q = &p->question;
    q->context = f->context ? f->context : p->model.max_model_len;
    uint32_t usual = OUTPUT_TOKENS < q->context / 2 ? OUTPUT_TOKENS : q->context / 2;
    q->output = f->output ? f->output : usual;
    if (q->output < q->context && q->context > 1) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "--output: %u of %u tokens leave none for the prompt",
                     q->output, q->context);
}

/* Without weight files beside config.json, the sizes are computed from the config alone. */
static status find_weights(planning *p, error *err)
{
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json"};
    const char *dir = p->model_flags.dir;
    size_t n = strlen(dir);
    if (n > 5 && strcmp(dir + n - 5, ".gguf") == 0) return STATUS_IS_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        RETURN_IF_ERROR(file_join(path, sizeof path, dir, files[i], err));
        if (file_exists(path)) return STATUS_IS_OK;
    }
    p->model.options.dummy = true;
    return STATUS_IS_OK;
}

static status work_out(planning *p, error *err)
{
    plan_question *q = &p->question;
    model_flags *f = &p->model_flags;
    if (p->flags.gpu && strncmp(f->device, "cuda", 4) != 0) f->device = "cuda";
    RETURN_IF_ERROR(read_memory(p, err));
    q->chunk = f->prefill_chunk;
    q->sequences = p->flags.sequences ? p->flags.sequences : f->max_batch;
    if (f->max_batch < q->sequences) f->max_batch = q->sequences;
    RETURN_IF_ERROR(model_describe(f, &p->model, err));
    q->model = &p->model;
    RETURN_IF_ERROR(read_lengths(p, err));
    RETURN_IF_ERROR(find_weights(p, err));
    RETURN_IF_ERROR(plan_measure(q, &p->full, err));

    retention_limits limits = {p->full.measures.geometry, f->prefill_chunk, p->model.max_model_len};
    RETURN_IF_ERROR(retention_parse(NULL, &limits, &p->policy, err));
    RETURN_IF_ERROR(plan_fill(q, &p->policy, &p->full, err));
    if (!p->flags.retention) return plan_check_context(q, &p->policy, &p->full.room.need, err);
    RETURN_IF_ERROR(retention_read_text("--retention", p->flags.retention, &p->retention, err));
    RETURN_IF_ERROR(retention_parse(p->retention, &limits, &p->kept_policy, err));
    p->kept = p->full;
    RETURN_IF_ERROR(plan_fill(q, &p->kept_policy, &p->kept, err));
    /* With all its tokens such a sequence never runs, whatever the pool. */
    if (q->context > p->model.max_model_len) p->full.room.fit = p->full.room.in_prefill = 0;
    return plan_check_context(q, &p->kept_policy, &p->kept.room.need, err);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static const char *weights_type(const backend_options *o)
{
    if (o->quant_attention) return "mixed";
    if (o->quant_bits) return o->quant_bits == 8 ? "int8" : "int4";
    return dtype_name(o->weight_type);
}

static json_t *room_json(const plan_room *r)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "peak_pages", (json_int_t)r->need.peak,
                     "kept_pages", (json_int_t)r->need.kept, "most_pages", (json_int_t)r->need.most,
                     "fit", (json_int_t)r->fit, "fit_in_prefill", (json_int_t)r->in_prefill);
}

static json_t *answer_json(const planning *p, bool fits, const char *verdict)
{
    const plan_question *q = &p->question;
    const plan_answer *a = &p->full;
    const backend_measures *m = &a->measures;
    json_int_t ranks = p->model.n_ranks, page = (json_int_t)backend_page_bytes(m, p->model.n_ranks);
    json_t *all = json_pack(
        "{s:s, s:s, s:I, s:I, s:{s:i, s:I}, s:{s:s, s:I, s:I}}", "model", p->model_flags.dir,
        "architecture", p->model.config.architecture, "parameters", (json_int_t)m->parameters,
        "ranks", ranks, "memory", "devices", (int)q->n_devices, "device_bytes",
        (json_int_t)q->memory, "weights", "type", weights_type(&p->model.options), "bytes",
        (json_int_t)m->weight_bytes * ranks, "rank_bytes", (json_int_t)m->weight_bytes);
    json_t *kv = json_pack(
        "{s:s, s:i, s:i, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "type", p->model.kv_name, "page_tokens", (int)m->geometry.page_tokens, "groups",
        (int)pkv_groups(&m->geometry), "token_bytes", a->token_bytes, "page_bytes", page,
        "rank_page_bytes", (json_int_t)m->page_bytes, "pages", (json_int_t)a->pages, "tokens",
        (json_int_t)a->tokens, "pool_bytes", (json_int_t)a->rank_pool * ranks, "filling_bytes",
        (json_int_t)m->filling_bytes * ranks, "host_pages", (json_int_t)m->n_host_pages,
        "swap_bytes", (json_int_t)backend_host_bytes(m) * ranks, "sums_bytes",
        (json_int_t)(backend_rank_pages(m, m->n_pages) * m->sums_of_page) * ranks,
        "representatives_bytes", (json_int_t)a->rank_representatives * ranks, "disk_bytes",
        (json_int_t)(m->n_frames && !p->model.on_gpu ? m->n_pages * page : 0),
        "retrieval_note_bytes", (json_int_t)m->note_bytes * ranks, "retrieval_list_bytes",
        (json_int_t)m->scratch_bytes * ranks);
    json_t *asked = json_pack("{s:i, s:i, s:i}", "context", (int)q->context, "output",
                              (int)q->output, "concurrency", (int)q->sequences);
    json_object_set_new(all, "kv", kv);
    if (a->chunk)
        json_object_set_new(
            all, "kv_host",
            json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "host_bytes", (json_int_t)a->host_pool,
                      "window_bytes", (json_int_t)a->windows, "chunk", (json_int_t)a->chunk,
                      "chunk_up_bytes", (json_int_t)a->chunk_up, "chunk_down_bytes",
                      (json_int_t)a->chunk_down, "prompt_up_bytes", (json_int_t)a->prompt_up));
    if (a->embed_token)
        json_object_set_new(all, "embeddings",
                            json_pack("{s:i, s:I, s:I, s:I}", "heads", (int)p->model.embeds.n,
                                      "token_bytes", (json_int_t)a->embed_token, "bytes",
                                      (json_int_t)a->embed_bytes, "sessions",
                                      (json_int_t)a->embed_sessions));
    json_object_set_new(all, "rank_step_bytes", json_integer((json_int_t)m->step_bytes));
    json_object_set_new(all, "rank_left_bytes", json_integer((json_int_t)a->rank_left));
    json_object_set_new(all, "asked", asked);
    json_object_set_new(all, "full", room_json(&a->room));
    if (p->retention) {
        json_object_set_new(all, "retained", room_json(&p->kept.room));
        json_object_set(all, "retention", p->retention);
    }
    json_object_set_new(all, "fits", json_boolean(fits));
    json_object_set_new(all, "verdict", json_string(verdict));
    return all;
}

static bool print_json(const planning *p, bool fits, const char *verdict)
{
    json_t *all = answer_json(p, fits, verdict);
    char *text = all ? json_write(all, JSON_INDENT(2)) : NULL;
    if (text) puts(text);
    free(text);
    json_decref(all);
    return text != NULL;
}

static void print_left(const planning *p, const char *each)
{
    const plan_answer *a = &p->full;
    char left[32], steps[32], sums[32];
    format_bytes(left, sizeof left, a->rank_left);
    if (!p->model.on_gpu) {
        printf("left       %s%s for step buffers and other processes\n", left, each);
        return;
    }
    format_bytes(steps, sizeof steps, a->measures.step_bytes);
    format_bytes(sums, sizeof sums, a->rank_sums);
    printf("beside it  %s%s of step buffers, %s of running sums\n", steps, each, sums);
    printf("left       %s%s for arrays that grow with steps, and other processes\n", left, each);
}

static const char *share_of_pool(const planning *p)
{
    if (p->model_flags.kv_memory) return "";
    if (p->model.on_gpu)
        return p->full.rank_representatives
                   ? " (with the next line 85 % of what weights and step buffers leave)"
                   : " (85 % of what weights and step buffers leave)";
    return p->full.rank_representatives ? " (with the next line 60 % of what the weights leave)"
                                        : " (60 % of what the weights leave)";
}

static void print_embeddings(const planning *p)
{
    const plan_question *q = &p->question;
    const plan_answer *a = &p->full;
    char bytes[32], one[32], n[32];
    if (a->embed_token == 0) return;
    format_bytes(bytes, sizeof bytes, a->embed_bytes);
    printf("embeddings %s bytes a token of method reform, by %u heads; %s of what is left hold ",
           plan_number(a->embed_token, one), p->model.embeds.n, bytes);
    printf("%s sessions of %s tokens\n", plan_number(a->embed_sessions, one),
           plan_number(q->context - q->output, n));
}

/* Rates that copies of pinned memory reach over 16 lanes. */
static const struct {
    const char *name;
    double gb_s;
} buses[] = {{"PCIe 4.0", 25}, {"PCIe 5.0", 50}};

/* Prints the bytes that prefill copies between host memory and the device, and how long that takes.
 * Copies up, copies down and kernels run at the same time. */
static void print_chunks(const planning *p)
{
    const plan_answer *a = &p->full;
    char up[32], down[32], chunk[32], before[32], windows[32];
    if (a->chunk == 0) return;
    format_bytes(windows, sizeof windows, a->windows);
    printf("           the device's part has %s for two layers of what is in host memory\n",
           windows);
    format_bytes(up, sizeof up, (uint64_t)a->chunk_up);
    format_bytes(down, sizeof down, (uint64_t)a->chunk_down);
    plan_number(a->chunk, chunk);
    plan_number(p->question.context - p->question.output - a->chunk, before);
    printf("chunk      %s tokens after %s others copy %s up and %s down:", chunk, before, up, down);
    for (size_t i = 0; i < sizeof buses / sizeof *buses; i++)
        printf("%s %.2f s over %s", i ? "," : "", a->chunk_up / buses[i].gb_s / 1e9, buses[i].name);
    format_bytes(up, sizeof up, (uint64_t)a->prompt_up);
    printf("\nprompt     all its chunks copy %s up:", up);
    for (size_t i = 0; i < sizeof buses / sizeof *buses; i++)
        printf("%s %.1f s over %s", i ? "," : "", a->prompt_up / buses[i].gb_s / 1e9,
               buses[i].name);
    printf(" (16 lanes)\n");
}

static void print_pool(const planning *p, const char *each)
{
    const plan_answer *a = &p->full;
    char one[32], disk[32], pages[32], tokens[32];
    format_bytes(one, sizeof one, a->rank_pool);
    uint64_t all = backend_rank_pages(&a->measures, a->measures.n_pages) * a->measures.page_bytes;
    format_bytes(disk, sizeof disk, a->chunk ? a->host_pool : all);
    const char *beside = a->chunk ? " and in host memory " : " in memory, of ";
    printf("KV pool    %s%s%s%s%s: %s %s pages of %u tokens, room for %s tokens\n", one, each,
           share_of_pool(p), a->measures.n_frames ? beside : "", a->measures.n_frames ? disk : "",
           plan_number(a->pages, pages), p->model.kv_name, a->measures.geometry.page_tokens,
           plan_number(a->tokens, tokens));
    if (a->rank_representatives == 0) return;
    format_bytes(one, sizeof one, a->rank_representatives);
    printf("           and up to %s%s of representatives, by which retrieval selects\n", one, each);
    format_bytes(one, sizeof one, a->measures.scratch_bytes);
    format_bytes(disk, sizeof disk, a->measures.note_bytes);
    printf("           and up to %s%s of lists of what it reads, %s kept between steps\n", one,
           each, disk);
    if (a->measures.n_frames == 0) return;
    format_bytes(one, sizeof one, a->measures.tier_bytes);
    printf("           and up to %s%s of tables of what lies on disk\n", one, each);
}

static void print_memory(const planning *p)
{
    const plan_question *q = &p->question;
    const plan_answer *a = &p->full;
    const backend_measures *m = &a->measures;
    uint32_t ranks = p->model.n_ranks;
    char one[32], all[32];
    const char *each = ranks > 1 ? " a rank" : "";

    format_bytes(one, sizeof one, q->memory);
    if (q->n_devices > 1) printf("memory     %u x %s", q->n_devices, one);
    else printf("memory     %s%s", one, p->flags.memory ? "" : " free here");
    format_bytes(one, sizeof one, PLAN_GPU_DRIVER_BYTES);
    if (p->model.on_gpu) printf(", of which the driver is taken to need %s", one);
    putchar('\n');
    format_bytes(one, sizeof one, m->weight_bytes);
    format_bytes(all, sizeof all, m->weight_bytes * ranks);
    printf("weights    %s of %s", all, weights_type(&p->model.options));
    if (ranks > 1) printf(": %s on each of %u ranks", one, ranks);
    putchar('\n');
    if (!m->fits) return;
    print_pool(p, each);
    if (m->filling_bytes) {
        format_bytes(one, sizeof one, m->filling_bytes);
        printf("           and up to %s%s of bf16 for the newest pages\n", one, each);
    }
    format_bytes(one, sizeof one, backend_host_bytes(m) * ranks);
    if (m->n_host_pages) printf("           and %s of host memory to swap\n", one);
    print_chunks(p);
    print_left(p, each);
    print_embeddings(p);
}

static void print_room(const char *name, const plan_room *r, bool same)
{
    char peak[32], most[32], fit[32], worst[32];
    plan_number(r->need.peak, peak);
    plan_number(r->need.most, most);
    plan_number(r->fit, fit);
    plan_number(r->in_prefill, worst);
    if (same) printf("%-10s %s pages a sequence: %s fit\n", name, most, fit);
    else
        printf("%-10s %s pages a sequence, %s at its prompt's end: %s fit while one computes its "
               "prompt, %s while all do\n",
               name, most, peak, fit, worst);
}

static void print_text(const planning *p, const char *verdict)
{
    const plan_question *q = &p->question;
    const model_config *c = &p->model.config;
    const backend_measures *m = &p->full.measures;
    char number[32];
    printf("model      %s, %s parameters, %u layers, %u KV heads of %u\n", c->architecture,
           plan_number(m->parameters, number), c->n_layers, c->n_kv_heads, c->head_dim);
    printf("KV         %s bytes a token", plan_number((uint64_t)p->full.token_bytes, number));
    if (p->model.n_ranks > 1)
        printf(", %s on a rank",
               plan_number((uint64_t)(p->full.token_bytes / p->model.n_ranks), number));
    printf("; at most %u tables a sequence\n", pkv_groups(&m->geometry));
    print_memory(p);
    if (m->fits) {
        printf("requested  %u sequence%s of %s tokens", q->sequences, q->sequences == 1 ? "" : "s",
               plan_number(q->context, number));
        printf(", %s of them output\n", plan_number(q->output, number));
        print_room("full", &p->full.room, true);
        if (p->retention) print_room("retained", &p->kept.room, false);
    }
    printf("verdict    %s\n", verdict);
}

static status draw(const planning *p, error *err)
{
    const plan_line lines[] = {{"everything kept", &p->policy, &p->full},
                               {p->flags.retention, &p->kept_policy, &p->kept}};
    return plan_plot(p->flags.plot, &p->question, lines, p->retention ? 2 : 1, err);
}

static int print_answer(planning *p)
{
    error err = {{0}};
    char verdict[256];
    status s = work_out(p, &err);
    if (!status_ok(s))
        return cli_complain(plan_name, s.code == STATUS_INVALID ? CLI_USAGE : CLI_FAILED, err.text);
    bool fits =
        plan_verdict(&p->question, p->retention ? &p->kept : &p->full, verdict, sizeof verdict);
    if (!p->flags.json) print_text(p, verdict);
    else if (!print_json(p, fits, verdict))
        return cli_complain(plan_name, CLI_FAILED, "out of memory, or a path that is not UTF-8");
    if (p->flags.plot && !status_ok(draw(p, &err)))
        return cli_complain(plan_name, CLI_FAILED, err.text);
    return cli_finish_output(plan_name) && fits ? CLI_OK : CLI_FAILED;
}

int cli_plan(cli_line *line)
{
    planning p = {0};
    const arg_group groups[] = {
        {"Plan", flags_table, sizeof flags_table / sizeof flags_table[0], &p.flags},
        model_flags_group(&p.model_flags),
        workers_flags_group(&p.model_flags.workers),
    };
    const arg_command command = {
        .name = plan_name,
        .usage = "PATH [--memory [N x]BYTES] [flags]",
        .about = about,
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
    };
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        if (p.model_flags.dir) result = print_answer(&p);
        else result = cli_complain(plan_name, CLI_USAGE, "--model is missing");
    }
    json_decref(p.retention);
    model_flags_destroy(&p.model_flags);
    return result;
}
