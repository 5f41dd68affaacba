/* The table of a request's scalar fields, and how values are stored. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#define WITHIN(lowest, highest)                                                                    \
    {                                                                                              \
        lowest, highest, false                                                                     \
    }
#define ABOVE(lowest, highest)                                                                     \
    {                                                                                              \
        lowest, highest, true                                                                      \
    }
#define AT_LEAST(lowest)                                                                           \
    {                                                                                              \
        lowest, INFINITY, false                                                                    \
    }
#define ANY                                                                                        \
    {                                                                                              \
        -INFINITY, INFINITY, false                                                                 \
    }
#define FLAG(flag_name, value)                                                                     \
    {                                                                                              \
        flag_name, value, NULL                                                                     \
    }
#define FLAG_ALSO(flag_name, value, aliases)                                                       \
    {                                                                                              \
        flag_name, value, aliases                                                                  \
    }
#define SWITCH(flag_name)                                                                          \
    {                                                                                              \
        flag_name, NULL, NULL                                                                      \
    }
#define NO_FLAG                                                                                    \
    {                                                                                              \
        NULL, NULL, NULL                                                                           \
    }

static const engine_field fields[ENGINE_FIELDS] = {
#define FIELD(field_kind, member, initial, values, run_flag, text)                                 \
    {.name = #member,                                                                              \
     .kind = ENGINE_FIELD_##field_kind,                                                            \
     .offset = offsetof(engine_request, member),                                                   \
     .range = values,                                                                              \
     .flag = run_flag,                                                                             \
     .help = text},
#include "engine/request_fields.inc"
};

const engine_field *engine_fields(void) { return fields; }

const engine_field *engine_field_find(const char *name)
{
    for (size_t i = 0; i < ENGINE_FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

bool engine_field_in_range(const engine_field *f, double value)
{
    bool high_enough = f->range.above ? value > f->range.min : value >= f->range.min;
    return high_enough && value <= f->range.max;
}

void engine_field_set_float(const engine_field *f, float value, engine_request *r)
{
    *(float *)((char *)r + f->offset) = value;
}

void engine_field_set_whole(const engine_field *f, int64_t value, engine_request *r)
{
    void *member = (char *)r + f->offset;
    switch (f->kind) {
    case ENGINE_FIELD_BOOL: *(bool *)member = value != 0; return;
    case ENGINE_FIELD_INT:
    case ENGINE_FIELD_TOP:
    case ENGINE_FIELD_LOGPROBS: *(int32_t *)member = (int32_t)value; return;
    /* No new token: the request only scores its prompt. The number is stored, too. */
    case ENGINE_FIELD_LENGTH: r->score_only = value == 0; // fallthrough
    case ENGINE_FIELD_UINT: *(uint32_t *)member = (uint32_t)value; return;
    case ENGINE_FIELD_SEED:
        *(uint64_t *)member = (uint64_t)value;
        r->has_seed = true;
        return;
    case ENGINE_FIELD_FLOAT: return;
    }
}
