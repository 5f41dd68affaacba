#include "text/merges.h"

#include "text/tokenizer/map.h"

#include <stdlib.h>

#define MERGES_MAX (1u << 22)
/* Bounds all merges together: a piece has at most as many merges as characters, and each merge
 * spells the whole piece. */
#define MERGES_BYTES_MAX (256u << 20)

typedef struct merge {
    uint32_t left, right;
    uint32_t n_left, n_right; /* length of the halves in characters */
    float score;
    uint32_t order; /* breaks ties */
} merge;

typedef struct merges {
    const char *where;
    const tok_piece *pieces;
    uint32_t n_pieces;
    tok_map ids;
    merge *list;
    size_t n, capacity, bytes;
    error *err;
} merges;

static uint32_t count_characters(const tok_piece *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->length; i++) n += (p->text[i] & 0xc0) != 0x80;
    return n;
}

static status add_merge(merges *m, merge one)
{
    if (m->n == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 1024;
        if (capacity > MERGES_MAX)
            return error_set(m->err, STATUS_LIMIT, "%s: more than %u merges", m->where, MERGES_MAX);
        merge *grown = alloc_resize(NULL, m->list, capacity, sizeof *grown);
        if (!grown) return status_make(STATUS_NO_MEMORY, NULL);
        m->list = grown;
        m->capacity = capacity;
    }
    one.order = (uint32_t)m->n;
    m->list[m->n++] = one;
    return STATUS_IS_OK;
}

static status add_merges_of(merges *m, const tok_piece *p)
{
    uint32_t characters = 0, all = count_characters(p);
    m->bytes += (size_t)all * p->length;
    if (m->bytes > MERGES_BYTES_MAX)
        return error_set(m->err, STATUS_LIMIT, "%s: too many long pieces", m->where);
    for (uint32_t i = 1; i < p->length; i++) {
        if ((p->text[i] & 0xc0) == 0x80) continue;
        characters++;
        uint32_t left = tok_map_find(&m->ids, p->text, i);
        if (left == TOK_NONE) continue;
        uint32_t right = tok_map_find(&m->ids, p->text + i, p->length - i);
        if (right == TOK_NONE) continue;
        RETURN_IF_ERROR(
            add_merge(m, (merge){left, right, characters, all - characters, p->score, 0}));
    }
    return STATUS_IS_OK;
}

static int by_rank(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left) return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right) return x->n_right > y->n_right ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static status find_merges(merges *m)
{
    if (!tok_map_create(&m->ids, m->n_pieces)) return status_make(STATUS_NO_MEMORY, NULL);
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        const tok_piece *p = &m->pieces[i];
        if (!p->is_part) continue;
        if (tok_map_find(&m->ids, p->text, p->length) != TOK_NONE)
            return error_set(m->err, STATUS_CORRUPT, "%s: piece %u comes a second time", m->where,
                             i);
        tok_map_put(&m->ids, p->text, p->length, i);
    }
    for (uint32_t i = 0; i < m->n_pieces; i++)
        if (m->pieces[i].is_part) RETURN_IF_ERROR(add_merges_of(m, &m->pieces[i]));
    if (m->n > 0) qsort(m->list, m->n, sizeof *m->list, by_rank);
    return STATUS_IS_OK;
}

static void write(const merges *m, strbuf *out)
{
    for (size_t i = 0; i < m->n; i++) {
        const tok_piece *left = &m->pieces[m->list[i].left], *right = &m->pieces[m->list[i].right];
        strbuf_puts(out, i > 0 ? ",[" : "[");
        strbuf_json_string(out, left->text, left->length);
        strbuf_putc(out, ',');
        strbuf_json_string(out, right->text, right->length);
        strbuf_putc(out, ']');
    }
}

status tok_merges_of_scores(const char *where, const tok_piece *pieces, uint32_t n, strbuf *out,
                            error *err)
{
    merges m = {.where = where, .pieces = pieces, .n_pieces = n, .err = err};
    status s = find_merges(&m);
    if (status_ok(s)) write(&m, out);
    if (s.code == STATUS_NO_MEMORY) error_set(err, s.code, "%s: out of memory", where);
    alloc_free(NULL, m.list);
    tok_map_destroy(&m.ids);
    return s;
}
