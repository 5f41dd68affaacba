/* KServe's messages as JSON and back. */
#include "rpc/services/kserve_json.h"

#include "base/json.h"

#include <stdlib.h>

/* More than there are tensors and fields, so that a wrong one is named and a list is bounded. */
enum { TENSORS_MAX = 16, PARAMETERS_MAX = 64, DIMS_MAX = 8, DEPTH_MAX = 3 };

typedef struct reading {
    const kserve_body *body;
    arena *memory;
    size_t at; // in body->bytes
    uint32_t *binary;
} reading;

static status no_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

static ProtobufCBinaryData text_of(const json_t *v)
{
    return (ProtobufCBinaryData){json_string_length(v), (uint8_t *)(uintptr_t)json_string_value(v)};
}

/* Refuses members that are not in the list, which ends with NULL. */
static status check_keys(const char *where, const json_t *object, const char *const *known,
                         error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return error_set(err, STATUS_INVALID, "%s: must be an object", where);
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i])
            return error_set(err, STATUS_INVALID, "%s: unknown field '%.64s'", where, key);
    }
    return STATUS_IS_OK;
}

static status read_text(const char *where, const char *key, const json_t *object,
                        ProtobufCBinaryData *out, error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v) return STATUS_IS_OK;
    if (!json_is_string(v))
        return error_set(err, STATUS_INVALID, "%s: %s: must be a string", where, key);
    *out = text_of(v);
    return STATUS_IS_OK;
}

static status check_list(const char *name, const json_t *list, error *err)
{
    if (!list || (json_is_array(list) && json_array_size(list) <= TENSORS_MAX)) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "%s: must be a list of at most %d tensors", name,
                     TENSORS_MAX);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* An object becomes its text, as gRPC has `retention`. */
static status read_value(const char *key, const json_t *v, reading *in,
                         Inference__InferParameter *out, error *err)
{
    if (json_is_object(v)) {
        char *text = json_write(v, JSON_COMPACT);
        char *copy = text ? arena_strndup(in->memory, text, strlen(text)) : NULL;
        free(text);
        if (!copy) return no_memory(err);
        out->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
        out->string_param = field_of(copy);
    } else if (json_is_string(v)) {
        out->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
        out->string_param = text_of(v);
    } else if (json_is_boolean(v)) {
        out->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
        out->bool_param = json_is_true(v);
    } else if (json_is_integer(v)) {
        out->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
        out->int64_param = json_integer_value(v);
    } else if (json_is_real(v)) {
        out->parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM;
        out->double_param = json_real_value(v);
    } else
        return error_set(err, STATUS_INVALID,
                         "parameters: %.64s: must be a string, a number or a boolean", key);
    return STATUS_IS_OK;
}

static status read_parameters(reading *in, Inference__ModelInferRequest *m, error *err)
{
    typedef Inference__ModelInferRequest__ParametersEntry entry;
    const json_t *all = json_object_get(in->body->json, "parameters");
    size_t n = json_object_size(all);
    if (!all) return STATUS_IS_OK;
    if (!json_is_object(all) || n > PARAMETERS_MAX)
        return error_set(err, STATUS_INVALID, "parameters: must be an object of at most %d members",
                         PARAMETERS_MAX);
    entry *rows = arena_alloc_array(in->memory, n + 1, sizeof *rows);
    Inference__InferParameter *values = arena_alloc_array(in->memory, n + 1, sizeof *values);
    m->parameters = arena_alloc_array(in->memory, n + 1, sizeof(entry *));
    if (!rows || !values || !m->parameters) return no_memory(err);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)all, key, v)
    {
        if (strcmp(key, "binary_data_output") == 0) {
            if (!json_is_boolean(v))
                return error_set(err, STATUS_INVALID, "parameters: %s: must be true or false", key);
            if (json_is_true(v)) *in->binary = (1u << KSERVE_OUTPUTS) - 1;
            continue;
        }
        size_t i = m->n_parameters++;
        rows[i] = (entry)INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT;
        values[i] = (Inference__InferParameter)INFERENCE__INFER_PARAMETER__INIT;
        rows[i].key = field_of(key);
        rows[i].value = &values[i];
        m->parameters[i] = &rows[i];
        RETURN_IF_ERROR(read_value(key, v, in, &values[i], err));
    }
    return STATUS_IS_OK;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void put32(strbuf *out, size_t v)
{
    for (int shift = 0; shift < 32; shift += 8) strbuf_putc(out, (char)(v >> shift & 255));
}

/* Appends the elements of nested lists as raw contents. */
static status add_elements(const char *where, const json_t *v, int depth, strbuf *raw, error *err)
{
    size_t i;
    json_t *element;
    if (json_is_array(v) && depth < DEPTH_MAX) {
        json_array_foreach(v, i, element)
            RETURN_IF_ERROR(add_elements(where, element, depth + 1, raw, err));
    } else if (json_is_string(v)) {
        put32(raw, json_string_length(v));
        strbuf_append(raw, json_string_value(v), json_string_length(v));
    } else if (json_is_boolean(v)) strbuf_putc(raw, json_is_true(v));
    else return error_set(err, STATUS_INVALID, "%s: data: must hold strings or booleans", where);
    return STATUS_IS_OK;
}

/* Takes the tensor's share of the bytes behind the JSON. */
static status take_bytes(const char *where, const json_t *size, reading *in,
                         ProtobufCBinaryData *out, error *err)
{
    json_int_t n = json_integer_value(size);
    size_t left = in->body->n_bytes - in->at;
    if (!json_is_integer(size) || n < 0 || (size_t)n > left)
        return error_set(
            err, STATUS_INVALID,
            "%s: binary_data_size: must be an integer in 0 .. %zu, what is left of the "
            "bytes behind the JSON",
            where, left);
    *out = (ProtobufCBinaryData){(size_t)n, (uint8_t *)(uintptr_t)in->body->bytes + in->at};
    in->at += (size_t)n;
    return STATUS_IS_OK;
}

static status read_contents(const char *where, const json_t *tensor, reading *in,
                            ProtobufCBinaryData *out, error *err)
{
    static const char *const known[] = {"binary_data_size", NULL};
    const json_t *data = json_object_get(tensor, "data"),
                 *parameters = json_object_get(tensor, "parameters"),
                 *size = json_object_get(parameters, "binary_data_size");
    if (parameters) RETURN_IF_ERROR(check_keys(where, parameters, known, err));
    if (!data == !size)
        return error_set(err, STATUS_INVALID, "%s: must have one of data and binary_data_size",
                         where);
    if (size) return take_bytes(where, size, in, out, err);
    strbuf raw = {0};
    status st = json_is_array(data)
                    ? add_elements(where, data, 0, &raw, err)
                    : error_set(err, STATUS_INVALID, "%s: data: must be a list", where);
    char *copy = arena_strndup(in->memory, raw.size ? raw.data : "", raw.size);
    *out = (ProtobufCBinaryData){raw.size, (uint8_t *)copy};
    bool failed = raw.failed || !copy;
    strbuf_destroy(&raw);
    return status_ok(st) && failed ? no_memory(err) : st;
}

static status read_shape(const char *where, const json_t *tensor, reading *in,
                         Inference__ModelInferRequest__InferInputTensor *out, error *err)
{
    const json_t *shape = json_object_get(tensor, "shape");
    size_t n = json_array_size(shape);
    bool good = json_is_array(shape) && n <= DIMS_MAX;
    out->shape = arena_alloc_array(in->memory, DIMS_MAX, sizeof *out->shape);
    if (!out->shape) return no_memory(err);
    for (size_t i = 0; good && i < n; i++) {
        good = json_is_integer(json_array_get(shape, i));
        out->shape[out->n_shape++] = json_integer_value(json_array_get(shape, i));
    }
    return good ? STATUS_IS_OK
                : error_set(err, STATUS_INVALID, "%s: shape: must be a list of at most %d integers",
                            where, DIMS_MAX);
}

static status read_inputs(reading *in, Inference__ModelInferRequest *m, error *err)
{
    typedef Inference__ModelInferRequest__InferInputTensor input;
    static const char *const known[] = {"name", "shape", "datatype", "parameters", "data", NULL};
    const json_t *list = json_object_get(in->body->json, "inputs");
    RETURN_IF_ERROR(check_list("inputs", list, err));
    input *rows = arena_alloc_array(in->memory, TENSORS_MAX, sizeof *rows);
    m->inputs = arena_alloc_array(in->memory, TENSORS_MAX, sizeof(input *));
    m->raw_input_contents =
        arena_alloc_array(in->memory, TENSORS_MAX, sizeof *m->raw_input_contents);
    if (!rows || !m->inputs || !m->raw_input_contents) return no_memory(err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[48];
        const json_t *tensor = json_array_get(list, i);
        snprintf(where, sizeof where, "inputs[%zu]", i);
        rows[i] = (input)INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT;
        m->inputs[i] = &rows[i];
        RETURN_IF_ERROR(check_keys(where, tensor, known, err));
        RETURN_IF_ERROR(read_text(where, "name", tensor, &rows[i].name, err));
        RETURN_IF_ERROR(read_text(where, "datatype", tensor, &rows[i].datatype, err));
        RETURN_IF_ERROR(read_shape(where, tensor, in, &rows[i], err));
        RETURN_IF_ERROR(read_contents(where, tensor, in, &m->raw_input_contents[i], err));
        m->n_inputs = m->n_raw_input_contents = i + 1;
    }
    if (in->at == in->body->n_bytes) return STATUS_IS_OK;
    return error_set(err, STATUS_INVALID, "body: %zu bytes behind the JSON belong to no tensor",
                     in->body->n_bytes - in->at);
}

/* ---- outputs that are asked for -------------------------------------------------------------- */

/* The bit of the output of this name; 0 for an unknown name, which the request's check refuses. */
static uint32_t bit_of(ProtobufCBinaryData name)
{
    for (int i = 0; i < KSERVE_OUTPUTS; i++)
        if (field_is(name, kserve_outputs[i].name)) return 1u << i;
    return 0;
}

static status read_outputs(reading *in, Inference__ModelInferRequest *m, error *err)
{
    typedef Inference__ModelInferRequest__InferRequestedOutputTensor output;
    static const char *const known[] = {"name", "parameters", NULL};
    static const char *const switches[] = {"binary_data", NULL};
    const json_t *list = json_object_get(in->body->json, "outputs");
    RETURN_IF_ERROR(check_list("outputs", list, err));
    output *rows = arena_alloc_array(in->memory, TENSORS_MAX, sizeof *rows);
    m->outputs = arena_alloc_array(in->memory, TENSORS_MAX, sizeof(output *));
    if (!rows || !m->outputs) return no_memory(err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[48];
        const json_t *tensor = json_array_get(list, i);
        snprintf(where, sizeof where, "outputs[%zu]", i);
        rows[i] = (output)INFERENCE__MODEL_INFER_REQUEST__INFER_REQUESTED_OUTPUT_TENSOR__INIT;
        m->outputs[i] = &rows[i];
        m->n_outputs = i + 1;
        RETURN_IF_ERROR(check_keys(where, tensor, known, err));
        RETURN_IF_ERROR(read_text(where, "name", tensor, &rows[i].name, err));
        const json_t *parameters = json_object_get(tensor, "parameters"),
                     *binary = json_object_get(parameters, "binary_data");
        if (parameters) RETURN_IF_ERROR(check_keys(where, parameters, switches, err));
        if (binary && !json_is_boolean(binary))
            return error_set(err, STATUS_INVALID, "%s: binary_data: must be true or false", where);
        if (json_is_true(binary)) *in->binary |= bit_of(rows[i].name);
        if (json_is_false(binary)) *in->binary &= ~bit_of(rows[i].name);
    }
    return STATUS_IS_OK;
}

status kserve_read_json(const kserve_body *body, arena *memory, Inference__ModelInferRequest *out,
                        uint32_t *binary, error *err)
{
    static const char *const known[] = {"id", "parameters", "inputs", "outputs", NULL};
    reading in = {.body = body, .memory = memory, .binary = binary};
    *binary = 0;
    *out = (Inference__ModelInferRequest)INFERENCE__MODEL_INFER_REQUEST__INIT;
    out->model_name = body->model;
    out->model_version = body->version;
    if (!json_is_object(body->json))
        return error_set(err, STATUS_INVALID, "body: must be a JSON object");
    RETURN_IF_ERROR(check_keys("request", body->json, known, err));
    RETURN_IF_ERROR(read_text("request", "id", body->json, &out->id, err));
    RETURN_IF_ERROR(read_parameters(&in, out, err));
    RETURN_IF_ERROR(read_inputs(&in, out, err));
    return read_outputs(&in, out, err);
}

/* ---- messages to JSON ------------------------------------------------------------------------ */

static void put_text(ProtobufCBinaryData text, strbuf *out)
{
    strbuf_json_string(out, text.len ? (const char *)text.data : "", text.len);
}

static void put_member(const ProtobufCFieldDescriptor *d, const void *at, strbuf *out)
{
    switch (d->type) {
    case PROTOBUF_C_TYPE_BYTES: put_text(*(const ProtobufCBinaryData *)at, out); break;
    case PROTOBUF_C_TYPE_BOOL:
        strbuf_puts(out, *(const protobuf_c_boolean *)at ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM:
        strbuf_printf(out, "\"%s\"",
                      protobuf_c_enum_descriptor_get_value(d->descriptor, *(const int *)at)->name);
        break;
    case PROTOBUF_C_TYPE_INT32: strbuf_printf(out, "%d", *(const int32_t *)at); break;
    case PROTOBUF_C_TYPE_INT64: strbuf_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case PROTOBUF_C_TYPE_UINT64:
        strbuf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        kserve_write_message(*(const ProtobufCMessage *const *)at, out);
        break;
    default: strbuf_puts(out, "null"); break; /* no description has one */
    }
}

static size_t element_bytes(const ProtobufCFieldDescriptor *d)
{
    if (d->type == PROTOBUF_C_TYPE_BYTES) return sizeof(ProtobufCBinaryData);
    return d->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *) : sizeof(int64_t);
}

void kserve_write_message(const ProtobufCMessage *m, strbuf *out)
{
    bool first = true;
    if (!m) {
        strbuf_puts(out, "{}");
        return;
    }
    strbuf_putc(out, '{');
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *d = &m->descriptor->fields[i];
        const char *at = (const char *)m + d->offset;
        strbuf_printf(out, first ? "\"%s\":" : ",\"%s\":", d->name);
        first = false;
        if (d->label != PROTOBUF_C_LABEL_REPEATED) {
            put_member(d, at, out);
            continue;
        }
        size_t n = *(const size_t *)(const void *)((const char *)m + d->quantifier_offset);
        const char *elements = *(const char *const *)(const void *)at;
        strbuf_putc(out, '[');
        for (size_t j = 0; j < n; j++) {
            if (j) strbuf_putc(out, ',');
            put_member(d, elements + j * element_bytes(d), out);
        }
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, '}');
}

/* ---- responses ------------------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Writes raw contents that octavo made: INT32, or BYTES with their lengths. */
static void put_data(bool texts, ProtobufCBinaryData raw, strbuf *out)
{
    strbuf_putc(out, '[');
    for (size_t at = 0; at + 4 <= raw.len; at += 4) {
        uint32_t v = get32(raw.data + at);
        if (at) strbuf_putc(out, ',');
        if (!texts) {
            strbuf_printf(out, "%d", (int32_t)v);
            continue;
        }
        strbuf_json_string(out, (const char *)raw.data + at + 4, v);
        at += v;
    }
    strbuf_putc(out, ']');
}

static void put_parameters(const Inference__ModelInferResponse *m, strbuf *out)
{
    for (size_t i = 0; i < m->n_parameters; i++) {
        const Inference__ModelInferResponse__ParametersEntry *p = m->parameters[i];
        if (i) strbuf_putc(out, ',');
        strbuf_json_string(out, (const char *)p->key.data, p->key.len);
        strbuf_putc(out, ':');
        put_text(p->value->string_param, out);
    }
}

size_t kserve_write_json(const Inference__ModelInferResponse *m, uint32_t binary, strbuf *out)
{
    size_t before = out->size;
    strbuf_puts(out, "{\"model_name\":");
    put_text(m->model_name, out);
    strbuf_puts(out, ",\"model_version\":");
    put_text(m->model_version, out);
    if (m->id.len) {
        strbuf_puts(out, ",\"id\":");
        put_text(m->id, out);
    }
    strbuf_puts(out, ",\"parameters\":{");
    put_parameters(m, out);
    strbuf_puts(out, "},\"outputs\":[");
    for (size_t i = 0; i < m->n_outputs; i++) {
        ProtobufCBinaryData raw = m->raw_output_contents[i], name = m->outputs[i]->name;
        strbuf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        put_text(name, out);
        strbuf_puts(out, ",\"datatype\":");
        put_text(m->outputs[i]->datatype, out);
        strbuf_printf(out, ",\"shape\":[%lld]", (long long)m->outputs[i]->shape[0]);
        if (bit_of(name) & binary)
            strbuf_printf(out, ",\"parameters\":{\"binary_data_size\":%zu}}", raw.len);
        else {
            strbuf_puts(out, ",\"data\":");
            put_data(field_is(m->outputs[i]->datatype, "BYTES"), raw, out);
            strbuf_putc(out, '}');
        }
    }
    strbuf_puts(out, "]}");
    size_t json = out->size - before;
    for (size_t i = 0; i < m->n_outputs; i++)
        if (bit_of(m->outputs[i]->name) & binary)
            strbuf_append(out, m->raw_output_contents[i].data, m->raw_output_contents[i].len);
    return json;
}
