#include "cli/methods_retrieval.h"

#include <string.h>

static const char *representative_of(const retrieval_spec *s)
{
    return retrieval_part_option(RETRIEVAL_PART_REPRESENTATIVE, s->representative).name;
}

static const char *heads_of(const retrieval_spec *s)
{
    return retrieval_part_option(RETRIEVAL_PART_HEADS, s->heads).name;
}

void methods_put_retrievals(strbuf *out)
{
    size_t n;
    const retrieval_preset *rows = retrieval_presets(&n);
    strbuf_printf(out, "\n%-19s  %-15s  %-8s  %5s  %7s  %5s  %6s  %s\n", "retrieval",
                  "compares with", "heads", "block", "initial", "local", "blocks", "what it does");
    for (size_t i = 0; i < n; i++) {
        const retrieval_spec *s = &rows[i].defaults;
        strbuf_printf(out, "%-19s  %-15s  %-8s  %5u  %7u  %5u  %6u  %s\n", rows[i].name,
                      representative_of(s), heads_of(s), s->block_tokens, s->initial_tokens,
                      s->local_tokens, s->top_blocks, rows[i].summary);
    }
    strbuf_puts(out, "\n"
                     "Retrieval keeps everything: each generated token reads the initial and local "
                     "tokens and the blocks that\n"
                     "its query fits best. A request names a method by\n"
                     "  \"retrieval\": {\"method\": \"quest\", \"second_block_count\": 32}\n"
                     "or by how many tokens it reads,\n"
                     "  \"retrieval\": \"quest:4096\"\n"
                     "or, to read what a bound on the missed attention needs,\n"
                     "  \"retrieval\": {\"method\": \"quest\", \"epsilon\": 0.02}\n");
}

/* The fields of a request that would ask for the same. */
static void put_fields(strbuf *out, const retrieval_spec *s, const char *row)
{
    static const char *const names[] = {
        "block_tokens",    "initial_tokens", "local_windows_len", "second_block_count",
        "dense_layer_num", "layer_step",     "token_step",        "representative_num",
        "group_heads",     "observed_rows"};
    const uint32_t values[] = {s->block_tokens, s->initial_tokens,     s->local_tokens,
                               s->top_blocks,   s->dense_layers,       s->layer_step,
                               s->token_step,   s->representative_num, s->group_heads,
                               s->observed_rows};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        strbuf_printf(out, row, names[i], values[i]);
}

static void put_options(strbuf *out, retrieval_part part)
{
    strbuf_printf(out, "  \"%s\"\n", retrieval_part_name(part));
    for (size_t i = 0; i < retrieval_part_size(part); i++) {
        retrieval_option o = retrieval_part_option(part, i);
        strbuf_printf(out, "    %-14s  %s\n", o.name, o.summary);
    }
}

static void put_json(strbuf *out, const retrieval_preset *preset)
{
    const retrieval_spec *s = &preset->defaults;
    strbuf_puts(out, "[{\"method\":");
    strbuf_json_string(out, preset->name, strlen(preset->name));
    strbuf_puts(out, ",\"summary\":");
    strbuf_json_string(out, preset->summary, strlen(preset->summary));
    strbuf_puts(out, ",\"source\":");
    strbuf_json_string(out, preset->source, strlen(preset->source));
    strbuf_printf(out, ",\"representative_type\":\"%s\",\"head_select_mode\":\"%s\"",
                  representative_of(s), heads_of(s));
    put_fields(out, s, ",\"%s\":%u");
    strbuf_puts(out, "}]\n");
}

void methods_put_retrieval(strbuf *out, const retrieval_preset *preset, bool json)
{
    const retrieval_spec *s = &preset->defaults;
    if (json) {
        put_json(out, preset);
        return;
    }
    strbuf_printf(out, "%s: %s\n%s\n", preset->name, preset->summary, preset->source);
    strbuf_puts(out, "\nDefaults\n");
    strbuf_printf(out, "  %-19s  %s\n", "representative_type", representative_of(s));
    strbuf_printf(out, "  %-19s  %s\n", "head_select_mode", heads_of(s));
    put_fields(out, s, "  %-19s  %u\n");
    strbuf_puts(out, "\nA request may override\n");
    for (retrieval_part part = 0; part < RETRIEVAL_PARTS; part++) put_options(out, part);
    strbuf_printf(
        out,
        "  and the numbers above, of which\n"
        "    tokens stands in place of local_windows_len and second_block_count: how many are "
        "read, with the initial ones\n"
        "    preselect_block (true or false): selections are limited to the\n"
        "    preselect_block_count (96 if not given) blocks that the end of the prompt "
        "attends to most\n"
        "    observed_rows needs preselect_block (then 8 if not given) or DYNAMIC: how many "
        "of its rows that is, at most %d\n"
        "    representative_num needs FIX (then 5 if not given) or DYNAMIC, at most %d\n"
        "    group_heads needs GROUP, and divides the model's KV heads\n",
        RETRIEVAL_OBSERVED, RETRIEVAL_KEYS_MOST);
}
