#include "model/embed_heads.h"

#include "model/family.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20 };

static const char *const kinds[EMBED_KINDS] = {"q", "k", "v"};

const char *embed_kind_name(embed_kind kind) { return kinds[kind]; }

/* ---- the paper's heads ----------------------------------------------------------------------- */

/* Heads by the shape of their model (arXiv 2506.01215, appendix C.6). Models of one shape cannot be
 * told apart: Qwen2.5-Coder-7B has Qwen2.5-7B's, for which the row stands. Layers count from 0. */
static const struct {
    const char *name, *architecture;
    uint32_t hidden, n_layers, n_heads, n_kv_heads;
    embed_head heads[4];
} paper[] = {
    {"Mistral-NeMo-Instruct-2407",
     "MistralForCausalLM",
     5120,
     40,
     32,
     8,
     {{15, EMBED_Q, 9}, {19, EMBED_V, 5}, {27, EMBED_V, 0}, {27, EMBED_V, 7}}},
    {"Qwen2.5-7B-Instruct",
     "Qwen2ForCausalLM",
     3584,
     28,
     28,
     4,
     {{7, EMBED_V, 3}, {14, EMBED_K, 0}, {14, EMBED_V, 3}, {19, EMBED_V, 0}}},
    {"Qwen2.5-Coder-1.5B-Instruct",
     "Qwen2ForCausalLM",
     1536,
     28,
     12,
     2,
     {{8, EMBED_Q, 3}, {11, EMBED_V, 1}, {14, EMBED_K, 0}, {15, EMBED_V, 0}}},
};

embed_choice embed_heads_of_paper(const model_config *c)
{
    embed_choice out = {0};
    for (size_t i = 0; i < sizeof paper / sizeof *paper; i++) {
        if (strcmp(paper[i].architecture, c->family->architecture) != 0 ||
            paper[i].hidden != c->hidden || paper[i].n_layers != c->n_layers ||
            paper[i].n_heads != c->n_heads || paper[i].n_kv_heads != c->n_kv_heads)
            continue;
        out.n = sizeof paper[i].heads / sizeof *paper[i].heads;
        out.paper = paper[i].name;
        memcpy(out.heads, paper[i].heads, sizeof paper[i].heads);
    }
    return out;
}

/* ---- the file -------------------------------------------------------------------------------- */

status embed_heads_path(const char *model, char out[EMBED_PATH_BYTES], error *err)
{
    struct stat st;
    bool folder = stat(model, &st) != 0 || S_ISDIR(st.st_mode);
    int n = snprintf(out, EMBED_PATH_BYTES, "%s%sreform_heads.json", model, folder ? "/" : ".");
    if (n > 0 && n < EMBED_PATH_BYTES) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%.80s…: the path is too long", model);
}

static status read_head(const json_t *row, const char *where, const model_config *c,
                        embed_head *out, error *err)
{
    const char *kind = NULL;
    int64_t layer, head;
    if (!json_is_object(row)) return error_set(err, STATUS_INVALID, "%s: not an object", where);
    RETURN_IF_ERROR(json_get_string(row, where, "kind", &kind, err));
    RETURN_IF_ERROR(
        json_get_int(row, where, "layer", 0, (int64_t)c->n_layers - 1, -1, &layer, err));
    uint32_t k = 0;
    while (k < EMBED_KINDS && kind && strcmp(kind, kinds[k]) != 0) k++;
    if (!kind || k == EMBED_KINDS)
        return error_set(err, STATUS_INVALID, "%s.kind: must be \"q\", \"k\" or \"v\"", where);
    uint32_t n = k == EMBED_Q ? c->n_heads : c->n_kv_heads;
    RETURN_IF_ERROR(json_get_int(row, where, "head", 0, (int64_t)n - 1, -1, &head, err));
    if (layer < 0 || head < 0)
        return error_set(err, STATUS_INVALID, "%s: needs a layer and a head", where);
    *out = (embed_head){(uint32_t)layer, (embed_kind)k, (uint32_t)head};
    return STATUS_IS_OK;
}

status embed_heads_read(const json_t *owner, const char *where, const model_config *config,
                        embed_choice *out, error *err)
{
    const json_t *list = json_object_get(owner, "heads");
    size_t n = json_array_size(list);
    *out = (embed_choice){0};
    if (n == 0 || n > EMBED_CHOICE_MOST)
        return error_set(err, STATUS_INVALID, "%s: heads must be a list of 1 to %d heads", where,
                         EMBED_CHOICE_MOST);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        snprintf(at, sizeof at, "heads[%zu]", i);
        status s = read_head(json_array_get(list, i), at, config, &out->heads[i], err);
        if (!status_ok(s)) {
            error_prefix(err, "%s", where);
            return s;
        }
    }
    out->n = (uint32_t)n;
    return STATUS_IS_OK;
}

status embed_heads_load(const char *model, const model_config *config, embed_choice *out,
                        error *err)
{
    char path[EMBED_PATH_BYTES];
    json_t *json;
    RETURN_IF_ERROR(embed_heads_path(model, path, err));
    if (access(path, F_OK) != 0) {
        *out = embed_heads_of_paper(config);
        return STATUS_IS_OK;
    }
    RETURN_IF_ERROR(json_read_file(path, FILE_BYTES_MAX, &json, err));
    status s = embed_heads_read(json, path, config, out, err);
    json_decref(json);
    return s;
}
