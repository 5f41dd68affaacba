/* chat template: renders messages with the model's own Jinja template.
 *
 * What     a small Jinja interpreter. Its reference is the environment that Hugging Face sets up:
 *          trim_blocks and lstrip_blocks on, `raise_exception`, `strftime_now`, tojson with ", "
 *          and ": ".
 * Owner    a compiled template owns its tree; rendering allocates from its own arena and frees it.
 * Threads  a compiled template is immutable: any thread may render.
 * Limits   source 1 MiB, nesting, evaluation steps, memory and output size are all capped
 *          (tmpl_limits); a template that exceeds one is refused with STATUS_LIMIT.
 * Errors   one line that names the template's line: "chat_template:3: unknown filter 'foo'". */
#ifndef TEXT_CHAT_TEMPLATE_H
#define TEXT_CHAT_TEMPLATE_H

#include "base/base.h"

typedef struct chat_template chat_template;

typedef struct tmpl_limits {
    uint64_t max_steps; /* 0 = 10 million evaluation steps */
    size_t max_output;  /* 0 = 16 MiB */
    size_t max_memory;  /* 0 = 256 MiB */
} tmpl_limits;

status tmpl_compile(const char *source, size_t n, chat_template **out, error *err);
void tmpl_destroy(chat_template *t);

/* Renders with the members of `vars` (a JSON object: messages, add_generation_prompt, bos_token,
 * eos_token, tools, …) as variables. `tools` and `documents` are none when absent, as with Hugging
 * Face. now_unix feeds strftime_now, in UTC. limits may be NULL. Appends to out; a failure leaves
 * out unchanged. */
status tmpl_render(const chat_template *t, const json_t *vars, int64_t now_unix,
                   const tmpl_limits *limits, strbuf *out, error *err);

/* True when the template reads a variable of this name anywhere, such as "tools". */
bool tmpl_uses(const chat_template *t, const char *name);
/* True when these words stand in the template's source. */
bool tmpl_mentions(const chat_template *t, const char *words);

/* Loads the template of a model folder: chat_template.jinja, else tokenizer_config.json's
 * `chat_template` (a string, or a list of {name, template} of which "default" is taken). When the
 * folder has none, *out is NULL and the status ok. bos and eos (each may stay empty) receive the
 * texts of the bos and eos tokens. */
status tmpl_load(const char *dir, chat_template **out, strbuf *bos, strbuf *eos, error *err);

#endif
