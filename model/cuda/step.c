/* The arrays that a step reads on the device: rows and tiles of attention. */
#include "model/cuda/backend.h"
#include "model/plan.h"

#include <assert.h>
#include <string.h>

/* ---- a step's arrays ------------------------------------------------------------------------- */

/* Whether the step can run as a graph: its rows are then padded, and its tiles up to the most that
 * so many sequences can have, so that their number alone is a step's shape. Only steps that decode
 * alone qualify. Sums of ranks that meet on the host and the copies of a window happen between
 * launches: neither is captured. Moves, patches and what measures and draws copy to the host lie
 * outside the captured part. */
static bool only_decodes(const backend_cuda *b, const step_plan *plan)
{
    bool one = plan->n_seqs > 0 && cuda_meets_here(&b->device) && !b->window;
    for (uint32_t i = 0; one && i < plan->n_seqs; i++) one = plan->seqs[i].n_tokens == 1;
    return one;
}

/* A step whose rows read by retrieval has launches of its own too, but its rows are rounded all the
 * same: what it computes has the bits of a step that reads everything. */
static bool retrieves(const step_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        if (plan->seqs[i].retrieval.block_tokens) return true;
    return false;
}

static cuda_batch shape_of(const backend_cuda *b, const step_plan *plan)
{
    cuda_batch batch = {.n_rows = plan->n_tokens,
                        .n_seqs = plan->n_seqs,
                        .tables = b->tables.device,
                        .window = b->window,
                        .prefill_rows =
                            gpu_prefill_rows(b->device.facts.compute, b->pages.head_dim),
                        .rounds = only_decodes(b, plan)};
    batch.repeats = batch.rounds && !retrieves(plan);
    if (!batch.rounds) return batch;
    uint32_t n = cuda_graphs_round(plan->n_seqs, CUDA_SHAPE_STEPS);
    batch.n_rows = batch.n_seqs = n < b->info.max_rows ? n : b->info.max_rows;
    return batch;
}

/* An upper bound of the step's arrays, with the alignment of each. It follows from the plan alone:
 * ranks agree on which shapes came before (cuda_graphs_run). */
static size_t pack_bytes(const backend_cuda *b, const cuda_batch *batch)
{
    size_t rows = batch->n_rows, seqs = batch->n_seqs, groups = b->tables.counts[PKV_HEAD];
    size_t q_heads = b->local.n_heads / b->local.n_kv_heads;
    size_t prefill = rows * q_heads / GPU_PREFILL_ROWS + seqs + cuda_forward_most_cut(b->forward);
    return 4 * rows * sizeof(uint32_t) + seqs * sizeof(gpu_seq) + cuda_measures_bytes(b, batch) +
           (seqs * groups + rows + seqs) * sizeof(uint32_t) +
           (cuda_forward_tiles(b->forward, batch->n_seqs) + prefill) * sizeof(gpu_tile) + 16 * 64;
}

/* A step's row arrays, to be filled in. */
typedef struct row_arrays {
    uint32_t *tokens, *draws, *positions, *row_seqs;
    gpu_seq *seqs;
} row_arrays;

static row_arrays take_rows(backend_cuda *b, cuda_batch *batch)
{
    size_t n = batch->n_rows;
    row_arrays a;
    a.tokens = cuda_pack_take(&b->step, n * sizeof *a.tokens, &batch->tokens);
    a.draws = cuda_pack_take(&b->step, n * sizeof *a.draws, &batch->draws);
    a.positions = cuda_pack_take(&b->step, n * sizeof *a.positions, &batch->positions);
    a.row_seqs = cuda_pack_take(&b->step, n * sizeof *a.row_seqs, &batch->row_seqs);
    a.seqs = cuda_pack_take(&b->step, batch->n_seqs * sizeof *a.seqs, &batch->seqs);
    return a;
}

/* Makes each padding row, from `first` on, a sequence of one token in cell 0, which is spare: its
 * tables are those of the finest grain, so that no other cell is written. All have the lengths from
 * index `lengths` on. */
static void pad_rows(const backend_cuda *b, uint32_t first, uint32_t lengths,
                     const cuda_batch *batch, row_arrays *a)
{
    for (uint32_t i = first; i < batch->n_seqs; i++) {
        a->tokens[i] = UINT32_MAX;
        a->draws[i] = a->positions[i] = 0;
        a->row_seqs[i] = i;
        a->seqs[i] = (gpu_seq){b->tables.max_seqs, i, 1, lengths, GPU_GRAIN_HEAD};
    }
}

/* Returns the number of lengths of the plan's sequences, which are packed later. */
static uint32_t pack_rows(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    uint32_t lengths = 0;
    row_arrays a = take_rows(b, batch);
    /* Tokens outside this rank's part of the vocabulary become UINT32_MAX, which gives zeros. */
    for (size_t i = 0; i < plan->n_tokens; i++) {
        a.tokens[i] = plan->tokens[i] - b->slice.first_token;
        if (a.tokens[i] >= b->slice.n_tokens) a.tokens[i] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const step_seq *s = &plan->seqs[i];
        pkv_grain grain = pkv_mirror_grain(b->mirror, s->seq);
        a.seqs[i] = b->seqs[i] = b->window
                                     ? cuda_window_seq(b->window, i, s)
                                     : (gpu_seq){b->tables.places[s->seq].first, s->first_token,
                                                 s->n_tokens, lengths, cuda_grain(grain)};
        lengths += b->tables.counts[grain];
        for (uint32_t j = 0; j < s->n_tokens; j++) {
            a.draws[s->first_token + j] = cuda_draw_before(b, s);
            a.positions[s->first_token + j] = s->position + j;
            a.row_seqs[s->first_token + j] = i;
        }
    }
    pad_rows(b, plan->n_seqs, lengths, batch, &a);
    return lengths;
}

/* Packs the n lengths of the plan's sequences, and those of padding rows. They come after the other
 * arrays of a repeated step: their number changes with the grains of the sequences, and graphs need
 * arrays at the same places. */
static void pack_lengths(backend_cuda *b, const step_plan *plan, uint32_t n, cuda_batch *batch)
{
    const cuda_tables *t = &b->tables;
    uint32_t n_padding = batch->n_seqs > plan->n_seqs ? t->counts[PKV_HEAD] : 0;
    uint32_t *at = cuda_pack_take(&b->step, ((size_t)n + n_padding) * sizeof *at, &batch->lengths);
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        uint32_t seq = plan->seqs[i].seq;
        pkv_grain grain = pkv_mirror_grain(b->mirror, seq);
        for (uint32_t table = 0; table < t->counts[grain]; table++)
            *at++ = cuda_tables_view(t, b->mirror, seq, grain, table).kept_tokens;
    }
    for (uint32_t i = 0; i < n_padding; i++) *at++ = 1;
}

/* ---- attention's tiles ----------------------------------------------------------------------- */

/* How a step's attention is cut into tiles: slots of a decode tile, and of a prefill tile. */
typedef struct tiling {
    uint32_t q_heads, prefill_rows, part, cut, longest;
    gpu_tile *decode, *prefill;
} tiling;

/* The rows of a sequence in the step, and its longest table. */
typedef struct item {
    uint32_t seq, n_tokens, length;
} item;

bool cuda_goes_by_parts(const backend_cuda *b, uint32_t n_rows)
{
    return !b->invariant && n_rows * (b->local.n_heads / b->local.n_kv_heads) <= GPU_DECODE_ROWS;
}

/* The i-th sequence of the batch: behind the plan's, those of padding rows. */
static item item_of(const backend_cuda *b, const step_plan *plan, uint32_t i)
{
    if (i >= plan->n_seqs) return (item){i, 1, 1};
    const step_seq *s = &plan->seqs[i];
    return (item){i, s->n_tokens, plan_longest_table(b->mirror, s->seq, true)};
}

/* The slots that the prefill tile from a packed row on sees, up to its last row. */
static uint32_t slots_to(const tiling *t, const item *it, uint32_t row)
{
    uint32_t packed = it->n_tokens * t->q_heads;
    uint32_t end = row + t->prefill_rows < packed ? row + t->prefill_rows : packed;
    return it->length - it->n_tokens + (end - 1) / t->q_heads + 1;
}

/* Parts depend on the step's other sequences: with --batch-invariant no prefill tile has any. */
static tiling plan_tiles(const backend_cuda *b, const step_plan *plan, const cuda_batch *batch)
{
    tiling t = {.q_heads = b->local.n_heads / b->local.n_kv_heads,
                .prefill_rows = batch->prefill_rows,
                .cut = UINT32_MAX};
    uint64_t slots = 0, seen = 0;
    uint32_t furthest = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        item it = item_of(b, plan, i);
        bool by_parts = cuda_goes_by_parts(b, it.n_tokens);
        if (by_parts && i < plan->n_seqs) {
            slots += it.length;
            if (it.length > t.longest) t.longest = it.length;
        }
        for (uint32_t r = 0; !by_parts && r < it.n_tokens * t.q_heads; r += t.prefill_rows) {
            uint32_t n = slots_to(&t, &it, r);
            seen += n;
            if (n > furthest) furthest = n;
        }
    }
    t.part = cuda_forward_part(b->forward, slots, t.longest);
    if (!b->invariant) t.cut = cuda_forward_cut(b->forward, seen, furthest);
    return t;
}

static uint32_t ceil_div(uint32_t n, uint32_t by) { return n / by + (n % by != 0); }

static void add_decode(const tiling *t, const item *it, cuda_batch *batch)
{
    uint32_t parts = ceil_div(it->length, t->part), first = batch->n_decode;
    for (uint32_t p = 0; p < parts; p++)
        t->decode[batch->n_decode++] =
            (gpu_tile){it->seq, 0, p * t->part, (p + 1) * t->part, parts, first};
}

/* Adds those prefill tiles of a sequence that are cut, or those that are whole. */
static void add_prefill(const tiling *t, const item *it, bool cut, cuda_batch *batch)
{
    for (uint32_t r = 0; r < it->n_tokens * t->q_heads; r += t->prefill_rows) {
        uint32_t parts = ceil_div(slots_to(t, it, r), t->cut), first = batch->n_prefill;
        if ((parts > 1) != cut) continue;
        for (uint32_t p = 0; p < parts; p++)
            t->prefill[batch->n_prefill++] =
                (gpu_tile){it->seq, r, p * t->cut, (p + 1) * t->cut, parts, first};
    }
}

/* Room for all prefill tiles: rows by tiles, and more of those that are cut, which a step that
 * repeats always has. */
static uint32_t room_for_prefill(const backend_cuda *b, const tiling *t, const step_plan *plan,
                                 const cuda_batch *batch)
{
    bool may_cut = batch->repeats ? !b->invariant : t->cut != UINT32_MAX;
    uint32_t n = may_cut ? cuda_forward_most_cut(b->forward) : 0;
    if (batch->repeats && cuda_goes_by_parts(b, 1)) return 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        item it = item_of(b, plan, i);
        if (!cuda_goes_by_parts(b, it.n_tokens))
            n += ceil_div(it.n_tokens * t->q_heads, t->prefill_rows);
    }
    return n;
}

/* Fills up the tiles of a step that repeats to the most that so many sequences can have: unused
 * tiles, which end at once. Then all may be parts, and are merged. */
static void pad_tiles(const backend_cuda *b, const tiling *t, uint32_t most, uint32_t room,
                      cuda_batch *batch)
{
    while (batch->n_decode > 0 && batch->n_decode < most)
        t->decode[batch->n_decode++] = (gpu_tile){0};
    while (batch->n_prefill < room) t->prefill[batch->n_prefill++] = (gpu_tile){0};
    batch->whole = false;
    batch->n_cut = room == 0 || b->invariant ? 0 : cuda_forward_most_cut(b->forward);
}

static void pack_tiles(backend_cuda *b, const step_plan *plan, cuda_batch *batch)
{
    tiling t = plan_tiles(b, plan, batch);
    uint32_t most = cuda_forward_tiles(b->forward, batch->n_seqs);
    uint32_t room = room_for_prefill(b, &t, plan, batch);
    batch->whole = t.longest <= t.part;
    t.decode = cuda_pack_take(&b->step, most * sizeof *t.decode, &batch->decode);
    t.prefill = cuda_pack_take(&b->step, room * sizeof *t.prefill, &batch->prefill);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < batch->n_seqs; i++) {
            item it = item_of(b, plan, i);
            bool by_parts = cuda_goes_by_parts(b, it.n_tokens);
            if (!by_parts) add_prefill(&t, &it, pass == 0, batch);
            else if (pass == 0) add_decode(&t, &it, batch);
        }
        if (pass == 0) batch->n_cut = batch->n_prefill;
    }
    assert(batch->n_decode <= most && batch->n_prefill <= room);
    assert(batch->n_cut <= cuda_forward_most_cut(b->forward));
    if (batch->repeats) pad_tiles(b, &t, most, room, batch);
}

/* Sends the tables' patches and the moves, and executes both. */
static status send_changes(backend_cuda *b, const pkv_deltas *deltas)
{
    cuda_device *d = &b->device;
    const gpu_patch *d_patches;
    const uint32_t *d_values;
    size_t n = b->tables.n_patches, n_values = b->tables.n_values;
    size_t bytes = n * sizeof *d_patches + n_values * sizeof *d_values;
    if (n == 0 && deltas->n_moves == 0) return STATUS_IS_OK;
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->changes, bytes + cuda_moves_bytes(b, deltas) + 4 * 64));
    gpu_patch *patches = cuda_pack_take(&b->changes, n * sizeof *patches, &d_patches);
    uint32_t *values = cuda_pack_take(&b->changes, n_values * sizeof *values, &d_values);
    if (n) {
        memcpy(patches, b->tables.patches, n * sizeof *patches);
        memcpy(values, b->tables.values, n_values * sizeof *values);
    }
    status moves = cuda_moves_pack(b, deltas);
    RETURN_IF_ERROR(cuda_pack_send(d, &b->changes));
    RETURN_IF_GPU_ERROR(
        d->api->patch(d->g, b->tables.device.pages, d_patches, (uint32_t)n, d_values));
    RETURN_IF_ERROR(moves);
    return cuda_moves_apply(b, deltas);
}

status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch)
{
    cuda_device *d = &b->device;
    RETURN_IF_ERROR(send_changes(b, &plan->deltas));
    if (!computes) {
        *batch = (cuda_batch){0};
        return STATUS_IS_OK;
    }
    *batch = shape_of(b, plan);
    cuda_measures_plan(b, plan, batch);
    RETURN_IF_ERROR(cuda_pack_begin(d, &b->step, pack_bytes(b, batch)));
    uint32_t n_lengths = pack_rows(b, plan, batch);
    pack_tiles(b, plan, batch);
    cuda_measures_pack(b, plan, batch);
    pack_lengths(b, plan, n_lengths, batch);
    batch->moved = b->step.n_moved + b->tables.n_moved;
    return cuda_pack_send(d, &b->step);
}
