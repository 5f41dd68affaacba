/* `octavo methods`: the retention and retrieval methods, read from the tables by which requests are
 * parsed. */
#include "cli/cli.h"
#include "cli/methods_retrieval.h"
#include "paged_kv/retention/retention.h"

#include <stdio.h>
#include <string.h>

static const char methods_name[] = "octavo methods";

/* ---- the columns of a row -------------------------------------------------------------------- */

static size_t index_of(const retention_policy *p, retention_part part)
{
    switch (part) {
    case RETENTION_PART_SCORE: return p->score;
    case RETENTION_PART_UNIT: return p->unit;
    case RETENTION_PART_SCOPE: return p->scope;
    case RETENTION_PART_ALLOCATOR: return p->allocator;
    case RETENTION_PART_SCHEDULE: return p->schedule;
    case RETENTION_PART_VARIANT: return p->variant;
    case RETENTION_PARTS: break;
    }
    return 0;
}

static const char *part_of(const retention_policy *p, retention_part part)
{
    size_t i = index_of(p, part);
    return i < retention_part_size(part) ? retention_part_option(part, i).name : "?";
}

static bool selects(const retention_policy *p)
{
    return p->schedule != RETENTION_SCHEDULE_NEVER || p->growth != RETENTION_GROWTH_JOINT;
}

/* The policy of a request that names the method and nothing else. For a method that leaves the
 * prompt to `prefill`, the policy of the generated tokens. */
static retention_policy policy_of(const retention_preset *preset)
{
    retention_policy p = preset->defaults;
    p.preset = preset;
    if (p.growth == RETENTION_GROWTH_JOINT) return p;
    p.score = p.decode_score;
    p.unit = p.decode_unit;
    p.scope = p.decode_scope;
    p.schedule = RETENTION_SCHEDULE_DECODE;
    p.interval = 0;
    return p;
}

static void put_budget(strbuf *out, const retention_policy *p)
{
    if (p->growth != RETENTION_GROWTH_JOINT) strbuf_puts(out, "of prefill");
    else if (p->tokens) strbuf_printf(out, "%u tokens", p->tokens);
    else if (p->ratio > 0) strbuf_printf(out, "ratio %g", p->ratio);
    else if (p->preset->needs_budget) strbuf_puts(out, "ratio or tokens");
    else strbuf_puts(out, "everything");
}

static void put_unit(strbuf *out, const retention_policy *p)
{
    strbuf_puts(out, part_of(p, RETENTION_PART_UNIT));
    if (p->unit == RETENTION_UNIT_CHUNK) strbuf_printf(out, " %u", p->chunk);
}

static void put_schedule(strbuf *out, const retention_policy *p)
{
    strbuf_puts(out, part_of(p, RETENTION_PART_SCHEDULE));
    if (p->schedule == RETENTION_SCHEDULE_DECODE && p->interval)
        strbuf_printf(out, " %u", p->interval);
    if (p->schedule == RETENTION_SCHEDULE_CHUNK) strbuf_printf(out, " %u", p->recurrent_chunk);
}

static void put_pool(strbuf *out, const retention_policy *p)
{
    static const char *const names[] = {"none", "max", "avg"};
    strbuf_puts(out, names[p->pool]);
    if (p->pool != RETENTION_POOL_NONE) strbuf_printf(out, " %u", p->kernel);
}

static void put_window(strbuf *out, const retention_policy *p)
{
    if (p->window == INT32_MAX) strbuf_puts(out, "half");
    else strbuf_printf(out, "%u", p->window);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_row(strbuf *out, const retention_preset *preset)
{
    retention_policy p = policy_of(preset);
    strbuf budget = {0}, unit = {0}, schedule = {0}, window = {0};
    put_budget(&budget, &p);
    put_unit(&unit, &p);
    put_schedule(&schedule, &p);
    put_window(&window, &p);
    bool whole = !budget.failed && !unit.failed && !schedule.failed && !window.failed;
    strbuf_printf(out, "%-19s  %-15s  %-8s  %-5s  %-11s  ", preset->name, whole ? budget.data : "",
                  whole && selects(&p) ? unit.data : "-",
                  selects(&p) ? part_of(&p, RETENTION_PART_SCOPE) : "-",
                  whole && selects(&p) ? schedule.data : "-");
    strbuf_printf(out, "%5u  %6s  %s\n", p.sinks, whole ? window.data : "", preset->summary);
    out->failed |= !whole;
    strbuf_destroy(&window);
    strbuf_destroy(&budget);
    strbuf_destroy(&unit);
    strbuf_destroy(&schedule);
}

static void print_table(strbuf *out, const retention_preset *rows, size_t n)
{
    strbuf_printf(out, "%-19s  %-15s  %-8s  %-5s  %-11s  %5s  %6s  %s\n", "method", "budget",
                  "unit", "scope", "schedule", "sinks", "window", "what it does");
    for (size_t i = 0; i < n; i++) print_row(out, &rows[i]);
    strbuf_puts(out, "\n"
                     "unit: what is kept or given up as one; scope head: each KV head selects for "
                     "itself;\n"
                     "schedule: when; sinks, window: first and last tokens that always stay. A "
                     "request names a method by\n"
                     "  \"retention\": {\"method\": \"chunkkv\", \"ratio\": 0.25}\n"
                     "and may override any part: octavo methods NAME lists the parts and the "
                     "source of the method.\n");
}

/* ---- one method ------------------------------------------------------------------------------ */

static void put_line(strbuf *out, const char *what, const char *text)
{
    strbuf_printf(out, "  %-16s  %s\n", what, text);
}

static void put_number(strbuf *out, const char *what, uint32_t n)
{
    strbuf_printf(out, "  %-16s  %u\n", what, n);
}

static void put_made(strbuf *out, const char *what, const retention_policy *p,
                     void (*put)(strbuf *out, const retention_policy *p))
{
    strbuf_printf(out, "  %-16s  ", what);
    put(out, p);
    strbuf_putc(out, '\n');
}

static void print_defaults(strbuf *out, const retention_policy *p)
{
    strbuf_puts(out, "\nDefaults\n");
    put_made(out, "budget", p, put_budget);
    for (int part = 0; part < RETENTION_PARTS; part++) {
        if (part == RETENTION_PART_UNIT) put_made(out, "unit", p, put_unit);
        else if (part == RETENTION_PART_SCHEDULE) put_made(out, "schedule", p, put_schedule);
        else put_line(out, retention_part_name(part), part_of(p, part));
    }
    put_made(out, "pool", p, put_pool);
    put_number(out, "sinks", p->sinks);
    put_made(out, p->window_half ? "window, at most" : "window", p, put_window);
    put_number(out, "reuse_layers", p->reuse_layers);
    if (p->growth == RETENTION_GROWTH_JOINT) return;
    strbuf_printf(out, "  %-16s  beta1 %u, beta2 %u, horizon %s\n", "decode", p->beta1, p->beta2,
                  p->horizon ? "" : "max_tokens");
}

static void print_needs(strbuf *out, const retention_policy *p)
{
    strbuf_puts(out, "\nNeeds\n");
    if (p->schedule == RETENTION_SCHEDULE_INPUT) {
        put_line(out, "prefix hits", "allowed, on the tokens that are left");
        put_line(out, "positions", "contiguous: those of the shortened prompt");
        return;
    }
    put_line(out, "prefix hits",
             retention_has_sums(p) ? "none: every row of the prompt is measured"
                                   : "allowed, except for the rows that are measured");
    put_line(out, "host tier",
             "--swap-memory, for preempted requests; without it they are computed again");
    put_line(out, "positions",
             p->contiguous ? "contiguous: keys are rotated anew after each selection" : "original");
}

static void print_options(strbuf *out, const retention_preset *preset, retention_part part)
{
    strbuf_printf(out, "  \"%s\"\n", retention_part_name(part));
    for (size_t i = 0; i < retention_part_size(part); i++) {
        retention_option c = retention_part_option(part, i);
        if (preset->options[part] >> i & 1)
            strbuf_printf(out, "    %-14s  %s\n", c.name, c.summary);
    }
}

static void print_overrides(strbuf *out, const retention_preset *preset)
{
    enum { ALWAYS = 0 };
    static const struct {
        uint32_t field;
        const char *text;
    } fields[] = {
        {RETENTION_FIELD_BUDGET, "\"ratio\": the share of the prompt that stays, or \"tokens\""},
        {RETENTION_FIELD_INPUT, "\"sinks\": first tokens that always stay"},
        {RETENTION_FIELD_PARTS, "\"sinks\", \"window\": first and last tokens that always stay"},
        {RETENTION_FIELD_PARTS, "\"reuse_layers\": layers that share one selection"},
        {RETENTION_FIELD_PARTS,
         "\"chunk\": tokens of the unit chunk; \"interval\": tokens between "
         "two selections while generating; \"recurrent_chunk\": in the prompt"},
        {RETENTION_FIELD_PARTS,
         "schedule chunk with positions cache lowers defaults to the model's positions: "
         "\"recurrent_chunk\" to a quarter of them, \"tokens\" to a half, \"sinks\" and "
         "\"window\" to a sixteenth each"},
        {RETENTION_FIELD_PARTS,
         "\"pool\": {\"kind\": \"max\" or \"avg\", \"kernel\": 7} smooths the scores of tokens"},
        {RETENTION_FIELD_PARTS, "\"rows\": query rows that are measured, where not those of the "
                                "window; \"beta\": the slope of pyramid; \"floor\": the share that "
                                "adaptive leaves to each head"},
        {RETENTION_FIELD_PARTS, "\"bias\", \"theta\": of score projection: what is added to the "
                                "product with the output, and the temperature of the output's "
                                "softmax"},
        {RETENTION_FIELD_PARTS,
         "\"positions\": \"original\", or \"cache\" for positions anew after each selection"},
        {RETENTION_FIELD_PHASES,
         "\"prefill\": the retention of the prompt, an object like this one "
         "(default: h2o with 2048 tokens, window 8)"},
        {RETENTION_FIELD_PHASES, "\"decode\": {\"beta1\", \"beta2\", \"horizon\", \"scope\", "
                                 "\"score\"}, of the generated tokens"},
        {RETENTION_FIELD_GATHER,
         "\"gather_tokens\": tokens that are computed again, the question among them (default: "
         "8192, at most half of the model's positions); \"gather_window\": of the max-pool of "
         "their scores (129)"},
        {RETENTION_FIELD_GATHER,
         "\"query_tokens\": of the question, at the end of the last user message (default: all of "
         "it) or of a prompt; \"exit_layer\": layers that reading runs (default: what the "
         "embeddings need)"},
        {ALWAYS, "\"pressure\": true lets the server drop pages by --pressure-retention"},
        {ALWAYS, "\"report\": \"positions\" lists the kept tokens"},
    };
    strbuf_puts(out, "\nA request may set\n");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].field == ALWAYS || preset->fields & fields[i].field)
            strbuf_printf(out, "  %s\n", fields[i].text);
    for (int part = 0; preset->fields & RETENTION_FIELD_PARTS && part < RETENTION_PARTS; part++)
        print_options(out, preset, part);
}

static void print_one(strbuf *out, const retention_preset *preset)
{
    retention_policy p = policy_of(preset);
    strbuf_printf(out, "%s: %s\n%s\n", preset->name, preset->summary, preset->source);
    if (!selects(&p)) return;
    print_defaults(out, &p);
    print_needs(out, &p);
    print_overrides(out, preset);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_text(strbuf *out, const char *key, const char *text)
{
    strbuf_printf(out, ",\"%s\":", key);
    strbuf_json_string(out, text, strlen(text));
}

static void json_made(strbuf *out, const char *key, const retention_policy *p,
                      void (*put)(strbuf *out, const retention_policy *p))
{
    strbuf_printf(out, ",\"%s\":\"", key);
    put(out, p);
    strbuf_putc(out, '"');
}

static void json_options(strbuf *out, const retention_preset *preset)
{
    strbuf_puts(out, ",\"choices\":{");
    for (int part = 0; part < RETENTION_PARTS; part++) {
        const char *comma = "";
        strbuf_printf(out, "%s\"%s\":[", part ? "," : "", retention_part_name(part));
        for (size_t i = 0; i < retention_part_size(part); i++) {
            if (!(preset->options[part] >> i & 1)) continue;
            strbuf_printf(out, "%s\"%s\"", comma, retention_part_option(part, i).name);
            comma = ",";
        }
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, '}');
}

static void json_row(strbuf *out, const retention_preset *preset)
{
    retention_policy p = policy_of(preset);
    strbuf_puts(out, "{\"method\":");
    strbuf_json_string(out, preset->name, strlen(preset->name));
    json_text(out, "summary", preset->summary);
    json_text(out, "source", preset->source);
    strbuf_printf(out, ",\"needs_budget\":%s", preset->needs_budget ? "true" : "false");
    json_made(out, "budget", &p, put_budget);
    for (int part = 0; part < RETENTION_PARTS; part++)
        json_text(out, retention_part_name(part), part_of(&p, part));
    strbuf_printf(out, ",\"chunk\":%u,\"interval\":%u,\"recurrent_chunk\":%u", p.chunk, p.interval,
                  p.recurrent_chunk);
    json_made(out, "pool", &p, put_pool);
    strbuf_printf(out, ",\"sinks\":%u,\"reuse_layers\":%u", p.sinks, p.reuse_layers);
    json_made(out, "window", &p, put_window);
    strbuf_printf(out, ",\"takes_prefix_hits\":%s,\"contiguous\":%s",
                  retention_has_sums(&p) ? "false" : "true", p.contiguous ? "true" : "false");
    json_options(out, preset);
    strbuf_putc(out, '}');
}

static void print_json(strbuf *out, const retention_preset *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        strbuf_puts(out, i ? ",\n " : "[");
        json_row(out, &rows[i]);
    }
    strbuf_puts(out, "]\n");
}

/* ---- the command ----------------------------------------------------------------------------- */

typedef struct methods_flags {
    bool json;
} methods_flags;

static const arg_flag flags_table[] = {
    ARG_ROW("json", NULL, ARG_SWITCH, methods_flags, json,
            "print a JSON array of objects: the retention methods, or NAME"),
};

int cli_methods(cli_line *line)
{
    methods_flags f = {0};
    const char *name;
    const arg_group group = {"Flags", flags_table, sizeof flags_table / sizeof flags_table[0], &f};
    const arg_command command = {
        .name = methods_name,
        .usage = "[NAME] [--json]",
        .about = "The retention and retrieval methods that a request may name, with their "
                 "defaults; one of them in full.",
        .groups = &group,
        .n_groups = 1,
        .operand = "NAME",
        .operand_optional = true,
    };
    int result;
    if (!cli_parse(&command, line, &name, &result)) return result;
    size_t n = 1;
    const retention_preset *rows = name ? retention_find(name) : retention_presets(&n);
    const retrieval_preset *reading = name ? retrieval_find(name) : NULL;
    if (!rows && !reading)
        return cli_complain(methods_name, CLI_USAGE, "there is no method of this name");
    strbuf out = {0};
    if (reading) methods_put_retrieval(&out, reading, f.json);
    else if (f.json) print_json(&out, rows, n);
    else if (name) print_one(&out, rows);
    else print_table(&out, rows, n);
    if (!name && !f.json) methods_put_retrievals(&out);
    result = CLI_OK;
    if (out.failed) result = cli_complain(methods_name, CLI_FAILED, "out of memory");
    else fwrite(out.data, 1, out.size, stdout);
    strbuf_destroy(&out);
    return cli_finish_output(methods_name) ? result : CLI_FAILED;
}
