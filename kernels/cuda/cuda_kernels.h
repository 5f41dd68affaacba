/* cuda_kernels: the arithmetic of a forward pass on one NVIDIA GPU.
 *
 * What     the table of functions that liboctavo_cuda.so gives to model/cuda/backend_cuda.c:
 *          memory, copies, and one function for each family of kernels. Plain C, no CUDA header.
 * Owner    memory and graphs are the caller's, freed before the gpu, which owns stream and scratch.
 * Threads  any, one at a time for each gpu. Everything goes to one stream, in order, except what
 *          names another lane; only `wait`, `await`, `elapsed`, `traced`, `settle`, `open` and
 *          `close` wait.
 * Units    bytes; elements for strides. Pointers are the device's unless said otherwise.
 * Errors   gpu_status; `why` has the text. GPU_LOST is sticky: the gpu can only be closed, and a
 *          process whose device is lost may have to end. Arguments are the caller's duty. */
#ifndef KERNELS_CUDA_CUDA_KERNELS_H
#define KERNELS_CUDA_CUDA_KERNELS_H

#include "kernels/cuda/cuda_draws.h"
#include "kernels/cuda/cuda_experts.h"
#include "kernels/cuda/cuda_kept.h"
#include "kernels/cuda/cuda_launches.h"
#include "kernels/cuda/cuda_products.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rises with every change below: a plugin of another version is refused. */
enum { GPU_API_VERSION = 28 };

typedef enum gpu_status { GPU_OK, GPU_NO_MEMORY, GPU_UNSUPPORTED, GPU_LOST } gpu_status;

typedef enum gpu_kv_format {
    GPU_KV_BF16,
    GPU_KV_F16,
    GPU_KV_E4M3,
    GPU_KV_INT8,
    GPU_KV_FORMATS,
} gpu_kv_format;

/* Work of one lane runs in order. Lanes run at the same time, except where `order` says otherwise:
 * kernels and all other copies on the first, which is the stream, copies of pages up to the device
 * on the second and down to the host on the third. */
typedef enum gpu_lane { GPU_LANE_STREAM, GPU_LANE_UP, GPU_LANE_DOWN, GPU_LANES } gpu_lane;

typedef struct gpu gpu;
typedef struct gpu_graph gpu_graph;         /* captured launches and copies */
typedef struct gpu_retrieval gpu_retrieval; /* cuda_retrieval.h, as the next one */
typedef struct gpu_observed gpu_observed;
typedef struct gpu_handle gpu_handle; /* cuda_sums.h, as the next one */
typedef struct gpu_sums gpu_sums;
typedef struct gpu_meeting gpu_meeting;

typedef struct gpu_facts {
    char name[128];
    uint32_t n_sms;
    uint32_t compute; /* 90 = 9.0 */
    uint64_t bytes, free_bytes;
    size_t shared_bytes; /* most that a block may have: 99 KB where compute is 86, 89 or 120 */
    /* Whether the device and its library multiply e4m3 by e4m3 (set_narrow), with a scale for each
     * row of both, and for each 128 columns of a row. */
    bool narrow_rows, narrow_groups;
} gpu_facts;

/* ---- KV pages ----------------------------------------------------------------------------------
 * A KV group is some layers (a layer group) times some KV heads (a head group). A cell holds
 * page_tokens tokens of one KV group. A page of a table is one cell or a run of cells, named by its
 * first cell (gpu_grain).
 *
 * A tile is the part of a cell that belongs to one layer and one KV head: K [page_tokens, head_dim]
 * row by row, then V the same. fp8 e4m3 has no scale and saturates at 448. int8 is quantised as
 * kernels.h says; the bf16 scales of K [page_tokens] and of V lie behind both. page_tokens is a
 * multiple of 16. */
/* The tokens behind a representative, and from bit GPU_MARK_BITS on its number; 0: there is none.
 * All tiles of its block have the same mark. */
typedef unsigned long long gpu_tile_mark;
enum { GPU_MARK_BITS = 20 };

typedef struct gpu_pages {
    uint8_t *data;
    size_t page_bytes, tile_bytes;           /* of a cell, and of a tile */
    uint32_t page_tokens, head_dim, n_tiles; /* n_tiles: tiles of a cell */
    gpu_kv_format format;
    uint32_t layer_groups;
    uint32_t run_heads;    /* head groups whose cells are stored here, in order, in a layer's run */
    uint32_t layer_stride; /* in a run of all groups, cells between those of two layer groups */
    /* Running sums of retention, which move with their slots: [cell, tile, page_tokens], or NULL
     * where none are kept. */
    float *sums;
    /* Retrieval: a mark of each tile [cell, tile], and the representative of the block that begins
     * with it: two vectors of bf16 [cell, tile, 2, head_dim]. Writes and moves clear marks. NULL
     * where none are kept. */
    gpu_tile_mark *marks;
    uint16_t *vectors;
} gpu_pages;

/* Which tables a sequence has, and which cells a page of them is: cell (l, h) of layer group l and
 * head group h, the i-th of a run's run_heads, lies this many cells behind the first one. */
typedef enum gpu_grain {
    GPU_GRAIN_ALL,   /* one table: l * layer_stride + i */
    GPU_GRAIN_LAYER, /* a table for each layer group: i */
    GPU_GRAIN_HEAD,  /* a table for each KV group: a page is one cell */
    GPU_GRAIN_LIST,  /* attention alone: a table for each KV head of the layer, likewise */
} gpu_grain;

/* The page tables: the page numbers of a table begin at pages + table * row. The tables of a
 * sequence follow one another; where each KV group has one, they are those of some head groups of
 * each layer group. */
typedef struct gpu_tables {
    uint32_t *pages;
    uint32_t row, first_head_group, head_groups;
} gpu_tables;

/* One layer. KV head h is in head group first_head_group + h / heads_per_group and tile first_tile
 * + h % heads_per_group. */
typedef struct gpu_layer {
    uint32_t layer_group, first_head_group, first_tile, heads_per_group;
    uint32_t window; /* 0: sees all slots */
} gpu_layer;

/* The rows of one sequence in a step. Its first table is `table`. Its kept tokens stand in the
 * array of lengths from index `lengths` on, one for each of its tables. */
typedef struct gpu_seq {
    uint32_t table, first_row, n_rows, lengths;
    gpu_grain grain;
} gpu_seq;

/* ---- attention --------------------------------------------------------------------------------
 * Query rows of a KV head are packed: row r is query head r % q_heads of new token r / q_heads. */
/* Some packed rows of a sequence against some slots of its table: all that they see, or a part. */
typedef struct gpu_tile {
    uint32_t seq;        /* index into the array of gpu_seq */
    uint32_t row;        /* prefill: first packed row */
    uint32_t first, end; /* slots, multiples of GPU_KV_STEP, but for an end behind the table */
    uint32_t parts;      /* tiles of these rows, which lie together from `part` on; 0: an unused
                            tile */
    uint32_t part;
} gpu_tile;

enum {
    GPU_DECODE_ROWS = 16,  /* packed rows that go to the decode kernel */
    GPU_PREFILL_ROWS = 64, /* packed rows of a prefill tile */
    GPU_WIDE_ROWS = 128,   /* the same of the kernel with wgmma */
    GPU_KV_STEP = 64,      /* slots that are read at a time */
};

typedef struct gpu_attention {
    gpu_pages pages;
    gpu_tables tables;
    gpu_layer layer;
    const gpu_seq *seqs;
    const uint32_t *lengths;
    const gpu_tile *decode, *prefill;
    uint32_t n_decode, n_prefill;
    uint32_t prefill_rows; /* of a prefill tile: GPU_PREFILL_ROWS, or what gpu_prefill_rows gives */
    uint32_t n_cut;        /* so many prefill tiles, the first ones, may be parts */
    bool whole;            /* no sequence has several decode tiles, so that none are merged */
    uint32_t kv_heads, q_heads;
    float scale;
    const void *q; /* [rows, kv_heads * q_heads, head_dim], gpu_query_type */
    void *out;     /* the same shape */
    gpu_type out_type;
    float *lse;  /* [rows, kv_heads * q_heads]: log2 of a row's sum of exponentials, or NULL */
    float *kept; /* what decode tiles keep; NULL: nothing */
    const gpu_kept *kept_of; /* [seqs]; where something is kept, all rows are decode tiles */
    /* Scratch of gpu_partial_floats of n_decode tiles of GPU_DECODE_ROWS, and of n_cut tiles of
     * prefill_rows. */
    float *partial, *cut_partial;
} gpu_attention;

/* The slots of a decode tile's part when the tables hold `slots` slots in all. Parts have one
 * length, are enough to keep every multiprocessor busy, and are not so short that merging
 * dominates: where tables are short, from GPU_PART_MIN to twice as many slots. They are few enough
 * to launch the most that a batch can have, of which unused ones end at once: of GPU_BLOCKS_OF_SM
 * blocks a multiprocessor has 3 at a time. */
enum { GPU_PART_MIN = 128, GPU_BLOCKS_OF_SM = 8 };
static inline uint32_t gpu_part_slots(uint64_t slots, uint32_t longest, uint32_t kv_heads,
                                      uint32_t n_sms)
{
    uint64_t part = slots * kv_heads / ((uint64_t)GPU_BLOCKS_OF_SM * n_sms) + 1;
    if (part < GPU_PART_MIN) part = GPU_PART_MIN;
    uint64_t parts = longest / part;
    if (parts > 0) part = (longest + parts - 1) / parts;
    return (uint32_t)((part + GPU_KV_STEP - 1) / GPU_KV_STEP * GPU_KV_STEP);
}
/* The most decode tiles that gpu_part_slots leads to: for each sequence one, and as many as whole
 * parts fit in the slots. */
static inline uint32_t gpu_most_tiles(uint32_t n_seqs, uint32_t kv_heads, uint32_t n_sms)
{
    return n_seqs + GPU_BLOCKS_OF_SM * n_sms / kv_heads;
}

/* The slots of a prefill tile's part when the tiles see `slots` slots in all, and one of them up to
 * `longest`. Tiles are cut where all of them together are fewer blocks than run at once: as many
 * blocks as that, none so short that merging dominates. */
enum { GPU_CUT_MIN = 512 };
static inline uint32_t gpu_blocks_at_once(uint32_t n_sms, uint32_t prefill_rows)
{
    return n_sms * (prefill_rows == GPU_WIDE_ROWS ? 1 : 2);
}
static inline uint32_t gpu_cut_slots(uint64_t slots, uint32_t longest, uint32_t kv_heads,
                                     uint32_t blocks)
{
    uint64_t parts = slots ? (uint64_t)longest * blocks / (slots * kv_heads) : 1;
    if (parts > longest / GPU_CUT_MIN) parts = longest / GPU_CUT_MIN;
    if (parts <= 1) return UINT32_MAX;
    uint64_t part = (longest + parts - 1) / parts;
    return (uint32_t)((part + GPU_KV_STEP - 1) / GPU_KV_STEP * GPU_KV_STEP);
}
/* The most parts of prefill tiles that gpu_cut_slots leads to: a tile that is cut has less than
 * twice as many parts as it has parts' slots. */
static inline uint32_t gpu_most_cut(uint32_t kv_heads, uint32_t blocks)
{
    return 2 * blocks / kv_heads + 2;
}

/* The type of queries, in which K and V are multiplied. */
static inline gpu_type gpu_query_type(gpu_kv_format f)
{
    return f == GPU_KV_BF16 ? GPU_BF16 : GPU_F16;
}
static inline size_t gpu_partial_floats(size_t n_tiles, size_t rows, size_t kv_heads,
                                        size_t head_dim)
{
    return n_tiles * kv_heads * rows * (head_dim + 2);
}
static GPU_INLINE size_t gpu_kv_bytes(gpu_kv_format f)
{
    return f == GPU_KV_BF16 || f == GPU_KV_F16 ? 2 : 1;
}
static inline size_t gpu_tile_bytes(gpu_kv_format f, uint32_t page_tokens, uint32_t head_dim)
{
    size_t scales = f == GPU_KV_INT8 ? 2 * sizeof(uint16_t) : 0;
    return page_tokens * (2 * head_dim * gpu_kv_bytes(f) + scales);
}
/* The most shared memory of a block of attention; attention.cuh asserts it. */
#define GPU_ATTENTION_SHARED(head_dim) ((size_t)((head_dim) > 128 ? 144 : 96) << 10)
/* Whether attention is compiled for a head size. */
static inline bool gpu_has_head_dim(uint32_t d)
{
    return d == 32 || d == 64 || d == 96 || d == 128 || d == 256;
}

/* The packed rows of a prefill tile, for the fastest kernel of the device and the head size.
 * GPU_PREFILL_ROWS work everywhere. Capability 9.0 alone has wgmma: newer ones do not. */
static inline uint32_t gpu_prefill_rows(uint32_t compute, uint32_t head_dim)
{
    bool wide = compute == 90 && gpu_has_head_dim(head_dim) && head_dim >= 64;
    return wide ? GPU_WIDE_ROWS : GPU_PREFILL_ROWS;
}

/* ---- from qkv to queries and pages ----------------------------------------------------------- */

/* For each row of qkv: adds the bias, norms and rotates the heads, writes q to `q`, k and v to
 * their pages. */
typedef struct gpu_heads {
    gpu_pages pages;
    gpu_tables tables;
    gpu_layer layer;
    const gpu_seq *seqs;
    const uint32_t *lengths;
    const uint32_t *row_seqs; /* [n_rows] index of the row's sequence */
    uint32_t n_rows, kv_heads, q_heads;
    const float *qkv;                    /* [n_rows, (q_heads + 2) * kv_heads, head_dim] */
    const float *bias, *q_norm, *k_norm; /* each may be NULL */
    float eps;
    const float *angles; /* [n_rows, head_dim]: cosines, then sines */
    void *q;
} gpu_heads;

/* ---- measures -------------------------------------------------------------------------------- */

typedef enum gpu_measure_kind {
    /* Measures of query rows. */
    GPU_MEASURE_MASS,
    GPU_MEASURE_RAW,
    GPU_MEASURE_PROJECTION,
    GPU_MEASURE_OUTSIDE,
    GPU_MEASURE_POOLED,
    GPU_MEASURE_EXPECTED,
    /* Measures of a table alone. */
    GPU_MEASURE_VALUE_WEIGHT,
    GPU_MEASURE_VALUE_NORM,
    GPU_MEASURE_KEY_NORM,
    GPU_MEASURE_KEY_COSINE,
    GPU_MEASURE_KINDS,
} gpu_measure_kind;

/* Running sums: the measure is added to them, and the result is the sums. The cutting of rows into
 * calls changes them by rounding. */
typedef enum gpu_sum {
    GPU_SUM_NONE,
    GPU_SUM_START, /* all sums start at 0 */
    GPU_SUM_ADD,   /* sums of this step's slots start at 0 */
} gpu_sum;

/* Where a measure's results go. */
typedef enum gpu_measure_out {
    GPU_OUT_SUMS, /* to the running sums alone */
    GPU_OUT_SLOTS,
    GPU_OUT_PAGES, /* added up over the slots of each page */
} gpu_measure_out;

/* A sequence that is measured. The caller sets wave, gpu_measure_add sets work and scratch. */
typedef struct gpu_measured {
    gpu_seq seq;
    uint32_t longest; /* slots of its longest table */
    uint32_t rows;    /* its query rows are the last `rows` of its rows in the step */
    uint32_t wave;    /* so many of these rows are measured at a time; their attention is scratch */
    uint32_t mean_rope; /* EXPECTED: index in mean_ropes */
    uint32_t stride;    /* of a KV head's results: its slots or pages */
    uint32_t step;      /* it is measured in every step-th selecting layer; 0: in none */
    uint32_t arrays;    /* of its results that lie before those of this measure */
    gpu_sum sum;        /* MASS and PROJECTION by slot only */
    gpu_measure_out out;
    gpu_kept kept;  /* MASS: what attention has kept, scores unless results are by page */
    uint32_t work;  /* MASS: turns of a block that read what is kept, up to this sequence's last */
    size_t values;  /* index in gpu_measure.values of its results */
    size_t scratch; /* index in gpu_measure.scratch of what is its own */
} gpu_measured;

/* Sequences that one call measures: those of which attention has kept something, and others. A
 * captured call serves lists whose n, longest, rows, wave and waves are the same, and of which all
 * or none have what n_kept, n_summed and n_paged count. */
typedef struct gpu_measured_list {
    const gpu_measured *seqs; /* [n]; NULL: gpu_measure.one alone */
    uint32_t n;               /* also counts those whose step is 0, which come last */
    uint32_t n_kept, work;    /* work: turns of a block (gpu_measured.work) of all of them */
    /* The largest of sequences of which attention kept nothing, as the next two; 0: none. */
    uint32_t longest;
    uint32_t rows, wave;
    uint32_t waves;             /* the most that the rows of one of the others make */
    uint32_t n_summed, n_paged; /* the others with running sums, and those by page */
    size_t scratch;             /* floats of scratch of all of them */
} gpu_measured_list;

/* Measures sequences in one layer: a value for each slot (or page) of each KV head, as
 * kernels/measure.h defines it. A sequence's results do not depend on the others. */
typedef struct gpu_measure {
    gpu_pages pages;
    gpu_tables tables;
    gpu_layer layer;
    const uint32_t *lengths;
    gpu_measured_list list;
    gpu_measured one; /* a copy on the host */
    uint32_t kv_heads, q_heads;
    gpu_measure_kind kind;
    float scale;
    const void *q; /* as in gpu_attention; MASS and PROJECTION need lse too, and MASS `kept` */
    const float *lse, *kept;
    const void *y; /* attention's output: PROJECTION */
    gpu_type y_type;
    uint32_t window;          /* OUTSIDE, POOLED */
    uint32_t chunk;           /* POOLED */
    float add, theta;         /* PROJECTION, OUTSIDE, POOLED: bias and theta of kern_rows_item */
    uint32_t sinks;           /* EXPECTED, up to `mean_ropes` */
    const float *qkv;         /* as in gpu_heads, as are the next three */
    const float *bias, *norm; /* bias and norm of queries */
    float eps;
    const float *mean_ropes; /* [n, head_dim]: mean cosines, then mean sines */
    gpu_matrix o;            /* VALUE_WEIGHT: k = kv_heads * q_heads * head_dim */
    uint32_t selecting;      /* selecting layers before this one, which is one */
    float *values;  /* of each sequence, from its index on: [arrays, kv_heads, its stride] */
    float *scratch; /* list.scratch floats */
} gpu_measure;

/* Whether the measure makes outputs of its own instead of using the step's. */
static inline bool gpu_measure_makes_output(const gpu_measure *m)
{
    return m->kind == GPU_MEASURE_OUTSIDE || m->kind == GPU_MEASURE_POOLED ||
           (m->kind == GPU_MEASURE_PROJECTION && m->theta != 0.0f);
}

/* Whether attention has kept what the measure needs of the sequence. */
static inline bool gpu_measure_kept(const gpu_measure *m, const gpu_measured *s)
{
    return m->kind == GPU_MEASURE_MASS && s->kept.strips > 0;
}

/* Bytes of the weights of a wave, if it has more than one row. */
enum { GPU_WEIGHT_BYTES = 64 << 20, GPU_OUTPUT_SLOTS = 512 };
static inline uint32_t gpu_measure_wave(const gpu_measure *m, const gpu_measured *s)
{
    uint64_t row = (uint64_t)m->kv_heads * m->q_heads * s->longest * 4;
    uint64_t rows = row ? GPU_WEIGHT_BYTES / row : 1;
    return rows < 1 ? 1 : rows < s->rows ? (uint32_t)rows : s->rows;
}
/* Floats of scratch that the sequences of a list share. */
static inline size_t gpu_measure_shared(const gpu_measure *m)
{
    if (m->kind != GPU_MEASURE_VALUE_WEIGHT) return 0;
    return (m->o.n * m->o.k + 1) / 2; /* o in another type */
}
/* Floats of a sequence's own scratch: values by slot that are no result, then the rest. */
static inline size_t gpu_measure_scratch(const gpu_measure *m, const gpu_measured *s)
{
    size_t heads = (size_t)m->kv_heads * m->q_heads, dim = m->pages.head_dim;
    size_t rows = heads * s->wave, slots = s->longest;
    size_t by_slot = s->out == GPU_OUT_SLOTS || gpu_measure_kept(m, s) ? 0 : m->kv_heads * slots;
    if (gpu_measure_makes_output(m)) /* weights, outputs, and outputs of parts of the slots */
        return by_slot + rows * (slots + dim + (slots / GPU_OUTPUT_SLOTS + 1) * dim);
    switch (m->kind) {
    case GPU_MEASURE_EXPECTED: /* queries, their mean twice, covariance, logits, softmax */
        return by_slot + heads * (s->rows * dim + 2 * dim + dim * dim + slots + 2);
    case GPU_MEASURE_KEY_COSINE: /* directions of each 128 slots, and the mean */
        return by_slot + m->kv_heads * dim * (slots / 128 + 2);
    default: return by_slot;
    }
}
/* Slots or pages that a block measures in a turn from what is kept. */
enum { GPU_KEPT_TURN = 128 };
/* Adds a sequence to the list, which began as zeros, and gives it its scratch, `own` floats. */
static inline void gpu_measure_add(const gpu_measure *m, gpu_measured_list *list, gpu_measured *s,
                                   size_t own)
{
    uint32_t waves = s->wave ? (s->rows + s->wave - 1) / s->wave : 0;
    uint32_t turn = GPU_KEPT_TURN * (s->out == GPU_OUT_PAGES ? m->pages.page_tokens : 1);
    s->scratch = list->scratch;
    list->scratch += own;
    list->n++;
    if (gpu_measure_kept(m, s)) list->work += (s->longest + turn - 1) / turn;
    s->work = list->work;
    list->n_kept += gpu_measure_kept(m, s);
    if (gpu_measure_kept(m, s)) return;
    list->n_summed += s->sum != GPU_SUM_NONE;
    list->n_paged += s->out == GPU_OUT_PAGES;
    if (s->longest > list->longest) list->longest = s->longest;
    if (s->rows > list->rows) list->rows = s->rows;
    if (s->wave > list->wave) list->wave = s->wave;
    if (waves > list->waves) list->waves = waves;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Moves slots of every tile of a page to another page of the same grain, in the order of the
 * array. */
typedef struct gpu_move {
    uint32_t src_page, dst_page, src_slot, dst_slot, n_slots;
    uint32_t rope_shift; /* 0, or 1 + the row of `rope_shifts` that rotates the keys */
} gpu_move;

/* Moves [first, first + n) run one after the other; chains run at the same time. */
typedef struct gpu_chain {
    uint32_t first, n;
} gpu_chain;

/* Writes n page numbers into the tables: values[first ..] to pages[at ..]. */
typedef struct gpu_patch {
    uint64_t at;
    uint32_t first, n;
} gpu_patch;

/* Copies between the host's pinned memory and the device's, [n]; no two overlap. */
typedef struct gpu_copies {
    void **to;
    const void **from;
    size_t *bytes; /* none is 0 */
    size_t n;
} gpu_copies;

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct gpu_api {
    uint32_t version;

    /* ordinal numbers the devices that CUDA shows. why [n] receives the reason of a failure. */
    gpu_status (*open)(uint32_t ordinal, gpu **out, gpu_facts *facts, char *why, size_t n);
    void (*close)(gpu *g);
    const char *(*why)(const gpu *g); /* reason of the last failure */

    /* On: a row's products do not depend on how many rows there are, which slows products of few
     * rows. Rows of attention do not either where all are prefill tiles. */
    void (*set_invariant)(gpu *g, bool on);
    /* On: products of many rows with e4m3 weights round x to e4m3 too, where the device and the
     * library multiply these, or for experts our kernel. x has a scale for each row, or for each
     * 128 columns of it where W has. Off at first; set_invariant turns it off in effect. */
    void (*set_narrow)(gpu *g, bool on);

    /* Sets the borders of products of few rows, for a bench that compares them. A gpu begins with
     * GPU_FEW_ROWS, GPU_FEW_QUANT_ROWS, GPU_FEW_OF_EXPERT and GPU_STAGED_ROWS. */
    void (*set_few)(gpu *g, const gpu_few *few);
    /* Off: each kernel of a step begins when the one in front has ended, for a bench that compares.
     * On at first, where the device lets kernels start early: compute capability 9.0 and newer. */
    void (*set_early)(gpu *g, bool on);

    gpu_status (*alloc)(gpu *g, size_t bytes, void **out); /* zeroed */
    void (*release)(gpu *g, void *device);
    gpu_status (*alloc_host)(gpu *g, size_t bytes, void **out); /* pinned; not zeroed */
    void (*release_host)(gpu *g, void *host);
    /* Host memory should be pinned; it must not change until a wait has passed the copy. */
    gpu_status (*copy_in)(gpu *g, void *device, const void *host, size_t bytes);
    gpu_status (*copy_out)(gpu *g, void *host, const void *device, size_t bytes);
    /* All copies go one way, in any order. The arrays may change once the call has returned. */
    gpu_status (*copy_batch)(gpu *g, const gpu_copies *c, bool out);
    gpu_status (*copy_up)(gpu *g, void *device, const void *host, size_t bytes);   /* lane UP */
    gpu_status (*copy_down)(gpu *g, void *host, const void *device, size_t bytes); /* lane DOWN */
    /* Work that enters the lane `then` from now on begins when all work in `first` has ended. A
     * capture cannot contain it, nor copies up and down. */
    gpu_status (*order)(gpu *g, gpu_lane first, gpu_lane then);
    gpu_status (*wait)(gpu *g);
    /* `await` waits for everything before the last note of that number, 0 or 1, and for nothing
     * after it. */
    gpu_status (*note)(gpu *g, uint32_t number);
    gpu_status (*await)(gpu *g, uint32_t number);
    gpu_status (*reached)(gpu *g, uint32_t number, bool *reached); /* await would return at once */
    gpu_status (*poll)(gpu *g, bool *idle); /* idle: `wait` would return at once */
    void *(*stream)(gpu *g);                /* the CUDA stream */
    gpu_status (*copy)(gpu *g, void *to, const void *from, size_t bytes); /* on the device */
    gpu_status (*clear)(gpu *g, void *device, size_t bytes);              /* to zeros */
    /* `elapsed` waits, then gives the device's microseconds since the last mark. */
    gpu_status (*mark)(gpu *g);
    gpu_status (*elapsed)(gpu *g, double *us);

    /* packed: a matrix in the panels of kernels.h, of w's shape, type and bits, on the device. w's
     * memory is zeroed. */
    gpu_status (*unpack)(gpu *g, const void *packed, const gpu_matrix *w);
    /* y [m, n] of y_type = x [m, k] * W^T; x has w->type, and x and y have no gaps. Few and many
     * rows take different paths, so a row's value may differ by rounding. scratch:
     * gpu_product_scratch of as many rows or more. y has room for gpu_product_rows(m) rows; those
     * behind m may be written. */
    gpu_status (*product)(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                          gpu_type y_type, void *scratch);

    /* Times the library's algorithms for products of each number of rows up to m that it treats
     * alike, and keeps the fastest for later products of w's shape and y's type. x, y and scratch
     * are those of a product of m rows, which are read and overwritten. Waits. Never called in a
     * step; in batch-invariant mode nothing is timed. */
    gpu_status (*settle)(gpu *g, const gpu_matrix *w, const void *x, size_t m, void *y,
                         gpu_type y_type, void *scratch);

    /* x [n, k] f32 = rows of w times scale; zeros for tokens from w->n on. */
    gpu_status (*embed)(gpu *g, const gpu_matrix *w, const gpu_tokens *tokens, size_t n,
                        float scale, float *x);
    /* angles [n, head_dim] of positions [n] * inv_freq [head_dim / 2], times factor. */
    gpu_status (*angles)(gpu *g, const float *inv_freq, const uint32_t *positions, size_t n,
                         uint32_t head_dim, float factor, float *angles);
    /* x [m, d] += delta (unless NULL); out = rmsnorm(x). out may be x where the type is f32. */
    gpu_status (*norm)(gpu *g, float *x, const float *delta, const float *weight, float eps,
                       size_t m, size_t d, void *out, gpu_type type);
    /* All ranks make the same calls in the same order. GPU_UNSUPPORTED: gpu_takes_sums is false. */
    gpu_status (*sums)(gpu *g, const gpu_sums *s);
    /* out [ranks, bytes] = `in` of all ranks, in whole words of 4 bytes. Its calls are among those
     * of `sums`, in the same order on all ranks. GPU_UNSUPPORTED: more than m->room. */
    gpu_status (*exchange)(gpu *g, const gpu_meeting *m, const void *in, size_t bytes, void *out);
    /* out [n] = the sum of all [ranks, n] in rank order; all does not overlap out. */
    gpu_status (*sum_gathered)(gpu *g, const float *all, uint32_t ranks, size_t n, float *out);
    /* reach maps a block of `alloc` that another gpu has shared, until unreach. GPU_UNSUPPORTED: it
     * cannot be shared or reached. */
    gpu_status (*share)(gpu *g, void *device, gpu_handle *out);
    gpu_status (*reach)(gpu *g, const gpu_handle *from, void **out);
    void (*unreach)(gpu *g, const gpu_handle *from, void *device);
    /* out [m, d] = silu (or gelu by tanh) of gate_up [m, 0:d], times gate_up [m, d:2d]. */
    gpu_status (*gate)(gpu *g, const void *gate_up, size_t m, size_t d, bool gelu, void *out,
                       gpu_type type);
    /* out [n] = rows [n] of x, each `bytes` (a multiple of 4). */
    gpu_status (*gather)(gpu *g, const void *x, const uint32_t *rows, size_t n, size_t bytes,
                         void *out);
    /* Makes -inf of logits [m, n] of a row whose token's bit is 0 in the row's mask: the n_words
     * words from words[masks[row] - 1] on; none where masks[row] is 0. A row has the tokens from
     * first_token on. */
    gpu_status (*mask)(gpu *g, float *logits, size_t n, uint32_t first_token, const uint32_t *masks,
                       size_t m, const uint32_t *words, size_t n_words);

    /* Routes rows to experts, multiplies, and adds up each row's results. Never waits for the
     * device. */
    gpu_status (*experts)(gpu *g, const gpu_experts *e);
    /* Makes the draws that are not by parts. */
    gpu_status (*sample)(gpu *g, const gpu_sampling *s);
    /* Writes the part of each draw by parts to parts [n], and openings [n] of those with limits,
     * whose edited logits stay in the scratch. */
    gpu_status (*draw_parts)(gpu *g, const gpu_sampling *s, gpu_part *parts, gpu_opening *openings);
    /* Writes the bins of a round to bins [n], for draws that have it. Rounds go from 0 on, and
     * those that no draw has are left out. */
    gpu_status (*search)(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_bins *bins);
    /* Sets what is drawn in the parts [n] of draws with limits. */
    gpu_status (*draw_kept)(gpu *g, const gpu_sampling *s, const gpu_joint *j, gpu_part *parts);
    /* Makes those of n draws that are by parts, from the parts [ranks, n] of all ranks: what
     * `sample` draws from whole rows. */
    gpu_status (*decide)(gpu *g, const gpu_part *parts, uint32_t ranks, size_t n,
                         const gpu_draw *draws, gpu_drawn *drawn);
    /* out [n, vocab] from parts [ranks, n, slice], whose tail beyond vocab is dropped. */
    gpu_status (*join)(gpu *g, const float *parts, size_t n, size_t slice, size_t vocab,
                       float *out);
    gpu_status (*heads)(gpu *g, const gpu_heads *h);
    gpu_status (*attention)(gpu *g, const gpu_attention *a);
    gpu_status (*measure)(gpu *g, const gpu_measure *m);
    /* Moves between pages of one grain. rope_shifts [n, head_dim]: cosines and sines. */
    gpu_status (*move)(gpu *g, const gpu_pages *pages, gpu_grain grain, const gpu_move *moves,
                       const gpu_chain *chains, uint32_t n_chains, const float *rope_shifts);
    gpu_status (*patch)(gpu *g, uint32_t *pages, const gpu_patch *patches, uint32_t n,
                        const uint32_t *values);
    /* Makes the selections of the rows where r->selects, and the tables of pages of all rows where
     * r->gathers. A layer has a call for each run of rows that select together, which bounds the
     * scratch, then one that gathers. */
    gpu_status (*retrieve)(gpu *g, const gpu_retrieval *r);
    /* Chooses blocks and keys by what the end of a prompt attended to. */
    gpu_status (*observe)(gpu *g, const gpu_observed *o);
    /* Clears the marks of the pages that the last rows of these sequences lie in. */
    gpu_status (*unmark)(gpu *g, const gpu_pages *pages, const gpu_tables *tables,
                         const gpu_seq *seqs, uint32_t n, const uint32_t *lengths);

    /* Between capture and captured, launches and copies are recorded with their arguments instead
     * of run. replay runs them all, any number of times, on what their pointers point to by then. A
     * call that waits or allocates makes the capture fail; so may a launch that was never made
     * before. After a failure (GPU_UNSUPPORTED) nothing is recorded, and the gpu is as before. */
    gpu_status (*capture)(gpu *g);
    gpu_status (*captured)(gpu *g, gpu_graph **out);
    gpu_status (*replay)(gpu *g, gpu_graph *graph);
    void (*forget)(gpu_graph *graph); /* no replay of it may be running */

    /* Between trace and traced, the device notes when each launch and copy on the stream ends; a
     * replay is one launch. Kernels do not start early meanwhile. traced waits, and adds to *out
     * what each has taken since the end of the one in front. The first one counts from its own
     * start, behind work that was there already. GPU_UNSUPPORTED: there were more launches than
     * GPU_TRACED_MOST, or more names than GPU_LAUNCHES_MOST. */
    gpu_status (*trace)(gpu *g);
    gpu_status (*traced)(gpu *g, gpu_launches *out);
} gpu_api;

/* The plugin's symbols. The table: NULL where the versions differ. The CUDA that it was built with:
 * 13000 is 13.0. */
typedef const gpu_api *gpu_api_fn(uint32_t version);
typedef uint32_t gpu_runtime_fn(void);
#define GPU_API_SYMBOL     "octavo_cuda_api"
#define GPU_RUNTIME_SYMBOL "octavo_cuda_runtime"

#ifdef __cplusplus
}
#endif
#endif
