/* A sequence of a mirror is closed, at once or in portions (DELTA_LEAVE). */
#include "paged_kv/mirror.h"

/* The first table behind those of the layer of a table. */
static uint32_t layer_end(const pkv_mirror *m, const mirror_seq *s, uint32_t table)
{
    return s->grain == PKV_HEAD ? (table / m->tree.n_heads + 1) * m->tree.n_heads : table + 1;
}

/* Goes on to the first layer from `table` on that has pages. */
static void enter_layer(const pkv_mirror *m, mirror_seq *s, uint32_t table)
{
    s->left_rows = 0;
    for (s->left_table = table; s->left_table < s->groups && s->left_rows == 0;) {
        uint32_t end = layer_end(m, s, s->left_table);
        for (uint32_t g = s->left_table; g < end; g++)
            if (s->tables[g].n_pages > s->left_rows) s->left_rows = s->tables[g].n_pages;
        if (s->left_rows == 0) s->left_table = end;
    }
}

static void begin_leave(const pkv_mirror *m, mirror_seq *s)
{
    if (s->leaves) return;
    s->leaves = true;
    enter_layer(m, s, 0);
}

/* At most n rows; returns how many. */
static uint32_t leave_rows(pkv_mirror *m, mirror_seq *s, bool parked, uint32_t n)
{
    uint32_t left = 0;
    while (left < n && s->left_table < s->groups) {
        uint32_t end = layer_end(m, s, s->left_table), to = s->left_rows;
        uint32_t rows = n - left < to ? n - left : to, from = to - rows;
        for (uint32_t g = s->left_table; g < end; g++) {
            for (uint32_t i = from; i < to && i < s->tables[g].n_pages; i++) {
                if (parked) mirror_mark_parked(m, s, mirror_list(s, g)[i]);
                mirror_clear_page(m, s, g, i);
            }
        }
        left += rows;
        s->left_rows = from;
        if (from == 0) enter_layer(m, s, end);
    }
    return left;
}

status mirror_leave(pkv_mirror *m, mirror_seq *s, bool parked, uint32_t n)
{
    begin_leave(m, s);
    if (n == 0 || leave_rows(m, s, parked, n) < n || s->left_table >= s->groups)
        return status_make(STATUS_CORRUPT, "delta log: LEAVE leaves no page");
    return STATUS_IS_OK;
}

void mirror_close(pkv_mirror *m, mirror_seq *s, bool parked)
{
    begin_leave(m, s);
    (void)leave_rows(m, s, parked, UINT32_MAX);
    for (uint32_t g = 0; g < s->groups; g++)
        m->checksum -= checksum_kept(mirror_key(m, s, g), s->tables[g].kept);
    m->checksum -= checksum_seq((uint32_t)(s - m->seqs));
    s->open = s->leaves = false;
    if (s->cap_list <= PKV_LISTS_KEPT) return;
    alloc_free(&m->alloc, s->pages);
    s->pages = NULL;
    s->cap_list = s->row = 0;
}
