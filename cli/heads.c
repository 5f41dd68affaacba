/* `octavo heads`: finds the heads whose vectors find what a question needs, for the embeddings of
 * REFORM (docs/reform.md, section 5). */
#include "cli/cli.h"
#include "cli/heads_search.h"

#include "model/embed_heads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name[] = "octavo heads";

enum { SHOWN = 5, TEXT_BYTES_MAX = 1 << 30, QUESTION_TOKENS = 512 };

typedef struct heads_flags {
    const char *out, *haystack;
    uint32_t samples, tokens, budget, chunk;
    uint64_t seed;
} heads_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("samples", "N", ARG_COUNT, heads_flags, samples, "samples of each of the two tasks",
            .min = 1, .max = 1000000, .initial = "500"),
    ARG_ROW("tokens", "N", ARG_COUNT, heads_flags, tokens,
            "tokens of a sample (default: 8192, or what --max-model-len allows)", .min = 512,
            .max = 0x1p24),
    ARG_ROW("budget", "N", ARG_COUNT, heads_flags, budget,
            "tokens that h2o-recurrent keeps of what was read, beside the first and the last 256",
            .min = 1, .max = 0x1p24, .initial = "256"),
    ARG_ROW("chunk", "N", ARG_COUNT, heads_flags, chunk, "tokens between its selections", .min = 16,
            .max = 0x1p24, .initial = "1024"),
    ARG_ROW("haystack", "FILE", ARG_TEXT, heads_flags, haystack,
            "a UTF-8 text whose lines hide the facts (default: sentences of random words)"),
    ARG_ROW("seed", "N", ARG_WHOLE, heads_flags, seed, "of the samples", .max = 0x1p63,
            .initial = "0"),
    ARG_ROW("out", "FILE", ARG_TEXT, heads_flags, out,
            "where the heads go (default: reform_heads.json beside the model)"),
};

/* ---- the haystack ---------------------------------------------------------------------------- */

typedef struct haystack {
    char *text;
    const char **lines;
    size_t n;
} haystack;

static void haystack_free(haystack *h)
{
    free(h->text);
    free(h->lines);
}

static status haystack_read(const char *path, haystack *out, error *err)
{
    size_t size, most = 1;
    RETURN_IF_ERROR(file_read(path, TEXT_BYTES_MAX, &out->text, &size, err));
    if (memchr(out->text, 0, size) || !utf8_valid((const uint8_t *)out->text, size))
        return error_set(err, STATUS_INVALID, "%s: is no text in UTF-8", path);
    for (size_t i = 0; i < size; i++) most += out->text[i] == '\n';
    out->lines = calloc(most, sizeof *out->lines);
    if (!out->lines) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    char *rest;
    for (char *line = strtok_r(out->text, "\r\n", &rest); line;
         line = strtok_r(NULL, "\r\n", &rest))
        out->lines[out->n++] = line;
    return out->n ? STATUS_IS_OK : error_set(err, STATUS_INVALID, "%s: has no lines", path);
}

/* ---- the search ------------------------------------------------------------------------------ */

static void show_progress(const heads_search *h, uint32_t of, const char *end)
{
    if (h->model->quiet || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s: %u of %u samples%s", name, h->n_samples[0] + h->n_samples[1],
            HEADS_TASKS * of, end);
}

static status search(heads_search *h, const heads_flags *f, const haystack *hay, error *err)
{
    rng r = rng_seed(f->seed);
    heads_sample sample = {.gold = NULL};
    status s = STATUS_IS_OK;
    for (uint32_t i = 0; status_ok(s) && i < f->samples * HEADS_TASKS; i++) {
        heads_task task = (heads_task)(i % HEADS_TASKS);
        show_progress(h, f->samples, "");
        s = heads_sample_make(task, h->model->tokenizer, f->tokens, &r, hay->lines, hay->n, &sample,
                              err);
        if (status_ok(s)) s = heads_search_add(h, task, &sample, err);
    }
    show_progress(h, f->samples, "\n");
    heads_sample_destroy(&sample);
    return s;
}

/* ---- what was found -------------------------------------------------------------------------- */

/* Compares by the task's rank, then by place. */
static bool is_better(const heads_score *a, const heads_score *b, uint32_t task)
{
    return a->mnr[task] < b->mnr[task] || (a->mnr[task] <= b->mnr[task] && a < b);
}

static void print_best(const heads_search *h, uint32_t task)
{
    const heads_score *last = NULL;
    printf("%s: best of %u heads (0 finds everything first, 0.5 is chance)\n",
           heads_task_name((heads_task)task), h->n);
    for (uint32_t k = 0; k < SHOWN && k < h->n; k++) {
        const heads_score *best = NULL;
        for (uint32_t i = 0; i < h->n; i++) {
            const heads_score *s = &h->scores[i];
            if (last && !is_better(last, s, task)) continue;
            if (!best || is_better(s, best, task)) best = s;
        }
        printf("  layer %-3u %s %-4u %.4f\n", best->head.layer, embed_kind_name(best->head.kind),
               best->head.head, best->mnr[task]);
        last = best;
    }
}

static void print_found(const heads_search *h, const heads_choice *c)
{
    uint32_t highest = 0;
    for (uint32_t task = 0; task < HEADS_TASKS; task++) print_best(h, task);
    printf("chosen:\n");
    for (uint32_t i = 0; i < c->n; i++) {
        const heads_score *s = &h->scores[c->scores[i]];
        printf("  layer %-3u %s %-4u %.4f %s\n", s->head.layer, embed_kind_name(s->head.kind),
               s->head.head, s->mnr[c->tasks[i]], heads_task_name(c->tasks[i]));
        if (s->head.layer > highest) highest = s->head.layer;
    }
    printf("layers run: %u of %u; %zu bytes a token\n", highest ? highest : 1,
           h->model->config.n_layers, c->n * h->dim * sizeof(uint16_t));
}

static void write_head(strbuf *out, const heads_score *s)
{
    strbuf_printf(out,
                  "{\"layer\":%u,\"kind\":\"%s\",\"head\":%u,\"pattern\":%.6f,"
                  "\"multi_hop\":%.6f",
                  s->head.layer, embed_kind_name(s->head.kind), s->head.head, s->mnr[HEADS_PATTERN],
                  s->mnr[HEADS_MULTI_HOP]);
}

/* Every head's ranks stand behind the chosen ones, for comparisons with other choices. */
static status write_file(const heads_search *h, const heads_flags *f, const heads_choice *c,
                         const char *path, error *err)
{
    strbuf out = {0};
    FILE *file = NULL;
    strbuf_puts(&out, "{\"heads\":[");
    for (uint32_t i = 0; i < c->n; i++) {
        strbuf_puts(&out, i ? ",\n  " : "\n  ");
        write_head(&out, &h->scores[c->scores[i]]);
        strbuf_printf(&out, ",\"task\":\"%s\"}", heads_task_name(c->tasks[i]));
    }
    strbuf_printf(&out,
                  "],\n\"samples\":%u,\"tokens\":%u,\"budget\":%u,\"chunk\":%u,\"seed\":%llu,\n"
                  "\"all\":[",
                  f->samples, f->tokens, f->budget, f->chunk, (unsigned long long)f->seed);
    for (uint32_t i = 0; i < h->n; i++) {
        strbuf_puts(&out, i ? ",\n  " : "\n  ");
        write_head(&out, &h->scores[i]);
        strbuf_putc(&out, '}');
    }
    strbuf_puts(&out, "]}\n");
    status s = STATUS_IS_OK;
    if (out.failed) s = error_set(err, STATUS_NO_MEMORY, "out of memory");
    else if (!(file = fopen(path, "wbe")) || fwrite(out.data, 1, out.size, file) != out.size)
        s = error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    if (file && fclose(file) != 0 && status_ok(s))
        s = error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    strbuf_destroy(&out);
    return s;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* h2o-recurrent with the paper's first and last tokens beside its budget. */
static json_t *reading_of(const heads_flags *f)
{
    enum { ENDS = 256 };
    return json_pack("{s:s,s:i,s:i,s:i,s:i}", "method", "h2o-recurrent", "tokens",
                     (int)f->budget + 2 * ENDS, "recurrent_chunk", (int)f->chunk, "sinks", ENDS,
                     "window", ENDS);
}

static status search_model(loaded_model *m, const heads_flags *f, const char *path, error *err)
{
    heads_search h = {.model = m};
    haystack hay = {0};
    json_t *reading = reading_of(f);
    status s = reading ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status_ok(s) && f->haystack) s = haystack_read(f->haystack, &hay, err);
    if (status_ok(s)) s = heads_search_open(m, reading, f->tokens + QUESTION_TOKENS, &h, err);
    if (status_ok(s)) s = search(&h, f, &hay, err);
    if (status_ok(s)) {
        heads_choice c = heads_choose(h.scores, h.n, m->config.n_layers);
        print_found(&h, &c);
        s = write_file(&h, f, &c, path, err);
        if (status_ok(s) && !m->quiet) fprintf(stderr, "%s: written to %s\n", name, path);
    }
    heads_search_close(&h);
    haystack_free(&hay);
    json_decref(reading);
    return s;
}

static status find_heads(const model_flags *flags, heads_flags *f, error *err)
{
    char path[EMBED_PATH_BYTES];
    loaded_model m;
    if (!flags->dir) return error_set(err, STATUS_INVALID, "--model is missing");
    if (f->out) snprintf(path, sizeof path, "%s", f->out);
    else RETURN_IF_ERROR(embed_heads_path(flags->dir, path, err));
    RETURN_IF_ERROR(model_open(flags, true, &m, err));
    model_log(&m, flags->dir);
    uint32_t most = m.max_model_len - 1;
    status s = STATUS_IS_OK;
    if (f->tokens > most)
        s = error_set(err, STATUS_INVALID, "--tokens: %u is more than --max-model-len %u allows",
                      f->tokens, m.max_model_len);
    else if (f->tokens == 0) f->tokens = most < 8192 ? most : 8192;
    if (status_ok(s)) s = search_model(&m, f, path, err);
    model_close(&m);
    return s;
}

int cli_heads(cli_line *line)
{
    model_flags model = {0};
    heads_flags f = {0};
    const arg_group groups[] = {
        {"What to search", flags_table, sizeof flags_table / sizeof flags_table[0], &f},
        model_flags_group(&model),
        workers_flags_group(&model.workers),
    };
    const arg_command command = {
        .name = name,
        .usage = "PATH [flags]",
        .about = "Reads synthetic texts and finds the heads whose vectors of a question are most "
                 "like those of the\nfacts that answer it: the embeddings of REFORM. Prints how "
                 "good the best are and writes the chosen\nfour beside the model.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &model.quiet,
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        status s = find_heads(&model, &f, &err);
        int code = s.code == STATUS_INVALID ? CLI_USAGE : CLI_FAILED;
        if (!status_ok(s)) result = cli_complain(name, code, err.text);
        else result = cli_finish_output(name) ? CLI_OK : CLI_FAILED;
    }
    model_flags_destroy(&model);
    return result;
}
