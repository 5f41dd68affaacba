/* inference.GRPCInferenceService (KServe v2): the table of methods, and the methods that answer at
 * once. */
#include "rpc/services/kserve.h"

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

/* ---- metadata -------------------------------------------------------------------------------- */

static void server_metadata(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    Inference__ServerMetadataResponse m = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
    m.name = field_of("octavo");
    m.version = field_of(call_service(c)->o.version);
    call_reply(c, &m.base);
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

static void model_metadata(rpc_call *c, const ProtobufCMessage *message)
{
    const Inference__ModelMetadataRequest *wanted =
        (const Inference__ModelMetadataRequest *)message;
    service *s = call_service(c);
    error err = {{0}};
    status st = kserve_check_model(s, wanted->name, wanted->version, &err);
    if (!status_ok(st)) {
        call_fail(c, st, &err);
        return;
    }
    Inference__ModelMetadataResponse m = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    tensor_metadata inputs[KSERVE_INPUTS], outputs[KSERVE_OUTPUTS];
    tensor_metadata *input_list[KSERVE_INPUTS], *output_list[KSERVE_OUTPUTS];
    ProtobufCBinaryData version = field_of(kserve_version);
    describe_tensors(kserve_inputs, KSERVE_INPUTS, inputs, input_list);
    describe_tensors(kserve_outputs, KSERVE_OUTPUTS, outputs, output_list);
    m.name = wanted->name.len ? wanted->name : field_of(s->o.model.names[0]);
    m.n_versions = 1;
    m.versions = &version;
    m.platform = field_of("octavo");
    m.n_inputs = KSERVE_INPUTS;
    m.inputs = input_list;
    m.n_outputs = KSERVE_OUTPUTS;
    m.outputs = output_list;
    call_reply(c, &m.base);
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
