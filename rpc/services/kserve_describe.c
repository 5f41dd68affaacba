/* Facts about server and model as KServe's and Triton's messages. */
#include "rpc/services/kserve_describe.h"

#include "rpc/services/kserve.h"

#include <math.h>
#include <stdlib.h>

/* ---- server and model ------------------------------------------------------------------------ */

status kserve_describe_server(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                              error *err)
{
    (void)which;
    (void)err;
    static const char *const names[] = {"binary_tensor_data", "model_configuration",
                                        "model_repository", "statistics"};
    enum { N = sizeof names / sizeof names[0] };
    ProtobufCBinaryData extensions[N];
    for (int i = 0; i < N; i++) extensions[i] = field_of(names[i]);
    Inference__ServerMetadataResponse m = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
    m.name = field_of("octavo");
    m.version = field_of(s->o.version);
    m.n_extensions = N;
    m.extensions = extensions;
    tell(ctx, &m.base);
    return STATUS_IS_OK;
}

/* The name asked for, or the first one. */
static ProtobufCBinaryData name_of(const service *s, const kserve_model *which)
{
    return which->name.len ? which->name : field_of(s->o.model.names[0]);
}

typedef Inference__ModelMetadataResponse__TensorMetadata tensor_metadata;

static void describe_tensors(const kserve_tensor *tensors, size_t n, tensor_metadata *out,
                             tensor_metadata **list)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (tensor_metadata)INFERENCE__MODEL_METADATA_RESPONSE__TENSOR_METADATA__INIT;
        out[i].name = field_of(tensors[i].name);
        out[i].datatype = field_of(tensors[i].datatype);
        out[i].n_shape = 1;
        out[i].shape = (int64_t *)(uintptr_t)&tensors[i].dim;
        list[i] = &out[i];
    }
}

status kserve_describe_model(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                             error *err)
{
    RETURN_IF_ERROR(kserve_check_model(s, which->name, which->version, err));
    Inference__ModelMetadataResponse m = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    tensor_metadata inputs[KSERVE_INPUTS], outputs[KSERVE_OUTPUTS];
    tensor_metadata *input_list[KSERVE_INPUTS], *output_list[KSERVE_OUTPUTS];
    ProtobufCBinaryData version = field_of(kserve_version);
    describe_tensors(kserve_inputs, KSERVE_INPUTS, inputs, input_list);
    describe_tensors(kserve_outputs, KSERVE_OUTPUTS, outputs, output_list);
    m.name = name_of(s, which);
    m.n_versions = 1;
    m.versions = &version;
    m.platform = field_of("octavo");
    m.n_inputs = KSERVE_INPUTS;
    m.inputs = input_list;
    m.n_outputs = KSERVE_OUTPUTS;
    m.outputs = output_list;
    tell(ctx, &m.base);
    return STATUS_IS_OK;
}

/* ---- configuration --------------------------------------------------------------------------- */

static Inference__DataType type_of(const kserve_tensor *t)
{
    if (strcmp(t->datatype, "BYTES") == 0) return INFERENCE__DATA_TYPE__TYPE_STRING;
    if (strcmp(t->datatype, "BOOL") == 0) return INFERENCE__DATA_TYPE__TYPE_BOOL;
    return INFERENCE__DATA_TYPE__TYPE_INT32;
}

status kserve_describe_config(service *s, const kserve_model *which, kserve_tell tell, void *ctx,
                              error *err)
{
    RETURN_IF_ERROR(kserve_check_model(s, which->name, which->version, err));
    Inference__ModelInput inputs[KSERVE_INPUTS], *input_list[KSERVE_INPUTS];
    Inference__ModelOutput outputs[KSERVE_OUTPUTS], *output_list[KSERVE_OUTPUTS];
    for (size_t i = 0; i < KSERVE_INPUTS; i++) {
        inputs[i] = (Inference__ModelInput)INFERENCE__MODEL_INPUT__INIT;
        inputs[i].name = field_of(kserve_inputs[i].name);
        inputs[i].data_type = type_of(&kserve_inputs[i]);
        inputs[i].n_dims = 1;
        inputs[i].dims = (int64_t *)(uintptr_t)&kserve_inputs[i].dim;
        inputs[i].optional = i != KSERVE_TEXT_INPUT;
        input_list[i] = &inputs[i];
    }
    for (size_t i = 0; i < KSERVE_OUTPUTS; i++) {
        outputs[i] = (Inference__ModelOutput)INFERENCE__MODEL_OUTPUT__INIT;
        outputs[i].name = field_of(kserve_outputs[i].name);
        outputs[i].data_type = type_of(&kserve_outputs[i]);
        outputs[i].n_dims = 1;
        outputs[i].dims = (int64_t *)(uintptr_t)&kserve_outputs[i].dim;
        output_list[i] = &outputs[i];
    }
    Inference__ModelTransactionPolicy policy = INFERENCE__MODEL_TRANSACTION_POLICY__INIT;
    Inference__ModelConfig config = INFERENCE__MODEL_CONFIG__INIT;
    Inference__ModelConfigResponse m = INFERENCE__MODEL_CONFIG_RESPONSE__INIT;
    policy.decoupled = true;
    config.name = name_of(s, which);
    config.platform = config.backend = field_of("octavo");
    config.n_input = KSERVE_INPUTS;
    config.input = input_list;
    config.n_output = KSERVE_OUTPUTS;
    config.output = output_list;
    config.model_transaction_policy = &policy;
    m.config = &config;
    tell(ctx, &m.base);
    return STATUS_IS_OK;
}

/* ---- lists of models ------------------------------------------------------------------------- */

static status no_memory(error *err)
{
    return error_set(err, STATUS_NO_MEMORY, "request: out of memory");
}

status kserve_describe_index(service *s, bool ready, kserve_tell tell, void *ctx, error *err)
{
    typedef Inference__RepositoryIndexResponse__ModelIndex row;
    size_t n = s->o.model.n_names;
    bool serves = service_is_serving(s);
    row *rows = calloc(n, sizeof *rows), **list = calloc(n, sizeof *list);
    Inference__RepositoryIndexResponse m = INFERENCE__REPOSITORY_INDEX_RESPONSE__INIT;
    for (size_t i = 0; rows && list && i < n; i++) {
        rows[i] = (row)INFERENCE__REPOSITORY_INDEX_RESPONSE__MODEL_INDEX__INIT;
        rows[i].name = field_of(s->o.model.names[i]);
        rows[i].version = field_of(kserve_version);
        rows[i].state = field_of(serves ? "READY" : "UNAVAILABLE");
        rows[i].reason = field_of(serves ? "" : service_state(s));
        list[i] = &rows[i];
    }
    m.n_models = ready && !serves ? 0 : n;
    m.models = list;
    bool ok = rows && list;
    if (ok) tell(ctx, &m.base);
    free(rows);
    free(list);
    return ok ? STATUS_IS_OK : no_memory(err);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static uint64_t ns_of(double seconds) { return seconds > 0 ? (uint64_t)llround(seconds * 1e9) : 0; }

static Inference__StatisticDuration duration_of(const engine_metrics *metrics,
                                                engine_histogram_id id)
{
    const engine_histogram *h = &metrics->histograms[id];
    Inference__StatisticDuration d = INFERENCE__STATISTIC_DURATION__INIT;
    d.count = h->count;
    d.ns = ns_of(h->sum);
    return d;
}

typedef struct statistics {
    Inference__ModelStatistics row;
    Inference__InferStatistics parts;
    Inference__StatisticDuration success, fail, queue, input, infer, output;
} statistics;

/* Fills the statistics, which hold pointers into *out. */
static void count_requests(service *s, statistics *out)
{
    engine_metrics metrics;
    engine_get_metrics(s->o.engine, &metrics);
    engine_stats stats = engine_get_stats(s->o.engine);
    *out = (statistics){.row = INFERENCE__MODEL_STATISTICS__INIT,
                        .parts = INFERENCE__INFER_STATISTICS__INIT,
                        .success = duration_of(&metrics, ENGINE_E2E_LATENCY),
                        .fail = INFERENCE__STATISTIC_DURATION__INIT,
                        .queue = duration_of(&metrics, ENGINE_QUEUE_TIME),
                        .input = duration_of(&metrics, ENGINE_PREFILL_TIME),
                        .infer = duration_of(&metrics, ENGINE_DECODE_TIME),
                        .output = INFERENCE__STATISTIC_DURATION__INIT};
    out->fail.count = stats.requests_failed;
    out->row.inference_count = stats.requests_finished;
    out->row.execution_count = stats.steps;
    out->row.inference_stats = &out->parts;
    out->parts.success = &out->success;
    out->parts.fail = &out->fail;
    out->parts.queue = &out->queue;
    out->parts.compute_input = &out->input;
    out->parts.compute_infer = &out->infer;
    out->parts.compute_output = &out->output;
}

status kserve_describe_statistics(service *s, const kserve_model *which, kserve_tell tell,
                                  void *ctx, error *err)
{
    RETURN_IF_ERROR(kserve_check_model(s, which->name, which->version, err));
    size_t n = which->name.len ? 1 : s->o.model.n_names;
    Inference__ModelStatistics *rows = calloc(n, sizeof *rows), **list = calloc(n, sizeof *list);
    Inference__ModelStatisticsResponse m = INFERENCE__MODEL_STATISTICS_RESPONSE__INIT;
    statistics all;
    count_requests(s, &all);
    for (size_t i = 0; rows && list && i < n; i++) {
        rows[i] = all.row; /* the names are of one model */
        rows[i].name = which->name.len ? which->name : field_of(s->o.model.names[i]);
        rows[i].version = field_of(kserve_version);
        list[i] = &rows[i];
    }
    m.n_model_stats = n;
    m.model_stats = list;
    bool ok = rows && list;
    if (ok) tell(ctx, &m.base);
    free(rows);
    free(list);
    return ok ? STATUS_IS_OK : no_memory(err);
}
