/* Logprobs in VllmEngine's form: parallel lists. */
#include "rpc/services/vllm.h"

bool vllm_choice_take(vllm_choice *choice, const step_sample *sample, bool logprobs)
{
    strbuf_append(&choice->ids, &sample->token, sizeof sample->token);
    choice->n++;
    if (!logprobs) return !choice->ids.failed;
    size_t n = sample->n_top;
    strbuf_append(&choice->logprobs, &sample->logprob, sizeof sample->logprob);
    strbuf_append(&choice->n_tops, &sample->n_top, sizeof sample->n_top);
    strbuf_append(&choice->top_ids, sample->top_ids, n * sizeof sample->top_ids[0]);
    strbuf_append(&choice->top_logprobs, sample->top_logprobs, n * sizeof sample->top_logprobs[0]);
    return !choice->ids.failed && !choice->logprobs.failed && !choice->n_tops.failed &&
           !choice->top_ids.failed && !choice->top_logprobs.failed;
}

void vllm_choice_sent(vllm_choice *choice)
{
    choice->n_sent = choice->n;
    strbuf_clear(&choice->logprobs);
    strbuf_clear(&choice->n_tops);
    strbuf_clear(&choice->top_ids);
    strbuf_clear(&choice->top_logprobs);
}

void vllm_choice_destroy(vllm_choice *choice)
{
    strbuf_destroy(&choice->ids);
    strbuf_destroy(&choice->logprobs);
    strbuf_destroy(&choice->n_tops);
    strbuf_destroy(&choice->top_ids);
    strbuf_destroy(&choice->top_logprobs);
}

/* Makes n empty messages, which the caller fills. NULL: memory is out. */
static Vllm__Grpc__Engine__TopLogProbs **make_tops(uint32_t n, arena *memory)
{
    Vllm__Grpc__Engine__TopLogProbs *tops = arena_alloc_array(memory, n, sizeof *tops);
    Vllm__Grpc__Engine__TopLogProbs **list = arena_alloc_array(memory, n, sizeof *list);
    if (!tops || !list) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        tops[i] = (Vllm__Grpc__Engine__TopLogProbs)VLLM__GRPC__ENGINE__TOP_LOG_PROBS__INIT;
        list[i] = &tops[i];
    }
    return list;
}

static void fill_top(Vllm__Grpc__Engine__TopLogProbs *top, const uint32_t *ids,
                     const float *logprobs, uint32_t n)
{
    top->n_values = n;
    top->values = (float *)(uintptr_t)logprobs;
    top->n_token_ids = n;
    top->token_ids = (uint32_t *)(uintptr_t)ids;
}

Vllm__Grpc__Engine__OutputLogProbs *vllm_choice_logprobs(const vllm_choice *choice, arena *memory)
{
    uint32_t n = choice->n - choice->n_sent;
    Vllm__Grpc__Engine__OutputLogProbs *out = arena_alloc(memory, sizeof *out);
    Vllm__Grpc__Engine__TopLogProbs **tops = make_tops(n, memory);
    if (!out || !tops) return NULL;
    *out = (Vllm__Grpc__Engine__OutputLogProbs)VLLM__GRPC__ENGINE__OUTPUT_LOG_PROBS__INIT;
    out->n_token_logprobs = out->n_token_ids = out->n_top_logprobs = n;
    out->token_logprobs = (float *)(void *)choice->logprobs.data;
    out->token_ids = vllm_choice_unsent(choice);
    out->top_logprobs = tops;
    const uint32_t *n_tops = (const void *)choice->n_tops.data;
    const uint32_t *ids = (const void *)choice->top_ids.data;
    const float *logprobs = (const void *)choice->top_logprobs.data;
    size_t at = 0;
    for (uint32_t i = 0; i < n; at += n_tops[i++])
        if (n_tops[i]) fill_top(tops[i], ids + at, logprobs + at, n_tops[i]);
    return out;
}

Vllm__Grpc__Engine__InputLogProbs *vllm_prompt_logprobs(const engine_prompt *prompt, arena *memory)
{
    uint32_t n = prompt->n_tokens;
    Vllm__Grpc__Engine__InputLogProbs *out = arena_alloc(memory, sizeof *out);
    Vllm__Grpc__Engine__InputTokenLogProb *values = arena_alloc_array(memory, n, sizeof *values);
    Vllm__Grpc__Engine__InputTokenLogProb **list = arena_alloc_array(memory, n, sizeof *list);
    Vllm__Grpc__Engine__TopLogProbs **tops = make_tops(n, memory);
    if (!out || !values || !list || !tops) return NULL;
    *out = (Vllm__Grpc__Engine__InputLogProbs)VLLM__GRPC__ENGINE__INPUT_LOG_PROBS__INIT;
    for (uint32_t i = 0; i < n; i++) {
        values[i] =
            (Vllm__Grpc__Engine__InputTokenLogProb)VLLM__GRPC__ENGINE__INPUT_TOKEN_LOG_PROB__INIT;
        list[i] = &values[i];
        if (prompt->ranks[i] == 0) continue; // the first token has no logprob
        values[i].value_opt_case = VLLM__GRPC__ENGINE__INPUT_TOKEN_LOG_PROB__VALUE_OPT_VALUE;
        values[i].value = prompt->logprobs[i];
        size_t from = (size_t)i * prompt->n_top;
        if (prompt->n_top)
            fill_top(tops[i], prompt->top_ids + from, prompt->top_logprobs + from, prompt->n_top);
    }
    out->n_token_logprobs = out->n_token_ids = out->n_top_logprobs = n;
    out->token_logprobs = list;
    out->token_ids = (uint32_t *)(uintptr_t)prompt->tokens;
    out->top_logprobs = tops;
    return out;
}
