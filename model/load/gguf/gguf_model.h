/* A GGUF file as a model (private to model/): turns its metadata into the config.json,
 * tokenizer.json and chat template that a folder would have, and matches its tensors. An
 * architecture is a row. */
#ifndef MODEL_LOAD_GGUF_GGUF_MODEL_H
#define MODEL_LOAD_GGUF_GGUF_MODEL_H

#include "model/load/gguf/gguf.h"
#include "model/load/tensors.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* Makes a config.json from the metadata. The caller owns it. */
status gguf_config(const gguf *g, json_t **out, error *err);
/* The integer width that fits most of the file's weights best: 8 or 4 bits, or 0 for floats. */
uint8_t gguf_quant_bits(const gguf *g);

/* tensors_match for a GGUF file. */
status gguf_match(const model_config *c, const gguf *g, tensor_part *parts, size_t n, error *err);

/* Appends to out the tokenizer.json that the metadata implies. */
status gguf_tokenizer_json(const gguf *g, strbuf *out, error *err);

#endif
