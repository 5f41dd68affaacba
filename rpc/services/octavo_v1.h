/* octavo.v1: declarations shared by its files (private to rpc/services).
 *
 * octavo_v1.c: the methods   octavo_v1_request.c: messages in   octavo_v1_generate.c: Generate */
#ifndef RPC_SERVICES_OCTAVO_V1_H
#define RPC_SERVICES_OCTAVO_V1_H

#include "rpc/services/batch.h"
#include "rpc/services/fields.h"
#include "rpc/services/services.h"

status octavo_v1_tokenize_of(const service *s, const Octavo__V1__TokenizeRequest *m,
                             engine_request *out, error *err);

/* ---- Generate -------------------------------------------------------------------------------- */

void octavo_v1_generate(rpc_call *c, const ProtobufCMessage *m);
void octavo_v1_generate_writable(rpc_call *c);
void octavo_v1_generate_ended(rpc_call *c);

/* A response with the messages that it points to. */
typedef struct octavo_v1_response {
    Octavo__V1__GenerateResponse message;
    Octavo__V1__Usage usage;
    Octavo__V1__Timings timings;
} octavo_v1_response;

/* Fills *out, which points into itself, the run, *report and `memory`, for the tokens of a run.
 * report: receives the texts of the choice's reports. False when memory is out. */
bool octavo_v1_response_of(const tokenizer *t, const char *id, const output_run *run, bool logprobs,
                           strbuf *report, arena *memory, octavo_v1_response *out);

/* Fills *out with tokens [from, from + n) of a prompt, and their logprobs if there are any,
 * allocated in `memory`. False when memory is out. */
bool octavo_v1_prompt_of(const tokenizer *t, const engine_prompt *prompt, uint32_t from, uint32_t n,
                         arena *memory, Octavo__V1__Prompt *out);

#endif
