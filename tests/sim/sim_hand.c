/* Prompts that are handed over, and taken over by later requests of the same world. What is read of
 * an export is kept as another server's record would be: it outlives the pages, several requests
 * may take it over, and some find it damaged, or made for another prompt. */
#include "tests/sim/sim_world.h"

static bool chance_of(world *w, uint32_t per, uint32_t of)
{
    return rng_below(&w->hand.random, of) < per;
}

static void *need(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p) abort();
    return p;
}

void hand_choose(world *w)
{
    w->hand.random = rng_seed(w->seed + 7000003);
    w->hand.is_on = chance_of(w, 1, 2);
}

/* ---- records --------------------------------------------------------------------------------- */

static void record_free(world_record *record)
{
    for (uint32_t i = 0; i < record->n_tables; i++) {
        free(record->bases[i]);
        free(record->slots[i]);
    }
    free(record->cells);
    free(record->tokens);
    memset(record, 0xee, sizeof *record);
    record->from = NULL;
}

/* A copy of what lies in the scheduler's memory; K and V are left out. */
static world_record record_of(const world *w, const world_request *from, const pkv_image *image)
{
    const pkv_geometry *g = &w->options.geometry;
    pkv_geometry at = pkv_geometry_at(g, image->grain);
    world_record record = {.from = from, .image = *image, .n_tables = pkv_groups(&at)};
    for (uint32_t i = 0; i < record.n_tables; i++) {
        const pkv_image_table *t = &image->tables[i];
        uint32_t n = (t->kept + g->page_tokens - 1) / g->page_tokens, slots = pkv_image_slots(g, t);
        record.bases[i] = need(n, sizeof(uint32_t));
        record.slots[i] = need(slots, sizeof(uint32_t));
        for (uint32_t k = t->slot_pages; k < n; k++) record.bases[i][k] = t->bases[k];
        for (uint32_t k = 0; k < slots; k++) record.slots[i][k] = t->slots[k];
        record.kept[i] = t->kept;
        record.slot_pages[i] = t->slot_pages;
    }
    record.n_cells = (uint32_t)pkv_image_cells(g, image);
    return record;
}

/* The record as an image of these tables. */
static pkv_image image_of(const world_record *record, pkv_image_table *tables)
{
    pkv_image image = record->image;
    for (uint32_t i = 0; i < record->n_tables; i++)
        tables[i] = (pkv_image_table){.kept = record->kept[i],
                                      .slot_pages = record->slot_pages[i],
                                      .bases = record->bases[i],
                                      .slots = record->slots[i]};
    image.tables = tables;
    return image;
}

static void record_copy(const world *w, world_request *r, const world_record *from)
{
    size_t bytes = from->n_cells * w->hand.cell_bytes, n = from->from->request.n_prompt;
    pkv_image_table tables[SIM_GROUPS_MAX];
    pkv_image image = image_of(from, tables);
    r->record = record_of(w, from->from, &image);
    r->record.cells = need(bytes, 1);
    memcpy(r->record.cells, from->cells, bytes);
    r->record.tokens = need(n + 1, sizeof(uint32_t));
    memcpy(r->record.tokens, from->tokens, (n + 1) * sizeof(uint32_t));
    r->record.pages_dropped = from->pages_dropped;
    r->record.budget_raised = from->budget_raised;
}

void hand_create(world *w)
{
    size_t block = w->b.ops->info(w->b.ctx)->block_bytes;
    w->hand.cell_bytes = block / pkv_groups(&w->options.geometry);
}

void hand_destroy(world *w)
{
    for (uint32_t i = 0; i < w->hand.n_records; i++) record_free(&w->hand.records[i]);
    for (uint32_t i = 0; i < w->n_requests; i++)
        if (w->requests[i].record.from) record_free(&w->requests[i].record);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool is_plain(const world_request *r)
{
    const sched_request *q = &r->request;
    return q->n == 1 && !wants_rows(r) && !q->pooling && !q->n_embeds && r->book == BOOKS;
}

static void make_giver(world *w, world_request *r)
{
    r->request.hands_over = r->given.hands_over = true;
    if (!chance_of(w, 1, 8)) r->choices[0].stop_at = 1; /* others end later, and keep their pages */
}

static void make_taker(world *w, world_request *r)
{
    const world_record *record = &w->hand.records[rng_below(&w->hand.random, w->hand.n_records)];
    const world_request *from = record->from;
    uint32_t n = from->request.n_prompt, n_given = from->given.n_prompt;
    uint32_t most = from->request.policy.contiguous ? LONGEST : CONTEXT;
    sched_request *q = &r->request, was = *q;
    free(r->whole);
    r->whole = NULL;
    memcpy(r->prompt, from->prompt, n * sizeof *r->prompt);
    if (from->whole) {
        r->whole = need(LONGEST, sizeof *r->whole);
        memcpy(r->whole, from->whole, n_given * sizeof *r->whole);
    }
    *q = from->request;
    q->hands_over = false;
    q->id = was.id;
    q->arrival = was.arrival;
    q->priority = was.priority;
    q->salt = was.salt;
    q->policy.pressure = was.policy.pressure;
    q->prompt = r->prompt;
    q->max_new_tokens = length(w, w->median_output, most > n ? most - n : 1);
    r->book = BOOKS;
    r->live = 1;
    bool forces = chance_of(w, 1, 3) && w->options.max_in_flight == 1;
    r->story = (sim_story){.cut = from->story.cut, .forces = forces};
    r->choices[0].stop_at = 1 + rng_below(&w->hand.random, q->max_new_tokens);
    while (r->story.forces && sim_is_forced(q, r->choices[0].stop_at - 1)) r->choices[0].stop_at++;
    record_copy(w, r, record);
    if (chance_of(w, 1, 16)) { /* another prompt */
        r->record.tokens[n - 1] ^= 1;
        r->foreign = true;
    }
    r->handed = (sched_handed){.image = image_of(&r->record, r->tables),
                               .tokens = r->record.tokens,
                               .n_tokens = n,
                               .first_token = r->record.tokens[n],
                               .pages_dropped = r->record.pages_dropped,
                               .budget_raised = r->record.budget_raised};
    q->handed = &r->handed;
    r->given = *q;
    r->given.prompt = r->whole ? r->whole : r->prompt;
    r->given.n_prompt = n_given;
}

void hand_make(world *w, world_request *r)
{
    if (!w->hand.is_on) return;
    if (w->hand.n_records > 0 && chance_of(w, 1, 3)) make_taker(w, r);
    else if (is_plain(r) && !sched_hands_over(&r->request.policy) && chance_of(w, 2, 3))
        make_giver(w, r);
}

/* ---- out ------------------------------------------------------------------------------------- */

void hand_look(world *w)
{
    world_hand *h = &w->hand;
    for (const sched_export *x; (x = sched_next_export(w->s)) != NULL;) {
        world_request *r = &w->requests[x->request];
        if (h->n_exports == EXPORTS_MAX) FAIL(w, "the test has too many exports");
        if (!r->exports) FAIL(w, "an export that was not promised");
        r->exports = false;
        h->n_promised--;
        uint32_t turns = chance_of(w, 1, 8) ? 60 : 6;
        h->exports[h->n_exports++] =
            (world_export){.export = x, .back_at = w->turn + 1 + rng_below(&h->random, turns)};
    }
}

void hand_promise(world *w, world_request *r)
{
    if (!r->request.hands_over) FAIL(w, "a request hands over that was not to");
    r->exports = true;
    w->hand.n_promised++;
}

void hand_order_exports(world *w)
{
    for (uint32_t i = 0; i < w->hand.n_exports; i++) {
        world_export *x = &w->hand.exports[i];
        if (!x->ordered) x->after = w->copies_after;
        x->ordered = true;
    }
}

static void check_export(const world *w, const world_request *r, const sched_export *x)
{
    uint32_t n = r->request.n_prompt;
    if (x->n_tokens != n || x->image.length != n || x->tokens[n] != r->answer.tokens[0] ||
        memcmp(x->tokens, r->prompt, n * sizeof *x->tokens) != 0)
        FAIL(w, "request %llu: an export of other tokens", (unsigned long long)x->request);
    if (x->pages_dropped != r->answer.dropped[n])
        FAIL(w, "request %llu: an export dropped %llu pages", (unsigned long long)x->request,
             (unsigned long long)x->pages_dropped);
    if (!pkv_image_fits(&w->options.geometry, &x->image) ||
        x->n_cells != pkv_image_cells(&w->options.geometry, &x->image))
        FAIL(w, "request %llu: no image of a sequence", (unsigned long long)x->request);
}

/* Slots behind a table's last token may hold anything; a peer that copies whole cells gets that. */
static void read_export(world *w, const sched_export *x)
{
    world_hand *h = &w->hand;
    const world_request *r = &w->requests[x->request];
    check_export(w, r, x);
    world_record record = record_of(w, r, &x->image);
    uint8_t *bytes = record.cells = need(x->n_cells * h->cell_bytes, 1);
    for (uint32_t i = 0, n; i < x->n_cells; i += n) {
        uint32_t cells[64], size = w->options.geometry.page_tokens;
        n = sched_export_cells(w->s, x, i, 1 + rng_below(&h->random, 64), cells);
        w->b.ops->read_cells(w->b.ctx, cells, n, size, &bytes, n);
        bytes += n * h->cell_bytes;
    }
    record.tokens = need(x->n_tokens + 1, sizeof(uint32_t));
    memcpy(record.tokens, x->tokens, (x->n_tokens + 1) * sizeof(uint32_t));
    record.pages_dropped = x->pages_dropped;
    record.budget_raised = x->budget_raised;
    uint32_t at = h->n_records < RECORDS_MAX ? h->n_records++ : rng_below(&h->random, RECORDS_MAX);
    if (h->records[at].from) record_free(&h->records[at]);
    h->records[at] = record;
    w->t->exports++;
}

static void give_exports(world *w)
{
    world_hand *h = &w->hand;
    uint32_t left = 0;
    for (uint32_t i = 0; i < h->n_exports; i++) {
        world_export *x = &h->exports[i];
        if (w->turn < x->back_at || !x->ordered || w->n_collected < x->after) {
            h->exports[left++] = *x;
            continue;
        }
        if (x->export->image.tables) read_export(w, x->export);
        add_event(w, (sched_event){.kind = SCHED_EXPORTED, .exported = x->export});
    }
    h->n_exports = left;
}

/* ---- in -------------------------------------------------------------------------------------- */

static void write_load(world *w, world_taking *l)
{
    const world_record *record = &w->requests[l->request].record;
    size_t bytes = record->n_cells * w->hand.cell_bytes;
    uint8_t *garbage = l->good ? NULL : need(bytes, 1);
    if (garbage) memset(garbage, 0xbd, bytes);
    w->b.ops->write_cells(w->b.ctx, l->load->cells, l->load->n_cells,
                          garbage ? garbage : record->cells);
    free(garbage);
    l->written = true;
}

/* Gives back what a request borrowed for its load. */
static void end_borrow(world_request *r)
{
    for (uint32_t i = 0; i < r->record.n_tables; i++) {
        memset(&r->tables[i], 0xee, sizeof r->tables[i]);
        free(r->record.bases[i]);
        free(r->record.slots[i]);
        r->record.bases[i] = r->record.slots[i] = NULL;
    }
    free(r->record.tokens);
    r->record.tokens = NULL;
}

void hand_begin_load(world *w, const sched_load *load)
{
    world_hand *h = &w->hand;
    world_request *r = &w->requests[load->request];
    if (h->n_takings == TAKINGS_MAX) FAIL(w, "the test has too many prompts that are taken over");
    if (!r->record.from || r->foreign || load->n_cells != r->record.n_cells)
        FAIL(w, "request %llu: a load of another prompt", (unsigned long long)load->request);
    world_taking *l = &h->takings[h->n_takings++];
    uint32_t turns = chance_of(w, 1, 8) ? 60 : 6;
    *l = (world_taking){.load = load,
                        .request = (uint32_t)load->request,
                        .good = !chance_of(w, 1, 8),
                        .after = w->copies_after,
                        .back_at = w->turn + 1 + rng_below(&h->random, turns)};
    if (chance_of(w, 1, 2) && w->n_collected >= l->after) write_load(w, l);
    if (r->abort_at == INT64_MAX && chance_of(w, 1, 12))
        r->abort_at = w->turn + rng_below(&h->random, 12);
}

static void give_takings(world *w, uint32_t *n, uint32_t *requests)
{
    world_hand *h = &w->hand;
    uint32_t left = 0;
    for (uint32_t i = 0; i < h->n_takings; i++) {
        world_taking *l = &h->takings[i];
        world_request *r = &w->requests[l->request];
        if (w->turn < l->back_at || w->n_collected < l->after) {
            h->takings[left++] = *l;
            continue;
        }
        if (!l->written) write_load(w, l);
        end_borrow(r);
        add_event(w, (sched_event){.kind = SCHED_LOADED, .load = l->load, .n_loaded = l->good});
        w->t->taken += l->good && r->live > 0;
        w->t->takings_failed += !l->good && r->live > 0;
        w->t->takings_orphaned += r->live == 0;
        if (l->good && r->live > 0) requests[(*n)++] = l->request;
    }
    h->n_takings = left;
}

uint32_t hand_give(world *w, uint32_t *requests)
{
    uint32_t n = 0;
    give_exports(w);
    give_takings(w, &n, requests);
    return n;
}

bool some_hand(const world *w)
{
    return w->hand.n_exports + w->hand.n_takings + w->hand.n_promised > 0;
}
