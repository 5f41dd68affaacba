/* Finds the tensor of a GGUF file for each part of a model (gguf-py, tensor_mapping.py). */
#include "model/load/gguf/architectures.h"
#include "model/load/gguf/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[TENSOR_ROLES] = {
    [TENSOR_EMBED] = "token_embd.weight",          [TENSOR_HEAD] = "output.weight",
    [TENSOR_NORM] = "output_norm.weight",          [TENSOR_ATTN_NORM] = "blk.%u.attn_norm.weight",
    [TENSOR_Q] = "blk.%u.attn_q.weight",           [TENSOR_K] = "blk.%u.attn_k.weight",
    [TENSOR_V] = "blk.%u.attn_v.weight",           [TENSOR_Q_BIAS] = "blk.%u.attn_q.bias",
    [TENSOR_K_BIAS] = "blk.%u.attn_k.bias",        [TENSOR_V_BIAS] = "blk.%u.attn_v.bias",
    [TENSOR_Q_NORM] = "blk.%u.attn_q_norm.weight", [TENSOR_K_NORM] = "blk.%u.attn_k_norm.weight",
    [TENSOR_O] = "blk.%u.attn_output.weight",      [TENSOR_FFN_NORM] = "blk.%u.ffn_norm.weight",
    [TENSOR_GATE] = "blk.%u.ffn_gate.weight",      [TENSOR_UP] = "blk.%u.ffn_up.weight",
    [TENSOR_DOWN] = "blk.%u.ffn_down.weight",
};

static void name_of(const tensor_part *p, char out[TENSOR_NAME_MAX])
{
    out[0] = 0;
    if (names[p->role]) snprintf(out, TENSOR_NAME_MAX, names[p->role], p->layer);
}

static status match_part(const gguf *g, const gguf_architecture *arch, uint32_t head_dim,
                         tensor_part *p, error *err)
{
    char name[TENSOR_NAME_MAX];
    name_of(p, name);
    const gguf_tensor *t = gguf_find_tensor(g, name);
    if (!t)
        return error_set(err, STATUS_CORRUPT, "%s: tensor \"%s\" is missing", g->path,
                         name[0] ? name : p->name);
    uint32_t n_due = p->is_vector ? 1 : 2;
    if (t->n_dims != n_due || t->shape[0] != p->cols || (n_due == 2 && t->shape[1] != p->rows))
        return error_set(err, STATUS_CORRUPT,
                         "%s: tensor \"%s\" has %u dimensions, the first of %llu; the metadata "
                         "makes it %zu rows of %zu",
                         g->path, name, t->n_dims, (unsigned long long)t->shape[0], p->rows,
                         p->cols);
    if (!t->type->decode || (p->is_vector && t->type->elements > 1))
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor \"%s\": type %s is not supported",
                         g->path, name, t->type->name);
    bool plain = t->type->elements == 1;
    p->stored = !plain || t->type->bytes == 4        ? DTYPE_F32
                : strcmp(t->type->name, "BF16") == 0 ? DTYPE_BF16
                                                     : DTYPE_F16;
    p->source = (tensor_source){
        .map = &g->map,
        .begin = t->begin,
        .bytes = t->bytes,
        .row_bytes = p->cols / t->type->elements * t->type->bytes,
        .blocks = plain ? NULL : t->type,
        .rotary = arch->rotary_pairs && (p->role == TENSOR_Q || p->role == TENSOR_K) ? head_dim : 0,
    };
    return STATUS_IS_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

/* Refuses tensors that no part took, because they would be silently ignored. */
static status refuse_leftovers(const gguf *g, const tensor_part *parts, size_t n, error *err)
{
    char(*known)[TENSOR_NAME_MAX] = alloc_zeroed(NULL, n, sizeof *known);
    if (!known) return error_set(err, STATUS_NO_MEMORY, "list of tensors: out of memory");
    for (size_t i = 0; i < n; i++) name_of(&parts[i], known[i]);
    qsort(known, n, sizeof *known, by_text);
    status result = STATUS_IS_OK;
    for (size_t i = 0; status_ok(result) && i < g->n_tensors; i++) {
        const char *name = g->tensors[i].name;
        bool factors = strcmp(name, "rope_freqs.weight") == 0; /* gguf_config reads these */
        if (!factors && !bsearch(name, known, n, sizeof *known, by_text))
            result =
                error_set(err, STATUS_UNSUPPORTED,
                          "%s: tensor \"%.128s\" is not part of this architecture", g->path, name);
    }
    free(known);
    return result;
}

status gguf_match(const model_config *c, const gguf *g, tensor_part *parts, size_t n, error *err)
{
    const gguf_architecture *arch;
    RETURN_IF_ERROR(gguf_architecture_of(g, &arch, err));
    for (size_t i = 0; i < n; i++)
        RETURN_IF_ERROR(match_part(g, arch, c->head_dim, &parts[i], err));
    return refuse_leftovers(g, parts, n, err);
}
