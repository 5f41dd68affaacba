/* cuda_retrieval: what a GPU is told of the rows that read few blocks of their context (the
 * functions `retrieve`, `observe` and `unmark` of cuda_kernels.h). docs/retrieval.md says what
 * representatives, scores and selections are.
 *
 * Owner    all memory is the caller's.
 * Threads  the rules of cuda_kernels.h.
 * Units    blocks are numbered in a table; a block is `block_pages` of its pages.
 * Rounding representatives and scores of given keys and queries have the CPU's bits
 *          (kernels/represent.h). */
#ifndef KERNELS_CUDA_CUDA_RETRIEVAL_H
#define KERNELS_CUDA_CUDA_RETRIEVAL_H

#include "kernels/cuda/cuda_kernels.h"

typedef enum gpu_represent {
    GPU_REPRESENT_SUM, /* the sum of the block's keys */
    GPU_REPRESENT_MAX, /* the largest value of each dim */
    GPU_REPRESENT_BOX, /* the largest and the smallest value of each dim */
} gpu_represent;

/* How a row reads in a layer. */
typedef enum gpu_reads {
    GPU_READS_ALL,
    GPU_SELECTS,  /* the blocks that it selects in this layer */
    GPU_FOLLOWS,  /* the blocks that an earlier row selected in this layer */
    GPU_READS_ON, /* the blocks of its lists, which an earlier layer made */
} gpu_reads;

enum { GPU_NO_ROW = 0xffffffff };

/* A row that reads by retrieval. It has a list of blocks for each run of `together` KV heads. */
typedef struct gpu_sparse_row {
    uint32_t seq, row; /* of the step */
    uint32_t n_slots;  /* that it sees in each table */
    uint32_t block_pages, together;
    gpu_represent kind;
    uint32_t n_keys;          /* SUM: of so many evenly spread keys; 0: of all */
    uint32_t made_of;         /* the low GPU_MARK_BITS of its representatives' marks */
    uint32_t first, end, top; /* the `top` best of blocks [first, end) are read, and all others */
    uint32_t n_list;          /* blocks of a list */
    uint32_t first_list;      /* its lists' index in `blocks`, `room` for each */
    uint32_t room;
    uint32_t first_score; /* its index in `scores`, [kv_heads, end - first] */
    uint32_t leader;      /* FOLLOWS: the row of this step that is followed, or GPU_NO_ROW: kept */
    uint32_t n_leader; /* blocks that the row which selected reads: itself, or the followed one */
    uint32_t added;    /* the first of the blocks that came since, all of which are read */
    uint32_t *kept;    /* [layers, lists, kept_room], or NULL: lists of an earlier row that is
                       followed, and of this one where it `keeps` */
    uint32_t kept_room;
    bool keeps;
    /* The decisions of the prompt's end about its n_known full blocks (gpu_observed). left_out
     * NULL: none of them is. chosen NULL: not DYNAMIC; else made_chosen is made_of of these
     * blocks. */
    uint32_t n_known;
    const uint32_t *left_out, *chosen;
    gpu_tile_mark *chosen_marks;
    uint32_t made_chosen;
    float late_weight; /* of scores of later blocks */
} gpu_sparse_row;

/* The attention of a prompt's end, in one layer that selects. */
struct gpu_observed {
    const float *mass; /* [kv_heads, n_prompt] of the prompt's slots */
    uint32_t n_prompt, block_tokens, kv_heads, together;
    uint32_t number; /* the layer's */
    /* The candidates at the prompt's end, and how many of them stay; 0: all do. A bit for each of
     * the prompt's full blocks [layers, lists, words] says that it is left out. */
    uint32_t first, end, n_left;
    uint32_t *left_out;
    /* DYNAMIC: the slots of each block with the most mass, a bit for each slot, in words of the
     * block's own [layers, kv_heads, blocks, words]; n_chosen 0: none. */
    uint32_t n_chosen;
    uint32_t *chosen;
    float *pooled;  /* [kv_heads, blocks] scratch */
    uint32_t *keys; /* [kv_heads, n_prompt] scratch */
};

/* A block whose representative is to be made. */
typedef struct gpu_unmade {
    gpu_tile_mark mark;
    uint32_t row, head, block;
} gpu_unmade;

/* One layer of the rows that read by retrieval. */
struct gpu_retrieval {
    gpu_pages pages;
    gpu_tables tables;
    gpu_layer layer;
    const gpu_seq *seqs;
    const uint32_t *lengths;
    const gpu_sparse_row *rows;
    const uint8_t *reads;  /* [n_rows] gpu_reads of this layer */
    bool selects, follows; /* some row does */
    bool gathers;          /* tables of pages are written */
    uint32_t n_rows, kv_heads, q_heads;
    uint32_t number;          /* the layer's */
    uint32_t most_candidates; /* of a row */
    const float *qkv;         /* as in gpu_heads, as are the next four, of queries */
    const float *bias, *norm;
    float eps;
    const float *angles;
    float *folded;      /* [n_rows, kv_heads, 2, head_dim] scratch */
    uint32_t *scores;   /* scratch: bits of scores, then keys */
    gpu_unmade *unmade; /* scratch for all candidates of all rows and KV heads */
    /* How many representatives were ever made, and how many are to be made: 0 between calls. */
    unsigned long long *counts;
    uint32_t *blocks;   /* lists */
    uint32_t *pages_of; /* [n_rows, kv_heads, page_stride]: tables of GPU_GRAIN_LIST */
    uint32_t page_stride;
    uint32_t *lengths_of; /* [n_rows, kv_heads] their slots */
};

#endif
