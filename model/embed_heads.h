/* embed_heads: the heads whose vectors make up a model's embeddings (docs/reform.md, section 5).
 *
 * What     reads and writes the file that `octavo heads` puts beside a model, and has the table of
 *          heads that the paper found for its models.
 * Owner    plain values.
 * Threads  any; none of the functions keeps anything.
 * Errors   a file that cannot be read, or that names heads which the model does not have, is
 *          STATUS_INVALID and named; a model without a file has no error. */
#ifndef MODEL_EMBED_HEADS_H
#define MODEL_EMBED_HEADS_H

#include "model/model.h"

enum { EMBED_CHOICE_MOST = 8, EMBED_PATH_BYTES = 4096 };

typedef struct embed_choice {
    embed_head heads[EMBED_CHOICE_MOST];
    uint32_t n;        // 0: no heads are known for the model
    const char *paper; // the model of the paper that they were found for; NULL: they are the file's
} embed_choice;

/* The file beside the model at path: DIR/reform_heads.json, or FILE.gguf.reform_heads.json.
 * STATUS_INVALID: the path is too long. */
status embed_heads_path(const char *model, char out[EMBED_PATH_BYTES], error *err);
/* Reads the file beside the model; where there is none, looks into the paper's table. */
status embed_heads_load(const char *model, const model_config *config, embed_choice *out,
                        error *err);
/* Parses "heads": a list of at most EMBED_CHOICE_MOST objects {"layer", "kind": "q", "k" or "v",
 * "head"}; other keys are ignored. where: names the list's owner in errors. */
status embed_heads_read(const json_t *owner, const char *where, const model_config *config,
                        embed_choice *out, error *err);
/* The heads that the paper found for a model of this shape; n is 0 where there are none. */
embed_choice embed_heads_of_paper(const model_config *config);
/* "q", "k" or "v". */
const char *embed_kind_name(embed_kind kind);

#endif
