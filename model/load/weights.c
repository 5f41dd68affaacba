#include "model/load/weights.h"

#include "model/load/dummy.h"
#include "model/load/finite.h"
#include "model/load/gguf/gguf_model.h"
#include "model/load/quantized/quantized.h"
#include "model/load/weights_cache.h"
#include "model/load/weights_hash.h"
#include "model/load/weights_quant.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64,          /* kern_matrix.data */
    MAPPED_CHUNK = 16 << 20, /* bytes of a file in memory at a time */
    MADE_CHUNK = 512 << 10,  /* bytes of `made` rows at a time: half of an L2 cache */
    SAMPLES = 16,            /* samples of a tensor for the identity */
    SAMPLE_BYTES = 64,
};

typedef struct loader {
    const weights_options *o;
    model_weights w; /* the loader owns w.layers and w.experts until the block exists */
    tensor_part *parts;
    size_t *first_rows; /* [n_parts]: where a part begins in its matrix */
    size_t n_parts;
    safetensors files;   /* empty unless dir is a folder of safetensors */
    gguf one_file;       /* empty unless dir is a GGUF file */
    quantized quantized; /* scheme of `files`; empty when they are plain */
    size_t data_begin;   /* where packed data begins in the block */
    uint8_t *made;       /* rows to be packed that do not lie ready in a file */
    size_t made_bytes;
    uint64_t done, total; /* elements of matrices, for o->progress */
} loader;

/* ---- which matrix, which vector -------------------------------------------------------------- */

static kern_matrix *matrix_of(model_weights *w, const tensor_part *p)
{
    layer_weights *l = &w->layers[p->layer];
    switch (p->role) {
    case TENSOR_EMBED: return &w->embed;
    case TENSOR_HEAD: return &w->head;
    case TENSOR_Q:
    case TENSOR_K:
    case TENSOR_V: return &l->qkv;
    case TENSOR_O: return &l->o;
    case TENSOR_GATE:
    case TENSOR_UP:
    case TENSOR_SHARED_GATE:
    case TENSOR_SHARED_UP: return &l->gate_up;
    case TENSOR_DOWN:
    case TENSOR_SHARED_DOWN: return &l->down;
    case TENSOR_ROUTER: return &l->router;
    case TENSOR_SHARED_SWITCH: return &l->shared_switch;
    case TENSOR_EXPERT_GATE:
    case TENSOR_EXPERT_UP: return &l->experts[p->expert].gate_up;
    case TENSOR_EXPERT_DOWN: return &l->experts[p->expert].down;
    default: return NULL;
    }
}

static float **vector_of(model_weights *w, const tensor_part *p)
{
    layer_weights *l = &w->layers[p->layer];
    switch (p->role) {
    case TENSOR_NORM: return &w->norm;
    case TENSOR_ATTN_NORM: return &l->attn_norm;
    case TENSOR_Q_BIAS:
    case TENSOR_K_BIAS:
    case TENSOR_V_BIAS: return &l->qkv_bias;
    case TENSOR_Q_NORM: return &l->q_norm;
    case TENSOR_K_NORM: return &l->k_norm;
    case TENSOR_ATTN_POST_NORM: return &l->attn_post_norm;
    case TENSOR_FFN_NORM: return &l->ffn_norm;
    case TENSOR_FFN_POST_NORM: return &l->ffn_post_norm;
    default: return NULL;
    }
}

/* Whether a tied head is a matrix of its own: it is quantised and the embeddings are not. */
static bool head_is_copy(const weights_options *o)
{
    return o->config->tied_embeddings && o->quant.bits;
}

/* The type of a matrix with rows of type `so_far` when rows stored as `stored` join it. */
static dtype joined_type(dtype wanted, bool is_first, dtype so_far, dtype stored)
{
    if (wanted != DTYPE_F32) return wanted;
    return is_first || so_far == stored ? stored : DTYPE_F32;
}

/* Sets shapes and types of all matrices. A matrix's parts lie below each other in the order of the
 * list. The biases of q, k and v lie where their rows do. */
static void shape_matrices(loader *ld)
{
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        kern_matrix *m = matrix_of(&ld->w, p);
        if (p->role == TENSOR_K_BIAS || p->role == TENSOR_V_BIAS)
            ld->first_rows[i] = ld->first_rows[i - 1] + ld->parts[i - 1].n_cols;
        if (!m) continue;
        ld->first_rows[i] = m->n;
        m->type = joined_type(ld->o->type, m->n == 0, m->type, p->stored);
        weights_join_quant(ld->o, p, m->n == 0, m);
        m->n += p->n_rows;
        m->k = p->n_cols;
        ld->total += (uint64_t)p->n_rows * p->n_cols;
    }
    for (uint32_t l = 0; l < ld->o->config->n_layers; l++)
        if (ld->w.layers[l].experts) weights_join_experts(ld->o, ld->w.layers[l].experts);
    if (!head_is_copy(ld->o)) return;
    ld->w.head = ld->w.embed;
    ld->w.head.quant = weights_quant_of(ld->o, TENSOR_HEAD);
}

/* ---- the block ------------------------------------------------------------------------------- */

static uint8_t *carve_block(uint8_t *block, size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return block ? block + here : NULL;
}

/* Points each sparse layer to its experts. */
static void find_experts(loader *ld)
{
    const model_config *c = ld->o->config;
    for (uint32_t l = 0; l < c->n_layers; l++)
        if (c->layers[l] & LAYER_SPARSE)
            ld->w.layers[l].experts = ld->w.experts + (size_t)l * c->n_experts;
}

/* Gives everything its place in block and returns the bytes it takes. block NULL: only counts. */
static size_t lay_out(loader *ld, uint8_t *block)
{
    size_t at = 0, layer_bytes = ld->o->config->n_layers * sizeof(layer_weights);
    size_t experts_bytes =
        (size_t)ld->o->config->n_layers * ld->o->config->n_experts * sizeof(ffn_weights);
    layer_weights *layers = (layer_weights *)(void *)carve_block(block, &at, layer_bytes);
    ffn_weights *experts = (ffn_weights *)(void *)carve_block(block, &at, experts_bytes);
    ld->data_begin = at;
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        kern_matrix *m = matrix_of(&ld->w, p);
        float **v = vector_of(&ld->w, p);
        size_t floats = p->role == TENSOR_Q_BIAS ? ld->w.layers[p->layer].qkv.n : p->n_cols;
        if (v && ld->first_rows[i] == 0)
            *v = (float *)(void *)carve_block(block, &at, floats * sizeof(float));
        else if (m && ld->first_rows[i] == 0)
            m->data = carve_block(block, &at, kern_matrix_size(m));
    }
    kern_matrix *head = &ld->w.head;
    if (head_is_copy(ld->o)) head->data = carve_block(block, &at, kern_matrix_size(head));
    if (block) {
        memcpy(layers, ld->w.layers, layer_bytes);
        if (experts_bytes) memcpy(experts, ld->w.experts, experts_bytes);
        free(ld->w.layers);
        free(ld->w.experts);
        ld->w.layers = layers;
        ld->w.experts = experts;
        find_experts(ld);
    }
    return at;
}

static status take_memory(loader *ld, error *err)
{
    size_t bytes = lay_out(ld, NULL), left = memory_available_bytes();
    /* The ranks of a machine load their equal slices at the same time. */
    size_t of_all = bytes * (ld->o->ranks_here ? ld->o->ranks_here : (size_t)ld->o->size);
    if (of_all > left)
        return error_set(err, STATUS_NO_MEMORY, "%s: weights of %zu MiB, and %zu MiB are free",
                         ld->o->dir, of_all >> 20, left >> 20);
    ld->w.memory = alloc_pages(bytes);
    if (!ld->w.memory)
        return error_set(err, STATUS_NO_MEMORY, "%s: no memory for weights of %zu MiB", ld->o->dir,
                         bytes >> 20);
    ld->w.bytes = bytes;
    lay_out(ld, ld->w.memory);
    return STATUS_IS_OK;
}

/* ---- tensor by tensor ------------------------------------------------------------------------ */

static void convert_vector(const uint8_t *src, dtype type, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        if (type == DTYPE_F32) {
            memcpy(&out[i], src + 4 * i, sizeof out[i]);
            continue;
        }
        memcpy(&half, src + 2 * i, sizeof half);
        out[i] = type == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
}

static void load_vector(loader *ld, const tensor_part *p, size_t first)
{
    float *out = *vector_of(&ld->w, p) + first;
    const tensor_source *s = &p->source;
    if (!s->map) {
        bool bias = p->role >= TENSOR_Q_BIAS && p->role <= TENSOR_V_BIAS;
        for (size_t i = 0; i < p->n_cols; i++) out[i] = bias ? 0.0f : 1.0f;
        return;
    }
    size_t from = s->begin + p->col * dtype_bytes(p->stored);
    convert_vector(s->map->data + from, p->stored, p->n_cols, out);
    for (size_t i = 0; i < p->n_cols; i++) out[i] = (out[i] + p->plus) * p->times;
    file_map_release(s->map, s->begin, s->begin + s->bytes);
}

/* The number of rows that are about chunk bytes, in whole panels where possible. */
static size_t rows_of_chunk(size_t chunk, size_t row_bytes)
{
    size_t rows = chunk / row_bytes;
    if (rows >= KERN_PANEL) rows -= rows % KERN_PANEL;
    return rows > 0 ? rows : 1;
}

/* Packs rows of a part into its matrix, and into the head when that is a copy of the embeddings. */
static void pack_rows(loader *ld, const tensor_part *p, size_t row, size_t rows, const void *src)
{
    const weights_options *o = ld->o;
    kern_matrix_pack(o->kernels, matrix_of(&ld->w, p), row, rows, src, p->stored, p->cols);
    if (p->role == TENSOR_EMBED && head_is_copy(o))
        kern_matrix_pack(o->kernels, &ld->w.head, row, rows, src, p->stored, p->cols);
}

/* Whether the file has the rows ready to be packed: decoded and in order. */
static bool is_plain(const tensor_source *s)
{
    return s->map && !s->blocks && !s->rotary && !s->quantized;
}

typedef struct unpack_job {
    const quantized_weight *w;
    size_t row;
    uint8_t *out;
} unpack_job;

static void unpack_rows(void *ctx, size_t from, size_t to, unsigned thread)
{
    (void)thread;
    const unpack_job *j = ctx;
    size_t row_bytes = j->w->cols * dtype_bytes(j->w->type);
    quantized_rows(j->w, j->row + from, to - from, j->out + from * row_bytes);
}

/* Decodes rows [row, row + n) of a part whose file has blocks or another order of rows. */
static void decode_rows(const tensor_part *p, size_t row, size_t n, uint8_t *out)
{
    const tensor_source *s = &p->source;
    size_t out_bytes = p->cols * dtype_bytes(p->stored);
    for (size_t i = 0; i < n; i++, out += out_bytes) {
        const uint8_t *from =
            s->map->data + s->begin + tensor_source_row(s, row + i) * s->row_bytes;
        if (!s->blocks) {
            memcpy(out, from, out_bytes);
            continue;
        }
        float *to = (float *)(void *)out;
        for (size_t k = 0; k < p->cols; k += s->blocks->elements, from += s->blocks->bytes)
            s->blocks->decode(from, to + k);
    }
}

/* Rows [row, row + n) of the whole, in the file if they are plain, else in ld->made. */
static const uint8_t *rows_of(loader *ld, const tensor_part *p, const dummy_tensor *dummy,
                              size_t row, size_t n)
{
    const tensor_source *s = &p->source;
    if (is_plain(s)) return s->map->data + s->begin + row * s->row_bytes;
    unpack_job job = {s->quantized, row, ld->made};
    if (s->quantized && ld->o->pool) thread_pool_for(ld->o->pool, n, 8, unpack_rows, &job);
    else if (s->quantized) unpack_rows(&job, 0, n, 0);
    else if (s->map) decode_rows(p, row, n, ld->made);
    else dummy_tensor_rows(dummy, row, n, ld->made);
    return ld->made;
}

/* Checks n rows of a part from `row` on. A vector is one row. */
static status check_finite(const loader *ld, const tensor_part *p, const uint8_t *data, size_t row,
                           size_t n, error *err)
{
    const finite_rows rows = {data, p->stored, n, p->cols, p->col, p->n_cols};
    size_t bad;
    if (rows_are_finite(&rows, ld->o->pool, &bad)) return STATUS_IS_OK;
    return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\": row %zu holds NaN or infinity",
                     ld->o->dir, p->name, row + bad);
}

static bool is_given_up(const loader *ld)
{
    return ld->o->given_up && atomic_load(ld->o->given_up);
}

static void log_progress(loader *ld, uint64_t elements)
{
    ld->done += elements;
    if (ld->o->progress) ld->o->progress(ld->o->progress_ctx, ld->done, ld->total);
}

/* Copies n rows of a part from `row` on, which are e4m3, to rows of its matrix from `to` on. */
static status keep_rows(loader *ld, const tensor_part *p, size_t row, size_t n, size_t to,
                        error *err)
{
    const kern_matrix *m = matrix_of(&ld->w, p);
    quantized_kept k = {.w = p->source.quantized,
                        .row = row,
                        .rows = n,
                        .col = p->col,
                        .n = p->n_cols,
                        .group = m->quant.group ? m->quant.group : p->n_cols,
                        .values = (uint8_t *)m->data + to * m->k,
                        .scales = kern_float_scales(m) + to * kern_float_groups(m)};
    size_t bad;
    if (quantized_keep_rows(&k, ld->o->pool, &bad)) return STATUS_IS_OK;
    return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\": row %zu holds NaN or infinity",
                     ld->o->dir, p->name, bad);
}

static status load_matrix(loader *ld, const tensor_part *p, size_t first_row, error *err)
{
    const tensor_source *s = &p->source;
    size_t element = dtype_bytes(p->stored), row_bytes = p->cols * element;
    bool keeps = matrix_of(&ld->w, p)->is_float, made = !keeps && !is_plain(s);
    size_t step = rows_of_chunk(made ? MADE_CHUNK : MAPPED_CHUNK, row_bytes);
    dummy_tensor dummy;
    if (!s->map) dummy_tensor_init(&dummy, ld->o->dummy_seed, p->name, p->cols, p->stored);
    if (made && step * row_bytes > ld->made_bytes) {
        uint8_t *grown = alloc_resize(NULL, ld->made, step, row_bytes);
        if (!grown) return error_set(err, STATUS_NO_MEMORY, "%s: out of memory", p->name);
        ld->made = grown;
        ld->made_bytes = step * row_bytes;
    }
    /* Rows past the whole, which pad a vocabulary, keep the block's initial zeros. */
    size_t there = p->row < p->rows ? p->rows - p->row : 0;
    size_t count = p->run || p->n_rows < there ? p->n_rows : there;
    for (size_t i = 0, n; i < count; i += n) {
        size_t row = tensor_part_row(p, i, &n);
        if (is_given_up(ld)) return error_set(err, STATUS_ABORTED, "%s: given up", p->name);
        if (n > step) n = step;
        if (n > count - i) n = count - i;
        if (keeps) {
            RETURN_IF_ERROR(keep_rows(ld, p, row, n, first_row + i, err));
        } else {
            const uint8_t *rows = rows_of(ld, p, &dummy, row, n);
            RETURN_IF_ERROR(check_finite(ld, p, rows, row, n, err));
            pack_rows(ld, p, first_row + i, n, rows + p->col * element);
        }
        size_t from = s->begin + row * s->row_bytes; /* inexact for rows in pairs */
        if (s->map) file_map_release(s->map, from, from + n * s->row_bytes);
        log_progress(ld, (uint64_t)n * p->n_cols);
    }
    if (s->quantized) file_map_release(s->map, s->begin, s->begin + s->bytes);
    log_progress(ld, (uint64_t)(p->n_rows - count) * p->n_cols);
    return STATUS_IS_OK;
}

/* ---- identity -------------------------------------------------------------------------------- */

/* Hashes samples spread over the data, which suffice: a fine-tune changes nearly every weight. */
static uint64_t hash_samples(const uint8_t *data, size_t bytes, uint64_t h)
{
    if (bytes <= SAMPLES * SAMPLE_BYTES) return hash_bytes(data, bytes, h);
    for (size_t i = 0; i < SAMPLES; i++)
        h = hash_bytes(data + (bytes - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES, h);
    return h;
}

static uint64_t hash_part(const loader *ld, const tensor_part *p, uint64_t h)
{
    h = hash_bytes(p->name, strlen(p->name), h);
    h = hash_number(h, p->rows);
    h = hash_number(h, p->cols);
    h = hash_number(h, (uint64_t)p->stored);
    const tensor_source *s = &p->source;
    if (!s->map) return hash_number(h, ld->o->dummy_seed);
    if (!s->quantized) return hash_samples(s->map->data + s->begin, s->bytes, h);
    for (int i = 0; i < QUANTIZED_TENSORS; i++)
        h = hash_samples(s->quantized->in[i].data, s->quantized->in[i].bytes, h);
    return quantized_hash(s->quantized, h);
}

static uint64_t hash_files(const loader *ld, uint64_t h)
{
    safetensors_file one = {.path = ld->one_file.path};
    safetensors alone = {.files = &one, .n_files = 1};
    return weights_cache_key(one.path ? &alone : &ld->files, h);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Refuses slices that cut a quantised group: their weights would differ from the whole's. */
static status check_groups(const loader *ld, error *err)
{
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        kern_quant quant = weights_quant_of(ld->o, p->role);
        if (!p->is_vector && quant.bits && p->n_cols != p->cols && p->n_cols % quant.group)
            return error_set(err, STATUS_UNSUPPORTED,
                             "tensor \"%s\": %zu columns for each of %d ranks cut its quantised "
                             "groups of %u",
                             p->name, p->n_cols, ld->o->size, quant.group);
    }
    return STATUS_IS_OK;
}

static status plan_tensors(loader *ld, error *err)
{
    const model_config *c = ld->o->config;
    RETURN_IF_ERROR(tensor_slice_of(c, ld->o->rank, ld->o->size, &ld->w.slice, err));
    RETURN_IF_ERROR(tensors_list(c, &ld->w.slice, &ld->parts, &ld->n_parts, err));
    RETURN_IF_ERROR(check_groups(ld, err));
    if (!ld->o->dummy && gguf_is_path(ld->o->dir)) {
        RETURN_IF_ERROR(gguf_open(ld->o->dir, &ld->one_file, err));
        RETURN_IF_ERROR(gguf_match(c, &ld->one_file, ld->parts, ld->n_parts, err));
    } else if (!ld->o->dummy) {
        quantized *q = c->quantized ? &ld->quantized : NULL;
        RETURN_IF_ERROR(safetensors_open(ld->o->dir, &ld->files, err));
        if (q) RETURN_IF_ERROR(quantized_open(ld->o->dir, q, err));
        if (q && q->scheme != c->quantized)
            return error_set(err, STATUS_CORRUPT, "%s: config.json has changed", ld->o->dir);
        RETURN_IF_ERROR(tensors_match(c, &ld->files, q, ld->parts, ld->n_parts, err));
    }
    ld->first_rows = alloc_zeroed(NULL, ld->n_parts, sizeof *ld->first_rows);
    ld->w.layers = alloc_zeroed(NULL, c->n_layers, sizeof *ld->w.layers);
    ld->w.experts =
        alloc_zeroed(NULL, (size_t)c->n_layers * c->n_experts + 1, sizeof *ld->w.experts);
    if (!ld->first_rows || !ld->w.layers || !ld->w.experts)
        return error_set(err, STATUS_NO_MEMORY, "list of tensors: out of memory");
    find_experts(ld);
    shape_matrices(ld);
    return STATUS_IS_OK;
}

static uint64_t hash_parts(const loader *ld, uint64_t h)
{
    for (size_t i = 0; i < ld->n_parts; i++) h = hash_part(ld, &ld->parts[i], h);
    return h;
}

static status load_tensors(loader *ld, error *err)
{
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        const tensor_source *s = &p->source;
        if (p->is_vector && s->map)
            RETURN_IF_ERROR(check_finite(ld, p, s->map->data + s->begin, 0, 1, err));
        if (p->is_vector) load_vector(ld, p, ld->first_rows[i]);
        else RETURN_IF_ERROR(load_matrix(ld, p, ld->first_rows[i], err));
    }
    return STATUS_IS_OK;
}

/* ---- from and to the cache ------------------------------------------------------------------- */

static size_t place_of(const loader *ld, const void *data)
{
    return (size_t)((const uint8_t *)data - (const uint8_t *)ld->w.memory) - ld->data_begin;
}

static void list_matrix(const loader *ld, const char *name, const kern_matrix *m, strbuf *out)
{
    strbuf_printf(out, "%s %zu %zu [%zu,%zu] %s %u/%u%s\n", name, place_of(ld, m->data),
                  kern_matrix_size(m), m->n, m->k, dtype_name(m->type), m->quant.bits,
                  m->quant.group, m->is_float ? " float" : "");
}

/* Writes a line for each matrix and vector: its first tensor, place, bytes, shape and format. */
static void list_places(loader *ld, strbuf *out)
{
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        kern_matrix *m = matrix_of(&ld->w, p);
        if (ld->first_rows[i] != 0) continue;
        if (m) list_matrix(ld, p->name, m, out);
        else
            strbuf_printf(out, "%s %zu [%zu] f32\n", p->name, place_of(ld, *vector_of(&ld->w, p)),
                          p->n_cols);
    }
    if (head_is_copy(ld->o)) list_matrix(ld, "head", &ld->w.head, out);
}

static void log_line(const weights_options *o, const char *about, const char *what)
{
    char line[WEIGHTS_CACHE_PATH_MAX + 64];
    snprintf(line, sizeof line, "weights-cache: %s: %s", about, what);
    if (o->log_line) o->log_line(o->log_ctx, line);
}

/* Hashes all that decides the packed bytes: kind, files, and which rows go where. */
static uint64_t cache_key(const loader *ld, const char *kind)
{
    uint64_t h = hash_parts(ld, hash_bytes(kind, strlen(kind), 0));
    for (size_t i = 0; i < ld->n_parts; i++) {
        const tensor_part *p = &ld->parts[i];
        const uint64_t cut[] = {
            p->role,   p->row,           p->n_rows,
            p->run,    p->step,          p->col,
            p->n_cols, p->source.rotary, p->source.blocks ? p->source.blocks->id : 0};
        h = hash_real(hash_bytes(cut, sizeof cut, h), (double)p->times);
    }
    return hash_files(ld, h);
}

static void keep_in_cache(const loader *ld, const weights_image *image)
{
    error why;
    char path[WEIGHTS_CACHE_PATH_MAX];
    if (cache_key(ld, image->kind) != image->key)
        log_line(ld->o, ld->o->dir, "files changed while they were read: not kept");
    else if (!status_ok(weights_cache_path(image, path, &why)) ||
             !status_ok(weights_cache_write(image, &why)))
        log_line(ld->o, why.text, "not kept");
    else log_line(ld->o, path, "written");
}

/* Loads from the cache, or packs and writes the cache. A bad cache never stops loading. */
static status load_cached(loader *ld, error *err)
{
    const weights_options *o = ld->o;
    char kind[64];
    snprintf(kind, sizeof kind, "int%u.%u-g%u-%s%s%s-rank%dof%d", o->quant.bits,
             o->attention_bits ? o->attention_bits : o->quant.bits, o->quant.group,
             o->keep_floats && o->config->quantized ? "e4m3-" : "", dtype_name(o->type),
             weights_takes_blocks(o) ? "-blocks" : "", o->rank, o->size);
    strbuf table = {0};
    list_places(ld, &table);
    if (table.failed) {
        strbuf_destroy(&table);
        return error_set(err, STATUS_NO_MEMORY, "list of tensors: out of memory");
    }
    weights_image image = {.cache_dir = o->cache_dir,
                           .model_dir = o->dir,
                           .kind = kind,
                           .key = cache_key(ld, kind),
                           .table = table.data,
                           .table_bytes = table.size,
                           .data = (uint8_t *)ld->w.memory + ld->data_begin,
                           .bytes = ld->w.bytes - ld->data_begin,
                           .pool = o->pool,
                           .given_up = o->given_up};
    error why;
    status s = weights_cache_read(&image, &why);
    ld->w.from_cache = status_ok(s);
    if (is_given_up(ld)) {
        s = error_set(err, STATUS_ABORTED, "%s: given up", o->dir);
    } else if (!ld->w.from_cache) {
        if (s.code != STATUS_NOT_FOUND) log_line(o, why.text, "packed anew");
        s = load_tensors(ld, err);
        if (status_ok(s)) keep_in_cache(ld, &image);
    }
    strbuf_destroy(&table);
    return s;
}

/* The embeddings' factor, rounded as transformers does to the type that the model computes in. */
static float embed_scale(const weights_options *o)
{
    if (!o->config->family->scaled_embeddings) return 1.0f;
    float root = sqrtf((float)o->config->hidden);
    if (o->type == DTYPE_BF16) return bf16_to_f32(bf16_from_f32(root));
    return o->type == DTYPE_F16 ? f16_to_f32(f16_from_f32(root)) : root;
}

static void release(loader *ld)
{
    quantized_close(&ld->quantized);
    safetensors_close(&ld->files);
    gguf_close(&ld->one_file);
    free(ld->parts);
    free(ld->first_rows);
    free(ld->made);
    if (ld->w.memory) return;
    free(ld->w.layers);
    free(ld->w.experts);
}

status weights_measure(const weights_options *options, weights_measures *out, error *err)
{
    loader ld = {.o = options};
    *out = (weights_measures){0};
    status result = plan_tensors(&ld, err);
    if (status_ok(result)) {
        out->bytes = lay_out(&ld, NULL);
        for (size_t i = 0; i < ld.n_parts; i++) {
            const tensor_part *p = &ld.parts[i];
            const uint64_t shape[] = {p->rows, p->cols, (uint64_t)p->stored};
            out->elements += (uint64_t)p->n_rows * p->n_cols;
            out->shapes = hash_bytes(p->name, strlen(p->name), out->shapes);
            out->shapes = hash_bytes(shape, sizeof shape, out->shapes);
        }
        out->slice = ld.w.slice;
    }
    release(&ld);
    return result;
}

/* Points each matrix and vector at its own description: not NULL, and never read. */
static void point_nowhere(loader *ld)
{
    for (size_t i = 0; i < ld->n_parts; i++) {
        kern_matrix *m = matrix_of(&ld->w, &ld->parts[i]);
        float **v = vector_of(&ld->w, &ld->parts[i]);
        if (m) m->data = m;
        if (v) *v = (float *)(void *)v;
    }
    if (head_is_copy(ld->o)) ld->w.head.data = &ld->w.head;
    else if (ld->o->config->tied_embeddings) ld->w.head = ld->w.embed;
}

status weights_shapes(const weights_options *options,
                      status (*use)(void *ctx, const model_weights *shapes), void *ctx, error *err)
{
    loader ld = {.o = options};
    status result = plan_tensors(&ld, err);
    if (status_ok(result)) {
        point_nowhere(&ld);
        result = use(ctx, &ld.w);
    }
    release(&ld);
    return result;
}

status weights_load(const weights_options *options, model_weights *out, error *err)
{
    loader ld = {.o = options};
    status result = plan_tensors(&ld, err);
    if (status_ok(result)) result = take_memory(&ld, err);
    if (status_ok(result)) {
        ld.w.identity = hash_parts(&ld, weights_hash_options(options));
        ld.w.files = hash_files(&ld, options->dummy ? 0 : weights_place(options->dir));
        result = options->cache_dir ? load_cached(&ld, err) : load_tensors(&ld, err);
        if (options->config->tied_embeddings && !head_is_copy(options)) ld.w.head = ld.w.embed;
        ld.w.embed_scale = embed_scale(options);
    }
    release(&ld);
    if (status_ok(result)) *out = ld.w;
    else weights_destroy(&ld.w);
    return result;
}

void weights_destroy(model_weights *w)
{
    if (!w) return;
    alloc_pages_free(w->memory, w->bytes);
    *w = (model_weights){0};
}
