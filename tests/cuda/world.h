/* Sequences of one layer on the GPU and on the CPU: check_pages.c makes them, check_measures.c
 * measures them. */
#ifndef TESTS_CUDA_WORLD_H
#define TESTS_CUDA_WORLD_H

#include "tests/cuda/check.h"

enum { SEQS_MOST = 8, LAYERS = 2 };

typedef struct shape {
    gpu_kv_format format;
    uint32_t dim, kv_heads, q_heads, page_tokens, window;
    uint32_t n_seqs, lengths[SEQS_MOST], rows[SEQS_MOST]; /* the last rows attend */
    bool norms, bias;
} shape;

/* The second of two layers, with its KV heads in two groups where their number allows it. The
 * sequences' tables are of all grains in turn. The CPU's pages are f32 and hold the values that the
 * GPU's format rounds to. */
typedef struct world {
    const shape *s;
    uint32_t total, pages_of_seq, n_cells, groups, head_groups, heads, width;
    float *qkv;       /* [total, width] */
    uint32_t *tables; /* [seqs, groups, pages_of_seq] */
    gpu_seq seqs[SEQS_MOST];
    uint32_t lengths[LAYERS * 2 * SEQS_MOST];
    gpu_pages pages;
    gpu_tables gpu_tables;
    gpu_layer layer;
    void *d_seqs, *d_lengths, *q, *out, *lse;
    kern_kv_shape cpu;
    size_t cpu_page; /* bytes */
    uint8_t *cpu_pages;
    float *cpu_q;
    float *unrotated; /* [total, heads, dim] queries with bias and norm */
    float *gpu_qkv, *gpu_bias, *gpu_norms;
    /* Memory for what attention keeps of sequences for measures of mass. NULL: nothing is kept. */
    float *kept;
    bool keeps_slots;
    gpu_kept kept_of[SEQS_MOST];
} world;

static inline uint32_t tables_of(const world *w, gpu_grain grain)
{
    return grain == GPU_GRAIN_ALL ? 1 : grain == GPU_GRAIN_LAYER ? LAYERS : w->groups;
}

static inline const uint32_t *table_of(const world *w, uint32_t seq, uint32_t head)
{
    static const uint32_t layer = 1;
    gpu_grain grain = w->seqs[seq].grain;
    size_t table = grain == GPU_GRAIN_ALL ? 0
                   : grain == GPU_GRAIN_LAYER
                       ? layer
                       : layer * w->head_groups + head / w->layer.heads_per_group;
    return w->tables + (w->seqs[seq].table + table) * w->pages_of_seq;
}

/* From a page of that table to the cell of the layer and head. */
static inline size_t cell_behind(const world *w, uint32_t seq, uint32_t head)
{
    gpu_grain grain = w->seqs[seq].grain;
    size_t layer_cells = w->n_cells / LAYERS, head_group = head / w->layer.heads_per_group;
    return (grain == GPU_GRAIN_ALL ? layer_cells : 0) + (grain == GPU_GRAIN_HEAD ? 0 : head_group);
}

/* The head's tile in page 0 of the sequence's table. */
static inline uint8_t *cpu_tiles(const world *w, uint32_t seq, uint32_t head)
{
    size_t tile = w->layer.first_tile + head % w->layer.heads_per_group;
    return w->cpu_pages + cell_behind(w, seq, head) * w->cpu_page +
           tile * kern_kv_tile_bytes(&w->cpu);
}

/* Checks every kind of measure under the last rows of one sequence, then running sums, which are
 * kept beside the pages. */
void check_measures(check *c, world *w, uint32_t seq);

/* Checks the mass of the sequences of which attention has kept something. */
void check_kept_mass(check *c, world *w);

#endif
