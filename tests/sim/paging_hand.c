/* Parked sequences that are adopted: what their image and their cells say of them is all that the
 * new one is made of, as where it comes from another pool. The old one may be gone meanwhile. */
#include "tests/sim/paging.h"
#include "tests/unit/paged_kv_whole.h"

typedef struct copied_image {
    pkv_image image;
    pkv_image_table tables[GROUPS_MAX];
    uint32_t bases[GROUPS_MAX][PAGES_OF_TABLE], slots[GROUPS_MAX][LEN_MAX];
} copied_image;

/* Lists all n cells, some with each call. */
static void list_cells(sim *s, uint32_t number, uint32_t n, uint32_t *cells)
{
    pkv_image_table tables[GROUPS_MAX];
    pkv_image image = pkv_parked_image(s->kv, number, tables);
    uint32_t some;
    for (uint32_t at = 0; at < n; at += some) {
        uint32_t most = 1 + rng_below(&s->random, 2 * n);
        some = pkv_list_cells(s->kv, &image, at, most, cells + at);
        CHECK(s, some == (most < n - at ? most : n - at));
    }
    CHECK(s, pkv_list_cells(s->kv, &image, n, 1, cells + n) == 0);
}

static uint32_t pages_of(const sim *s, uint32_t tokens)
{
    return (tokens + s->page_tokens - 1) / s->page_tokens;
}

/* The image, and what it says of positions, is that of the model. */
static void copy_image(sim *s, const model_parked *from, copied_image *to)
{
    pkv_image_table tables[GROUPS_MAX];
    to->image = pkv_parked_image(s->kv, from->number, tables);
    CHECK(s, pkv_image_fits(&s->geometry, &to->image));
    CHECK(s, to->image.length == from->seq.length && to->image.dropped == from->seq.dropped);
    CHECK(s, to->image.contiguous == from->seq.contiguous && to->image.grain == from->grain);
    for (uint32_t t = 0; t < n_tables(s, to->image.grain); t++) {
        const pkv_image_table *table = &tables[t];
        uint32_t group = first_group(s, to->image.grain, t), pages = pages_of(s, table->kept);
        CHECK(s, table->kept == from->seq.n_kept[group] && pages == from->n_pages[group]);
        for (uint32_t i = 0; i < table->kept; i++) {
            uint32_t page = i / s->page_tokens;
            uint32_t at = page < table->slot_pages ? table->slots[i]
                                                   : table->bases[page] + i % s->page_tokens;
            CHECK(s, at == from->seq.kept[group][i]);
        }
        memset(to->bases[t], 0xee, sizeof to->bases[t]);
        for (uint32_t i = table->slot_pages; i < pages; i++) to->bases[t][i] = table->bases[i];
        uint32_t slots = pkv_image_slots(&s->geometry, table);
        if (slots > 0) memcpy(to->slots[t], table->slots, slots * sizeof(uint32_t));
        to->tables[t] = (pkv_image_table){.kept = table->kept,
                                          .slot_pages = table->slot_pages,
                                          .bases = to->bases[t],
                                          .slots = to->slots[t]};
    }
    to->image.tables = to->tables;
}

/* K and V in the cells, which are in the order of groups, are those of the model. */
static void check_exported(sim *s, const model_parked *from, uint32_t n)
{
    uint32_t cells[CELLS_OF_SEQ + 1], at = 0;
    list_cells(s, from->number, n, cells);
    for (uint32_t g = 0; g < s->groups; g++)
        for (uint32_t i = 0; i < from->n_pages[g]; i++, at++) {
            CHECK(s, cells[at] == from->cells[g][i]);
            for (uint32_t k = i * s->page_tokens;
                 k < from->seq.n_kept[g] && k < (i + 1) * s->page_tokens; k++) {
                uint32_t position = from->seq.kept[g][k];
                const model_slot *slot = &s->memory[cells[at]][k % s->page_tokens];
                CHECK(s, slot->value == value_of(from->seq.context[position], g));
                CHECK(s, slot->rotation == (from->seq.contiguous ? k : position));
            }
        }
    CHECK(s, at == n);
}

/* Others take single cells meanwhile, as long as there are some: of whole runs, where the cache has
 * those of broken ones. */
static void break_runs(sim *s)
{
    s->portions++;
    for (uint32_t i = 0; i < 2 * SEQS; i++) {
        uint32_t id = i % SEQS;
        if (s->seqs[id].in_portions || s->seqs[id].splitting) continue;
        if (!s->seqs[id].open) op_open(s, id);
        for (uint32_t n = 0; n < 3; n++) i < SEQS ? op_split(s, id) : op_append(s, id);
        if (i < SEQS) {
            take(s);
            op_publish(s, id);
            op_drop(s, id);
        }
        s->grains = grains_of(s);
    }
    s->portions--;
    s->done[DONE_BETWEEN]++;
    check_always(s);
}

/* Takes the pages in portions. False where that is broken off: then the record is gone. */
static bool take_cells(sim *s, uint32_t number, const pkv_image *image)
{
    uint32_t few = rng_below(&s->random, 2) ? 3 : 20, n;
    uint32_t most = rng_below(&s->random, 3) ? 1 + rng_below(&s->random, few) : UINT32_MAX;
    long others = s->done[DONE_BETWEEN];
    if (rng_below(&s->random, 2)) break_runs(s);
    for (;;) {
        uint64_t before = pkv_checksum(s->kv);
        uint32_t tables = pkv_parked_tables(s->kv, number);
        status st = pkv_adopt_some(s->kv, number, image, most, &n);
        /* A sequence that comes back may take what was promised to this one. */
        bool taken = st.code == STATUS_NO_PAGES && s->done[DONE_BETWEEN] != others;
        if (!went(s, st, !taken, before)) break;
        CHECK(s, n <= most);
        s->done[DONE_ADOPT_FINER] += pkv_parked_tables(s->kv, number) > tables;
        if (n < most) return true;
        s->done[DONE_ADOPT_SOME]++;
        if (rng_below(&s->random, 2)) between(s);
        else break_runs(s);
        if (rng_below(&s->random, 8) == 0) break;
    }
    pkv_discard_later(s->kv, number);
    if (rng_below(&s->random, 2)) (void)pkv_discard_some(s->kv, UINT32_MAX);
    discard_all(s);
    s->done[DONE_ADOPT_BROKEN]++;
    return false;
}

/* The cells that were taken, with K and V of the model. */
static void fill_cells(sim *s, model_parked *to)
{
    uint32_t cells[CELLS_OF_SEQ + 1], at = 0;
    const model_seq *m = &to->seq;
    list_cells(s, to->number, to->held, cells);
    for (uint32_t g = 0; g < s->groups; g++) {
        to->n_pages[g] = pages_of(s, m->n_kept[g]);
        for (uint32_t k = 0; k < m->n_kept[g]; k++) {
            uint32_t position = m->kept[g][k];
            s->memory[cells[at + k / s->page_tokens]][k % s->page_tokens] =
                (model_slot){value_of(m->context[position], g), m->contiguous ? k : position};
        }
        for (uint32_t i = 0; i < to->n_pages[g]; i++) to->cells[g][i] = cells[at++];
    }
}

static pkv_grain grain_of(const sim *s, uint32_t number)
{
    pkv_grain grain = PKV_ALL;
    while (n_tables(s, grain) != pkv_parked_tables(s->kv, number)) grain++;
    return pkv_grain_fit(&s->geometry, grain);
}

/* Sequences of some layers, and those with running sums, are not handed over. */
static bool may_hand(const sim *s, const model_parked *from)
{
    return from->number != 0 && from->seq.length > 0 && !from->seq.unshared &&
           from->seq.groups == s->groups;
}

void op_hand(sim *s)
{
    model_parked *from = &s->parked[rng_below(&s->random, PARKS)], now = *from;
    copied_image copied;
    if (!may_hand(s, from)) return;
    take(s);
    uint32_t n = from->held, i = 0;
    copy_image(s, from, &copied);
    CHECK(s, pkv_image_cells(&s->geometry, &copied.image) == n);
    CHECK(s, pkv_image_cost(s->kv, &copied.image) == n); /* there is one share */
    check_exported(s, from, n);
    uint64_t before = pkv_checksum(s->kv);
    bool enough = n <= pkv_available(s->kv);
    uint32_t available = pkv_available(s->kv), number;
    status st = pkv_adopt(s->kv, &copied.image, now.seq.salt, false, true, &number);
    if (!went(s, st, enough, before)) return;
    CHECK(s, pkv_available(s->kv) == available - n);
    uint32_t flushes = (uint32_t)s->done[DONE_FLUSH];
    if (!take_cells(s, number, &copied.image)) return;
    CHECK(s, pkv_parked_length(s->kv, number) == now.seq.length);
    now.number = number;
    now.grain = grain_of(s, number);
    now.seq.key = ++s->n_keys;
    now.seq.sealed = s->done[DONE_FLUSH] != flushes;
    now.seq.published = now.seq.hits = now.seq.hit_to = 0;
    take(s); /* copies from the cells are made before they are filled */
    fill_cells(s, &now);
    s->done[DONE_ADOPT]++;
    while (i < PARKS && s->parked[i].number != 0) i++;
    if (i < PARKS) s->parked[i] = now;
    else discard_whole(s->kv, number);
}
