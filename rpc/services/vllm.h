/* VllmEngine: declarations shared by its files (private to rpc/services).
 *
 * vllm_engine.c: the methods   vllm_request.c: requests in   vllm_generate.c: Generate
 * vllm_embed.c: Embed   vllm_tokenizer.c: GetTokenizer */
#ifndef RPC_SERVICES_VLLM_H
#define RPC_SERVICES_VLLM_H

#include "rpc/services/fields.h"
#include "rpc/services/services.h"

void vllm_generate(rpc_call *c, const ProtobufCMessage *m);
void vllm_generate_writable(rpc_call *c);
void vllm_generate_ended(rpc_call *c);

void vllm_embed(rpc_call *c, const ProtobufCMessage *m);
void vllm_embed_writable(rpc_call *c);
void vllm_embed_ended(rpc_call *c);

void vllm_tokenizer(rpc_call *c, const ProtobufCMessage *m);
void vllm_tokenizer_writable(rpc_call *c);
void vllm_tokenizer_ended(rpc_call *c);

/* The tokens of a choice so far, which its complete response repeats. Arrays are kept as bytes. */
typedef struct vllm_choice {
    strbuf ids; // u32 [n]
    uint32_t n;
    uint32_t n_sent; // of them, those that chunks have carried
    bool started;    // its first chunk has gone out
    /* Logprobs of the tokens from n_sent on; empty unless they were asked for. */
    strbuf logprobs;              // f32 [n - n_sent]
    strbuf n_tops;                // u32 [n - n_sent]
    strbuf top_ids, top_logprobs; // u32, f32 [sum of n_tops]
} vllm_choice;

/* Appends a token. False when memory is out. */
bool vllm_choice_take(vllm_choice *choice, const step_sample *sample, bool logprobs);
/* A chunk has carried all tokens so far. */
void vllm_choice_sent(vllm_choice *choice);
void vllm_choice_destroy(vllm_choice *choice);

/* The ids that no chunk has carried: [n - n_sent]. */
static inline uint32_t *vllm_choice_unsent(const vllm_choice *choice)
{
    return (uint32_t *)(void *)choice->ids.data + choice->n_sent;
}

/* Make messages, which point into `memory` and into choice or prompt. The choice's has the tokens
 * that no chunk has carried. NULL: memory is out. */
Vllm__Grpc__Engine__OutputLogProbs *vllm_choice_logprobs(const vllm_choice *choice, arena *memory);
Vllm__Grpc__Engine__InputLogProbs *vllm_prompt_logprobs(const engine_prompt *prompt, arena *memory);

#endif
