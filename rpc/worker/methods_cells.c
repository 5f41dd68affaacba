/* Cells at a worker: K and V that the coordinator keeps on its disk. The queue's thread copies them
 * under the lock, so that no session ends meanwhile; a message has 1 MiB, or one cell. */
#include "rpc/worker/server.h"

#include "rpc/worker/codes.h"
#include <stdlib.h>

status cells_check(const cells_message *m, const backend_info *info, const backend_slice *slice,
                   error *err)
{
    bool writes = m->n_slots == 0;
    if (slice->cell_bytes == 0)
        return error_set(err, STATUS_UNSUPPORTED, "cells: this rank does not copy its pages");
    if (m->n_cells == 0 || m->n_cells > cell_bytes_max / slice->cell_bytes)
        return error_set(err, STATUS_INVALID, "cells: %zu at once", m->n_cells);
    if (m->n_slots > info->geometry.page_tokens)
        return error_set(err, STATUS_INVALID, "n_slots: %u of %u", m->n_slots,
                         info->geometry.page_tokens);
    for (size_t i = 0; i < m->n_cells; i++)
        if (m->cells[i] - slice->cells.first >= slice->cells.n)
            return error_set(err, STATUS_INVALID, "cells: %u is not one of this rank", m->cells[i]);
    if (m->data.len == (writes ? m->n_cells * slice->cell_bytes : 0)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "data: %zu bytes for %zu cells", m->data.len, m->n_cells);
}

/* Sets *reply to what is read, which the caller frees. Call it with the lock held. */
static status copy_cells(worker_server *s, const cells_message *m, ProtobufCBinaryData *reply,
                         error *err)
{
    const backend *b = &s->backend;
    if (s->session == 0 || m->session != s->session)
        return error_set(err, STATUS_INVALID, "session: it is not this worker's");
    if (s->state != WORKER_LOADED)
        return error_set(err, STATUS_UNAVAILABLE, "Cells: the rank is not loaded");
    backend_slice slice = backend_slice_of(&s->facts.info, s->config.rank, s->config.size);
    RETURN_IF_ERROR(cells_check(m, &s->facts.info, &slice, err));
    uint32_t n = (uint32_t)m->n_cells;
    bool good = true;
    if (m->n_slots == 0) {
        good = b->ops->write_cells(b->ctx, m->cells, n, m->data.data);
    } else {
        reply->len = n * slice.cell_bytes;
        reply->data = malloc(reply->len);
        good = reply->data && b->ops->read_cells(b->ctx, m->cells, n, m->n_slots, &reply->data, n);
    }
    return good ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "cells: they were not copied");
}

void method_cells(rpc_call *c, const ProtobufCMessage *m)
{
    worker_server *s = call_context(c);
    Octavo__Worker__V1__CellsReply reply = OCTAVO__WORKER__V1__CELLS_REPLY__INIT;
    error err = {{0}};
    pthread_mutex_lock(&s->lock);
    status st = copy_cells(s, (const cells_message *)m, &reply.data, &err);
    pthread_mutex_unlock(&s->lock);
    if (status_ok(st)) call_reply(c, &reply.base);
    else call_finish(c, code_to_wire(st.code), err.text);
    free(reply.data.data);
}
