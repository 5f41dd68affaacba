/* Turns GGUF's vocabulary back into the tokenizer.json that it was made from; reads the template.
 *
 * Sources: llama.cpp, convert_hf_to_gguf.py and llama-vocab.cpp ("pre" types and their patterns);
 * transformers, convert_slow_tokenizer.py (merges out of SentencePiece's scores). */
#include "model/load/gguf/gguf_model.h"
#include "model/model.h"
#include "text/merges.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef struct vocabulary {
    const gguf *g;
    const gguf_value *tokens, *types;
    strbuf *out;
} vocabulary;

static int type_of(const vocabulary *v, uint64_t id)
{
    return v->types ? (int)gguf_u32_at(v->types, id) : TOKEN_NORMAL;
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

#define LLAMA3_BEFORE "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA3_AFTER  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3        LLAMA3_BEFORE "\\p{N}{1,3}" LLAMA3_AFTER
#define TEKKEN_HEAD   "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN_TAIL   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                     \
    TEKKEN_HEAD "*" TEKKEN_TAIL "+|" TEKKEN_HEAD "+" TEKKEN_TAIL                                   \
                "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* A value of "tokenizer.ggml.pre" and the pre-tokenizer that it means. */
typedef struct pre_row {
    const char *name;
    const char *pattern; /* NULL: ByteLevel's own */
    bool nfc, ignore_merges;
} pre_row;

static const pre_row pre_rows[] = {
    {"default", NULL, false, false},    {"gpt-2", NULL, false, false},
    {"llama-bpe", LLAMA3, false, true}, {"llama3", LLAMA3, false, true},
    {"llama-v3", LLAMA3, false, true},  {"qwen2", LLAMA3_BEFORE "\\p{N}" LLAMA3_AFTER, true, false},
    {"tekken", TEKKEN, false, true},
};

static status find_pre(const gguf *g, const pre_row **out, error *err)
{
    const char *name = "default";
    size_t n = strlen(name);
    RETURN_IF_ERROR(gguf_get_string(g, "tokenizer.ggml.pre", &name, &n, err));
    for (size_t i = 0; i < sizeof pre_rows / sizeof *pre_rows; i++) {
        *out = &pre_rows[i];
        if (strlen((*out)->name) == n && memcmp((*out)->name, name, n) == 0) return STATUS_IS_OK;
    }
    strbuf shown = {0};
    strbuf_json_string(&shown, name, n < 64 ? n : 64);
    status s = error_set(err, STATUS_UNSUPPORTED, "%s: \"tokenizer.ggml.pre\": %s is not supported",
                         g->path, shown.data ? shown.data : "");
    strbuf_destroy(&shown);
    return s;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Limits an array's texts, because in memory they take many times their bytes in the file. */
static status check_texts(const gguf *g, const gguf_value *array, error *err)
{
    enum { TEXTS_MAX = 1 << 22, BYTES_MAX = 128 << 20 };
    const uint8_t *at = array->data;
    size_t bytes = 0, n;
    for (uint64_t i = 0; i < array->n && i <= TEXTS_MAX; i++) {
        gguf_next_string(&at, &n);
        bytes += n; /* no overflow: all texts lie in one file */
    }
    if (array->n <= TEXTS_MAX && bytes <= BYTES_MAX) return STATUS_IS_OK;
    return error_set(err, STATUS_LIMIT, "%s: \"%s\": more than %d texts or %d bytes", g->path,
                     array->key, TEXTS_MAX, BYTES_MAX);
}

static status open_vocabulary(const gguf *g, strbuf *out, vocabulary *v, error *err)
{
    *v = (vocabulary){.g = g, .out = out};
    RETURN_IF_ERROR(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &v->tokens, err));
    RETURN_IF_ERROR(gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &v->types, err));
    if (!v->tokens || v->tokens->n == 0)
        return error_set(err, v->tokens ? STATUS_CORRUPT : STATUS_NOT_FOUND,
                         "%s: \"tokenizer.ggml.tokens\" is missing or empty", g->path);
    RETURN_IF_ERROR(check_texts(g, v->tokens, err));
    if (v->types && v->types->n != v->tokens->n)
        return error_set(err, STATUS_CORRUPT,
                         "%s: \"tokenizer.ggml.token_type\" has %llu values, "
                         "and there are %llu tokens",
                         g->path, (unsigned long long)v->types->n,
                         (unsigned long long)v->tokens->n);
    return STATUS_IS_OK;
}

/* Whether a token is an added one. Normal and byte tokens are the "vocab", unused ones padding. */
static bool is_added(int type)
{
    return type == TOKEN_UNKNOWN || type == TOKEN_CONTROL || type == TOKEN_USER;
}

static void write_added(vocabulary *v)
{
    const uint8_t *at = v->tokens->data;
    const char *comma = "";
    strbuf_puts(v->out, "\"added_tokens\":[");
    for (uint64_t i = 0; i < v->tokens->n; i++) {
        size_t n;
        const char *text = gguf_next_string(&at, &n);
        int type = type_of(v, i);
        if (!is_added(type)) continue;
        strbuf_printf(v->out, "%s{\"id\":%llu,\"content\":", comma, (unsigned long long)i);
        strbuf_json_string(v->out, text, n);
        strbuf_printf(v->out,
                      ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":%s}",
                      type == TOKEN_USER ? "false" : "true");
        comma = ",\n";
    }
    strbuf_puts(v->out, "],\n");
}

/* Writes "vocab", with added tokens if with_added, as SentencePiece's vocabulary has them. */
static void write_vocab(vocabulary *v, bool with_added)
{
    const uint8_t *at = v->tokens->data;
    const char *comma = "";
    strbuf_puts(v->out, "\"vocab\":{");
    for (uint64_t i = 0; i < v->tokens->n; i++) {
        size_t n;
        const char *text = gguf_next_string(&at, &n);
        int type = type_of(v, i);
        if (type == TOKEN_UNUSED || (is_added(type) && !with_added)) continue;
        strbuf_puts(v->out, comma);
        strbuf_json_string(v->out, text, n);
        strbuf_printf(v->out, ":%llu", (unsigned long long)i);
        comma = ",\n";
    }
    strbuf_puts(v->out, "}");
}

/* Reads a token's id from the metadata and finds its text. Without the key *id is UINT64_MAX. */
static status named_token(const vocabulary *v, const char *key, uint64_t *id, const char **text,
                          size_t *n, error *err)
{
    *id = UINT64_MAX;
    *text = "";
    *n = 0;
    RETURN_IF_ERROR(gguf_get_u64(v->g, key, v->tokens->n - 1, id, err));
    if (*id == UINT64_MAX) return STATUS_IS_OK;
    const uint8_t *at = v->tokens->data;
    for (uint64_t i = 0; i <= *id; i++) *text = gguf_next_string(&at, n);
    return STATUS_IS_OK;
}

/* Writes a post-processor that puts bos and eos around texts, where the metadata asks for it. */
static status write_post_processor(vocabulary *v, bool bos_by_default, error *err)
{
    const struct {
        const char *flag, *key;
        bool fallback;
    } ends[] = {{"tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", bos_by_default},
                {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false}};
    strbuf single[2] = {{0}, {0}}, tokens = {0};
    status s = STATUS_IS_OK;
    for (size_t i = 0; status_ok(s) && i < 2; i++) {
        bool add = ends[i].fallback;
        uint64_t id;
        const char *text;
        size_t n;
        s = gguf_get_bool(v->g, ends[i].flag, &add, err);
        if (status_ok(s)) s = named_token(v, ends[i].key, &id, &text, &n, err);
        if (!status_ok(s) || !add || id == UINT64_MAX) continue;
        strbuf_puts(&single[i], "{\"SpecialToken\":{\"id\":");
        strbuf_json_string(&single[i], text, n);
        strbuf_puts(&single[i], ",\"type_id\":0}}");
        if (tokens.size) strbuf_putc(&tokens, ',');
        strbuf_json_string(&tokens, text, n);
        strbuf_puts(&tokens, ":{\"id\":");
        strbuf_json_string(&tokens, text, n);
        strbuf_printf(&tokens, ",\"ids\":[%llu],\"tokens\":[", (unsigned long long)id);
        strbuf_json_string(&tokens, text, n);
        strbuf_puts(&tokens, "]}");
    }
    if (tokens.size)
        strbuf_printf(v->out,
                      "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[%s%s"
                      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}%s%s],\"pair\":[],"
                      "\"special_tokens\":{%s}},\n",
                      single[0].size ? single[0].data : "", single[0].size ? "," : "",
                      single[1].size ? "," : "", single[1].size ? single[1].data : "", tokens.data);
    else strbuf_puts(v->out, "\"post_processor\":null,\n");
    v->out->failed |= single[0].failed || single[1].failed || tokens.failed;
    strbuf_destroy(&single[0]);
    strbuf_destroy(&single[1]);
    strbuf_destroy(&tokens);
    return s;
}

/* ---- "gpt2": bytes and merges ---------------------------------------------------------------- */

static status write_byte_level(vocabulary *v, error *err)
{
    static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_"
                                     "offsets\":true,\"use_regex\":%s}";
    const gguf_value *merges;
    const pre_row *pre;
    RETURN_IF_ERROR(find_pre(v->g, &pre, err));
    RETURN_IF_ERROR(gguf_get_array(v->g, "tokenizer.ggml.merges", GGUF_STRING, &merges, err));
    if (!merges)
        return error_set(err, STATUS_CORRUPT, "%s: \"tokenizer.ggml.merges\" is missing",
                         v->g->path);
    RETURN_IF_ERROR(check_texts(v->g, merges, err));
    strbuf *out = v->out;
    strbuf_printf(out, "\"normalizer\":%s,\n", pre->nfc ? "{\"type\":\"NFC\"}" : "null");
    strbuf_puts(out, "\"pre_tokenizer\":");
    if (pre->pattern) {
        strbuf_puts(out, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                         "\"pattern\":{\"Regex\":");
        strbuf_json_string(out, pre->pattern, strlen(pre->pattern));
        strbuf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
        strbuf_printf(out, byte_level, "false");
        strbuf_puts(out, "]},\n");
    } else {
        strbuf_printf(out, byte_level, "true");
        strbuf_puts(out, ",\n");
    }
    RETURN_IF_ERROR(write_post_processor(v, false, err));
    strbuf_puts(out, "\"decoder\":");
    strbuf_printf(out, byte_level, "true");
    strbuf_printf(out, ",\n\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,",
                  pre->ignore_merges ? "true" : "false");
    write_vocab(v, false);
    strbuf_puts(out, ",\"merges\":[");
    const uint8_t *at = merges->data;
    for (uint64_t i = 0; i < merges->n; i++) {
        size_t n;
        const char *text = gguf_next_string(&at, &n);
        if (i) strbuf_puts(out, ",\n");
        strbuf_json_string(out, text, n);
    }
    strbuf_puts(out, "]}}");
    return STATUS_IS_OK;
}

/* ---- "llama": characters, byte fallback, merges from scores ---------------------------------- */

static status write_merges(vocabulary *v, const gguf_value *scores, error *err)
{
    const uint8_t *at = v->tokens->data;
    tok_piece *pieces = alloc_zeroed(NULL, v->tokens->n, sizeof *pieces);
    status s =
        pieces ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "%s: out of memory", v->g->path);
    for (uint64_t i = 0; i < v->tokens->n && status_ok(s); i++) {
        size_t n;
        const char *text = gguf_next_string(&at, &n);
        float score = gguf_f32_at(scores, i);
        int type = type_of(v, i);
        if (n > UINT16_MAX || isnan(score))
            s = error_set(err, STATUS_CORRUPT,
                          "%s: token %llu: of more than %d bytes, or its score is no number",
                          v->g->path, (unsigned long long)i, UINT16_MAX);
        pieces[i] =
            (tok_piece){text, (uint32_t)n, score, type == TOKEN_NORMAL || type == TOKEN_USER};
    }
    if (status_ok(s))
        s = tok_merges_of_scores(v->g->path, pieces, (uint32_t)v->tokens->n, v->out, err);
    alloc_free(NULL, pieces);
    return s;
}

static status write_pieces(vocabulary *v, error *err)
{
    const gguf_value *scores;
    bool prefix = true;
    uint64_t unk;
    const char *unk_text;
    size_t unk_n;
    RETURN_IF_ERROR(gguf_get_array(v->g, "tokenizer.ggml.scores", GGUF_F32, &scores, err));
    RETURN_IF_ERROR(gguf_get_bool(v->g, "tokenizer.ggml.add_space_prefix", &prefix, err));
    if (!scores || scores->n != v->tokens->n)
        return error_set(err, STATUS_CORRUPT,
                         "%s: \"tokenizer.ggml.scores\" must have one value for each token",
                         v->g->path);
    RETURN_IF_ERROR(
        named_token(v, "tokenizer.ggml.unknown_token_id", &unk, &unk_text, &unk_n, err));
    strbuf *out = v->out;
    strbuf_printf(
        out,
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},\n"
        "\"pre_tokenizer\":null,\n",
        prefix ? "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"}," : "");
    RETURN_IF_ERROR(write_post_processor(v, true, err));
    strbuf_printf(out,
                  "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                  "\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
                  "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]},\n"
                  "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,"
                  "\"unk_token\":",
                  prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    if (unk == UINT64_MAX) strbuf_puts(out, "null");
    else strbuf_json_string(out, unk_text, unk_n);
    strbuf_putc(out, ',');
    write_vocab(v, true);
    strbuf_puts(out, ",\"merges\":[");
    RETURN_IF_ERROR(write_merges(v, scores, err));
    strbuf_puts(out, "]}}");
    return STATUS_IS_OK;
}

/* ---- both kinds ------------------------------------------------------------------------------ */

status gguf_tokenizer_json(const gguf *g, strbuf *out, error *err)
{
    static const struct {
        const char *model;
        status (*write)(vocabulary *v, error *err);
    } rows[] = {{"gpt2", write_byte_level}, {"llama", write_pieces}};
    const char *model = NULL;
    size_t n = 0;
    vocabulary v;
    RETURN_IF_ERROR(gguf_get_string(g, "tokenizer.ggml.model", &model, &n, err));
    if (!model)
        return error_set(err, STATUS_NOT_FOUND, "%s: \"tokenizer.ggml.model\" is missing", g->path);
    RETURN_IF_ERROR(open_vocabulary(g, out, &v, err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].model) != n || memcmp(rows[i].model, model, n) != 0) continue;
        strbuf_puts(out, "{\"version\":\"1.0\",\n");
        write_added(&v);
        RETURN_IF_ERROR(rows[i].write(&v, err));
        return out->failed ? error_set(err, STATUS_NO_MEMORY, "%s: out of memory", g->path)
                           : STATUS_IS_OK;
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: \"tokenizer.ggml.model\": only gpt2 and llama are supported", g->path);
}

static status gguf_tokenizer(const char *path, tokenizer **out, error *err)
{
    gguf g;
    strbuf json = {0};
    RETURN_IF_ERROR(gguf_open(path, &g, err));
    status s = gguf_tokenizer_json(&g, &json, err);
    if (status_ok(s)) s = tok_load_text(path, json.data, json.size, out, err);
    strbuf_destroy(&json);
    gguf_close(&g);
    return s;
}

static status read_template(const gguf *g, chat_template **out, strbuf *bos, strbuf *eos,
                            error *err)
{
    const struct {
        const char *key;
        strbuf *to;
    } ends[] = {{"tokenizer.ggml.bos_token_id", bos}, {"tokenizer.ggml.eos_token_id", eos}};
    vocabulary v;
    RETURN_IF_ERROR(open_vocabulary(g, NULL, &v, err));
    for (size_t i = 0; i < 2; i++) {
        uint64_t id;
        const char *text;
        size_t n;
        RETURN_IF_ERROR(named_token(&v, ends[i].key, &id, &text, &n, err));
        strbuf_append(ends[i].to, text, n);
    }
    const char *source = NULL;
    size_t n = 0;
    RETURN_IF_ERROR(gguf_get_string(g, "tokenizer.chat_template", &source, &n, err));
    if (!source) return STATUS_IS_OK;
    status s = tmpl_compile(source, n, out, err);
    if (!status_ok(s)) error_prefix(err, "%s: \"tokenizer.chat_template\"", g->path);
    return s;
}

/* tmpl_load for a GGUF file. */
static status gguf_template(const char *path, chat_template **out, strbuf *bos, strbuf *eos,
                            error *err)
{
    gguf g;
    *out = NULL;
    RETURN_IF_ERROR(gguf_open(path, &g, err));
    status s = read_template(&g, out, bos, eos, err);
    gguf_close(&g);
    return s;
}

status model_tokenizer_load(const char *dir, tokenizer **out, error *err)
{
    return gguf_is_path(dir) ? gguf_tokenizer(dir, out, err) : tok_load(dir, out, err);
}

status model_template_load(const char *dir, chat_template **out, strbuf *bos, strbuf *eos,
                           error *err)
{
    return gguf_is_path(dir) ? gguf_template(dir, out, bos, eos, err)
                             : tmpl_load(dir, out, bos, eos, err);
}
