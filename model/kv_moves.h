/* Moves of K and V whose keys turn on their way (private to model/): a table that was gathered to
 * contiguous positions has its keys where their slots are. */
#ifndef MODEL_KV_MOVES_H
#define MODEL_KV_MOVES_H

#include "model/kv_store.h"
#include "model/rope.h"

/* Executes a move of slots with rotate != 0: each key is read, turned by that many positions and
 * written to its new slot; values go as they are. Pages and slots have been checked, and that
 * |rotate| is below the model's positions. Not threaded. */
void kv_move_rotated(const kv_store *s, kern_context *kc, const rope_config *rope,
                     const pkv_move *m);

#endif
