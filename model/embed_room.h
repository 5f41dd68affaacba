/* Memory for the embeddings of a step (private to model/). One thread. */
#ifndef MODEL_EMBED_ROOM_H
#define MODEL_EMBED_ROOM_H

#include "base/base.h"

#include <stdlib.h>

/* All zero is an empty one; free(values) frees it. */
typedef struct embed_room {
    uint16_t *values;
    size_t capacity; // elements
} embed_room;

/* Makes room for n elements, whose values are not kept. */
static inline status embed_room_reserve(embed_room *room, size_t n)
{
    if (n <= room->capacity) return STATUS_IS_OK;
    uint16_t *grown = alloc_resize(NULL, NULL, n, sizeof *grown);
    if (!grown) return status_make(STATUS_NO_MEMORY, "embeddings");
    free(room->values);
    *room = (embed_room){grown, n};
    return STATUS_IS_OK;
}

#endif
