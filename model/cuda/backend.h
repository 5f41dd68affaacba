/* The state of a CUDA backend, shared by its files (private to model/): create.c makes it, step.c
 * lays out a step, step_measures.c what it measures, backend_cuda.c runs it. */
#ifndef MODEL_CUDA_BACKEND_H
#define MODEL_CUDA_BACKEND_H

#include "model/cuda/far.h"
#include "model/load/tensors.h"
#include "model/measured.h"
#include "model/sampler.h"

/* Scratch of a step's moves, and where they lie on the device. */
typedef struct cuda_moves {
    uint32_t *last;      /* [cells.n] 1 + the last move of the batch that touches the page */
    gpu_move *batch;     /* [capacity] the slot moves of one launch */
    uint32_t *root, *at; /* [capacity] of each move in a batch: its chain's first move, and index */
    uint32_t *chains;    /* [capacity] how many chains each batch has */
    size_t capacity;
    const gpu_move *d_moves; /* on the device, as the next two */
    const gpu_chain *d_chains;
    const float *d_rope_shifts;
} cuda_moves;

/* Copies of pages to the host tier or back that were not sent yet (copies.c). */
typedef struct cuda_copies {
    gpu_copies list; /* arrays [CUDA_COPIES_MOST] */
    bool out;
    uint32_t call;   /* its number */
    uint32_t *to[2]; /* [cells], [host cells] the last call that has a copy to the cell */
} cuda_copies;
enum { CUDA_COPIES_MOST = 1024 };

/* A measure of a share. */
typedef struct cuda_measured {
    uint32_t share, group;
    gpu_measured of; /* but for its rows in the step */
} cuda_measured;

/* The measures of a step (step_measures.c), up to two of each share. */
typedef struct cuda_measuring {
    cuda_measure_group *groups; /* [2 max_seqs] */
    uint32_t n_groups;          /* 0: the step measures nothing */
    cuda_measured *all;         /* [2 max_seqs] share by share */
    uint32_t n_all;
    cuda_measure_memory memory;
    size_t n_values; /* floats of results that the step gives back */
    size_t n_kept;   /* floats that attention keeps */
    size_t values_capacity, scratch_capacity, kept_capacity;
    uint32_t n_moved; /* how often one of them went elsewhere */
    uint32_t n_mean_ropes;
} cuda_measuring;

typedef struct cuda_cells cuda_cells;
typedef struct cuda_graphs cuda_graphs;
typedef struct cuda_retrieve cuda_retrieve;

/* A step between submit and collect, and its result. */
typedef struct cuda_flight {
    const step_plan *plan;
    bool started;  /* submit launched all of it: only its results are awaited */
    bool defers;   /* collect computes it, because its logits go through the host */
    bool ahead;    /* some of its tokens are those that the step before it draws */
    status status; /* the outcome of submit */
    cuda_batch batch;
    int64_t start_us;
    step_result result;
    step_seq_result *seq_results; /* [max_seqs] */
    step_sample *samples;         /* [step_most_draws] */
    sampler_draw *draws;          /* [step_most_draws] */
    uint32_t n_draws;
    uint32_t *rows; /* [max_seqs] the share of each row that is drawn from */
    uint32_t n_rows;
    gpu_drawn *host;    /* [step_most_draws] pinned */
    uint32_t *drawn_at; /* [max_seqs] where host has the first draw of each share */
    measured measured;  /* pinned: results of measures */
} cuda_flight;

enum { CUDA_FLIGHTS = 2 };

/* Device memory for draws with limits over ranks, head_rows of them at once: [head_rows] of this
 * rank and [ranks, head_rows] gathered from all. */
typedef struct cuda_limits {
    gpu_opening *openings, *all_openings;
    gpu_bins *bins, *all_bins;
    gpu_search *searches; /* [head_rows] */
} cuda_limits;

typedef struct backend_cuda {
    model_config config;
    model_config local; /* config with this rank's heads and ffn */
    tensor_slice slice;
    backend_info info;
    backend_facts facts;
    cuda_device device;
    comm *meeting;     /* this rank's own, where ranks in threads have a GPU each; or NULL */
    char trouble[320]; /* the message of the last result that failed by the device */
    bool invariant;    /* a sequence is computed the same way in every batch */
    char narrow[160];  /* backend_facts.narrow */
    thread_pool *pool;
    cuda_weights weights;
    gpu_pages pages;
    pkv_cells cells, host_cells; /* of the pool and the host tier: those stored here */
    uint64_t pool_bytes, weight_bytes;
    uint8_t *host;       /* [host_cells.n, page_bytes] pinned: the host tier */
    cuda_window *window; /* NULL: the whole pool is on the device */
    cuda_far *far;       /* with a window */
    cuda_cells *beside;  /* copies of cells; NULL with a window */
    pkv_mirror *mirror;
    cuda_tables tables;
    cuda_forward *forward;
    cuda_graphs *graphs;
    bool one_by_one;         /* no step is replayed as a graph (backend_cuda_trace) */
    cuda_retrieve *retrieve; /* NULL without retrieval */
    sampler *sampler;

    _Atomic bool interrupted;
    cuda_flight flights[CUDA_FLIGHTS];
    uint32_t first, n_in_flight; /* flights[first] is the oldest */
    int64_t collected_us;        /* when the last flight was collected */
    /* The step that is being laid out: its flight, and that flight's plan and results. */
    cuda_flight *flight;
    const step_plan *plan;
    step_seq_result *seq_results;
    gpu_seq *seqs;        /* [max_seqs] the host's copy of the device's */
    uint32_t *logit_rows; /* [max_rows + max_seqs] */
    cuda_moves moves;
    cuda_copies copies;
    cuda_pack step;    /* arrays that go to the device: their sizes are the same on all ranks */
    cuda_pack changes; /* patches of tables and moves: a rank has those of its own heads */
    cuda_pack moved;   /* moves of a pool with a window */
    cuda_measuring measuring;
    bool has_sums;       /* a plan has asked for running sums; until then all are 0 */
    float *host_sums;    /* running sums of the host tier's cells, pinned */
    step_sample *scores; /* scores and novelty of the last step that had any */
    float *novelty;
    size_t scores_capacity, novelty_capacity;
    float *pooled;      /* [shares that pool, hidden] of the last step that had any */
    double *pooled_sum; /* [hidden] */
    size_t pooled_capacity;
    /* Rows of logits that there is room for. The head's product and draws take as many at a time.
     */
    uint32_t head_rows;
    gpu_drawn *drawn; /* [CUDA_FLIGHTS, step_most_draws] on the device: each flight's results */
    /* [head_rows, vocab, the ranks' padding included] on the device; also the parts of rows until
     * they are joined. */
    float *draw_scratch;
    float *joined;              /* [head_rows, vocab], of ranks */
    gpu_part *parts, *gathered; /* [step_most_draws] and [ranks, step_most_draws], of ranks */
    cuda_limits limits;         /* of ranks */
    cuda_pack logits;           /* row numbers go in, logits come back */
    cuda_pack draws;            /* draws, and what belongs to them */
} backend_cuda;

static inline gpu_grain cuda_grain(pkv_grain grain)
{
    if (grain == PKV_ALL) return GPU_GRAIN_ALL;
    return grain == PKV_LAYER ? GPU_GRAIN_LAYER : GPU_GRAIN_HEAD;
}

/* ---- create.c -------------------------------------------------------------------------------- */

/* Make the parts of a backend on its device: first all but the pages, then the pages.
 * options.common.group says which rank this is and how many there are; b->device.group is the comm
 * that is called, or NULL when ranks are only counted. */
typedef status cuda_load(backend_cuda *b, const backend_options *o, error *err);
status cuda_make_parts(backend_cuda *b, const backend_cuda_options *options, cuda_load *load,
                       error *err);
/* Makes the pool, the host tier and their running sums. */
status cuda_make_pages(backend_cuda *b, const backend_options *o, error *err);
/* Bytes of the running sums beside a cell. */
size_t cuda_sums_of_page(const backend_cuda *b);
/* Loads to the device the weights in host memory; measuring passes their shapes alone. */
status cuda_send_weights(backend_cuda *b, const model_weights *w, error *err);

/* ---- narrow.c -------------------------------------------------------------------------------- */

/* Lets the device multiply e4m3 weights by e4m3 activations where the options do, and says in
 * b->narrow what becomes of them. Called when the weights are on the device. */
void cuda_narrow(backend_cuda *b, const backend_options *o);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* Sends everything that the step reads in one copy, then brings tables and pages up to date. Rows
 * are sent only if the step `computes`. */
status cuda_send(backend_cuda *b, const step_plan *plan, bool computes, cuda_batch *batch);
/* Whether so many rows of a sequence are cut by parts of their table, not by rows. */
bool cuda_goes_by_parts(const backend_cuda *b, uint32_t n_rows);

/* ---- step_measures.c ------------------------------------------------------------------------- */

status cuda_measuring_create(cuda_measuring *m, uint32_t max_seqs);
void cuda_measuring_destroy(backend_cuda *b);
/* Clears seq_results and lists what the step measures, group by group. A batch with too many groups
 * does not repeat. */
void cuda_measures_plan(backend_cuda *b, const step_plan *plan, cuda_batch *batch);
/* The order of groups by what their calls measure; 0 where one call may be made for both. */
int cuda_compare_groups(const cuda_measure_group *a, const cuda_measure_group *b);
size_t cuda_measures_bytes(const backend_cuda *b, const cuda_batch *batch); /* in the step's pack */
/* Packs what was listed, after the rows. */
void cuda_measures_pack(backend_cuda *b, const step_plan *plan, const cuda_batch *batch);
/* Makes room for what the step measures, and gives the results their values. */
status cuda_measures_reserve(backend_cuda *b, const step_plan *plan);
/* Sets what the batch measures, after cuda_measures_reserve. */
void cuda_measures_join(backend_cuda *b, cuda_batch *batch);
/* Copies what the step's layers have measured to the host, all at once. */
status cuda_fetch_measures(backend_cuda *b);

/* ---- sums.c ---------------------------------------------------------------------------------- */

/* Makes room for the running sums of the pool and the host tier, which exist already. */
status cuda_sums_create(backend_cuda *b);
void cuda_sums_destroy(backend_cuda *b);
/* Adds a copy of the running sums of n consecutive cells, when these are copied to the host tier
 * (`out`) or from it, to those of copies.c. */
status cuda_sums_copy(backend_cuda *b, bool out, uint32_t cell, uint32_t host_cell, uint32_t n);

/* ---- scores.c -------------------------------------------------------------------------------- */

/* Sets the results' scores and novelty after the forward pass; valid until the next step. */
status cuda_scores(backend_cuda *b, const step_plan *plan);

/* ---- pooled.c -------------------------------------------------------------------------------- */

/* Sets the results' pooled hidden states after the forward pass; valid until the next step. */
status cuda_pooled(backend_cuda *b, const step_plan *plan);

/* ---- graphs.c -------------------------------------------------------------------------------- */

/* The line that says that captures fail is logged once. */
status cuda_graphs_create(cuda_device *d, const backend_options *o, cuda_graphs **out);
void cuda_graphs_destroy(cuda_graphs *all);
/* Rounds n up to one of few numbers, so that steps share shapes: at most `steps` of these lie
 * between two powers of two. */
enum { CUDA_SHAPE_STEPS = 4 };
uint32_t cuda_graphs_round(uint32_t n, uint32_t steps);
/* cuda_forward_run, replayed as a graph where the batch repeats and its shape was seen before. */
status cuda_graphs_run(cuda_graphs *all, cuda_forward *f, const cuda_batch *batch,
                       const _Atomic bool *interrupted);

/* ---- draws.c --------------------------------------------------------------------------------- */

/* Lists the flight's draws, in the order of its rows, and sends the device what they need. Where
 * all rows of the step decode and nothing of it goes through the host, they become part of the
 * batch's launches, and of its graph. */
status cuda_draws_send(backend_cuda *b);
/* Makes the flight's draws, unless the batch's launches have made them. Results are copied to
 * the flight's host memory without waiting, where all ranks' comm is on the device. */
status cuda_draw(backend_cuda *b);
/* Makes room in the pack for n draws without edits and masks. A pack that grows moves, and then
 * graphs are captured anew. */
status cuda_draws_reserve(backend_cuda *b, uint32_t n);
/* Lists the flight's draws from rows of logits on the host. */
void cuda_list_draws(backend_cuda *b, const float *row);
/* Called when the draws have arrived: puts them into results and histories. */
void cuda_drawn(backend_cuda *b, cuda_flight *f);
/* 0, or 1 + where `drawn` has the earlier step's draw that becomes the share's token. */
uint32_t cuda_draw_before(const backend_cuda *b, const step_seq *share);

/* ---- limits.c -------------------------------------------------------------------------------- */

/* Bytes of cuda_limits for one row. */
size_t cuda_limits_bytes(size_t ranks);
status cuda_limits_create(backend_cuda *b, size_t ranks);
void cuda_limits_destroy(backend_cuda *b);
/* Sets what this rank draws, in the parts of the job's draws with limits, behind draw_parts. kinds
 * are those of the whole step's draws. Waits where the comm is on the host. */
status cuda_limits_draw(backend_cuda *b, const gpu_sampling *job, uint32_t kinds, gpu_part *parts);

/* ---- moves.c --------------------------------------------------------------------------------- */

size_t cuda_moves_bytes(const backend_cuda *b, const pkv_deltas *d); /* bytes in the step's pack */
status cuda_moves_pack(backend_cuda *b, const pkv_deltas *d);
/* Executes the moves in plan order, after the pack was sent, but copies of pages that follow one
 * another and go one way in any order. */
status cuda_moves_apply(backend_cuda *b, const pkv_deltas *d);
void cuda_moves_destroy(cuda_moves *m);
/* Refuses a page copy or a move of slots with numbers outside the pool or the host tier. */
status cuda_moves_check(const backend_cuda *b, const pkv_move *m);
/* Announces copies to n consecutive cells of the host tier (`out`) or of the pool, at most
 * CUDA_COPIES_OF_CELLS. If one that was added before goes to one of these cells, the copies so far
 * are sent first: a call makes its copies in any order, and a page that comes free in a step may be
 * written again in it. */
status cuda_copies_begin(backend_cuda *b, bool out, uint32_t cell, uint32_t n);
enum { CUDA_COPIES_OF_CELLS = 3 }; /* K and V, running sums, marks */
/* Adds a copy between the device, `here`, and the host, `there`. Copies one way go together, up to
 * CUDA_COPIES_MOST; `send` sends those that are left, `drop` forgets them. */
status cuda_copies_add(backend_cuda *b, bool out, void *here, void *there, size_t bytes);
status cuda_copies_send(backend_cuda *b);
void cuda_copies_drop(backend_cuda *b);
void cuda_copies_destroy(backend_cuda *b);
/* Sets cos_sin [head_dim] to the rotation by `by` positions, backwards when negative. */
void cuda_moves_rope_shift(const backend_cuda *b, int32_t by, float *cos_sin);
/* Makes room for batches of n moves between pages with numbers below n_pages. */
bool cuda_moves_reserve(cuda_moves *m, size_t n_pages, size_t n);
/* Writes the first n moves of m->batch chain by chain from moves[first] on; at least the cells of
 * both ends of a move are a chain's own. Returns the number of chains. */
uint32_t cuda_moves_sort(cuda_moves *m, uint32_t n, uint32_t first, gpu_move *moves,
                         gpu_chain *chains);

/* ---- window_moves.c -------------------------------------------------------------------------- */

/* Executes the moves of a pool with a window in plan order, and waits for those that touch pages in
 * host memory. */
status cuda_window_moves(backend_cuda *b, const pkv_deltas *d);

/* ---- cells.c --------------------------------------------------------------------------------- */

/* Sets b->beside, after the pages are made. What copies take is made with the first ones. */
status cuda_cells_create(backend_cuda *b, uint32_t ordinal);
void cuda_cells_destroy(backend_cuda *b);
/* backend_info.block_bytes */
size_t cuda_block_bytes(const backend_cuda *b);
/* The CPU's format of the same elements; KERN_KV_FORMATS where it has none. */
kern_kv_format cuda_cpu_format(gpu_kv_format f);
/* backend_ops.read_cells and write_cells, over a pool without a window. */
bool cuda_read_cells(void *ctx, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                     uint8_t *const *to, uint32_t each);
bool cuda_write_cells(void *ctx, const uint32_t *cells, uint32_t n, const uint8_t *from);

/* ---- backend_cuda.c -------------------------------------------------------------------------- */

extern const backend_ops cuda_ops;

#endif
