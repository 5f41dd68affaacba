/* The CUDA backend's parts (private to model/). All of them call one gpu through the plugin's table
 * of functions (kernels/cuda/cuda_kernels.h), which tests replace.
 *
 * Threads  one, which calls the backend.
 * Errors   a gpu_status becomes a status of a fixed text, to which the backend adds gpu->why in its
 *          result. A lost device is STATUS_INTERNAL: the backend can only be destroyed. */
#ifndef MODEL_CUDA_CUDA_H
#define MODEL_CUDA_CUDA_H

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_sums.h"
#include "model/load/weights.h"
#include "model/model.h"
#include "paged_kv/log.h"

/* Arrays that go to the device in one copy, laid out alike in pinned host memory and there. */
typedef struct cuda_pack {
    uint8_t *host, *device;
    size_t size, capacity;
    uint32_t n_moved; /* how often its memory was replaced */
    /* For packs of steps that are laid out while another is in flight: packs alternate between two
     * host memories, because the one before may not have been copied yet. */
    bool is_double;
    uint8_t *other;
} cuda_pack;

typedef struct cuda_peers cuda_peers;

typedef struct cuda_device {
    const gpu_api *api;
    gpu *g;
    bool borrowed; /* the caller closes g */
    gpu_facts facts;
    uint64_t allocated; /* bytes on the device */
    comm *group;        /* borrowed; NULL while there is no other rank to meet */
    comm *threads; /* borrowed: another comm of the same ranks, whose end is this one's; or NULL */
    cuda_pack stage;   /* stages what ranks exchange through the host */
    cuda_peers *peers; /* NULL: the comm adds up */
    char sums[224];    /* who adds up, and why, for a log; empty unless ranks meet on devices */
} cuda_device;

status cuda_status(gpu_status s);
#define RETURN_IF_GPU_ERROR(expr)                                                                  \
    do {                                                                                           \
        gpu_status gpu_status_ = (expr);                                                           \
        if (gpu_status_ != GPU_OK) return cuda_status(gpu_status_);                                \
    } while (0)

status cuda_alloc(cuda_device *d, size_t bytes, void *out); /* out: any pointer's address */

/* Waits for the stream; fails when the group of ranks was aborted. */
status cuda_wait(cuda_device *d);
/* Waits as cuda_wait does, but only for what is before the stream's last note of that number. */
status cuda_await(cuda_device *d, uint32_t number);

/* ---- ranks.c --------------------------------------------------------------------------------- */

static inline bool cuda_is_alone(const cuda_device *d)
{
    return !d->group || comm_size(d->group) == 1;
}

/* Whether ranks meet on the stream, if there are several: nothing of a step passes the host. */
static inline bool cuda_meets_here(const cuda_device *d)
{
    return cuda_is_alone(d) || comm_on_device(d->group);
}

/* Makes x [n] on the device the sum over all ranks. */
status cuda_sum(cuda_device *d, float *x, size_t n);
/* Sets *all to x of all ranks, [ranks, n] on the host, valid until the next such call. Waits. */
status cuda_gather(cuda_device *d, const float *x, size_t n, const float **all);
/* Sets out [ranks, n] on the device to x of all ranks. Waits where the comm is on the host. */
status cuda_gather_here(cuda_device *d, const float *x, size_t n, float *out);
/* Joins the ranks' parts [n, slice] of n rows of logits to out [n, vocab]. Where the ranks do not
 * divide the vocabulary, the parts' tail is dropped. Waits. */
status cuda_join_logits(cuda_device *d, const float *part, uint32_t n, size_t slice, size_t vocab,
                        float *out);
/* Sets *n to the smallest of all ranks' numbers. Waits. */
status cuda_smallest(cuda_device *d, uint32_t *n);

/* ---- peers.c --------------------------------------------------------------------------------- */

/* Sets d->peers where the ranks meet on their devices, and all of these reach each other or the
 * results must not depend on the number of rows. Waits. */
status cuda_peers_create(cuda_device *d, bool invariant);
/* After all work of this rank has ended, and of all ranks of this process. Waits two seconds at
 * most until ranks of other processes have come here too, because their kernels may still read this
 * rank's memory. */
void cuda_peers_destroy(cuda_device *d);
/* Memory that it takes on the device; 0 for one rank, and for too many unless `invariant`. */
size_t cuda_peers_bytes(uint32_t n_ranks, bool invariant);
/* Ends waits of kernels for other ranks, whose results are then wrong. Any thread. */
void cuda_peers_stop(const cuda_device *d);
/* Whether [m, dims] is added up by kernels, with the norms that follow; else cuda_sum does it. */
bool cuda_peers_take(const cuda_device *d, size_t m, size_t dims, gpu_type type);
status cuda_peers_sum(const cuda_device *d, gpu_sums s); /* sets s.meeting */
/* Whether kernels gather so many bytes of each rank; else the comm does. */
bool cuda_peers_exchanges(const cuda_device *d, size_t bytes);
/* Sets out [ranks, bytes] to `in` of all ranks. */
status cuda_peers_exchange(const cuda_device *d, const void *in, size_t bytes, void *out);
/* Whether cuda_sum must not leave sums to the comm, whose order of addition is its own. It calls
 * cuda_peers_sum_gathered then: all ranks' x [n] are gathered, and added up in rank order. Neither
 * is for sums that cuda_peers_take takes. */
bool cuda_peers_gather(const cuda_device *d);
status cuda_peers_sum_gathered(const cuda_device *d, float *x, size_t n);

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct cuda_layer {
    float *attn_norm, *qkv_bias, *q_norm, *k_norm, *ffn_norm, *attn_post_norm, *ffn_post_norm;
    gpu_matrix qkv, o, gate_up, down;
    /* A sparse layer has these too; its gate_up and down are the shared expert's, if it has one. */
    gpu_matrix router, shared_switch;
    gpu_matrix experts_up, experts_down; /* the first expert's; the others follow */
} cuda_layer;

typedef struct cuda_weights {
    gpu_matrix embed, head;
    float *norm;
    float embed_scale;
    cuda_layer *layers;
    uint32_t n_layers;
    void **blocks; /* everything on the device */
    size_t n_blocks;
} cuda_weights;

/* The options to load a model's weights by, for a rank's device: those of the CPU, except that
 * matrices which the checkpoint stores as e4m3 stay e4m3. */
weights_options cuda_weights_wanted(const backend_options *o, const model_config *config);
/* Copies weights packed for the CPU and unpacks them on the device. w may be destroyed after it. */
status cuda_weights_load(cuda_device *d, const model_weights *w, const model_config *c,
                         cuda_weights *out, error *err);
void cuda_weights_destroy(cuda_device *d, cuda_weights *w);

/* ---- a step's arrays ------------------------------------------------------------------------- */

/* Empties the pack and makes room for this many bytes. */
status cuda_pack_begin(cuda_device *d, cuda_pack *p, size_t bytes);
/* Takes `bytes` of the pack in host memory; *device is where they will be after cuda_pack_send. */
void *cuda_pack_take(cuda_pack *p, size_t bytes, void *device);
status cuda_pack_send(cuda_device *d, cuda_pack *p);
void cuda_pack_destroy(cuda_device *d, cuda_pack *p);

/* ---- tables ---------------------------------------------------------------------------------- */

/* The page tables on the device, each sequence's at its own grain, and how many first pages of each
 * have been sent. A sequence with one table always has room for it; the room of finer ones grows
 * with the number of sequences that have them at once. */
typedef struct cuda_tables {
    gpu_tables device;
    pkv_geometry geometry;
    uint32_t counts[PKV_HEAD + 1]; /* tables here of a sequence of each grain */
    uint32_t first_cell; /* of those stored here: tables of cells hold numbers from there on */
    uint32_t max_seqs;   /* tables from there on are those of padding rows, of page 0 */
    struct cuda_place {
        uint32_t first; /* table */
        pkv_grain grain;
    } * places;                    /* [max_seqs] */
    uint32_t *spare[PKV_HEAD + 1]; /* [max_seqs] first tables of places that no sequence has */
    uint32_t n_spare[PKV_HEAD + 1];
    uint32_t n_placed, capacity; /* tables that have places, and that there is memory for */
    uint32_t *sent;              /* [capacity] */
    uint8_t *touched;            /* [max_seqs] this step's words changed the sequence */
    gpu_patch *patches;
    uint32_t *values;
    size_t n_patches, n_values, patches_capacity, values_capacity;
    uint32_t n_moved; /* how often the tables went to other memory */
} cuda_tables;

/* A rank with these heads. The caller sets first_cell once there is a pool. */
status cuda_tables_create(cuda_device *d, const pkv_geometry *geometry, const tensor_slice *slice,
                          uint32_t max_seqs, uint32_t row, cuda_tables *out);
void cuda_tables_destroy(cuda_device *d, cuda_tables *t);
/* Whether this rank has heads of a KV group. */
bool cuda_tables_has(const cuda_tables *t, uint32_t group);
/* A table of a sequence of this grain, of those that are here. */
pkv_table_view cuda_tables_view(const cuda_tables *t, const pkv_mirror *mirror, uint32_t seq,
                                pkv_grain grain, uint32_t table);
/* Makes patches and values of the delta words' changes; the mirror has applied the words. May move
 * all tables to other memory, once steps in flight have ended. */
status cuda_tables_update(cuda_device *d, cuda_tables *t, const pkv_mirror *mirror,
                          const uint32_t *words, size_t n_words);

/* ---- the forward pass ------------------------------------------------------------------------ */

typedef struct cuda_forward_options {
    cuda_device *device;
    const model_config *config; /* heads and ffn are this rank's */
    const cuda_weights *weights;
    const gpu_pages *pages; /* borrowed; their memory may be set later */
    pkv_geometry geometry;
    uint32_t first_kv_head; /* counted in the whole model */
    uint32_t max_rows, max_seqs;
    uint32_t head_rows;     /* of logits at once: CUDA_HEAD_ROWS_LEAST or more, a multiple of 8 */
    uint32_t first_token;   /* of this rank's part of the vocabulary */
    const gpu_drawn *drawn; /* the results that cuda_batch.draws counts */
} cuda_forward_options;

struct cuda_window;
struct cuda_far;

/* The pages of a layer and the tables by which its kernels find them. */
typedef struct cuda_layer_kv {
    gpu_pages pages;
    gpu_tables tables;
    gpu_layer layer;
    const uint32_t *lengths;
} cuda_layer_kv;

/* Sequences with a measure of one kind, as many as have room in the scratch. */
typedef struct cuda_measure_group {
    gpu_measure_kind kind;
    uint32_t sinks, window, chunk; /* as in gpu_measure; 0 where the kind has none */
    float add, theta;
    uint32_t step; /* some sequence is measured in every step-th selecting layer, none in others */
    gpu_measured_list list;
} cuda_measure_group;
/* The most groups of a step that repeats. */
enum { CUDA_MEASURE_GROUPS = 8 };

/* Where measures lie on the device. */
typedef struct cuda_measure_memory {
    float *values; /* results, until they are copied out */
    float *scratch;
    float *kept;             /* what a layer's attention keeps for its measures */
    const gpu_kept *kept_of; /* [n_seqs] */
    const float *mean_ropes; /* [head_dim] for each MEASURE_EXPECTED */
} cuda_measure_memory;

/* The draws of a step, whose arrays are on the device. Each row of logits has the draws that follow
 * from it, in order. */
typedef struct cuda_drawing {
    uint32_t n_rows, n_draws; /* padding included; 0: nothing */
    const uint32_t *rows;     /* [n_rows] of the step; NULL: all of them, and row i has draw i */
    const gpu_draw *draws;    /* [n_draws] */
    const uint32_t *masks;    /* [n_rows] as gpu_api.mask takes them; NULL: no row has one */
    const gpu_edit *edits;    /* masks count their words from here, too */
    uint32_t by_parts;        /* the kinds of all draws by parts (gpu_draw.by_parts) */
    bool whole;               /* whether there are draws from whole rows */
    uint32_t moved;           /* how often the arrays went elsewhere */
} cuda_drawing;

/* One step's rows, its arrays on the device. */
typedef struct cuda_batch {
    uint32_t n_rows, n_seqs, n_decode, n_prefill; /* padding included */
    uint32_t prefill_rows, n_cut;                 /* as in gpu_attention */
    const uint32_t *tokens, *positions, *row_seqs, *lengths;
    const uint32_t *draws; /* for each row: 0, or 1 + the earlier step's result with its token */
    const gpu_seq *seqs;
    const gpu_tile *decode, *prefill;
    bool whole; /* as in gpu_attention */
    gpu_tables tables;
    bool rounds;  /* rows are rounded up, as in each step that only decodes */
    bool repeats; /* many steps have so many rows, and the most tiles of these (cuda_graphs_run) */
    uint32_t moved;             /* how often memory that its launches read went elsewhere */
    bool wants_lse;             /* something is measured */
    struct cuda_window *window; /* has the tables and lengths of each layer; NULL: those above */
    struct cuda_far *far;       /* attends to what the window leaves in host memory; or NULL */
    /* Called before and after each layer's attention when something is measured; else NULL. The
     * first one says what attention keeps. */
    void (*keep)(void *ctx, uint32_t layer, gpu_attention *a);
    status (*measure)(void *ctx, uint32_t layer, gpu_measure *m);
    /* The measures of a step that repeats. */
    cuda_measure_group measured[CUDA_MEASURE_GROUPS];
    uint32_t n_measured;
    cuda_measure_memory measures;
    /* Called instead of the layer's attention when rows read by retrieval; else NULL. */
    status (*attend)(void *ctx, uint32_t layer, const gpu_heads *h, const gpu_attention *a);
    /* Called behind the last layer when the step's draws belong to its launches; else NULL. */
    status (*draw)(void *ctx, const cuda_drawing *d);
    cuda_drawing drawing;
    void *ctx;
} cuda_batch;

typedef struct cuda_forward cuda_forward;

status cuda_forward_create(const cuda_forward_options *options, cuda_forward **out);
void cuda_forward_destroy(cuda_forward *f);
/* Has the library's algorithms for the products of steps timed. Overwrites the step's buffers. */
status cuda_forward_settle(const cuda_forward *f);
/* The most decode tiles of n_seqs sequences. _part: slots of a tile when the tables hold `slots`
 * together. */
uint32_t cuda_forward_tiles(const cuda_forward *f, uint32_t n_seqs);
uint32_t cuda_forward_part(const cuda_forward *f, uint64_t slots, uint32_t longest);
/* The most prefill tiles of a step that are parts. _cut: slots of such a part (gpu_cut_slots). */
uint32_t cuda_forward_most_cut(const cuda_forward *f);
uint32_t cuda_forward_cut(const cuda_forward *f, uint64_t slots, uint32_t longest);
status cuda_forward_run(cuda_forward *f, const cuda_batch *b, const _Atomic bool *interrupted);
/* The states of rows from `row` on behind the final norm, on the device, in the head's type. */
const void *cuda_forward_states(const cuda_forward *f, uint32_t row);
/* Sets *logits [n, rows of the head] for rows [n] of the last run, or for n of its rows from `row`
 * on, on the device; n is at most the options' head_rows. */
enum { CUDA_HEAD_ROWS_LEAST = 64 };
status cuda_forward_logits(cuda_forward *f, const uint32_t *rows, uint32_t n, float **logits);
status cuda_forward_logits_from(cuda_forward *f, uint32_t row, uint32_t n, float **logits);

#endif
