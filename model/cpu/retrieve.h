/* Reading few blocks of a table (private to model/; docs/retrieval.md): the representatives of
 * blocks, which lie beside their pages in kv_store, and the blocks that the rows of a step read.
 *
 * A representative is made from the keys as they are stored: with the prompt's rows, which read
 * everything, or when a row first selects among blocks that have none. What writes a page or moves
 * slots to it clears its mark (kv_store_forget), and a block whose pages do not all have the mark
 * of one representative has none. */
#ifndef MODEL_CPU_RETRIEVE_H
#define MODEL_CPU_RETRIEVE_H

#include "model/cpu/forward.h"

typedef struct retrieve retrieve;

/* The kinds of retrieval that a CPU backend makes (backend_info.retrieves). */
enum {
    RETRIEVE_CAN = 1 << RETRIEVAL_MEAN | 1 << RETRIEVAL_MAX | 1 << RETRIEVAL_QUEST |
                   1 << RETRIEVAL_FIX | 1 << RETRIEVAL_DYNAMIC | RETRIEVAL_NEEDS_HISTORY |
                   RETRIEVAL_NEEDS_PRESELECTION | RETRIEVAL_NEEDS_EXAM | RETRIEVAL_NEEDS_AUDIT
};

/* The longest table of a pool of n_pages pages, in slots. */
uint32_t retrieve_longest_table(const model_config *config, const pkv_geometry *geometry,
                                uint32_t n_pages);

typedef struct retrieve_limits {
    uint32_t q_heads; // query heads that this rank has of a KV head
    uint32_t max_rows, max_seqs;
    uint32_t n_slots; // of the longest table
    uint32_t n_ranks, n_threads;
} retrieve_limits;

/* The most bytes that a step's lists and the scratch of its selections take on one rank, whatever
 * its requests ask for. Audits come on top: a few hundred bytes a row and KV head. */
size_t retrieve_scratch_bytes(const kv_store *store, const retrieve_limits *limits);

/* q_heads: as in retrieve_limits. qkv_width: floats of a row of q, k and v. The options' objects
 * are borrowed. */
status retrieve_create(const forward_options *options, uint32_t q_heads, uint32_t qkv_width,
                       retrieve **out);
void retrieve_destroy(retrieve *r);
/* Gives up what is kept for requests under these numbers (step_plan.ended_notes). */
void retrieve_end_notes(retrieve *r, const uint32_t *notes, uint32_t n);
/* Bytes that are kept for requests. */
uint64_t retrieve_note_bytes(const retrieve *r);
/* Bytes that lists and scratch take now. */
size_t retrieve_scratch_taken(const retrieve *r);

/* Lists the step's rows that read by retrieval. The sequences must live until the step is over. */
status retrieve_start(retrieve *r, const forward_seq *seqs, uint32_t n_seqs);
/* How many rows of the step read by retrieval. */
uint32_t retrieve_rows(const retrieve *r);
/* Whether the sequence's last rows read by retrieval in this layer. */
bool retrieve_reads_few(const retrieve *r, const forward_seq *seq, uint32_t layer);
/* Lets the rows select that select in this layer. qkv [rows of the step, qkv_width], with K and V
 * of these rows in their pages. */
status retrieve_layer(retrieve *r, uint32_t layer, const float *qkv);
/* The slots that the nth row that reads by retrieval sees in every table. */
uint32_t retrieve_slots(const retrieve *r, uint32_t nth);

/* The blocks that a KV head of the nth row reads, in the layer of the last retrieve_layer. */
typedef struct retrieve_list {
    const uint32_t *blocks; // [n] ascending
    uint32_t n;
    bool counts;   // once among all KV heads of all ranks that read by the list
    bool selected; // in this layer, by this row
    double missed; // epsilon: a bound on the share of the mass that is not read
} retrieve_list;

retrieve_list retrieve_list_of(const retrieve *r, uint32_t nth, uint32_t head);
/* Makes an item of one row, which reads everything up to the row, one that reads the row's blocks.
 * `nth` is the row's number among the step's rows that read by retrieval. */
void retrieve_narrow(retrieve *r, uint32_t nth, uint32_t head, kern_attn_item *item);

/* Spreads numbers of the pages that the row reads, in their order, over all pages of its table:
 * mass [pages], -1 for those that it does not read. */
void retrieve_spread(const retrieve *r, uint32_t nth, uint32_t head, float *mass);

#endif
