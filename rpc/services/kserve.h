/* KServe v2: declarations shared by its files (private to rpc/services).
 *
 * kserve.c: the methods   kserve_request.c: tensors in   kserve_response.c: tensors out
 * kserve_infer.c: ModelInfer and ModelStreamInfer   kserve_describe.c: facts about server and model
 * kserve_http.c: a request over HTTP and its answer   kserve_json.c: JSON to messages and back */
#ifndef RPC_SERVICES_KSERVE_H
#define RPC_SERVICES_KSERVE_H

#include "rpc/services/fields.h"
#include "rpc/services/reports.h"
#include "rpc/services/services.h"

/* A tensor's description, for metadata and checks. */
typedef struct kserve_tensor {
    const char *name;
    const char *datatype;
    int64_t dim; // size of its one dimension; -1 = any
} kserve_tensor;

extern const char kserve_version[]; // the model's only version

/* Checks a model's name and version. STATUS_NOT_FOUND: the error says which of them is wrong. */
status kserve_check_model(const service *s, ProtobufCBinaryData name, ProtobufCBinaryData version,
                          error *err);

/* ---- inputs ---------------------------------------------------------------------------------- */

enum { KSERVE_TEXT_INPUT, KSERVE_SAMPLING_PARAMETERS, KSERVE_STREAM, KSERVE_INPUTS };
extern const kserve_tensor kserve_inputs[KSERVE_INPUTS];

enum { KSERVE_PROMPTS_MAX = 1024, KSERVE_ID_BYTES_MAX = 128 };

/* The parts of a request that are not fields of the engine request. */
typedef struct kserve_facts {
    char id[KSERVE_ID_BYTES_MAX + 1];
    uint32_t n_prompts;
    uint32_t outputs; // bit i: output i is wanted
    bool stream;
    int place[KSERVE_INPUTS]; // index of each of kserve_inputs in the request; -1 = absent
} kserve_facts;

/* Reads the facts; checks names, datatypes and shapes of the tensors. */
status kserve_facts_of(const service *s, const Inference__ModelInferRequest *m, kserve_facts *out,
                       error *err);
/* Fills a request without a prompt: all prompts of m share it. */
status kserve_fields_of(const service *s, const Inference__ModelInferRequest *m,
                        const kserve_facts *facts, engine_request *out, error *err);
/* Copies one of the prompts to r->prompt, which must be NULL. */
status kserve_prompt_of(const Inference__ModelInferRequest *m, const kserve_facts *facts,
                        uint32_t prompt, engine_request *r, error *err);
/* Starts an engine request for each prompt of m; *n_choices receives the choices of all of them. */
status kserve_start(service *s, const Inference__ModelInferRequest *m, const kserve_facts *facts,
                    const generation_options *o, generation **out, uint32_t *n_choices, error *err);

/* ---- outputs --------------------------------------------------------------------------------- */

enum {
    KSERVE_TEXT_OUTPUT,
    KSERVE_FINISH_REASON,
    KSERVE_INDEX,
    KSERVE_OUTPUT_IDS,
    KSERVE_COMPLETION_TOKENS,
    KSERVE_PROMPT_TOKENS,
    KSERVE_CACHED_TOKENS,
    KSERVE_OUTPUTS,
};
extern const kserve_tensor kserve_outputs[KSERVE_OUTPUTS];

/* A choice, or the part of it that came since the last response. */
typedef struct kserve_choice {
    strbuf text;
    strbuf ids; // i32 [n_ids], little-endian
    uint32_t n_ids;
    uint32_t index;
    engine_finish finish; // NONE = the choice goes on, and its usage is not known yet
    engine_usage usage;
} kserve_choice;

/* False when memory is out. */
bool kserve_choice_take(kserve_choice *choice, const generation_output *o);
void kserve_choice_clear(kserve_choice *choice); // memory is kept
void kserve_choice_destroy(kserve_choice *choice);

enum { KSERVE_PARAMETERS = 3 };

/* A response with everything that it points to. A call uses it for all its responses. */
typedef struct kserve_response {
    Inference__ModelInferResponse message;
    Inference__ModelInferResponse__InferOutputTensor tensors[KSERVE_OUTPUTS];
    Inference__ModelInferResponse__InferOutputTensor *tensor_list[KSERVE_OUTPUTS];
    int64_t shapes[KSERVE_OUTPUTS];
    ProtobufCBinaryData raw[KSERVE_OUTPUTS];
    Inference__ModelInferResponse__ParametersEntry parameters[KSERVE_PARAMETERS];
    Inference__ModelInferResponse__ParametersEntry *parameter_list[KSERVE_PARAMETERS];
    Inference__InferParameter values[KSERVE_PARAMETERS];
    strbuf bytes; // of all tensors
} kserve_response;

/* Begins a new response without tensors and parameters. */
void kserve_response_begin(kserve_response *r, const char *model, const char *id);
void kserve_response_set_bool(kserve_response *r, const char *key, bool value);
void kserve_response_set_text(kserve_response *r, const char *key, const strbuf *text);
/* Adds the wanted tensors of n choices; tensors of usage only when every choice has ended. False
 * when memory is out. */
bool kserve_response_fill(kserve_response *r, const kserve_choice *choices, uint32_t n,
                          uint32_t outputs);
void kserve_response_destroy(kserve_response *r);

/* ---- ModelInfer, ModelStreamInfer ------------------------------------------------------------ */

void kserve_infer(rpc_call *c, const ProtobufCMessage *m);
void kserve_infer_writable(rpc_call *c);
void kserve_stream_message(rpc_call *c, const ProtobufCMessage *m);
void kserve_stream_half_closed(rpc_call *c);
void kserve_stream_writable(rpc_call *c);
void kserve_infer_ended(rpc_call *c);

#endif
