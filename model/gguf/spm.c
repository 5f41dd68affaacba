/* transformers, convert_slow_tokenizer.py, generate_merges. */
#include "model/gguf/spm.h"

#include "model/tokenizer/map.h"

#include <stdlib.h>

enum { PIECE_NORMAL = 1, PIECE_USER = 4 };

enum { MERGES_MAX = 1 << 24 };

/* Each cut of a piece hashes it once: what all cuts together may read. */
#define CUT_BYTES_MAX ((uint64_t)1 << 31)

typedef struct merge {
    float score;
    uint32_t left_n, right_n; /* in characters */
    uint32_t left_id, right_id;
    uint32_t order; /* the piece's id */
} merge;

typedef struct merges {
    merge *list;
    size_t n, room;
} merges;

typedef struct piece {
    const char *text;
    uint32_t n;
} piece;

static bool push(merges *m, merge one)
{
    if (m->n == MERGES_MAX) return false;
    if (m->n == m->room) {
        size_t room = m->room ? 2 * m->room : 1024;
        merge *grown = alloc_resize(NULL, m->list, room, sizeof *grown);
        if (!grown) return false;
        m->list = grown;
        m->room = room;
    }
    m->list[m->n++] = one;
    return true;
}

/* Descending by (score, left's length, right's); equals in the order of pieces, and of a piece's
 * cuts by (left id, right id) ascending: transformers sorts stably, reversed. */
static int by_rank(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_n != y->left_n) return x->left_n > y->left_n ? -1 : 1;
    if (x->right_n != y->right_n) return x->right_n > y->right_n ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    if (x->left_id != y->left_id) return x->left_id < y->left_id ? -1 : 1;
    return (x->right_id > y->right_id) - (x->right_id < y->right_id);
}

static uint32_t characters(const char *s, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)s[i] & 0xc0) != 0x80;
    return count;
}

static bool cut(const piece *p, uint32_t id, float score, const tok_map *ids, merges *out)
{
    uint32_t all = characters(p->text, p->n), before = 0;
    for (uint32_t i = 1; i < p->n; i++) {
        if (((uint8_t)p->text[i] & 0xc0) == 0x80) continue;
        before++;
        uint32_t left = tok_map_find(ids, p->text, i);
        if (left == TOK_NONE) continue;
        uint32_t right = tok_map_find(ids, p->text + i, p->n - i);
        if (right == TOK_NONE) continue;
        merge one = {score, before, all - before, left, right, id};
        if (!push(out, one)) return false;
    }
    return true;
}

static void write(const merges *m, const piece *pieces, strbuf *out)
{
    for (size_t i = 0; i < m->n; i++) {
        const piece *left = &pieces[m->list[i].left_id], *right = &pieces[m->list[i].right_id];
        strbuf_puts(out, i ? ",\n[" : "[");
        strbuf_json_string(out, left->text, left->n);
        strbuf_putc(out, ',');
        strbuf_json_string(out, right->text, right->n);
        strbuf_putc(out, ']');
    }
}

static bool is_spelled(const gguf_value *types, uint64_t id)
{
    uint32_t type = types ? gguf_u32_at(types, id) : PIECE_NORMAL;
    return type == PIECE_NORMAL || type == PIECE_USER;
}

static status make(const char *where, const gguf_value *tokens, const gguf_value *scores,
                   const gguf_value *types, piece *pieces, tok_map *ids, merges *m, error *err)
{
    const uint8_t *at = tokens->data;
    uint64_t work = 0;
    for (uint64_t i = 0; i < tokens->n; i++) {
        size_t n;
        const char *text = gguf_next_string(&at, &n);
        if (n > UINT16_MAX || !(gguf_f32_at(scores, i) == gguf_f32_at(scores, i)))
            return error_set(err, STATUS_CORRUPT,
                             "%s: token %llu: of more than %d bytes, or its score is no number",
                             where, (unsigned long long)i, UINT16_MAX);
        pieces[i] = (piece){text, (uint32_t)n};
        if (!is_spelled(types, i)) continue;
        tok_map_put(ids, text, n, (uint32_t)i);
        work += (uint64_t)n * n;
    }
    if (work > CUT_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: \"tokenizer.ggml.tokens\": too many long tokens",
                         where);
    for (uint64_t i = 0; i < tokens->n; i++)
        if (is_spelled(types, i) && !cut(&pieces[i], (uint32_t)i, gguf_f32_at(scores, i), ids, m))
            return error_set(err, m->n == MERGES_MAX ? STATUS_LIMIT : STATUS_NO_MEMORY,
                             "%s: more than %d merges, or out of memory", where, MERGES_MAX);
    if (m->n > 0) qsort(m->list, m->n, sizeof *m->list, by_rank);
    return STATUS_IS_OK;
}

status gguf_spm_merges(const char *where, const gguf_value *tokens, const gguf_value *scores,
                       const gguf_value *types, strbuf *out, error *err)
{
    merges m = {0};
    tok_map ids = {0};
    piece *pieces = alloc_zeroed(NULL, tokens->n, sizeof *pieces);
    status s = pieces && tok_map_create(&ids, tokens->n)
                   ? make(where, tokens, scores, types, pieces, &ids, &m, err)
                   : error_set(err, STATUS_NO_MEMORY, "%s: out of memory", where);
    if (status_ok(s)) write(&m, pieces, out);
    free(pieces);
    free(m.list);
    tok_map_destroy(&ids);
    return s;
}
