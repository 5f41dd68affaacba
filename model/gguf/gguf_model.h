/* A GGUF file as a model: what config.json, tokenizer.json, the chat template and the safetensors
 * of a folder would say (private to model/). An architecture is a row. */
#ifndef MODEL_GGUF_GGUF_MODEL_H
#define MODEL_GGUF_GGUF_MODEL_H

#include "model/gguf/gguf.h"
#include "model/tensors.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* The config.json that the metadata makes: the caller's. */
status gguf_config(const gguf *g, json_t **out, error *err);
/* The integers that keep most of the file's weights best: 8 or 4 bits, or 0 for 16 and 32. */
uint8_t gguf_quant_bits(const gguf *g);

/* As tensors_match. */
status gguf_match(const model_config *c, const gguf *g, tensor_part *parts, size_t n, error *err);

/* The tokenizer.json that the metadata makes, appended to out. */
status gguf_tokenizer_json(const gguf *g, strbuf *out, error *err);
status gguf_tokenizer(const char *path, tokenizer **out, error *err);
/* As tmpl_load. */
status gguf_template(const char *path, chat_template **out, strbuf *bos, strbuf *eos, error *err);

#endif
