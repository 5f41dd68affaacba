/* Spans: each has its message and the memory of it, and is packed only when it is sent. */
#include "rpc/otlp/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { BLOCK_BYTES = 2048 };

/* Bits of Span.flags: the parent's place is known, and is another process. */
enum { FLAG_SAMPLED = 1, FLAG_KNOWS_PLACE = 0x100, FLAG_PARENT_IS_REMOTE = 0x200 };

static ProtobufCBinaryData bytes_of(const void *s, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)s};
}

static uint64_t now_unix_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Random bytes that are not all zero, which would be no id. */
static bool make_id(uint8_t *out, size_t n)
{
    if (getrandom(out, n, 0) != (ssize_t)n) return false;
    out[0] |= out[0] == 0;
    return true;
}

static void begin_message(trace_span *s, bool has_parent)
{
    otlp__span__init(&s->message);
    otlp__status__init(&s->status);
    s->message.trace_id = bytes_of(s->trace, sizeof s->trace);
    s->message.span_id = bytes_of(s->id, sizeof s->id);
    if (has_parent) s->message.parent_span_id = bytes_of(s->parent, sizeof s->parent);
    s->message.kind = OTLP__SPAN__SPAN_KIND__SPAN_KIND_SERVER;
    s->message.start_time_unix_nano = now_unix_ns();
    s->message.flags =
        FLAG_SAMPLED | (has_parent ? FLAG_KNOWS_PLACE | FLAG_PARENT_IS_REMOTE : FLAG_KNOWS_PLACE);
    s->message.status = &s->status;
    arena_init(&s->memory, BLOCK_BYTES, 0);
}

trace_span *trace_begin(tracer *t, const trace_context *parent)
{
    uint8_t trace[16];
    if (!t) return NULL;
    if (parent) memcpy(trace, parent->trace, sizeof trace);
    else if (!make_id(trace, sizeof trace)) return NULL;
    if (!otlp_samples(tracer_config(t), trace, parent)) return NULL;
    trace_span *s = calloc(1, sizeof *s);
    if (!s || !make_id(s->id, sizeof s->id)) {
        free(s);
        tracer_count_dropped(t);
        return NULL;
    }
    s->tracer = t;
    memcpy(s->trace, trace, sizeof trace);
    if (parent) memcpy(s->parent, parent->span, sizeof s->parent);
    begin_message(s, parent != NULL);
    if (parent && parent->state_bytes) {
        char *state = arena_strndup(&s->memory, parent->state, parent->state_bytes);
        s->failed = !state;
        s->message.trace_state = bytes_of(state, state ? parent->state_bytes : 0);
    }
    return s;
}

void trace_id_text(const trace_span *s, char out[TRACE_ID_TEXT_BYTES])
{
    for (size_t i = 0; i < sizeof s->trace; i++) snprintf(out + 2 * i, 3, "%02x", s->trace[i]);
}

/* ---- attributes ------------------------------------------------------------------------------ */

typedef struct attribute {
    Otlp__KeyValue pair;
    Otlp__AnyValue value;
} attribute;

/* The value of a new attribute, to be filled; NULL when memory is out. */
static Otlp__AnyValue *put(trace_span *s, const char *key)
{
    Otlp__Span *m = &s->message;
    if (!m->attributes)
        m->attributes = arena_alloc_array(&s->memory, TRACE_ATTRIBUTES_MAX, sizeof *m->attributes);
    attribute *a = m->attributes && m->n_attributes < TRACE_ATTRIBUTES_MAX
                       ? arena_alloc(&s->memory, sizeof *a)
                       : NULL;
    if (!a) {
        s->failed = true;
        return NULL;
    }
    otlp__key_value__init(&a->pair);
    otlp__any_value__init(&a->value);
    a->pair.key = bytes_of(key, strlen(key));
    a->pair.value = &a->value;
    m->attributes[m->n_attributes++] = &a->pair;
    return &a->value;
}

/* Copies a text; other bytes than UTF-8 would make receivers refuse the whole batch. */
static void set_text(trace_span *s, Otlp__AnyValue *v, const char *text, size_t n)
{
    static const char unknown[] = "(not UTF-8)";
    bool good = utf8_valid((const uint8_t *)text, n);
    if (!good) n = sizeof unknown - 1;
    char *copy = arena_strndup(&s->memory, good ? text : unknown, n);
    s->failed |= !copy;
    v->value_case = OTLP__ANY_VALUE__VALUE_STRING_VALUE;
    v->string_value = bytes_of(copy, copy ? n : 0);
}

void trace_put_text(trace_span *s, const char *key, const char *text, size_t n)
{
    Otlp__AnyValue *v = put(s, key);
    if (v) set_text(s, v, text, n);
}

void trace_put_int(trace_span *s, const char *key, int64_t value)
{
    Otlp__AnyValue *v = put(s, key);
    if (!v) return;
    v->value_case = OTLP__ANY_VALUE__VALUE_INT_VALUE;
    v->int_value = value;
}

void trace_put_double(trace_span *s, const char *key, double value)
{
    Otlp__AnyValue *v = put(s, key);
    if (!v) return;
    v->value_case = OTLP__ANY_VALUE__VALUE_DOUBLE_VALUE;
    v->double_value = value;
}

void trace_put_texts(trace_span *s, const char *key, const char *const *texts, size_t n)
{
    Otlp__AnyValue *v = put(s, key);
    Otlp__ArrayValue *array = arena_alloc(&s->memory, sizeof *array);
    Otlp__AnyValue **list = arena_alloc_array(&s->memory, n, sizeof *list);
    Otlp__AnyValue *values = arena_alloc_array(&s->memory, n, sizeof *values);
    if (!v || !array || !list || !values) {
        s->failed = true;
        return;
    }
    otlp__array_value__init(array);
    for (size_t i = 0; i < n; i++) {
        otlp__any_value__init(&values[i]);
        set_text(s, &values[i], texts[i], strlen(texts[i]));
        list[i] = &values[i];
    }
    array->values = list;
    array->n_values = n;
    v->value_case = OTLP__ANY_VALUE__VALUE_ARRAY_VALUE;
    v->array_value = array;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void trace_fail(trace_span *s, const char *type)
{
    s->status.code = OTLP__STATUS__STATUS_CODE__STATUS_CODE_ERROR;
    trace_put_text(s, "error.type", type, strlen(type));
}

void trace_end(trace_span *s, const char *name, int64_t duration_us)
{
    s->message.name = bytes_of(name, strlen(name));
    s->message.end_time_unix_nano =
        s->message.start_time_unix_nano + (duration_us > 0 ? (uint64_t)duration_us * 1000 : 0);
    if (!s->failed) {
        tracer_put(s->tracer, s);
        return;
    }
    tracer_count_dropped(s->tracer);
    trace_drop(s);
}

void trace_drop(trace_span *s)
{
    if (!s) return;
    arena_destroy(&s->memory);
    free(s);
}

void trace_free_all(trace_span *first)
{
    for (trace_span *next; first; first = next) {
        next = first->next;
        trace_drop(first);
    }
}
