/* Packs and unpacks the configuration that ranks are sent, and the facts that they send back. */
#include "rpc/worker/codec.h"

#include <stddef.h>
#include <string.h>

enum {
    TEXT_BYTES_MAX = 4096,
    OVERRIDES_MAX = 1024,
    LAYERS_MAX = 64 * PKV_WINDOW_WORDS,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 4096,
    HIDDEN_MAX = 1 << 20,
    SEQS_MAX = 1 << 16,
    VOCAB_MAX = 1 << 24,
    THREADS_MAX = 1024,
    SILENCE_MAX_MS = 7200000,
};

/* ---- texts ----------------------------------------------------------------------------------- */

typedef struct text_field {
    const char *name;
    size_t config, message; // offsets
} text_field;

#define TEXT(field)                                                                                \
    {                                                                                              \
#field, offsetof(worker_config, field), offsetof(configure_message, field)                 \
    }

static const text_field texts[] = {TEXT(model),       TEXT(comm), TEXT(device),    TEXT(kv_type),
                                   TEXT(weight_type), TEXT(isa),  TEXT(cache_dir), TEXT(kv_disk)};

static ProtobufCBinaryData borrow(const void *p, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

static ProtobufCBinaryData pack_text(const char *s) { return borrow(s, strlen(s)); }

static status unpack_text(const char *name, const ProtobufCBinaryData *b, arena *a,
                          const char **out, error *err)
{
    if (b->len > TEXT_BYTES_MAX || (b->len && memchr(b->data, '\0', b->len)))
        return error_set(err, STATUS_INVALID, "%s: not a text of at most %d bytes", name,
                         TEXT_BYTES_MAX);
    *out = arena_strndup(a, b->len ? (const char *)b->data : "", b->len);
    return *out ? STATUS_IS_OK : error_set(err, STATUS_NO_MEMORY, "%s: out of memory", name);
}

/* ---- geometry -------------------------------------------------------------------------------- */

static status pack_geometry(const pkv_geometry *g, arena *a, geometry_message **out)
{
    geometry_message *m = arena_alloc(a, sizeof *m);
    uint64_t *layers = arena_alloc_array(a, PKV_WINDOW_WORDS, sizeof *layers);
    if (!m || !layers) return status_make(STATUS_NO_MEMORY, "geometry");
    *m = (geometry_message)OCTAVO__WORKER__V1__GEOMETRY__INIT;
    m->page_tokens = g->page_tokens;
    m->n_layers = g->n_layers;
    m->n_kv_heads = g->n_kv_heads;
    m->layers_per_group = g->layers_per_group;
    m->heads_per_group = g->heads_per_group;
    m->n_shares = g->n_shares;
    m->window = g->window;
    memcpy(layers, g->window_layers, sizeof g->window_layers);
    m->window_layers = layers;
    m->n_window_layers = PKV_WINDOW_WORDS;
    *out = m;
    return STATUS_IS_OK;
}

static status unpack_geometry(const geometry_message *m, pkv_geometry *out, error *err)
{
    if (!m) return error_set(err, STATUS_INVALID, "geometry: it is missing");
    if (m->n_window_layers > PKV_WINDOW_WORDS)
        return error_set(err, STATUS_INVALID, "geometry.window_layers: %zu words, at most %d",
                         m->n_window_layers, PKV_WINDOW_WORDS);
    *out = (pkv_geometry){
        .page_tokens = m->page_tokens,
        .n_layers = m->n_layers,
        .n_kv_heads = m->n_kv_heads,
        .layers_per_group = m->layers_per_group,
        .heads_per_group = m->heads_per_group,
        .n_shares = m->n_shares,
        .window = m->window,
    };
    if (m->n_window_layers)
        memcpy(out->window_layers, m->window_layers, m->n_window_layers * sizeof(uint64_t));
    return STATUS_IS_OK;
}

/* ---- the config ------------------------------------------------------------------------------ */

status config_pack(const worker_config *c, uint64_t session, const char *version, arena *a,
                   configure_message *m)
{
    *m = (configure_message)OCTAVO__WORKER__V1__CONFIGURE_REQUEST__INIT;
    m->protocol = WORKER_PROTOCOL;
    m->version = pack_text(version);
    m->session = session;
    m->rank = c->rank;
    m->size = c->size;
    m->config_fingerprint = c->config_fingerprint;
    m->weights_fingerprint = c->weights_fingerprint;
    m->dummy = c->dummy;
    m->dummy_seed = c->dummy_seed;
    m->device_index = c->device_index;
    m->quant_bits = c->quant_bits;
    m->quant_attention = c->quant_attention;
    m->quant_group = c->quant_group;
    m->n_threads = c->n_threads;
    m->high_precision = c->high_precision;
    m->batch_invariant = c->batch_invariant;
    m->kv_residual = c->kv_residual;
    m->kv_bytes = c->kv_bytes;
    m->swap_bytes = c->swap_bytes;
    m->kv_disk_bytes = c->kv_disk_bytes;
    m->max_rows = c->max_rows;
    m->max_seqs = c->max_seqs;
    m->max_model_len = c->max_model_len;
    m->silence_ms = c->silence_ms;
    for (const text_field *t = texts; t < texts + sizeof texts / sizeof *texts; t++) {
        const char *text = *(const char *const *)(const void *)((const char *)c + t->config);
        *(ProtobufCBinaryData *)(void *)((char *)m + t->message) = pack_text(text);
    }
    m->overrides = arena_alloc_array(a, c->n_overrides, sizeof *m->overrides);
    if (!m->overrides) return status_make(STATUS_NO_MEMORY, "overrides");
    for (size_t i = 0; i < c->n_overrides; i++) m->overrides[i] = pack_text(c->overrides[i]);
    m->n_overrides = c->n_overrides;
    return pack_geometry(&c->geometry, a, &m->geometry);
}

static status check_versions(const configure_message *m, const char *version, error *err)
{
    char theirs[64];
    text_copy(m->version.data, m->version.len, theirs, sizeof theirs);
    if (m->protocol != WORKER_PROTOCOL)
        return error_set(err, STATUS_UNSUPPORTED,
                         "protocol: the coordinator (octavo %s) speaks %u, this worker (octavo %s) "
                         "speaks %d",
                         theirs, m->protocol, version, WORKER_PROTOCOL);
    if (strcmp(theirs, version) != 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "version: the coordinator is octavo %s, this worker octavo %s", theirs,
                         version);
    return STATUS_IS_OK;
}

static status check_sizes(const configure_message *m, error *err)
{
    if (m->size == 0 || m->size > WORKER_RANKS_MAX)
        return error_set(err, STATUS_INVALID, "size: %u is not 1 to %d", m->size, WORKER_RANKS_MAX);
    if (m->rank >= m->size)
        return error_set(err, STATUS_INVALID, "rank: %u of %u", m->rank, m->size);
    if (m->max_seqs == 0 || m->max_seqs > SEQS_MAX)
        return error_set(err, STATUS_INVALID, "max_seqs: %u is not 1 to %d", m->max_seqs, SEQS_MAX);
    if (m->max_rows == 0 || m->max_rows > INT32_MAX)
        return error_set(err, STATUS_INVALID, "max_rows: %u", m->max_rows);
    if (m->n_overrides > OVERRIDES_MAX)
        return error_set(err, STATUS_INVALID, "overrides: %zu, at most %d", m->n_overrides,
                         OVERRIDES_MAX);
    return STATUS_IS_OK;
}

static status check_bits(const char *name, uint32_t bits, error *err)
{
    if (bits == 0 || bits == 4 || bits == 8) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %u is not 0, 4 or 8", name, bits);
}

static status check_numbers(const configure_message *m, error *err)
{
    uint32_t group = m->quant_group;
    RETURN_IF_ERROR(check_bits("quant_bits", m->quant_bits, err));
    RETURN_IF_ERROR(check_bits("quant_attention", m->quant_attention, err));
    if (m->quant_bits && group != 32 && group != 64 && group != 128)
        return error_set(err, STATUS_INVALID, "quant_group: %u is not 32, 64 or 128", group);
    if (m->n_threads > THREADS_MAX)
        return error_set(err, STATUS_INVALID, "n_threads: %u is above %d", m->n_threads,
                         THREADS_MAX);
    if (m->silence_ms == 0 || m->silence_ms > SILENCE_MAX_MS)
        return error_set(err, STATUS_INVALID, "silence_ms: %u is not 1 to %d", m->silence_ms,
                         SILENCE_MAX_MS);
    return STATUS_IS_OK;
}

status config_unpack(const configure_message *m, const char *version, arena *a, worker_config *c,
                     error *err)
{
    RETURN_IF_ERROR(check_versions(m, version, err));
    RETURN_IF_ERROR(check_sizes(m, err));
    RETURN_IF_ERROR(check_numbers(m, err));
    *c = (worker_config){
        .rank = m->rank,
        .size = m->size,
        .config_fingerprint = m->config_fingerprint,
        .weights_fingerprint = m->weights_fingerprint,
        .dummy = m->dummy,
        .dummy_seed = m->dummy_seed,
        .device_index = m->device_index,
        .quant_bits = m->quant_bits,
        .quant_attention = m->quant_attention,
        .quant_group = m->quant_group,
        .n_threads = m->n_threads,
        .high_precision = m->high_precision,
        .batch_invariant = m->batch_invariant,
        .kv_residual = m->kv_residual,
        .kv_bytes = m->kv_bytes,
        .swap_bytes = m->swap_bytes,
        .kv_disk_bytes = m->kv_disk_bytes,
        .max_rows = m->max_rows,
        .max_seqs = m->max_seqs,
        .max_model_len = m->max_model_len,
        .silence_ms = m->silence_ms,
    };
    for (const text_field *t = texts; t < texts + sizeof texts / sizeof *texts; t++) {
        const void *from = (const char *)m + t->message;
        void *to = (char *)c + t->config;
        RETURN_IF_ERROR(unpack_text(t->name, from, a, to, err));
    }
    const char **overrides = arena_alloc_array(a, m->n_overrides, sizeof *overrides);
    if (!overrides) return error_set(err, STATUS_NO_MEMORY, "overrides: out of memory");
    for (size_t i = 0; i < m->n_overrides; i++)
        RETURN_IF_ERROR(unpack_text("overrides", &m->overrides[i], a, &overrides[i], err));
    c->overrides = overrides;
    c->n_overrides = m->n_overrides;
    return unpack_geometry(m->geometry, &c->geometry, err);
}

/* ---- addresses ------------------------------------------------------------------------------- */

status join_unpack(const join_message *m, uint32_t size, arena *a, worker_address **out, error *err)
{
    if (m->n_addresses != size)
        return error_set(err, STATUS_INVALID, "addresses: %zu for %u ranks", m->n_addresses, size);
    worker_address *all = arena_alloc_array(a, size, sizeof *all);
    if (!all) return error_set(err, STATUS_NO_MEMORY, "addresses: out of memory");
    for (uint32_t i = 0; i < size; i++) {
        if (m->addresses[i].len > WORKER_ADDRESS_BYTES_MAX)
            return error_set(err, STATUS_INVALID, "addresses: %zu bytes of rank %u",
                             m->addresses[i].len, i);
        all[i] = (worker_address){m->addresses[i].data, m->addresses[i].len};
    }
    *out = all;
    return STATUS_IS_OK;
}

/* ---- facts of a loaded rank ------------------------------------------------------------------ */

status load_pack(const backend_info *info, const worker_facts *facts, arena *a, load_message *m)
{
    *m = (load_message)OCTAVO__WORKER__V1__LOAD_REPLY__INIT;
    m->name = pack_text(info->name);
    m->vocab_size = info->vocab_size;
    m->max_positions = info->max_positions;
    m->max_rows = info->max_rows;
    m->max_seqs = info->max_seqs;
    m->max_logit_rows = info->max_logit_rows;
    m->logit_row_cost = info->logit_row_cost;
    m->lacks = info->lacks;
    m->retrieves = info->retrieves;
    m->masks = info->masks;
    m->note_bytes = info->note_bytes;
    m->n_heads = info->n_heads;
    m->head_dim = info->head_dim;
    m->hidden = info->hidden;
    m->n_pages = info->n_pages;
    m->n_host_pages = info->n_host_pages;
    m->identity = info->identity;
    m->device = pack_text(facts->device);
    m->n_threads = facts->n_threads;
    m->weight_bytes = facts->weight_bytes;
    m->page_bytes = facts->page_bytes;
    m->pool_bytes = facts->pool_bytes;
    m->disk_bytes = facts->disk_bytes;
    m->block_bytes = info->block_bytes;
    m->block_identity = info->block_identity;
    m->kv_identity = info->kv_identity;
    m->kv_kind = info->kv_kind;
    m->max_in_flight = steps_of(info);
    m->filling_bytes = facts->filling_bytes;
    m->swap_bytes = facts->swap_bytes;
    m->load_us = (uint64_t)facts->load_us;
    m->from_cache = facts->from_cache;
    m->sums = pack_text(facts->sums);
    return pack_geometry(&info->geometry, a, &m->geometry);
}

static status check_range(const char *name, uint32_t value, uint32_t least, uint32_t most,
                          error *err)
{
    if (value >= least && value <= most) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: %u is not %u to %u", name, value, least, most);
}

static status check_rank_geometry(const pkv_geometry *g, const worker_config *config, error *err)
{
    RETURN_IF_ERROR(check_range("geometry.n_layers", g->n_layers, 1, LAYERS_MAX, err));
    RETURN_IF_ERROR(check_range("geometry.n_kv_heads", g->n_kv_heads, 1, HEADS_MAX, err));
    status s = pkv_geometry_check(g, err);
    if (!status_ok(s)) {
        error_prefix(err, "geometry");
        return s;
    }
    if (g->page_tokens != config->geometry.page_tokens)
        return error_set(err, STATUS_INVALID, "geometry.page_tokens: %u instead of %u",
                         g->page_tokens, config->geometry.page_tokens);
    if (g->n_kv_heads % config->size != 0 && config->size % g->n_kv_heads != 0)
        return error_set(err, STATUS_INVALID, "geometry.n_kv_heads: %u cannot be cut for %u ranks",
                         g->n_kv_heads, config->size);
    return STATUS_IS_OK;
}

static status check_info(const backend_info *i, const worker_config *config, error *err)
{
    RETURN_IF_ERROR(check_range("vocab_size", i->vocab_size, 1, VOCAB_MAX, err));
    RETURN_IF_ERROR(check_range("max_positions", i->max_positions, 1, INT32_MAX, err));
    RETURN_IF_ERROR(check_range("max_rows", i->max_rows, config->max_rows, config->max_rows, err));
    RETURN_IF_ERROR(check_range("max_seqs", i->max_seqs, config->max_seqs, config->max_seqs, err));
    RETURN_IF_ERROR(check_range("max_logit_rows", i->max_logit_rows, 0, INT32_MAX, err));
    RETURN_IF_ERROR(check_range("max_in_flight", i->max_in_flight, 1, STEPS_MOST, err));
    RETURN_IF_ERROR(check_range("n_heads", i->n_heads, 0, HEADS_MAX, err));
    RETURN_IF_ERROR(check_range("head_dim", i->head_dim, i->n_heads ? 1 : 0, HEAD_DIM_MAX, err));
    RETURN_IF_ERROR(check_range("hidden", i->hidden, 0, HIDDEN_MAX, err));
    RETURN_IF_ERROR(check_range("n_pages", i->n_pages, 2, PKV_PAGES_MOST, err));
    RETURN_IF_ERROR(check_range("n_host_pages", i->n_host_pages, 0, PKV_PAGES_MOST, err));
    return check_rank_geometry(&i->geometry, config, err);
}

/* Blocks are copied where a cell fits a message, and are a whole number of cells. */
static status take_block_bytes(uint64_t bytes, const worker_config *config, backend_info *info,
                               error *err)
{
    uint64_t cells = pkv_groups(&info->geometry) / pkv_shares(&info->geometry);
    if (bytes % cells != 0)
        return error_set(err, STATUS_INVALID, "block_bytes: %llu are not %llu equal cells",
                         (unsigned long long)bytes, (unsigned long long)cells);
    if (bytes / cells > cell_bytes_max) return STATUS_IS_OK;
    info->block_bytes = (size_t)bytes;
    if (bytes == 0 || backend_slice_of(info, config->rank, config->size).cell_bytes > 0)
        return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "geometry.n_shares: %u are not those of %u ranks",
                     info->geometry.n_shares, config->size);
}

status load_unpack(const load_message *m, const worker_config *config, rank_facts *out, error *err)
{
    text_copy(m->name.data, m->name.len, out->name, sizeof out->name);
    out->info = (backend_info){
        .name = out->name,
        .vocab_size = m->vocab_size,
        .max_positions = m->max_positions,
        .max_rows = m->max_rows,
        .max_seqs = m->max_seqs,
        .max_logit_rows = m->max_logit_rows,
        .logit_row_cost = m->logit_row_cost,
        .lacks = m->lacks,
        .retrieves = m->retrieves,
        .masks = m->masks,
        .note_bytes = m->note_bytes,
        .n_heads = m->n_heads,
        .head_dim = m->head_dim,
        .hidden = m->hidden,
        .n_pages = m->n_pages,
        .n_host_pages = m->n_host_pages,
        .max_in_flight = m->max_in_flight,
        .identity = m->identity,
        .block_identity = m->block_identity,
        .kv_identity = m->kv_identity,
        .kv_kind = m->kv_kind,
    };
    out->facts = (worker_facts){
        .n_threads = m->n_threads,
        .weight_bytes = m->weight_bytes,
        .page_bytes = m->page_bytes,
        .pool_bytes = m->pool_bytes,
        .disk_bytes = m->disk_bytes,
        .filling_bytes = m->filling_bytes,
        .swap_bytes = m->swap_bytes,
        .load_us = (int64_t)(m->load_us & INT64_MAX),
        .from_cache = m->from_cache,
    };
    text_copy(m->device.data, m->device.len, out->facts.device, sizeof out->facts.device);
    text_copy(m->sums.data, m->sums.len, out->facts.sums, sizeof out->facts.sums);
    RETURN_IF_ERROR(unpack_geometry(m->geometry, &out->info.geometry, err));
    RETURN_IF_ERROR(check_info(&out->info, config, err));
    return take_block_bytes(m->block_bytes, config, &out->info, err);
}
