/* Moves of K and V slot by slot (private to model/): between formats, and with keys that turn on
 * their way: a table that was gathered to contiguous positions has its keys where their slots are.
 */
#ifndef MODEL_KV_MOVES_H
#define MODEL_KV_MOVES_H

#include "model/kv_store.h"
#include "model/rope.h"

/* A page: its tiles of one shape. */
typedef struct kv_place {
    const kern_kv_shape *shape;
    uint8_t *tiles;
    size_t tile_bytes;
} kv_place;

/* Executes a move of slots: each key is read, turned by m->rotate positions and written to its new
 * slot; values go as they are. No slot that is read is written. Not threaded. */
void kv_move_slots(kern_context *kc, const rope_config *rope, const pkv_move *m, uint32_t n_tiles,
                   kv_place to, kv_place from);
/* The same of a store's pages. Pages and slots have been checked, and that |rotate| is below the
 * model's positions. */
void kv_move_rotated(const kv_store *s, kern_context *kc, const rope_config *rope,
                     const pkv_move *m);

#endif
