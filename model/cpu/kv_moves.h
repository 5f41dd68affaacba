/* Moves of K and V (private to model/): slot by slot, between formats and with keys rotated on the
 * way, since after retention gathers a table to contiguous positions, each key is rotated to the
 * position of its new slot; and page by page, out of the store and back. */
#ifndef MODEL_CPU_KV_MOVES_H
#define MODEL_CPU_KV_MOVES_H

#include "model/cpu/kv_store.h"
#include "model/rope.h"

/* The tiles of one page. */
typedef struct kv_place {
    const kern_kv_shape *shape;
    uint8_t *tiles;
    size_t tile_bytes;
} kv_place;

/* Executes a move of slots on the calling thread: each key is read, rotated by m->rotate positions
 * and written to its new slot; values are copied. No slot is both read and written. */
void kv_move_slots(kern_context *kc, const rope_config *rope, const pkv_move *m, uint32_t n_tiles,
                   kv_place to, kv_place from);
/* kv_move_slots between two pages of a store. The caller has checked pages and slots, and that
 * |rotate| is below the model's positions. */
void kv_move_rotated(const kv_store *s, kern_context *kc, const rope_config *rope,
                     const pkv_move *m);

/* backend_ops.read_cells and write_cells, over a store without kv_filling. A cell's bytes are its
 * page, and a block's those of the cells that are stored here. */
size_t kv_block_bytes(const kv_store *s);
void kv_read_cells(const kv_store *s, const uint32_t *cells, uint32_t n, uint32_t n_slots,
                   uint8_t *to);
void kv_write_cells(const kv_store *s, const uint32_t *cells, uint32_t n, const uint8_t *from);

#endif
