/* "decoder" of tokenizer.json. The text of each token is computed while loading, as far as it does
 * not depend on the tokens around it. */
#include "text/tokenizer/internal.h"

#include <string.h>

#define SEQUENCE_DEPTH_MAX 4
#define DECODERS_MAX       16
#define DECODED_BYTES_MAX  (64u << 20) /* of all rewritten tokens, by all decoders together */

/* Decoders must come in this order: decoders of single tokens come first. */
typedef enum decoder_stage { STAGE_TOKENS, STAGE_BYTES, STAGE_FUSED, STAGE_STRIPPED } decoder_stage;

typedef struct decoders {
    tokenizer *t;
    decoder_stage stage;
    unsigned depth, n; /* n: decoders that are not sequences */
    size_t bytes;      /* bytes of rewritten tokens */
    bool byte_level;   /* seen */
} decoders;

static status load_decoder(decoders *d, const char *where, const json_t *part, error *err);

/* Checks that a decoder may come at `stage`, and goes on to `next`. */
static status enter_stage(decoders *d, const char *where, decoder_stage stage, decoder_stage next,
                          error *err)
{
    if (d->stage > stage)
        return error_set(err, STATUS_UNSUPPORTED, "%s: at this place is not supported", where);
    d->stage = next;
    return STATUS_IS_OK;
}

/* Rewrites the text of every token, with `content` for each pattern. */
static status replace(decoders *d, const char *where, tok_entry *entries,
                      const tok_normalizer *step, error *err)
{
    tokenizer *t = d->t;
    strbuf out = {0};
    status s = STATUS_IS_OK;
    for (uint32_t id = 0; id < t->n_ids && status_ok(s); id++) {
        tok_entry *entry = &entries[id];
        const uint8_t *text = (const uint8_t *)entry->bytes;
        size_t n = entry->length;
        strbuf_clear(&out);
        if (n > 0) s = tok_normalize_replace(step, &text, &n, &out);
        if (!status_ok(s) || (n == entry->length && text == (const uint8_t *)entry->bytes))
            continue;
        if (n > UINT16_MAX) {
            s = error_set(err, STATUS_LIMIT, "%s: makes a token of more than %d bytes", where,
                          UINT16_MAX);
            break;
        }
        d->bytes += n;
        if (d->bytes > DECODED_BYTES_MAX) {
            s = error_set(err, STATUS_LIMIT, "%s: makes tokens of more than %u bytes together",
                          where, DECODED_BYTES_MAX);
            break;
        }
        char *kept = arena_strndup(&t->strings, (const char *)text, n);
        if (!kept) s = status_make(STATUS_NO_MEMORY, NULL);
        entry->bytes = kept;
        entry->length = (uint16_t)n;
    }
    strbuf_destroy(&out);
    return s;
}

static status load_replace(decoders *d, const char *where, const json_t *part, error *err)
{
    tok_normalizer step = {0};
    RETURN_IF_ERROR(enter_stage(d, where, STAGE_TOKENS, STAGE_TOKENS, err));
    RETURN_IF_ERROR(tok_read_replace(part, where, &step.pattern, &step.n_pattern, &step.content,
                                     &step.n_content, err));
    if (d->t->firsts) RETURN_IF_ERROR(replace(d, where, d->t->firsts, &step, err));
    return replace(d, where, d->t->entries, &step, err);
}

static status load_metaspace(decoders *d, const char *where, const json_t *part, error *err)
{
    tokenizer *t = d->t;
    uint8_t replacement[4];
    unsigned n_replacement;
    tok_prepend prepend;
    RETURN_IF_ERROR(enter_stage(d, where, STAGE_TOKENS, STAGE_TOKENS, err));
    RETURN_IF_ERROR(tok_read_metaspace(part, where, replacement, &n_replacement, &prepend, err));
    tok_normalizer step = {.pattern = (const char *)replacement, .n_pattern = n_replacement};
    if (t->firsts)
        return error_set(err, STATUS_UNSUPPORTED, "%s: a second Metaspace is not supported", where);
    if (prepend != TOK_PREPEND_NEVER) { /* a text's first token loses all of them */
        t->firsts = alloc_zeroed(NULL, t->n_ids, sizeof *t->firsts);
        if (t->n_ids > 0 && !t->firsts) return status_make(STATUS_NO_MEMORY, NULL);
        if (t->n_ids > 0) memcpy(t->firsts, t->entries, t->n_ids * sizeof *t->firsts);
        RETURN_IF_ERROR(replace(d, where, t->firsts, &step, err));
    }
    step.content = " ";
    step.n_content = 1;
    return replace(d, where, t->entries, &step, err);
}

/* Reads two hex digits as Rust's from_str_radix does, which also takes a plus sign; or -1. */
static int hex_byte(const char *s)
{
    int value = 0;
    for (unsigned i = 0; i < 2; i++) {
        char c = s[i];
        if (i == 0 && c == '+') continue;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static status find_bytes(tokenizer *t, tok_entry *entries)
{
    for (uint32_t id = 0; id < t->n_ids; id++) {
        tok_entry *entry = &entries[id];
        if (entry->length != 6 || memcmp(entry->bytes, "<0x", 3) != 0 || entry->bytes[5] != '>')
            continue;
        int byte = hex_byte(entry->bytes + 3);
        if (byte < 0) continue;
        char *kept = arena_alloc(&t->strings, 1);
        if (!kept) return status_make(STATUS_NO_MEMORY, NULL);
        *kept = (char)byte;
        entry->bytes = kept;
        entry->length = 1;
        entry->byte = true;
    }
    return STATUS_IS_OK;
}

static status load_byte_fallback(decoders *d, const char *where, const json_t *part, error *err)
{
    (void)part;
    RETURN_IF_ERROR(enter_stage(d, where, STAGE_TOKENS, STAGE_BYTES, err));
    if (d->t->firsts) RETURN_IF_ERROR(find_bytes(d->t, d->t->firsts));
    return find_bytes(d->t, d->t->entries);
}

static status load_fuse(decoders *d, const char *where, const json_t *part, error *err)
{
    (void)part;
    return enter_stage(d, where, STAGE_BYTES, STAGE_FUSED, err);
}

static status load_strip(decoders *d, const char *where, const json_t *part, error *err)
{
    const char *content;
    int64_t start, stop;
    RETURN_IF_ERROR(json_get_string(part, where, "content", &content, err));
    RETURN_IF_ERROR(json_get_int(part, where, "start", 0, UINT16_MAX, 0, &start, err));
    RETURN_IF_ERROR(json_get_int(part, where, "stop", 0, UINT16_MAX, 0, &stop, err));
    if (!content || strcmp(content, " ") != 0 || stop != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: anything but spaces at the start is not supported", where);
    if (d->stage != STAGE_FUSED)
        return error_set(err, STATUS_UNSUPPORTED, "%s: without Fuse before it is not supported",
                         where);
    d->stage = STAGE_STRIPPED;
    d->t->strip = (unsigned)start;
    return STATUS_IS_OK;
}

/* Nothing to do: the entries were made for ByteLevel when the vocabulary was loaded. */
static status load_byte_level(decoders *d, const char *where, const json_t *part, error *err)
{
    (void)where, (void)part, (void)err;
    d->byte_level = true;
    return STATUS_IS_OK;
}

static status load_sequence(decoders *d, const char *where, const json_t *part, error *err)
{
    const json_t *list = json_object_get(part, "decoders");
    if (!json_is_array(list))
        return error_set(err, STATUS_CORRUPT, "%s: \"decoders\" must be an array", where);
    if (++d->depth > SEQUENCE_DEPTH_MAX)
        return error_set(err, STATUS_LIMIT, "%s: sequences nested too deep", where);
    for (size_t i = 0; i < json_array_size(list); i++)
        RETURN_IF_ERROR(load_decoder(d, tok_place_make(where, "decoders[%zu]", i).text,
                                     json_array_get(list, i), err));
    d->depth--;
    return STATUS_IS_OK;
}

static status load_decoder(decoders *d, const char *where, const json_t *part, error *err)
{
    static const struct {
        const char *type;
        bool byte_level; /* for words in the byte alphabet; other rows for characters */
        status (*load)(decoders *, const char *, const json_t *, error *);
    } rows[] = {
        {"ByteLevel", true, load_byte_level}, {"Replace", false, load_replace},
        {"Metaspace", false, load_metaspace}, {"ByteFallback", false, load_byte_fallback},
        {"Fuse", false, load_fuse},           {"Strip", false, load_strip},
    };
    const char *type;
    RETURN_IF_ERROR(tok_part_type(part, where, &type, err));
    if (strcmp(type, "Sequence") == 0) return load_sequence(d, where, part, err);
    if (d->n++ == DECODERS_MAX)
        return error_set(err, STATUS_LIMIT, "%s: more than %d decoders", where, DECODERS_MAX);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(type, rows[i].type) != 0) continue;
        if (rows[i].byte_level == d->t->byte_level && !d->byte_level)
            return rows[i].load(d, where, part, err);
        return error_set(err, STATUS_UNSUPPORTED, "%s: \"%s\" %s ByteLevel is not supported", where,
                         type, d->t->byte_level ? "with" : "without a pre_tokenizer");
    }
    return error_set(err, STATUS_UNSUPPORTED, "%s: type \"%s\" is not supported", where,
                     tok_show(type, strlen(type)).text);
}

status tok_load_decoder(tokenizer *t, const char *where, const json_t *part, error *err)
{
    tok_place place = tok_place_make(where, "decoder");
    if (!part || json_is_null(part))
        return error_set(err, STATUS_UNSUPPORTED, "%s: none is not supported", place.text);
    decoders d = {.t = t};
    RETURN_IF_ERROR(load_decoder(&d, place.text, part, err));
    if (d.byte_level == t->byte_level) return STATUS_IS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "%s: without ByteLevel is not supported", place.text);
}
