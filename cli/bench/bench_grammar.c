/* `octavo bench grammar`: what the forms of answers cost at a tokenizer's vocabulary: compiling a
 * collection of JSON Schemas, the masks along texts that fit them, and following those texts. */
#include "base/json.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/bench_serve_stats.h"
#include "cli/cli.h"
#include "engine/grammar/grammar.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "octavo bench grammar";

enum { WALK_TOKENS = 64 };

typedef struct grammar_flags {
    const char *tokenizer, *schemas, *out;
    uint32_t every, worst, walks;
    bool json;
} grammar_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("tokenizer", "DIR", ARG_TEXT, grammar_flags, tokenizer, "a folder with tokenizer.json"),
    ARG_ROW("schemas", "DIR", ARG_TEXT, grammar_flags, schemas,
            "a folder of .json files: schemas, or objects with a schema and texts as in "
            "JSONSchemaBench's maskbench/data"),
    ARG_ROW("every", "N", ARG_COUNT, grammar_flags, every, "takes each Nth file alone", .min = 1,
            .max = 1 << 20, .initial = "1"),
    ARG_ROW("walks", "N", ARG_COUNT, grammar_flags, walks,
            "texts of random tokens of the masks, for each schema beside the file's own",
            .max = 1 << 10, .initial = "0"),
    ARG_ROW("worst", "N", ARG_COUNT, grammar_flags, worst,
            "lists the files with the slowest compiling and masks", .max = 1 << 10, .initial = "5"),
    ARG_ROW("json", NULL, ARG_SWITCH, grammar_flags, json, "print JSON instead of the table"),
    ARG_ROW("out", "FILE", ARG_TEXT, grammar_flags, out, "write the JSON there as well"),
};

/* A file's slowest mask and its compiling. */
typedef struct file_cost {
    const char *file;
    double compile_us, mask_us;
    uint32_t at; // the token before which the slowest mask was made
} file_cost;

typedef struct grammar_bench {
    const grammar_flags *flags;
    tokenizer *tokenizer;
    grammar_vocab *vocab;
    uint32_t *mask, n_tokens;
    rng random;
    samples compile, begin, masks, accept; // begin: masks before the first token
    file_cost *files;
    uint32_t n_files, n_refused, n_texts, n_texts_refused;
    uint64_t hash; // of all masks, so that two builds can be compared
    bench_report report;
} grammar_bench;

/* All that is timed computes alone, and other processes of the machine do not count. */
static double us_since(int64_t start_ns) { return (double)(clock_thread_ns() - start_ns) / 1e3; }

static status read_vocab(grammar_bench *b, error *err)
{
    b->n_tokens = tok_vocab_size(b->tokenizer);
    b->mask = calloc(grammar_mask_words(b->n_tokens), sizeof *b->mask);
    grammar_token *tokens = calloc(b->n_tokens, sizeof *tokens);
    for (uint32_t t = 0; tokens && t < b->n_tokens; t++) {
        const char *bytes;
        size_t n;
        if (tok_is_special(b->tokenizer, t) ||
            !status_ok(tok_token_bytes(b->tokenizer, t, &bytes, &n)))
            continue;
        tokens[t] = (grammar_token){bytes, (uint32_t)n};
    }
    int64_t start = clock_thread_ns();
    status st = tokens && b->mask ? grammar_vocab_create(tokens, b->n_tokens, &b->vocab)
                                  : status_make(STATUS_NO_MEMORY, NULL);
    double ms = us_since(start) / 1e3;
    free(tokens);
    if (!status_ok(st)) return error_set(err, st.code, "vocabulary: %s", status_text(st.code));
    strbuf_printf(&b->report.head, "\"tokens\":%u,\"vocab_ms\":%.4g", b->n_tokens, ms);
    if (!b->flags->json) printf("%u tokens, sorted in %.0f ms\n", b->n_tokens, ms);
    return STATUS_IS_OK;
}

/* ---- one schema ------------------------------------------------------------------------------ */

static status time_mask(grammar_bench *b, grammar_matcher *m, file_cost *cost)
{
    int64_t start = clock_thread_ns();
    status st = grammar_mask(m, b->mask);
    double us = us_since(start);
    b->hash = hash_bytes(b->mask, grammar_mask_words(b->n_tokens) * sizeof *b->mask, b->hash);
    samples_add(grammar_accepted(m) ? &b->masks : &b->begin, us);
    if (us > cost->mask_us) {
        cost->mask_us = us;
        cost->at = grammar_accepted(m);
    }
    return st;
}

static status time_accept(grammar_bench *b, grammar_matcher *m, uint32_t token)
{
    int64_t start = clock_thread_ns();
    status st = grammar_accept(m, token);
    samples_add(&b->accept, us_since(start));
    return st;
}

/* Follows a text; false where the grammar refuses it. */
static bool follow_text(grammar_bench *b, grammar *g, const char *text, file_cost *cost)
{
    tok_ids ids = {0};
    error err;
    grammar_matcher *m = grammar_matcher_create(g);
    bool ok = m && status_ok(tok_encode(b->tokenizer, text, strlen(text), false, &ids, &err));
    for (size_t i = 0; ok && i < ids.n; i++) {
        uint32_t t = ids.ids[i];
        ok = status_ok(time_mask(b, m, cost)) && b->mask[t / 32] >> t % 32 & 1 &&
             status_ok(time_accept(b, m, t));
    }
    ok = ok && grammar_may_end(m);
    grammar_matcher_destroy(m);
    tok_ids_destroy(&ids);
    return ok;
}

static uint32_t draw_token(grammar_bench *b)
{
    uint32_t words = grammar_mask_words(b->n_tokens), from = rng_below(&b->random, b->n_tokens);
    for (uint32_t i = 0; i <= words; i++) {
        uint32_t w = (from / 32 + i) % words, bits = b->mask[w];
        if (i == 0) bits &= ~0u << from % 32;
        if (bits) return w * 32 + (uint32_t)__builtin_ctz(bits);
    }
    return UINT32_MAX;
}

static void walk(grammar_bench *b, grammar *g, file_cost *cost)
{
    grammar_matcher *m = grammar_matcher_create(g);
    for (uint32_t i = 0; m && i < WALK_TOKENS && status_ok(time_mask(b, m, cost)); i++) {
        uint32_t token = draw_token(b);
        if (token == UINT32_MAX || !status_ok(time_accept(b, m, token))) break;
    }
    grammar_matcher_destroy(m);
}

static void follow_texts(grammar_bench *b, grammar *g, const json_t *tests, file_cost *cost)
{
    size_t i;
    const json_t *test;
    json_array_foreach(tests, i, test)
    {
        if (!json_is_true(json_object_get(test, "valid"))) continue;
        char *text = json_write(json_object_get(test, "data"), JSON_ENCODE_ANY);
        b->n_texts++;
        if (text && !follow_text(b, g, text, cost)) b->n_texts_refused++;
        free(text);
    }
    for (uint32_t w = 0; w < b->flags->walks; w++) walk(b, g, cost);
}

static void bench_document(grammar_bench *b, const json_t *document, file_cost *cost)
{
    const json_t *tests = json_object_get(document, "tests");
    const json_t *schema = tests ? json_object_get(document, "schema") : document;
    char *text = schema ? json_write(schema, JSON_ENCODE_ANY) : NULL;
    grammar *g = NULL;
    error err;
    if (!text) return;
    const grammar_source source = {GRAMMAR_JSON_SCHEMA, text, strlen(text), false};
    int64_t start = clock_thread_ns();
    status st = grammar_create(&source, b->vocab, &g, &err);
    cost->compile_us = us_since(start);
    samples_add(&b->compile, cost->compile_us);
    if (status_ok(st)) follow_texts(b, g, tests, cost);
    else b->n_refused++;
    grammar_release(g);
    free(text);
}

/* ---- the collection -------------------------------------------------------------------------- */

static int keep_json(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && strcmp(d->d_name + n - 5, ".json") == 0;
}

static status bench_files(grammar_bench *b, struct dirent **list, int n, error *err)
{
    b->files = calloc((size_t)n + 1, sizeof *b->files);
    if (!b->files) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (int i = 0; i < n; i += (int)b->flags->every) {
        strbuf path = {0};
        json_t *document = NULL;
        error unread;
        strbuf_printf(&path, "%s/%s", b->flags->schemas, list[i]->d_name);
        file_cost *cost = &b->files[b->n_files++];
        cost->file = list[i]->d_name;
        status st = path.data ? json_read_file(path.data, GRAMMAR_SOURCE_MAX, &document, &unread)
                              : status_make(STATUS_NO_MEMORY, NULL);
        if (status_ok(st)) bench_document(b, document, cost);
        else fprintf(stderr, "%s: %s\n", cost->file, unread.text);
        json_decref(document);
        strbuf_destroy(&path);
    }
    return STATUS_IS_OK;
}

static void print_samples(grammar_bench *b, const char *what, samples *s)
{
    samples_sort(s);
    double mean = samples_mean(s), p50 = samples_percentile(s, 50), p90 = samples_percentile(s, 90),
           p99 = samples_percentile(s, 99), p999 = samples_percentile(s, 99.9),
           most = samples_percentile(s, 100);
    if (!b->flags->json)
        printf("%-12s %9zu %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", what, s->n, mean, p50, p90,
               p99, p999, most);
    bench_report_row(&b->report, what);
    strbuf_printf(&b->report.rows,
                  ",\"n\":%zu,\"mean_us\":%.4g,\"p50_us\":%.4g,\"p90_us\":%.4g,\"p99_us\":%.4g,"
                  "\"p999_us\":%.4g,\"max_us\":%.4g}",
                  s->n, mean, p50, p90, p99, p999, most);
}

static int by_compile(const void *x, const void *y)
{
    const file_cost *a = x, *c = y;
    return (a->compile_us < c->compile_us) - (a->compile_us > c->compile_us);
}

static int by_mask(const void *x, const void *y)
{
    const file_cost *a = x, *c = y;
    return (a->mask_us < c->mask_us) - (a->mask_us > c->mask_us);
}

static void print_worst(grammar_bench *b, bool masks)
{
    qsort(b->files, b->n_files, sizeof *b->files, masks ? by_mask : by_compile);
    for (uint32_t i = 0; i < b->flags->worst && i < b->n_files; i++) {
        const file_cost *f = &b->files[i];
        double us = masks ? f->mask_us : f->compile_us;
        if (!b->flags->json) {
            printf("%-12s %9.1f us  %s", masks ? "slow mask" : "slow compile", us, f->file);
            if (masks) printf("  before token %u", f->at);
            putchar('\n');
        }
        bench_report_row(&b->report, masks ? "slow mask" : "slow compile");
        strbuf_puts(&b->report.rows, ",\"file\":");
        strbuf_json_string(&b->report.rows, f->file, strlen(f->file));
        strbuf_printf(&b->report.rows, ",\"us\":%.4g}", us);
    }
}

static status print_all(grammar_bench *b, error *err)
{
    const grammar_flags *f = b->flags;
    strbuf_printf(&b->report.head,
                  ",\"schemas\":%u,\"refused\":%u,\"texts\":%u,\"misfits\":%u,"
                  "\"masks\":\"%016" PRIx64 "\"",
                  b->n_files, b->n_refused, b->n_texts, b->n_texts_refused, b->hash);
    if (!f->json)
        printf("%u schemas, %u of them refused; %u texts, %u of them do not fit\n"
               "hash of all masks: %016" PRIx64 "\n\n"
               "%-12s %9s %10s %10s %10s %10s %10s %10s\n",
               b->n_files, b->n_refused, b->n_texts, b->n_texts_refused, b->hash, "us", "n", "mean",
               "p50", "p90", "p99", "p99.9", "max");
    print_samples(b, "compile", &b->compile);
    print_samples(b, "first mask", &b->begin);
    print_samples(b, "mask", &b->masks);
    print_samples(b, "accept", &b->accept);
    if (!f->json && f->worst > 0) putchar('\n');
    print_worst(b, false);
    print_worst(b, true);
    if (b->compile.failed || b->begin.failed || b->masks.failed || b->accept.failed)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    return bench_report_write(&b->report, f->json, f->out, err);
}

static status bench_grammar(const grammar_flags *flags, error *err)
{
    grammar_bench b = {.flags = flags, .random = rng_seed(21)};
    struct dirent **list = NULL;
    int n = scandir(flags->schemas, &list, keep_json, alphasort);
    status st = n > 0 ? tok_load(flags->tokenizer, &b.tokenizer, err)
                      : error_set(err, STATUS_IO, "%s: has no .json files", flags->schemas);
    if (status_ok(st)) st = read_vocab(&b, err);
    if (status_ok(st)) st = bench_files(&b, list, n, err);
    if (status_ok(st)) st = print_all(&b, err);
    for (int i = 0; i < n; i++) free(list[i]);
    free(list);
    free(b.files);
    free(b.mask);
    samples_destroy(&b.compile);
    samples_destroy(&b.begin);
    samples_destroy(&b.masks);
    samples_destroy(&b.accept);
    bench_report_destroy(&b.report);
    grammar_vocab_destroy(b.vocab);
    tok_destroy(b.tokenizer);
    return st;
}

int cli_bench_grammar(cli_line *line)
{
    grammar_flags flags = {0};
    const arg_group groups[] = {
        {"What to measure", flags_table, sizeof flags_table / sizeof flags_table[0], &flags},
    };
    const arg_command command = {
        .name = name,
        .usage = "--tokenizer DIR --schemas DIR [flags]",
        .about = "Compiles each schema of a folder for the tokenizer's vocabulary, and times the "
                 "mask before each token of the\n"
                 "file's valid texts. Masks are as in a server: what a state allows is worked out "
                 "when it is met first, within\n"
                 "the times below, and then kept.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof groups[0],
    };
    error err = {{0}};
    int result;
    if (!cli_parse(&command, line, NULL, &result)) return result;
    if (!flags.tokenizer || !flags.schemas)
        return cli_complain(name, CLI_USAGE, "--tokenizer and --schemas must be given");
    if (!status_ok(bench_grammar(&flags, &err))) return cli_complain(name, CLI_FAILED, err.text);
    return cli_finish_output(name) ? CLI_OK : CLI_FAILED;
}
