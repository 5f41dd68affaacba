/* octavo.v1: declarations shared by its files (private to rpc/services).
 *
 * octavo_v1.c: the methods   octavo_v1_request.c: messages in   octavo_v1_generate.c: Generate */
#ifndef RPC_SERVICES_OCTAVO_V1_H
#define RPC_SERVICES_OCTAVO_V1_H

#include "rpc/services/fields.h"
#include "rpc/services/services.h"

status octavo_v1_tokenize_of(const service *s, const Octavo__V1__TokenizeRequest *m,
                             engine_request *out, error *err);

/* ---- Generate -------------------------------------------------------------------------------- */

void octavo_v1_generate(rpc_call *c, const ProtobufCMessage *m);
void octavo_v1_generate_writable(rpc_call *c);
void octavo_v1_generate_ended(rpc_call *c);

/* A response with everything that it points to. It is built for each token without the heap. */
typedef struct octavo_v1_response {
    Octavo__V1__GenerateResponse message;
    uint32_t token_id;
    Octavo__V1__TokenLogprob logprob;
    Octavo__V1__TokenLogprob *logprobs[1];
    Octavo__V1__TopLogprob tops[SAMPLE_LOGPROBS_MAX];
    Octavo__V1__TopLogprob *top_list[SAMPLE_LOGPROBS_MAX];
    Octavo__V1__Usage usage;
    Octavo__V1__Timings timings;
} octavo_v1_response;

/* Fills *out, which points into itself, *o and *report. report: receives the text of the retention
 * report. */
void octavo_v1_response_of(const tokenizer *t, const char *id, const generation_output *o,
                           bool logprobs, strbuf *report, octavo_v1_response *out);

/* Fills *out with tokens [from, from + n) of a prompt, and their logprobs if there are any,
 * allocated in `memory`. False when memory is out. */
bool octavo_v1_prompt_of(const tokenizer *t, const engine_prompt *prompt, uint32_t from, uint32_t n,
                         arena *memory, Octavo__V1__Prompt *out);

#endif
