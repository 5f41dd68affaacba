/* Converts tokenizer.model, SentencePiece's file, to the tokenizer.json that `transformers` makes
 * of it for models of Llama's kind: a BPE of characters with byte fallback whose merges follow from
 * the pieces' scores. The file is a protobuf message; only the fields named here are read. */
#include "text/merges.h"
#include "text/tokenizer/internal.h"

#include <string.h>

#define PIECES_MAX (1u << 20)

/* Kinds of pieces and of models, by SentencePiece's numbers. */
enum { PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER_DEFINED = 4, MODEL_BPE = 2 };

typedef struct piece {
    const char *text;
    uint32_t length;
    float score;
    unsigned kind;
    bool given; /* named by tokenizer_config.json */
} piece;

typedef struct sentencepiece {
    const char *where;
    piece *pieces;
    uint32_t n_pieces;
    uint64_t model_type;
    bool dummy_prefix, charsmap;
    strbuf merges; /* as they are in the document */
    error *err;
} sentencepiece;

/* ---- protobuf ---- */

typedef struct field {
    uint32_t number;
    unsigned type;       /* 0 varint, 1 fixed64, 2 bytes, 5 fixed32 */
    uint64_t value;      /* for varint and fixed32 */
    const uint8_t *data; /* for bytes */
    size_t n;
} field;

typedef struct message {
    const uint8_t *p, *end;
} message;

static bool read_varint(message *m, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        uint8_t byte = *m->p++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* Reads the next field; the message must not be at its end. False when the message breaks off or is
 * invalid. */
static bool read_field(message *m, field *f)
{
    uint64_t key, n;
    *f = (field){0};
    if (!read_varint(m, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3) return false;
    f->number = (uint32_t)(key >> 3);
    f->type = (unsigned)(key & 7);
    size_t left = (size_t)(m->end - m->p);
    switch (f->type) {
    case 0: return read_varint(m, &f->value);
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
        if (!read_varint(m, &n)) return false;
        left = (size_t)(m->end - m->p);
        break;
    default: return false;
    }
    if (n > left) return false;
    f->data = m->p;
    f->n = (size_t)n;
    m->p += n;
    if (f->type == 5)
        f->value = f->data[0] | (uint64_t)f->data[1] << 8 | (uint64_t)f->data[2] << 16 |
                   (uint64_t)f->data[3] << 24;
    return true;
}

static status refuse_broken(const sentencepiece *s)
{
    return error_set(s->err, STATUS_CORRUPT, "%s: is no SentencePiece model", s->where);
}

static status read_piece(sentencepiece *s, message m)
{
    piece *p = &s->pieces[s->n_pieces];
    *p = (piece){.kind = 1};
    while (m.p < m.end) {
        field f;
        if (!read_field(&m, &f)) return refuse_broken(s);
        if (f.number == 1 && f.type == 2) {
            p->text = (const char *)f.data;
            p->length = (uint32_t)f.n;
            if (f.n > TOK_TOKEN_BYTES_MAX)
                return error_set(s->err, STATUS_LIMIT, "%s: piece %u has more than %d bytes",
                                 s->where, s->n_pieces, TOK_TOKEN_BYTES_MAX);
        } else if (f.number == 2 && f.type == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&p->score, &bits, sizeof p->score);
        } else if (f.number == 3 && f.type == 0) {
            p->kind = (unsigned)f.value;
        }
    }
    if (!p->text || p->length == 0 || memchr(p->text, 0, p->length) ||
        !utf8_valid((const uint8_t *)p->text, p->length) || p->score != p->score)
        return error_set(s->err, STATUS_CORRUPT, "%s: piece %u is no text with a score", s->where,
                         s->n_pieces);
    s->n_pieces++;
    return STATUS_IS_OK;
}

static status read_specification(sentencepiece *s, unsigned number, message m)
{
    while (m.p < m.end) {
        field f;
        if (!read_field(&m, &f)) return refuse_broken(s);
        if (number == 2 && f.number == 3 && f.type == 0) s->model_type = f.value;
        if (number == 3 && f.number == 2 && f.type == 2) s->charsmap = f.n > 0;
        if (number == 3 && f.number == 3 && f.type == 0) s->dummy_prefix = f.value != 0;
    }
    return STATUS_IS_OK;
}

static status read_model(sentencepiece *s, const uint8_t *data, size_t n)
{
    message count = {data, data + n}, m = count;
    size_t n_pieces = 0;
    field f;
    while (count.p < count.end) {
        if (!read_field(&count, &f)) return refuse_broken(s);
        n_pieces += f.number == 1 && f.type == 2;
    }
    if (n_pieces == 0) return refuse_broken(s);
    if (n_pieces > PIECES_MAX)
        return error_set(s->err, STATUS_LIMIT, "%s: more than %u pieces", s->where, PIECES_MAX);
    s->pieces = alloc_zeroed(NULL, n_pieces, sizeof *s->pieces);
    if (!s->pieces) return status_make(STATUS_NO_MEMORY, NULL);
    while (m.p < m.end) {
        if (!read_field(&m, &f)) return refuse_broken(s);
        if (f.type != 2) continue;
        message inner = {f.data, f.data + f.n};
        if (f.number == 1) RETURN_IF_ERROR(read_piece(s, inner));
        if (f.number == 2 || f.number == 3) RETURN_IF_ERROR(read_specification(s, f.number, inner));
    }
    if (s->model_type != MODEL_BPE)
        return error_set(s->err, STATUS_UNSUPPORTED, "%s: a model that is no BPE is not supported",
                         s->where);
    if (s->charsmap)
        return error_set(s->err, STATUS_UNSUPPORTED,
                         "%s: a normalizer that is not identity is not "
                         "supported",
                         s->where);
    return STATUS_IS_OK;
}

/* Reads a decimal id, or returns -1. */
static int32_t read_id(const char *text)
{
    int32_t id = 0;
    if (!*text) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || id > (int32_t)TOK_ID_MAX / 10) return -1;
        id = id * 10 + (*text - '0');
    }
    return id;
}

static status rename_pieces(sentencepiece *s, const json_t *added)
{
    const char *key;
    json_t *token;
    json_object_foreach((json_t *)added, key, token)
    {
        int32_t id = read_id(key);
        const json_t *content = json_object_get(token, "content");
        if (id < 0 || !json_is_string(content) || json_string_length(content) == 0)
            return error_set(
                s->err, STATUS_CORRUPT,
                "%s: added_tokens_decoder of tokenizer_config.json: \"%s\" is no token", s->where,
                tok_show(key, strlen(key)).text);
        if (json_string_length(content) > TOK_TOKEN_BYTES_MAX)
            return error_set(s->err, STATUS_LIMIT,
                             "%s: added_tokens_decoder of tokenizer_config.json: \"%s\" has more "
                             "than %d bytes",
                             s->where, tok_show(key, strlen(key)).text, TOK_TOKEN_BYTES_MAX);
        if ((uint32_t)id >= s->n_pieces) continue;
        s->pieces[id].text = json_string_value(content);
        s->pieces[id].length = (uint32_t)json_string_length(content);
        s->pieces[id].given = true;
    }
    return STATUS_IS_OK;
}

/* ---- merges ---- */

static status find_merges(sentencepiece *s)
{
    tok_piece *parts = alloc_zeroed(NULL, s->n_pieces, sizeof *parts);
    if (!parts) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t i = 0; i < s->n_pieces; i++)
        parts[i] = (tok_piece){s->pieces[i].text, s->pieces[i].length, s->pieces[i].score, true};
    status st = tok_merges_of_scores(s->where, parts, s->n_pieces, &s->merges, s->err);
    alloc_free(NULL, parts);
    return st;
}

/* ---- the document ---- */

static void write_vocabulary(const sentencepiece *s, strbuf *out)
{
    strbuf_puts(out, "\"vocab\":{");
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        if (i > 0) strbuf_putc(out, ',');
        strbuf_json_string(out, s->pieces[i].text, s->pieces[i].length);
        strbuf_printf(out, ":%u", i);
    }
    strbuf_puts(out, "},\"merges\":[");
    if (s->merges.size > 0) strbuf_append(out, s->merges.data, s->merges.size);
    strbuf_putc(out, ']');
}

static void write_added_token(strbuf *out, uint32_t id, const piece *p)
{
    bool special = p->kind == PIECE_UNKNOWN || p->kind == PIECE_CONTROL;
    if (!special && p->kind != PIECE_USER_DEFINED) return;
    strbuf_printf(out, "{\"id\":%u,\"normalized\":false,\"special\":%s,\"content\":", id,
                  special ? "true" : "false");
    strbuf_json_string(out, p->text, p->length);
    strbuf_puts(out, "},");
}

/* Writes a token of tokenizer_config.json's added_tokens_decoder, which renames a piece or adds
 * one. */
static void write_given_token(strbuf *out, const char *id, const json_t *token)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    const json_t *content = json_object_get(token, "content");
    strbuf_printf(out, "{\"id\":%d,", read_id(id));
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++)
        strbuf_printf(out, "\"%s\":%s,", flags[i],
                      json_is_true(json_object_get(token, flags[i])) ? "true" : "false");
    strbuf_puts(out, "\"content\":");
    strbuf_json_string(out, json_string_value(content), json_string_length(content));
    strbuf_puts(out, "},");
}

static void write_added_tokens(const sentencepiece *s, const tok_spm_options *o, strbuf *out)
{
    strbuf_puts(out, "},\"added_tokens\":[");
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (!s->pieces[i].given) write_added_token(out, i, &s->pieces[i]);
    const char *id;
    json_t *token;
    json_object_foreach((json_t *)o->added, id, token) write_given_token(out, id, token);
    if (!out->failed && out->data[out->size - 1] == ',') out->size--;
    strbuf_puts(out, "],");
}

static uint32_t find_piece(const sentencepiece *s, const char *text, size_t n)
{
    for (uint32_t i = 0; i < s->n_pieces; i++)
        if (s->pieces[i].length == n && memcmp(s->pieces[i].text, text, n) == 0) return i;
    return TOK_NONE;
}

static void write_document(const sentencepiece *s, const tok_spm_options *o, strbuf *out)
{
    strbuf_puts(out, "{\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true,");
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        if (s->pieces[i].kind != PIECE_UNKNOWN) continue;
        strbuf_puts(out, "\"unk_token\":");
        strbuf_json_string(out, s->pieces[i].text, s->pieces[i].length);
        strbuf_putc(out, ',');
        break;
    }
    write_vocabulary(s, out);
    write_added_tokens(s, o, out);
    if (!o->legacy)
        strbuf_printf(out,
                      "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" TOK_METASPACE
                      "\",\"prepend_scheme\":\"%s\",\"split\":false},",
                      s->dummy_prefix ? "first" : "never");
    else
        strbuf_printf(
            out,
            "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s{\"type\":\"Replace\","
            "\"pattern\":{\"String\":\" \"},\"content\":\"" TOK_METASPACE "\"}]},",
            s->dummy_prefix ? "{\"type\":\"Prepend\",\"prepend\":\"" TOK_METASPACE "\"}," : "");
    strbuf_printf(
        out,
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"" TOK_METASPACE "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
        "{\"type\":\"Fuse\"}%s]}",
        s->dummy_prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    uint32_t bos = o->bos ? find_piece(s, o->bos, strlen(o->bos)) : TOK_NONE;
    if (bos != TOK_NONE)
        strbuf_printf(out,
                      ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                      "{\"SpecialToken\":{\"id\":\"b\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                      "\"special_tokens\":{\"b\":{\"ids\":[%u]}}}",
                      bos);
    strbuf_putc(out, '}');
}

status tok_spm_convert(const char *where, const void *data, size_t n,
                       const tok_spm_options *options, strbuf *out, error *err)
{
    sentencepiece s = {.where = where, .model_type = 1, .dummy_prefix = true, .err = err};
    status st = read_model(&s, data, n);
    if (status_ok(st)) st = rename_pieces(&s, options->added);
    if (status_ok(st)) st = find_merges(&s);
    if (status_ok(st)) write_document(&s, options, out);
    if (status_ok(st) && (out->failed || s.merges.failed)) st = status_make(STATUS_NO_MEMORY, NULL);
    if (st.code == STATUS_NO_MEMORY) error_set(err, st.code, "%s: out of memory", where);
    alloc_free(NULL, s.pieces);
    strbuf_destroy(&s.merges);
    return st;
}
