/* A pool whose pages lie in device and host memory under one numbering (private to model/), as
 * backend_options.kv_host_bytes asks for. The first cells lie on the device for good, all others in
 * pinned host memory. Behind the device's cells lie two windows of equal size. While a layer
 * computes, one of them has the pages in host memory that the layer reads or writes, and the other
 * one receives the next layer's; when the layer has ended, the pages that it wrote go back to the
 * host. So the device never holds more of the host's pages than two layers', and copies run beside
 * kernels. (A layer here is a layer group of the geometry.)
 *
 * Tables   each step sends tables of its own, layer by layer: the number of a cell on the device is
 *          its own, and that of one in a window counts on from the device's cells, so kernels read
 *          both through one gpu_pages.
 * Order    uploads wait until the layer before the last has left the window, kernels wait for their
 *          layer's upload, copies to the host wait for their layer's kernels, and the stream's end
 *          waits for all copies. One step is in flight at a time.
 * Threads  the backend's one. */
#ifndef MODEL_CUDA_WINDOW_H
#define MODEL_CUDA_WINDOW_H

#include "model/cuda/cuda.h"

typedef struct cuda_window cuda_window;

/* How a pool is laid out: cells on the device, cells of one window. */
typedef struct cuda_window_sizes {
    uint32_t n_here, n_frames;
} cuda_window_sizes;

/* Lays out a pool of n_cells where the device has room for `room` cells. A window holds a layer of
 * the whole pool. False: they do not fit. */
bool cuda_window_fit(const pkv_geometry *g, uint64_t n_cells, uint64_t room,
                     cuda_window_sizes *out);
/* The most cells that a pool can have whose device has room for `room` cells and whose host has
 * `on_host`; 0: two layers of those on the host do not fit. */
uint64_t cuda_window_cells(const pkv_geometry *g, uint64_t room, uint64_t on_host);

typedef struct cuda_window_options {
    cuda_device *device;
    const gpu_pages *pages; /* borrowed; their memory has the cells here and both windows */
    pkv_geometry geometry;
    pkv_cells cells; /* all of the pool's */
    cuda_window_sizes sizes;
} cuda_window_options;

status cuda_window_create(const cuda_window_options *options, cuda_window **out);
void cuda_window_destroy(cuda_window *w);
cuda_window_sizes cuda_window_sizes_of(const cuda_window *w);
/* Bytes of the pages in host memory. */
uint64_t cuda_window_host_bytes(const cuda_window *w);
/* The page of a cell in host memory; NULL: it lies on the device, under its own number. */
uint8_t *cuda_window_host_page(const cuda_window *w, uint32_t cell);

/* ---- a step ---------------------------------------------------------------------------------- */

/* The rows of share i as kernels see them: a table for each head group, those of one layer. */
gpu_seq cuda_window_seq(const cuda_window *w, uint32_t i, const step_seq *share);
/* Plans which pages each layer of the step needs, and begins the first layer's upload. Where
 * `leaves`, pages in host memory that no row writes are left there, in layers without a sliding
 * window: tables have the others alone, in their order. STATUS_NO_MEMORY: a layer's are more than a
 * window holds, and nothing has begun. */
status cuda_window_plan(cuda_window *w, const pkv_mirror *mirror, const step_plan *plan,
                        bool leaves);
/* The number of pages that a table of a layer has left in host memory, all of whose slots are
 * written. Tables are numbered by share and head group. */
uint32_t cuda_window_left(const cuda_window *w, uint32_t layer, uint32_t table,
                          const uint32_t **cells);
/* A layer's pages and tables, once the stream has come to them; begins the next layer's upload. */
status cuda_window_begin(cuda_window *w, uint32_t layer, cuda_layer_kv *kv);
/* The layer's kernels have been launched: what they write goes down to the host. */
status cuda_window_end(cuda_window *w, uint32_t layer);
/* Makes the stream wait for all copies, also those of a step that was given up. */
status cuda_window_settle(cuda_window *w);

/* ---- moves ----------------------------------------------------------------------------------- */

/* The number under which kernels find a cell of the pool until the next cuda_window_give_back: its
 * own on the device, else that of a frame to which its page is uploaded. `written`: the page goes
 * back to the host. *out 0: both windows are full. Cell 0, which is spare, is not asked for. Not
 * while a step is planned. */
status cuda_window_lend(cuda_window *w, uint32_t cell, bool written, uint32_t *out);
/* Copies what was written back to the host, waits for it, and takes all frames back. */
status cuda_window_give_back(cuda_window *w);

#endif
