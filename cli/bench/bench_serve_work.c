/* Seeded prompts: random ids, shared prefixes, pieces of a text, blocks of a trace. */
#include "cli/bench/bench_serve_work.h"

#include "cli/lines.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_ID = 16, /* ids below are often a vocabulary's special tokens */
    TEXT_BYTES_MAX = 256 << 20,
    TEXT_BYTES_PER_TOKEN = 4,
    BLOCKS_MAX = 1 << 20, /* in one request of a trace */
    TOKENS_MAX = 1 << 24, /* in one prompt */
    OUTPUT_LEN = 128,
};

/* Keeps the streams of random numbers apart. */
enum { OF_REQUEST, OF_PREFIX, OF_BLOCK };

typedef struct trace_line {
    double arrival_s;
    uint32_t input_len, output_len;
    size_t first_block;
    uint32_t n_blocks;
} trace_line;

struct work {
    work_options o;
    char *text; // "text"
    size_t text_bytes;
    trace_line *lines; // "trace"
    size_t n_lines, lines_capacity;
    uint64_t *blocks;
    size_t n_blocks, blocks_capacity;
};

static rng stream_of(const work *w, int what, uint64_t i)
{
    return rng_seed(hash_mix64(hash_mix64(w->o.seed * 4 + (uint64_t)what) + i));
}

/* ---- a trace --------------------------------------------------------------------------------- */

/* Makes room for one item more: returns items, perhaps moved, or NULL with items left as they
 * were. */
static void *grow_items(void *items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity) return items;
    size_t more = *capacity ? *capacity * 2 : 1024;
    void *grown = alloc_resize(NULL, items, more, size);
    if (grown) *capacity = more;
    return grown;
}

static status read_blocks(work *w, const json_t *ids, const char *where, trace_line *line,
                          error *err)
{
    if (!json_is_array(ids) || json_array_size(ids) > BLOCKS_MAX)
        return error_set(err, STATUS_INVALID, "%s: hash_ids: must be a list", where);
    line->first_block = w->n_blocks;
    line->n_blocks = (uint32_t)json_array_size(ids);
    for (uint32_t i = 0; i < line->n_blocks; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id))
            return error_set(err, STATUS_INVALID, "%s: hash_ids: must be whole numbers", where);
        uint64_t *blocks = grow_items(w->blocks, w->n_blocks, &w->blocks_capacity, sizeof *blocks);
        if (!blocks) return error_set(err, STATUS_NO_MEMORY, "out of memory");
        w->blocks = blocks;
        w->blocks[w->n_blocks++] = (uint64_t)json_integer_value(id);
    }
    return STATUS_IS_OK;
}

static status read_trace_line(work *w, const char *where, const char *text, size_t n, error *err)
{
    json_t *tree = NULL;
    trace_line line = {0};
    int64_t in = 0, out = 0;
    double at = 0;
    status st = json_read_text(where, text, n, &tree, err);
    if (status_ok(st)) st = json_get_double(tree, where, "timestamp", 0, 1e15, 0, &at, err);
    if (status_ok(st)) st = json_get_int(tree, where, "input_length", 1, TOKENS_MAX, 0, &in, err);
    if (status_ok(st)) st = json_get_int(tree, where, "output_length", 0, TOKENS_MAX, 1, &out, err);
    if (status_ok(st)) st = read_blocks(w, json_object_get(tree, "hash_ids"), where, &line, err);
    json_decref(tree);
    RETURN_IF_ERROR(st);
    if (in == 0) return error_set(err, STATUS_INVALID, "%s: input_length is missing", where);
    trace_line *lines = grow_items(w->lines, w->n_lines, &w->lines_capacity, sizeof *lines);
    if (!lines) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    w->lines = lines;
    line.arrival_s = at / 1000;
    line.input_len = (uint32_t)in;
    line.output_len = (uint32_t)out;
    w->lines[w->n_lines++] = line;
    return STATUS_IS_OK;
}

static status read_trace(work *w, error *err)
{
    line_reader in;
    RETURN_IF_ERROR(lines_open(&in, w->o.file, err));
    status st = STATUS_IS_OK;
    char *text;
    size_t n;
    line_outcome got = LINE_END;
    while (status_ok(st) && (got = lines_next(&in, true, &text, &n)) == LINE_READ) {
        char where[64];
        snprintf(where, sizeof where, "trace, line %llu", (unsigned long long)in.number);
        if (strspn(text, " \t") != n) st = read_trace_line(w, where, text, n, err);
    }
    if (status_ok(st) && got != LINE_END)
        st = error_set(err, STATUS_IO, "%s: %s", w->o.file,
                       got == LINE_TOO_LONG ? "a line is longer than 16 MiB" : strerror(errno));
    if (status_ok(st) && w->n_lines == 0)
        st = error_set(err, STATUS_INVALID, "%s: holds no requests", w->o.file);
    lines_close(&in);
    return st;
}

/* ---- the workload ---------------------------------------------------------------------------- */

status work_create(const work_options *o, work **out, error *err)
{
    bool text = strcmp(o->kind, "text") == 0, trace = strcmp(o->kind, "trace") == 0;
    if ((text || trace) && !o->file)
        return error_set(err, STATUS_INVALID, "--%s: must name a file", o->kind);
    work *w = calloc(1, sizeof *w);
    if (!w) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    w->o = *o;
    if (w->o.block_tokens == 0) w->o.block_tokens = o->scale < 512 ? 512 / o->scale : 1;
    status st = STATUS_IS_OK;
    if (text) {
        st = file_read(o->file, TEXT_BYTES_MAX, &w->text, &w->text_bytes, err);
        if (status_ok(st) && w->text_bytes == 0)
            st = error_set(err, STATUS_INVALID, "%s: is empty", o->file);
    }
    if (trace) st = read_trace(w, err);
    if (!status_ok(st)) {
        work_destroy(w);
        return st;
    }
    *out = w;
    return STATUS_IS_OK;
}

void work_destroy(work *w)
{
    if (!w) return;
    free(w->text);
    alloc_free(NULL, w->lines);
    alloc_free(NULL, w->blocks);
    free(w);
}

uint64_t work_count(const work *w) { return w->n_lines; }
double work_arrival_s(const work *w, uint64_t i) { return w->lines[i % w->n_lines].arrival_s; }

/* ---- prompts --------------------------------------------------------------------------------- */

/* The state of a prompt that is being written. */
typedef struct writer {
    const work *w;
    strbuf *out;
    uint32_t n;
} writer;

/* Writes the low 11 bits of an id as three letters, so that equal tokens make equal text. */
static void put_word(strbuf *out, uint32_t id)
{
    static const char consonants[] = "bcdfghjklmnprstv", vowels[] = "aeiouyAE";
    char word[] = {consonants[id & 15], vowels[id >> 4 & 7], consonants[id >> 7 & 15], '\0'};
    strbuf_puts(out, word);
}

/* Writes a number as printf does, but ten times as fast: a trace has millions of tokens. */
static void put_number(strbuf *out, uint32_t v)
{
    char digits[10];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + v % 10);
    while (v /= 10);
    strbuf_append(out, digits + at, sizeof digits - at);
}

static void put_token(writer *p, rng *r)
{
    uint32_t id = FIRST_ID + rng_below(r, p->w->o.vocab - FIRST_ID);
    if (p->w->o.words) {
        if (p->n) strbuf_putc(p->out, ' ');
        put_word(p->out, id);
    } else {
        if (p->n) strbuf_putc(p->out, ',');
        put_number(p->out, id);
    }
    p->n++;
}

static void put_tokens(writer *p, rng r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) put_token(p, &r);
}

static uint32_t around(const work *w, uint32_t length, rng *r)
{
    if (length == 0 || w->o.range_ratio == 0) return length;
    double low = floor(length * (1 - w->o.range_ratio)), high = length * (1 + w->o.range_ratio);
    if (low < 1) low = 1;
    return (uint32_t)low + rng_below(r, (uint32_t)(high - low) + 1);
}

static void put_trace(writer *p, const trace_line *line, rng own)
{
    const work_options *o = &p->w->o;
    uint32_t length = line->input_len / o->scale, last = 0;
    if (o->whole_blocks) length = line->n_blocks * o->block_tokens;
    if (length == 0) length = 1;
    for (uint32_t b = 0; b < line->n_blocks && p->n < length; b++) {
        last = length - p->n < o->block_tokens ? length - p->n : o->block_tokens;
        put_tokens(p, stream_of(p->w, OF_BLOCK, p->w->blocks[line->first_block + b]), last);
    }
    /* Tokens that no block covers belong to this request alone. */
    put_tokens(p, own, length - p->n + (o->whole_blocks ? 1 : 0));
}

/* Writes a piece of the text: lines from a random one on, behind the text's beginning, which is a
 * shared prefix. */
static void put_text(const work *w, strbuf *out, uint32_t tokens, rng *own)
{
    size_t want = (size_t)tokens * TEXT_BYTES_PER_TOKEN;
    size_t prefix = (size_t)w->o.prefix_len * TEXT_BYTES_PER_TOKEN;
    if (want > w->text_bytes) want = w->text_bytes;
    if (prefix > w->text_bytes) prefix = w->text_bytes;
    size_t room = w->text_bytes - want;
    size_t from = room ? (size_t)(rng_u64(own) % (room + 1)) : 0;
    while (from > 0 && w->text[from - 1] != '\n') from--;
    strbuf piece = {0};
    strbuf_append(&piece, w->text, prefix);
    strbuf_append(&piece, w->text + from, want);
    if (piece.failed) out->failed = true;
    else strbuf_json_string(out, piece.data ? piece.data : "", piece.size);
    strbuf_destroy(&piece);
}

work_item work_prompt(const work *w, uint64_t i, strbuf *out)
{
    const work_options *o = &w->o;
    if (o->distinct) i %= o->distinct;
    const trace_line *line = w->n_lines ? &w->lines[i % w->n_lines] : NULL;
    rng own = stream_of(w, OF_REQUEST, i);
    uint32_t input = around(w, o->input_len, &own);
    work_item item = {.output_len = around(w, o->output_len ? o->output_len : OUTPUT_LEN, &own)};
    if (line && !o->output_len)
        item.output_len = line->output_len < o->scale ? 1 : line->output_len / o->scale;
    if (w->text) {
        put_text(w, out, input, &own);
        return item;
    }
    writer p = {.w = w, .out = out};
    strbuf_putc(out, o->words ? '"' : '[');
    if (line) {
        put_trace(&p, line, own);
    } else {
        if (strcmp(o->kind, "prefix") == 0)
            put_tokens(&p, stream_of(w, OF_PREFIX, rng_below(&own, o->prefixes)), o->prefix_len);
        put_tokens(&p, own, input);
    }
    strbuf_putc(out, o->words ? '"' : ']');
    item.input_len = o->words ? 0 : p.n;
    return item;
}
