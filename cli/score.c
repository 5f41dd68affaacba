/* `octavo score`: the logits of token sequences, to compare with other implementations, and the
 * perplexity of a text. */
#include "cli/cli.h"
#include "cli/lines.h"
#include "cli/steps.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name[] = "octavo score";

typedef struct score_flags {
    const char *tokens, *logits, *text;
    uint32_t window, stride;
} score_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("tokens", "FILE", ARG_TEXT, score_flags, tokens,
            "lines {\"token_ids\": [...]} (- is stdin)"),
    ARG_ROW("logits", "OUT", ARG_TEXT, score_flags, logits,
            "with --tokens: where the logits go, float32 [tokens, vocabulary], line after line"),
    ARG_ROW("text", "FILE", ARG_TEXT, score_flags, text, "print the perplexity of this UTF-8 text"),
    ARG_ROW("window", "N", ARG_COUNT, score_flags, window,
            "with --text: tokens the model sees at once (default: --max-model-len)", .min = 2,
            .max = 0x1p31),
    ARG_ROW(
        "stride", "N", ARG_COUNT, score_flags, stride,
        "with --text: how far each window goes on; only tokens no earlier window held are scored "
        "(default: half a window)",
        .min = 1, .max = 0x1p31),
};

/* ---- one sequence through the model ---------------------------------------------------------- */

typedef struct scorer {
    loaded_model model;
    steps steps;
    uint32_t vocab;
    uint64_t next_id;
} scorer;

/* Receives the logits of rows [row, row + n_rows): row i predicts token i + 1. */
typedef status (*take_rows)(void *ctx, const float *logits, uint32_t row, uint32_t n_rows,
                            error *err);

static status score_tokens(scorer *sc, const uint32_t *ids, uint32_t n, take_rows take, void *ctx,
                           error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= sc->vocab)
            return error_set(err, STATUS_INVALID,
                             "token_ids[%u]: %u is outside the vocabulary (%u)", i, ids[i],
                             sc->vocab);
    /* The token drawn after the last row is never computed. */
    sched_request r = {.id = ++sc->next_id,
                       .prompt = ids,
                       .n_prompt = n,
                       .max_new_tokens = 1,
                       .n = 1,
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1},
                       .want_logits = true};
    retention_limits limits = {sc->model.backend.ops->info(sc->model.backend.ctx)->geometry,
                               sc->model.prefill_chunk, sc->model.max_model_len};
    RETURN_IF_ERROR(retention_parse(NULL, &limits, &r.policy, err));
    RETURN_IF_ERROR(sched_check(sc->steps.sched, &r, err));
    sched_event event = {.kind = SCHED_ADD, .add = &r};
    RETURN_IF_ERROR(steps_next(&sc->steps, &event, 1, err));
    uint32_t row = 0;
    for (; row < n; row += sc->steps.result->n_logit_rows) {
        if (row) RETURN_IF_ERROR(steps_next(&sc->steps, NULL, 0, err));
        const step_result *result = sc->steps.result;
        if (!result || result->n_logit_rows == 0 || result->n_logit_rows > n - row)
            return error_set(err, STATUS_INTERNAL, "the scheduler stopped at token %u of %u", row,
                             n);
        RETURN_IF_ERROR(take(ctx, result->logits, row, result->n_logit_rows, err));
    }
    event = (sched_event){.kind = SCHED_END, .request = r.id, .choice = SCHED_ALL_CHOICES};
    RETURN_IF_ERROR(steps_next(&sc->steps, &event, 1, err));
    return steps_drain(&sc->steps, err);
}

/* ---- --tokens -------------------------------------------------------------------------------- */

typedef struct logits_file {
    FILE *file;
    const char *path;
    uint32_t vocab;
} logits_file;

static status write_rows(void *ctx, const float *logits, uint32_t row, uint32_t n_rows, error *err)
{
    logits_file *out = ctx;
    (void)row;
    size_t n = (size_t)n_rows * out->vocab;
    if (fwrite(logits, sizeof *logits, n, out->file) == n) return STATUS_IS_OK;
    return error_set(err, STATUS_IO, "%s: %s", out->path, strerror(errno));
}

static status read_ids(const char *line, size_t n, tok_ids *ids, error *err)
{
    json_t *doc = NULL;
    RETURN_IF_ERROR(json_read_text("not JSON", line, n, &doc, err));
    const json_t *list = json_object_get(doc, "token_ids");
    size_t count = json_array_size(list);
    status st = STATUS_IS_OK;
    if (count == 0) st = error_set(err, STATUS_INVALID, "token_ids: must be a list of token ids");
    if (count > ids->capacity) {
        uint32_t *grown = realloc(ids->ids, count * sizeof *grown);
        if (grown) {
            ids->ids = grown;
            ids->capacity = count;
        } else {
            st = error_set(err, STATUS_NO_MEMORY, "out of memory");
        }
    }
    for (size_t i = 0; status_ok(st) && i < count; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            st = error_set(err, STATUS_INVALID, "token_ids[%zu]: must be a token id", i);
        else ids->ids[i] = (uint32_t)id;
    }
    ids->n = count;
    json_decref(doc);
    return st;
}

static status score_lines(scorer *sc, line_reader *in, logits_file *out, error *err)
{
    tok_ids ids = {0};
    status st = STATUS_IS_OK;
    uint64_t n_tokens = 0;
    while (status_ok(st)) {
        char *line;
        size_t n;
        line_outcome got = lines_next(in, true, &line, &n);
        if (got == LINE_END) break;
        if (got == LINE_FAILED) {
            st = lines_failure(in, err);
        } else if (got == LINE_TOO_LONG) {
            st = error_set(err, STATUS_LIMIT, "the line is longer than 16 MiB");
        } else if (strspn(line, " \t") < n) {
            st = read_ids(line, n, &ids, err);
            if (status_ok(st))
                st = score_tokens(sc, ids.ids, (uint32_t)ids.n, write_rows, out, err);
            n_tokens += ids.n;
        }
        if (!status_ok(st)) error_prefix(err, "line %llu", (unsigned long long)in->number);
    }
    tok_ids_destroy(&ids);
    if (status_ok(st) && !sc->model.quiet)
        fprintf(stderr, "%s: %llu tokens, vocabulary %u, written to %s\n", name,
                (unsigned long long)n_tokens, sc->vocab, out->path);
    return st;
}

static status score_file(scorer *sc, const score_flags *f, error *err)
{
    line_reader in;
    RETURN_IF_ERROR(lines_open(&in, f->tokens, err));
    logits_file out = {fopen(f->logits, "wbe"), f->logits, sc->vocab};
    status st = out.file ? score_lines(sc, &in, &out, err)
                         : error_set(err, STATUS_IO, "%s: %s", f->logits, strerror(errno));
    if (out.file && fclose(out.file) != 0 && status_ok(st))
        st = error_set(err, STATUS_IO, "%s: %s", f->logits, strerror(errno));
    lines_close(&in);
    return st;
}

/* ---- --text: perplexity ---------------------------------------------------------------------- */

/* Scores windows [begin, begin + window), each `stride` after the last. A token is scored in the
 * first window that holds it and the token before it, so that nearly all tokens are predicted from
 * at least window - stride tokens of context. */
typedef struct perplexity {
    const uint32_t *ids; // of the current window
    uint32_t n;
    uint32_t first; // the first row whose prediction is scored
    uint32_t vocab;
    double nll; // natural logarithms, summed
    uint64_t n_scored;
} perplexity;

static double log_softmax(const float *logits, uint32_t n, uint32_t id)
{
    double max = (double)logits[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static status add_rows(void *ctx, const float *logits, uint32_t row, uint32_t n_rows, error *err)
{
    perplexity *p = ctx;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (row + i < p->first || row + i + 1 >= p->n) continue;
        double score = log_softmax(logits + (size_t)i * p->vocab, p->vocab, p->ids[row + i + 1]);
        if (!isfinite(score))
            return error_set(err, STATUS_INTERNAL,
                             "--text: the model's logits behind token %u of a window are not "
                             "finite (NaN or infinity), so the text has no perplexity",
                             row + i + 1);
        p->nll -= score;
        p->n_scored++;
    }
    return STATUS_IS_OK;
}

static status score_windows(scorer *sc, const tok_ids *ids, uint32_t window, uint32_t stride,
                            perplexity *p, error *err)
{
    size_t scored_to = 0; /* tokens before it have been scored (or are the first) */
    for (size_t begin = 0; scored_to + 1 < ids->n; begin += stride) {
        size_t end = begin + window < ids->n ? begin + window : ids->n;
        p->ids = ids->ids + begin;
        p->n = (uint32_t)(end - begin);
        p->first = (uint32_t)(scored_to - begin);
        RETURN_IF_ERROR(score_tokens(sc, p->ids, p->n, add_rows, p, err));
        scored_to = end - 1;
        if (!sc->model.quiet && isatty(STDERR_FILENO))
            fprintf(stderr, "\r%s: %zu of %zu tokens%s", name, end, ids->n,
                    end == ids->n ? "\n" : "");
    }
    return STATUS_IS_OK;
}

enum { TEXT_BYTES_MAX = 1 << 30 };

static status score_text(scorer *sc, const score_flags *f, error *err)
{
    uint32_t window = f->window ? f->window : sc->model.max_model_len;
    if (window > sc->model.max_model_len)
        return error_set(err, STATUS_INVALID, "--window: %u is more than --max-model-len %u",
                         window, sc->model.max_model_len);
    if (window < 2)
        return error_set(err, STATUS_INVALID,
                         "--text: a window of one token, as of --max-model-len %u, scores nothing",
                         sc->model.max_model_len);
    uint32_t stride = f->stride ? f->stride : window / 2;
    if (stride > window - 1)
        return error_set(err, STATUS_INVALID, "--stride: %u is not less than the window %u", stride,
                         window);
    char *text;
    size_t n;
    RETURN_IF_ERROR(file_read(f->text, TEXT_BYTES_MAX, &text, &n, err));
    tok_ids ids = {0};
    status st = tok_encode(sc->model.tokenizer, text, n, true, &ids, err);
    free(text);
    perplexity p = {.vocab = sc->vocab};
    if (status_ok(st) && ids.n < 2)
        st = error_set(err, STATUS_INVALID, "%s: fewer than two tokens", f->text);
    if (status_ok(st)) st = score_windows(sc, &ids, window, stride, &p, err);
    tok_ids_destroy(&ids);
    if (status_ok(st))
        printf("{\"perplexity\":%.6g,\"nll_per_token\":%.6g,\"tokens\":%llu,\"window\":%u,"
               "\"stride\":%u}\n",
               exp(p.nll / (double)p.n_scored), p.nll / (double)p.n_scored,
               (unsigned long long)p.n_scored, window, stride);
    return st;
}

/* ---- the command ----------------------------------------------------------------------------- */

static status check_flags(const model_flags *m, const score_flags *f, error *err)
{
    if (!m->dir) return error_set(err, STATUS_INVALID, "--model is missing");
    if (!f->tokens == !f->text)
        return error_set(err, STATUS_INVALID, "one of --tokens and --text must be given");
    if (!f->tokens != !f->logits)
        return error_set(err, STATUS_INVALID, "--tokens and --logits belong together");
    if (f->tokens && (f->window || f->stride))
        return error_set(err, STATUS_INVALID, "--window and --stride need --text");
    return STATUS_IS_OK;
}

static status score_prompts(const model_flags *m, const score_flags *f, error *err)
{
    scorer sc = {0};
    RETURN_IF_ERROR(model_open(m, f->text != NULL, &sc.model, err));
    model_log(&sc.model, m->dir);
    sc.vocab = sc.model.config.vocab_size;
    /* One token more, for the one that is drawn but never computed. */
    status st = steps_create(&sc.model, sc.model.max_model_len + 1, false, &sc.steps, err);
    if (status_ok(st)) st = f->text ? score_text(&sc, f, err) : score_file(&sc, f, err);
    steps_destroy(&sc.steps);
    model_close(&sc.model);
    return st;
}

int cli_score(cli_line *line)
{
    model_flags model = {0};
    score_flags f = {0};
    const arg_group groups[] = {
        {"What to score", flags_table, sizeof flags_table / sizeof flags_table[0], &f},
        model_flags_group(&model),
        workers_flags_group(&model.workers),
    };
    const arg_command command = {
        .name = name,
        .usage = "PATH (--tokens FILE.jsonl --logits OUT | --text FILE) [flags]",
        .about =
            "Teacher-forced scores. --tokens writes the logits of every token of every line, row i "
            "being\nwhat the model expects after token i. --text prints one JSON line with the "
            "perplexity\n(exp of the mean negative log-likelihood) of a text and the number of "
            "tokens scored.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
        .operand = "PATH",
        .operand_flag = "model",
        .quiet = &model.quiet,
    };
    error err = {{0}};
    int result;
    if (cli_parse(&command, line, NULL, &result)) {
        if (!status_ok(check_flags(&model, &f, &err)))
            result = cli_complain(name, CLI_USAGE, err.text);
        else if (!status_ok(score_prompts(&model, &f, &err)))
            result = cli_complain(name, CLI_FAILED, err.text);
        else result = cli_finish_output(name) ? CLI_OK : CLI_FAILED;
    }
    model_flags_destroy(&model);
    return result;
}
