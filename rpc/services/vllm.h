/* VllmEngine: declarations shared by its files (private to rpc/services).
 *
 * vllm_engine.c: the methods   vllm_request.c: requests in   vllm_generate.c: Generate
 * vllm_tokenizer.c: GetTokenizer */
#ifndef RPC_SERVICES_VLLM_H
#define RPC_SERVICES_VLLM_H

#include "rpc/services/fields.h"
#include "rpc/services/services.h"

void vllm_generate(rpc_call *c, const ProtobufCMessage *m);
void vllm_generate_writable(rpc_call *c);
void vllm_generate_ended(rpc_call *c);

void vllm_tokenizer(rpc_call *c, const ProtobufCMessage *m);
void vllm_tokenizer_writable(rpc_call *c);
void vllm_tokenizer_ended(rpc_call *c);

/* The tokens of a choice so far, which its complete response repeats. Arrays are kept as bytes. */
typedef struct vllm_choice {
    strbuf ids; // u32 [n]
    uint32_t n;
    bool started; // its first chunk has gone out
    /* Empty unless logprobs were asked for and are sent in the complete response. */
    strbuf logprobs;              // f32 [n]
    strbuf n_tops;                // u32 [n]
    strbuf top_ids, top_logprobs; // u32, f32 [sum of n_tops]
} vllm_choice;

/* Appends a token. False when memory is out. */
bool vllm_choice_take(vllm_choice *choice, const step_sample *sample, bool logprobs);
void vllm_choice_destroy(vllm_choice *choice);

/* Make messages, which point into `memory` and into choice or prompt. NULL: memory is out. */
Vllm__Grpc__Engine__OutputLogProbs *vllm_choice_logprobs(const vllm_choice *choice, arena *memory);
Vllm__Grpc__Engine__InputLogProbs *vllm_prompt_logprobs(const engine_prompt *prompt, arena *memory);

#endif
