#include "paged_kv/delta_log.h"

size_t log_reserve_of(uint32_t groups, uint32_t row)
{
    return DELTA_CLOSE_WORDS + (size_t)groups * (DELTA_DROP_HEAD + delta_bit_words(row));
}

/* Doubles, so that a log that has seen its longest step never grows again. */
static bool grow_deltas(const allocator *a, void **list, size_t *capacity, size_t needed,
                        size_t size)
{
    if (needed <= *capacity) return true;
    size_t n = *capacity > needed / 2 ? *capacity * 2 : needed;
    void *grown = alloc_resize(a, *list, n, size);
    if (!grown) return false;
    *list = grown;
    *capacity = n;
    return true;
}

status log_room(pkv *p, size_t words, size_t moves, size_t more_reserve)
{
    delta_log *log = &p->log;
    void *w = log->words, *m = log->moves;
    bool ok = grow_deltas(&p->alloc, &w, &log->cap_words,
                          log->n_words + words + log->reserve + more_reserve, sizeof *log->words) &&
              grow_deltas(&p->alloc, &m, &log->cap_moves, log->n_moves + moves, sizeof *log->moves);
    log->words = w;
    log->moves = m;
    return ok ? STATUS_IS_OK : status_make(STATUS_NO_MEMORY, NULL);
}

void log_move(pkv *p, pkv_move move)
{
    delta_log *log = &p->log;
    assert(log->n_moves < log->cap_moves);
    log->moves[log->n_moves++] = move;
    if (move.kind != PKV_MOVE_SLOTS) return;
    p->counts.slots_moved += (uint64_t)move.n_slots * cells_in(&p->pool, move.grain);
}

size_t log_trim(pkv *p, uint32_t id, uint32_t table, uint32_t kept)
{
    log_word(p, DELTA_TRIM);
    log_word(p, id);
    log_word(p, table);
    log_word(p, kept);
    log_word(p, 0);
    return p->log.n_words - 1;
}

/* `first` has bits over the pages before a first drop; clears the bit of each page that the
 * second drop, whose bits are over the pages left by the first, gives up. */
static void merge_drop(uint32_t *first, uint32_t n_bits, const uint64_t *second)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < n_bits; i++) {
        if (!(first[i / 32] >> i % 32 & 1)) continue;
        if (!keep_bit(second, left)) first[i / 32] &= ~(UINT32_C(1) << i % 32);
        left++;
    }
}

void log_drop(pkv *p, uint32_t seq_id, uint32_t table, const uint64_t *keep)
{
    pkv_table *t = &p->seqs[seq_id].tables[table];
    if (t->drop_epoch == p->log.epoch) {
        uint32_t *words = p->log.words + t->drop_at;
        merge_drop(words + DELTA_DROP_HEAD, words[3], keep);
        return;
    }
    t->drop_epoch = p->log.epoch;
    t->drop_at = p->log.n_words;
    log_word(p, DELTA_DROP);
    log_word(p, seq_id);
    log_word(p, table);
    log_word(p, t->n_pages);
    for (uint32_t i = 0; i < t->n_pages; i += 32) {
        uint32_t bits = (uint32_t)(keep[i / 64] >> i % 64);
        if (t->n_pages - i < 32) bits &= (UINT32_C(1) << (t->n_pages - i)) - 1;
        log_word(p, bits);
    }
}

pkv_deltas pkv_take_deltas(pkv *p)
{
    delta_log *log = &p->log;
    pkv_deltas deltas = {
        .words = log->words,
        .n_words = log->n_words,
        .moves = log->moves,
        .n_moves = log->n_moves,
    };
    /* The words stay in place until the next change overwrites them. */
    log->n_words = log->n_moves = 0;
    log->epoch++;
    return deltas;
}

uint32_t pkv_move_cells(const pkv_geometry *g, const pkv_move *m)
{
    return m->grain == PKV_HEAD ? 1 : m->grain == PKV_LAYER ? pkv_head_groups(g) : pkv_groups(g);
}

pkv_move pkv_move_cell(const pkv_geometry *g, const pkv_move *m, uint32_t i, uint32_t pool_usable,
                       uint32_t host_usable)
{
    uint32_t heads = pkv_head_groups(g), layer = i / heads, head = i % heads;
    uint32_t src = m->kind == PKV_MOVE_IN ? host_usable : pool_usable;
    uint32_t dst = m->kind == PKV_MOVE_OUT ? host_usable : pool_usable;
    pkv_move cell = *m;
    cell.grain = PKV_HEAD;
    cell.group = (m->grain == PKV_LAYER ? m->group * heads : m->group) + i;
    cell.src_page += pkv_cell_offset(g, src, m->grain, layer, head);
    cell.dst_page += pkv_cell_offset(g, dst, m->grain, layer, head);
    return cell;
}

/* ---- readers other than the mirror ----------------------------------------------------------- */

static size_t pages_of(const pkv_geometry *g, uint32_t kept)
{
    return ((size_t)kept + g->page_tokens - 1) / g->page_tokens;
}

static uint32_t tables_of(const pkv_geometry *g, uint32_t grain)
{
    const pkv_geometry at = pkv_geometry_at(g, (pkv_grain)grain);
    return pkv_groups(&at);
}

size_t pkv_delta_touch(const pkv_geometry *geometry, const uint32_t *words, pkv_touch *out)
{
    *out = (pkv_touch){words[1], PKV_ALL_GROUPS, false};
    switch (words[0]) {
    case DELTA_OPEN: return DELTA_OPEN_HEAD + (size_t)tables_of(geometry, words[2]) * words[4];
    case DELTA_CLOSE:
    case DELTA_PARK: return DELTA_CLOSE_WORDS;
    case DELTA_SPLIT: return DELTA_SPLIT_WORDS;
    case DELTA_PART: return DELTA_PART_WORDS;
    case DELTA_HOLD: out->appends = true; return DELTA_CLOSE_WORDS;
    case DELTA_LEAVE: out->appends = true; return DELTA_LEAVE_WORDS;
    case DELTA_BACK:
        out->group = words[3];
        out->appends = true;
        return DELTA_BACK_HEAD + (size_t)words[5];
    case DELTA_APPEND: out->appends = true; return DELTA_APPEND_HEAD + (size_t)words[4];
    case DELTA_FORK: out->seq = words[2]; return DELTA_FORK_WORDS;
    case DELTA_RETURN:
    case DELTA_UNPARK: break;
    default: out->group = words[2];
    }
    switch (words[0]) {
    case DELTA_REPLACE: return DELTA_REPLACE_WORDS;
    case DELTA_TRIM: return DELTA_TRIM_HEAD + 2 * (size_t)words[4];
    case DELTA_DROP: return DELTA_DROP_HEAD + (size_t)delta_bit_words(words[3]);
    case DELTA_COMPACT: return DELTA_COMPACT_HEAD + pages_of(geometry, words[3]);
    default: break; /* RETURN, UNPARK: each table has its length */
    }
    size_t n = DELTA_RETURN_HEAD;
    for (uint32_t g = 0, groups = tables_of(geometry, words[2]); g < groups; g++)
        n += 1 + pages_of(geometry, words[n]);
    return n;
}
