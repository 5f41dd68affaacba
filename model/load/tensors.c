#include "model/load/tensors.h"

#include "model/load/quantized/quantized.h"

#include <stdlib.h>
#include <string.h>

/* ---- slices ---------------------------------------------------------------------------------- */

static status cut_share(const char *field, uint32_t whole, int rank, int size, uint32_t *first,
                        uint32_t *n, error *err)
{
    if (whole % (uint32_t)size != 0)
        return error_set(err, STATUS_UNSUPPORTED, "\"%s\" %u cannot be cut for %d ranks", field,
                         whole, size);
    *n = whole / (uint32_t)size;
    *first = (uint32_t)rank * *n;
    return STATUS_IS_OK;
}

status tensor_slice_of(const model_config *c, int rank, int size, tensor_slice *out, error *err)
{
    tensor_slice s = {0};
    uint32_t ranks = (uint32_t)size;
    RETURN_IF_ERROR(
        cut_share("num_attention_heads", c->n_heads, rank, size, &s.first_head, &s.n_heads, err));
    RETURN_IF_ERROR(
        cut_share("intermediate_size", c->ffn, rank, size, &s.first_ffn, &s.n_ffn, err));
    RETURN_IF_ERROR(cut_share("intermediate size of experts", c->expert_ffn, rank, size,
                              &s.first_expert_ffn, &s.n_expert_ffn, err));
    RETURN_IF_ERROR(cut_share("shared_expert_intermediate_size", c->shared_ffn, rank, size,
                              &s.first_shared_ffn, &s.n_shared_ffn, err));
    if (ranks > c->n_kv_heads && ranks % c->n_kv_heads == 0) {
        s.first_kv_head = (uint32_t)rank / (ranks / c->n_kv_heads);
        s.n_kv_heads = 1;
    } else {
        RETURN_IF_ERROR(cut_share("num_key_value_heads", c->n_kv_heads, rank, size,
                                  &s.first_kv_head, &s.n_kv_heads, err));
    }
    s.n_tokens = (c->vocab_size + ranks - 1) / ranks;
    s.first_token = (uint32_t)rank * s.n_tokens;
    *out = s;
    return STATUS_IS_OK;
}

status model_ranks_check(const model_config *config, uint32_t n_ranks, error *err)
{
    tensor_slice first;
    if (n_ranks == 0 || n_ranks > config->n_heads)
        return error_set(err, STATUS_UNSUPPORTED, "%u ranks for %u query heads", n_ranks,
                         config->n_heads);
    return tensor_slice_of(config, 0, (int)n_ranks, &first, err);
}

/* ---- the list -------------------------------------------------------------------------------- */

static void take_rows(tensor_part *p, size_t rows, size_t cols, size_t row, size_t n)
{
    *p = (tensor_part){.rows = rows, .cols = cols, .row = row, .n_rows = n, .n_cols = cols};
}

static void take_cols(tensor_part *p, size_t rows, size_t cols, size_t col, size_t n)
{
    *p = (tensor_part){.rows = rows, .cols = cols, .n_rows = rows, .col = col, .n_cols = n};
}

static void take_vector(tensor_part *p, size_t whole, size_t first, size_t n)
{
    *p = (tensor_part){.is_vector = true,
                       .rows = 1,
                       .cols = whole,
                       .n_rows = 1,
                       .col = first,
                       .n_cols = n,
                       .times = 1.0f};
}

static void take_norm(const model_config *c, size_t n, tensor_part *p)
{
    take_vector(p, n, 0, n);
    p->plus = c->family->norms_from_one ? 1.0f : 0.0f;
}

/* Takes q, k or v from a tensor of its own or from one that the three share. */
static void take_heads(const model_config *c, const tensor_slice *s, tensor_role role,
                       tensor_part *p)
{
    size_t hd = c->head_dim, hidden = c->hidden, heads = c->n_heads, kv_heads = c->n_kv_heads;
    bool is_q = role == TENSOR_Q;
    size_t first = is_q ? s->first_head : s->first_kv_head, n = is_q ? s->n_heads : s->n_kv_heads;
    size_t all = (heads + 2 * kv_heads) * hd;
    if (c->family->qkv == QKV_SEPARATE) {
        take_rows(p, (is_q ? heads : kv_heads) * hd, hidden, first * hd, n * hd);
        return;
    }
    if (c->family->qkv == QKV_STACKED) {
        size_t before = is_q ? 0 : role == TENSOR_K ? heads : heads + kv_heads;
        take_rows(p, all, hidden, (before + first) * hd, n * hd);
        return;
    }
    /* A KV head's rows are its g query heads, k and v. A rank has whole KV heads, or some query
     * heads of one. */
    size_t g = heads / kv_heads, of_group = g + 2;
    size_t before =
        is_q ? first / g * of_group + first % g : first * of_group + g + (role == TENSOR_V ? 1 : 0);
    take_rows(p, all, hidden, before * hd, n * hd);
    p->run = (is_q ? (n < g ? n : g) : 1) * hd;
    p->step = of_group * hd;
}

static void set_shape(const model_config *c, const tensor_slice *s, tensor_role role,
                      tensor_part *p)
{
    size_t hd = c->head_dim, hidden = c->hidden;
    bool stacked = c->family->gate_up_stacked;
    switch (role) {
    case TENSOR_EMBED:
    case TENSOR_HEAD: take_rows(p, c->vocab_size, hidden, s->first_token, s->n_tokens); break;
    case TENSOR_Q:
    case TENSOR_K:
    case TENSOR_V: take_heads(c, s, role, p); break;
    case TENSOR_Q_BIAS: take_vector(p, c->n_heads * hd, s->first_head * hd, s->n_heads * hd); break;
    case TENSOR_K_BIAS:
    case TENSOR_V_BIAS:
        take_vector(p, c->n_kv_heads * hd, s->first_kv_head * hd, s->n_kv_heads * hd);
        break;
    case TENSOR_Q_NORM: /* the query norm carries the factor of scores */
        take_norm(c, hd, p);
        p->times = c->query_factor;
        break;
    case TENSOR_K_NORM: take_norm(c, hd, p); break;
    case TENSOR_O:
        take_cols(p, hidden, c->n_heads * hd, s->first_head * hd, s->n_heads * hd);
        break;
    case TENSOR_GATE:
    case TENSOR_UP:
        take_rows(p, stacked ? 2 * (size_t)c->ffn : c->ffn, hidden,
                  s->first_ffn + (stacked && role == TENSOR_UP ? c->ffn : 0), s->n_ffn);
        break;
    case TENSOR_DOWN: take_cols(p, hidden, c->ffn, s->first_ffn, s->n_ffn); break;
    case TENSOR_ROUTER: take_rows(p, c->n_experts, hidden, 0, c->n_experts); break;
    case TENSOR_EXPERT_GATE:
    case TENSOR_EXPERT_UP:
        take_rows(p, c->expert_ffn, hidden, s->first_expert_ffn, s->n_expert_ffn);
        break;
    case TENSOR_EXPERT_DOWN:
        take_cols(p, hidden, c->expert_ffn, s->first_expert_ffn, s->n_expert_ffn);
        break;
    case TENSOR_SHARED_GATE:
    case TENSOR_SHARED_UP:
        take_rows(p, c->shared_ffn, hidden, s->first_shared_ffn, s->n_shared_ffn);
        break;
    case TENSOR_SHARED_DOWN:
        take_cols(p, hidden, c->shared_ffn, s->first_shared_ffn, s->n_shared_ffn);
        break;
    case TENSOR_SHARED_SWITCH: take_rows(p, 1, hidden, 0, 1); break;
    case TENSOR_NORM:
    case TENSOR_ATTN_NORM:
    case TENSOR_ATTN_POST_NORM:
    case TENSOR_FFN_NORM:
    case TENSOR_FFN_POST_NORM: take_norm(c, hidden, p); break;
    case TENSOR_ROLES: break;
    }
}

static bool layer_has(const model_config *c, uint32_t layer, int role)
{
    bool sparse = c->layers[layer] & LAYER_SPARSE;
    switch (role) {
    case TENSOR_Q_BIAS:
    case TENSOR_K_BIAS:
    case TENSOR_V_BIAS: return c->qkv_bias;
    case TENSOR_Q_NORM:
    case TENSOR_K_NORM: return c->qk_norm;
    case TENSOR_GATE:
    case TENSOR_UP:
    case TENSOR_DOWN: return !sparse;
    case TENSOR_ATTN_POST_NORM:
    case TENSOR_FFN_POST_NORM: return c->family->post_norms;
    case TENSOR_SHARED_GATE:
    case TENSOR_SHARED_UP:
    case TENSOR_SHARED_DOWN:
    case TENSOR_SHARED_SWITCH: return sparse && c->shared_ffn > 0;
    default: return role < TENSOR_ROUTER || sparse;
    }
}

static void add_part(const model_config *c, const tensor_slice *s, tensor_role role, uint32_t layer,
                     uint32_t expert, tensor_part *parts, size_t *n)
{
    tensor_part *p = &parts[(*n)++];
    set_shape(c, s, role, p);
    p->role = role;
    p->layer = layer;
    p->expert = expert;
    p->stored = c->stored;
    snprintf(p->name, sizeof p->name, c->family->names[role], layer, expert);
}

static void add_layer(const model_config *c, const tensor_slice *s, uint32_t layer,
                      tensor_part *parts, size_t *n)
{
    for (int role = TENSOR_ATTN_NORM; role < TENSOR_EXPERT_GATE; role++)
        if (layer_has(c, layer, role)) add_part(c, s, (tensor_role)role, layer, 0, parts, n);
    if (!layer_has(c, layer, TENSOR_EXPERT_GATE)) return;
    for (uint32_t e = 0; e < c->n_experts; e++)
        for (int role = TENSOR_EXPERT_GATE; role < TENSOR_ROLES; role++)
            add_part(c, s, (tensor_role)role, layer, e, parts, n);
}

status tensors_list(const model_config *c, const tensor_slice *slice, tensor_part **out,
                    size_t *out_n, error *err)
{
    size_t of_layer = TENSOR_ROLES + (size_t)3 * c->n_experts;
    tensor_part *parts = alloc_zeroed(NULL, 3 + c->n_layers * of_layer, sizeof *parts);
    if (!parts) return error_set(err, STATUS_NO_MEMORY, "list of tensors: out of memory");
    size_t n = 0;
    add_part(c, slice, TENSOR_EMBED, 0, 0, parts, &n);
    if (!c->tied_embeddings) add_part(c, slice, TENSOR_HEAD, 0, 0, parts, &n);
    add_part(c, slice, TENSOR_NORM, 0, 0, parts, &n);
    for (uint32_t l = 0; l < c->n_layers; l++) add_layer(c, slice, l, parts, &n);
    *out = parts;
    *out_n = n;
    return STATUS_IS_OK;
}

/* ---- against the files ----------------------------------------------------------------------- */

static void print_shape(char *out, size_t size, const uint64_t *shape, uint32_t n_dims)
{
    size_t at = 0;
    at += (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
    if (at < size) snprintf(out + at, size - at, "]");
}

status tensors_check_shape(const safetensors *st, const safetensors_tensor *t, const uint64_t *due,
                           uint32_t n_due, error *err)
{
    if (t->n_dims == n_due && memcmp(t->shape, due, n_due * sizeof *due) == 0) return STATUS_IS_OK;
    char is[200], must[64];
    print_shape(is, sizeof is, t->shape, t->n_dims);
    print_shape(must, sizeof must, due, n_due);
    return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\" is %s, config.json makes it %s",
                     st->files[t->file].path, t->name, is, must);
}

static status match_part(const safetensors *st, tensor_part *p, bool *used, error *err)
{
    const safetensors_tensor *t = safetensors_find(st, p->name);
    if (!t)
        return error_set(err, STATUS_CORRUPT, "%s%s: tensor \"%s\" is missing", st->files[0].path,
                         st->n_files > 1 ? " and its siblings" : "", p->name);
    const char *path = st->files[t->file].path;
    uint64_t due[2] = {p->is_vector ? p->cols : p->rows, p->cols};
    RETURN_IF_ERROR(tensors_check_shape(st, t, due, p->is_vector ? 1 : 2, err));
    used[t - st->tensors] = true;
    switch (t->type) {
    case SAFETENSORS_F32: p->stored = DTYPE_F32; break;
    case SAFETENSORS_BF16: p->stored = DTYPE_BF16; break;
    case SAFETENSORS_F16: p->stored = DTYPE_F16; break;
    default:
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: tensor \"%s\": dtype %s is not supported, only BF16, F16 and F32",
                         path, p->name, safetensors_type_name(t->type));
    }
    p->source = (tensor_source){.map = &st->files[t->file].map,
                                .begin = t->begin,
                                .bytes = t->bytes,
                                .row_bytes = p->cols * dtype_bytes(p->stored)};
    return STATUS_IS_OK;
}

/* Whether a left-over tensor may be ignored: buffers that old exporters saved, and the copy of a
 * tied head. An untied head is a part, so it is never left over. */
static bool is_redundant(const model_config *c, const char *name)
{
    static const char *const buffers[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                          ".rotary_emb.sin_cached"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        size_t tail = strlen(buffers[i]);
        if (n >= tail && strcmp(name + n - tail, buffers[i]) == 0) return true;
    }
    return strcmp(name, c->family->names[TENSOR_HEAD]) == 0;
}

/* Refuses tensors that no part took, because they would be silently ignored. */
static status refuse_leftovers(const model_config *c, const safetensors *st, const bool *used,
                               error *err)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        const safetensors_tensor *t = &st->tensors[i];
        if (used[i] || is_redundant(c, t->name)) continue;
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: tensor \"%.128s\" is not part of a %s of %u layers",
                         st->files[t->file].path, t->name, c->architecture, c->n_layers);
    }
    return STATUS_IS_OK;
}

static status match_all(const safetensors *st, quantized *q, bool *used, tensor_part *parts,
                        size_t n, error *err)
{
    if (q) RETURN_IF_ERROR(quantized_reserve(q, n, err));
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        if (q) RETURN_IF_ERROR(quantized_match(q, st, used, &parts[i], &found, err));
        if (!found) RETURN_IF_ERROR(match_part(st, &parts[i], used, err));
    }
    return STATUS_IS_OK;
}

status tensors_match(const model_config *c, const safetensors *st, quantized *q, tensor_part *parts,
                     size_t n, error *err)
{
    bool *used = alloc_zeroed(NULL, st->n_tensors + 1, sizeof *used);
    if (!used) return error_set(err, STATUS_NO_MEMORY, "list of tensors: out of memory");
    status result = match_all(st, q, used, parts, n, err);
    if (status_ok(result)) result = refuse_leftovers(c, st, used, err);
    free(used);
    return result;
}
