/* inference.GRPCInferenceService (KServe v2): the table of methods, and the methods that answer at
 * once. */
#include "rpc/services/kserve.h"
#include "rpc/services/kserve_describe.h"

/* ---- health ---------------------------------------------------------------------------------- */

static void server_live(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    Inference__ServerLiveResponse m = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
    m.live = true;
    call_reply(c, &m.base);
}

static void server_ready(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    Inference__ServerReadyResponse m = INFERENCE__SERVER_READY_RESPONSE__INIT;
    m.ready = service_is_serving(call_service(c));
    call_reply(c, &m.base);
}

static void model_ready(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__ModelReadyRequest *wanted = (const Inference__ModelReadyRequest *)message;
    service *s = call_service(c);
    Inference__ModelReadyResponse m = INFERENCE__MODEL_READY_RESPONSE__INIT;
    m.ready = status_ok(kserve_check_model(s, wanted->name, wanted->version, NULL)) &&
              service_is_serving(s);
    call_reply(c, &m.base);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static void reply_with(void *call, const ProtobufCMessage *message) { call_reply(call, message); }

static void answer_describe(rpc_call *c, kserve_describe describe, ProtobufCBinaryData name,
                            ProtobufCBinaryData version)
{
    const kserve_model which = {name, version};
    error err = {{0}};
    status st = describe(call_service(c), &which, reply_with, c, &err);
    if (!status_ok(st)) call_fail(c, st, &err);
}

static void server_metadata(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    answer_describe(c, kserve_describe_server, field_of(""), field_of(""));
}

static void model_metadata(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__ModelMetadataRequest *m = (const Inference__ModelMetadataRequest *)message;
    answer_describe(c, kserve_describe_model, m->name, m->version);
}

static void model_config(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__ModelConfigRequest *m = (const Inference__ModelConfigRequest *)message;
    answer_describe(c, kserve_describe_config, m->name, m->version);
}

static void model_statistics(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__ModelStatisticsRequest *m = (const Inference__ModelStatisticsRequest *)message;
    answer_describe(c, kserve_describe_statistics, m->name, m->version);
}

static void repository_index(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__RepositoryIndexRequest *m = (const Inference__RepositoryIndexRequest *)message;
    error err = {{0}};
    status st =
        m->repository_name.len
            ? error_set(&err, STATUS_NOT_FOUND, "repository_name: there is one without name")
            : kserve_describe_index(call_service(c), m->ready, reply_with, c, &err);
    if (!status_ok(st)) call_fail(c, st, &err);
}

/* ---- the service ----------------------------------------------------------------------------- */

static const rpc_method methods[] = {
    {
        .path = "/inference.GRPCInferenceService/ServerLive",
        .input = &inference__server_live_request__descriptor,
        .open = true,
        .message = server_live,
    },
    {
        .path = "/inference.GRPCInferenceService/ServerReady",
        .input = &inference__server_ready_request__descriptor,
        .open = true,
        .message = server_ready,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelReady",
        .input = &inference__model_ready_request__descriptor,
        .open = true,
        .message = model_ready,
    },
    {
        .path = "/inference.GRPCInferenceService/ServerMetadata",
        .input = &inference__server_metadata_request__descriptor,
        .message = server_metadata,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelMetadata",
        .input = &inference__model_metadata_request__descriptor,
        .message = model_metadata,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelConfig",
        .input = &inference__model_config_request__descriptor,
        .message = model_config,
    },
    {
        .path = "/inference.GRPCInferenceService/RepositoryIndex",
        .input = &inference__repository_index_request__descriptor,
        .message = repository_index,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelStatistics",
        .input = &inference__model_statistics_request__descriptor,
        .message = model_statistics,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelInfer",
        .input = &inference__model_infer_request__descriptor,
        .message = kserve_infer,
        .writable = kserve_infer_writable,
        .ended = kserve_infer_ended,
    },
    {
        .path = "/inference.GRPCInferenceService/ModelStreamInfer",
        .input = &inference__model_infer_request__descriptor,
        .client_streams = true,
        .message = kserve_stream_message,
        .half_closed = kserve_stream_half_closed,
        .writable = kserve_stream_writable,
        .ended = kserve_infer_ended,
    },
};

const rpc_service kserve_service = {
    "inference.GRPCInferenceService",
    methods,
    sizeof methods / sizeof methods[0],
};
