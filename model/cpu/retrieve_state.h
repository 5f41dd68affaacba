/* The state of a retrieve: the rows of a step that read by retrieval, and the scratch of their
 * selections (private to retrieve.c, retrieve_make.c and retrieve_sizes.c). */
#ifndef MODEL_CPU_RETRIEVE_STATE_H
#define MODEL_CPU_RETRIEVE_STATE_H

#include "kernels/represent.h"
#include "model/cpu/exam.h"
#include "model/cpu/retrieve.h"
#include "model/cpu/retrieve_observe.h"
#include "model/cpu/retrieve_ranks.h"

/* A row that reads by retrieval. */
typedef struct sparse_row {
    const forward_seq *seq;
    uint32_t row;         /* of the step */
    uint32_t n_slots;     /* that it sees in every table */
    uint32_t together;    /* KV heads that share a selection, of all ranks */
    uint32_t first_list;  /* its lists, one for each run of `together` heads */
    uint32_t n_lists;     /* runs of which this rank has a head */
    size_t first_block;   /* where they begin in `blocks`, most_blocks each */
    uint32_t most_blocks; /* of one list */
    size_t first_page;    /* its gathered pages in `pages`, most_pages for each KV head */
    uint32_t most_pages;
    uint32_t behind;    /* rows since the one whose selection it reads by: 0 = it selects */
    uint32_t in_step;   /* sparse rows of the share before it */
    uint32_t query;     /* its number among the rows that select in the layer */
    size_t first_score; /* its scores [heads of this rank, candidates] among those gathered */
} sparse_row;

typedef struct block_list {
    uint32_t first; /* KV head of the model */
    uint32_t n;     /* blocks that the row reads, in the layer that selected last */
    double missed;  /* of a selection with an exam */
} block_list;

/* The candidates of the row in hand, in one layer and head. */
typedef struct candidates {
    const uint32_t *pages; /* [n blocks, pages of a block] */
    const uint8_t *tiles;
    uint64_t *marks;
    uint16_t *vectors, *smallest; /* smallest: NULL where blocks have no boxes */
    const uint64_t *left_out;     /* bits of the prompt's blocks; NULL: none is left out */
    const uint64_t *slots;        /* DYNAMIC: those chosen in the prompt's blocks; else NULL */
    uint32_t n_missing;           /* blocks without the row's representative */
} candidates;

/* A listed block: its tile's marks in page 0, its pages, and its mark; 0: a mark with a number. */
typedef struct block_at {
    uint64_t *marks, mark;
    const uint32_t *pages;
} block_at;

/* Memory that grows to the largest need seen. */
typedef struct room {
    void *data;
    size_t bytes;
} room;

struct retrieve {
    forward_options o;
    uint32_t q_heads, qkv_width;
    /* The rows of a step and the blocks they read. */
    room rows, lists, blocks, pages, tiles;
    uint32_t n_rows, n_lists;
    /* Scratch of a selection: the row in hand has n_blocks candidates in each head. */
    room candidates;    /* candidates [n_heads] */
    uint32_t all_heads; /* query heads of a KV head, of all ranks that copy it */
    room score_items;   /* kern_score_item [scored heads]: KV heads; for an exam query heads */
    room scores, keys;  /* [scored heads, n_blocks] f32, [lists, n_blocks] uint32_t */
    room head_scores;   /* const float *, of each KV head of the model; for an exam of each query
                           head of this rank's KV heads, or the model's where lists cross ranks */
    room items, listed; /* kern_represent_item, block_at: blocks without a representative */
    uint32_t n_items, n_blocks, block_pages;
    uint32_t first_block, n_known; /* number of the first candidate, of the prompt's blocks */
    uint64_t wanted;               /* the row's mark without its number */
    uint64_t dynamic;              /* the mark of the prompt's blocks with DYNAMIC; else 0 */
    bool unmarked;                 /* only blocks without any representative lack one */
    uint64_t fixed_slots[RETRIEVAL_BLOCK_MOST / 64];
    uint32_t layer;
    const float *qkv;
    const forward_seq *seqs; /* the step's [n_seqs] */
    uint32_t n_seqs;
    retrieve_observer observer;
    retrieve_notes *notes;
    exam *exam;
    retrieve_ranks ranks;
    retrieve_gather gathered; /* scores, where selections cross ranks */
    room selecting;           /* uint32_t: the rows of the step that select in the layer */
    size_t most_scratch;      /* retrieve_scratch_bytes */
};

static inline bool room_reserve(room *r, size_t n, size_t size)
{
    if (n <= r->bytes / size) return true;
    void *grown = alloc_resize(NULL, r->data, n, size);
    if (!grown) return false;
    r->data = grown;
    r->bytes = n * size;
    return true;
}

static inline status retrieve_no_memory(void) { return status_make(STATUS_NO_MEMORY, "retrieval"); }

static inline pkv_table_view retrieve_table(const retrieve *r, const forward_seq *seq,
                                            uint32_t layer, uint32_t head)
{
    return pkv_mirror_table(r->o.mirror, seq->seq, kv_store_group(r->o.store, layer, head));
}

/* The number, among the row's lists, of the one that a KV head of this rank reads by. */
static inline uint32_t retrieve_list_of_head(const retrieve *r, const sparse_row *row,
                                             uint32_t head)
{
    uint32_t first = r->o.store->first_head;
    return (first + head) / row->together - first / row->together;
}

/* ---- retrieve_make.c ------------------------------------------------------------------------- */

/* The blocks that a run of KV heads leaves out; NULL where it leaves out none. */
const uint64_t *retrieve_left_out(const retrieve *r, const sparse_row *row, uint32_t run);
/* Sets the row in hand and its candidates. */
status retrieve_take_row(retrieve *r, const sparse_row *row);
/* Makes the representatives that the row in hand lacks. */
status retrieve_make(retrieve *r, const sparse_row *row);
/* Makes those that the first row behind a share's rows that read everything will lack, while the
 * keys of its blocks are in memory. */
status retrieve_make_ahead(retrieve *r, const forward_seq *seq);

#endif
