/* Decode speed of the peer at depth: reads a context back from a file and goes on from there, while
 * llama-bench would have to compute the context first. bench/peer_build.py builds this against the
 * peer's library.
 *
 *     peer_depth MODEL THREADS CONTEXT, then lines on stdin, each answered by one on stdout:
 *     save FILE TOKENS    computes a context of TOKENS tokens and writes it: "saved"
 *     decode FILE STEPS   reads that context, then runs STEPS steps of one token:
 *                         tokens/s without the first */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_WORD = 259, WORDS = 31000 }; /* ids that are plain words in the random models */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void log_warnings(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

static int fail(const char *what, const char *of)
{
    fprintf(stderr, "peer_depth: %s: %s\n", of, what);
    return 1;
}

static int save(struct llama_context *context, const char *file, llama_token *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++) tokens[i] = FIRST_WORD + i * 7919 % WORDS;
    llama_memory_clear(llama_get_memory(context), true);
    if (llama_decode(context, llama_batch_get_one(tokens, n))) return fail("llama_decode", file);
    if (!llama_state_seq_save_file(context, file, 0, tokens, (size_t)n))
        return fail("not saved", file);
    puts("saved");
    return 0;
}

static int decode(struct llama_context *context, const char *file, llama_token *tokens, size_t most,
                  int steps)
{
    size_t n = 0;
    llama_token word = FIRST_WORD;
    double start = 0;
    llama_memory_clear(llama_get_memory(context), true);
    if (!llama_state_seq_load_file(context, file, 0, tokens, most, &n))
        return fail("not loaded", file);
    for (int i = 0; i <= steps; i++) {
        if (i == 1) start = now_s();
        if (llama_decode(context, llama_batch_get_one(&word, 1)) ||
            !llama_get_logits_ith(context, -1))
            return fail("llama_decode", file);
    }
    printf("%.3f\n", steps / (now_s() - start));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fail("MODEL THREADS CONTEXT are asked for", "arguments");
    llama_log_set(log_warnings, NULL);
    llama_backend_init();
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)strtol(argv[3], NULL, 10);
    params.n_batch = 512;
    params.n_threads = params.n_threads_batch = (int)strtol(argv[2], NULL, 10);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context *context = model ? llama_init_from_model(model, params) : NULL;
    llama_token *tokens = calloc(params.n_ctx, sizeof *tokens);
    if (!context || !tokens) return fail("not loaded", argv[1]);
    char line[4096], what[16], file[4000];
    int n, failed = 0;
    while (!failed && fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%15s %3999s %d", what, file, &n) != 3 || n < 1 || n > 512)
            failed = fail("not understood", "stdin");
        else if (strcmp(what, "save") == 0) failed = save(context, file, tokens, n);
        else failed = decode(context, file, tokens, params.n_ctx, n);
        fflush(stdout);
    }
    free(tokens);
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return failed;
}
