/* Answers questions about forms: what compiles, which texts a form has, which tokens may come next.
 * For tools that compare Octavo with other engines (tools/grammar_oracle.py); no test.
 *
 *   grammar_probe TOKENS    TOKENS: a line for each token of the vocabulary, its bytes in hex
 *
 * Each question is a line of stdin, N bytes may follow it; each answer is a line of stdout:
 *   schema N     compiles N bytes of a JSON Schema     ok SECONDS BYTES | no SECONDS MESSAGE
 *   text N       follows N bytes from the beginning    ok MAY_END | no TAKEN
 *   accept T     follows one more token                ok MAY_END | no 0
 *   mask         the mask behind what was followed     mask MAY_END, then its words | no 0 */
#include "base/clock.h"
#include "engine/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 64 << 20, LINE = 128 };

typedef struct probe {
    grammar_vocab *vocab;
    uint32_t *mask, words;
    grammar *form;
    grammar_matcher *at;
    char *body;
} probe;

static void end_with(const char *what)
{
    fprintf(stderr, "grammar_probe: %s\n", what);
    exit(2);
}

/* The vocabulary's bytes stay in the file's text, in place of their digits. */
static void read_vocab(probe *p, const char *path)
{
    grammar_token *tokens = NULL;
    uint32_t n = 0, room = 0;
    size_t size = 0;
    FILE *file = fopen(path, "rb");
    if (!file) end_with("the file of tokens cannot be opened");
    char *line = NULL;
    for (ssize_t length; (length = getline(&line, &size, file)) > 0; n++) {
        if (n == room) {
            room = room ? 2 * room : 4096;
            tokens = realloc(tokens, room * sizeof *tokens);
            if (!tokens) end_with("out of memory");
        }
        uint32_t count = (uint32_t)(length - 1) / 2;
        char *bytes = malloc(count + 1);
        if (!bytes) end_with("out of memory");
        for (uint32_t i = 0; i < count; i++) {
            unsigned byte = 0;
            if (sscanf(line + 2 * i, "%2x", &byte) != 1) end_with("a token is not in hex");
            bytes[i] = (char)byte;
        }
        tokens[n] = (grammar_token){bytes, count};
    }
    fclose(file);
    free(line);
    if (!status_ok(grammar_vocab_create(tokens, n, &p->vocab))) end_with("no vocabulary");
    for (uint32_t t = 0; t < n; t++) free((char *)(uintptr_t)tokens[t].bytes);
    free(tokens);
    p->words = grammar_mask_words(n);
    p->mask = calloc(p->words + 1, sizeof *p->mask);
    p->body = malloc(BODY_MAX);
    if (!p->mask || !p->body) end_with("out of memory");
}

static void restart(probe *p)
{
    grammar_matcher_destroy(p->at);
    p->at = p->form ? grammar_matcher_create(p->form) : NULL;
}

static void compile(probe *p, size_t n)
{
    error err = {{0}};
    const grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .text = p->body, .n = n};
    grammar_release(p->form);
    p->form = NULL;
    int64_t start = clock_now_us();
    status s = grammar_create(&source, p->vocab, &p->form, &err);
    double seconds = (double)(clock_now_us() - start) / 1e6;
    restart(p);
    if (status_ok(s)) printf("ok %.6f %zu\n", seconds, grammar_bytes(p->form));
    else printf("no %.6f %s: %s\n", seconds, status_text(s.code), err.text);
}

static void follow_text(probe *p, size_t n)
{
    size_t taken = 0;
    restart(p);
    if (!p->at) {
        puts("no 0");
        return;
    }
    while (taken < n && status_ok(grammar_accept_bytes(p->at, p->body + taken, 1))) taken++;
    if (taken == n) printf("ok %d\n", grammar_may_end(p->at));
    else printf("no %zu\n", taken);
}

static void answer(probe *p, const char *word, unsigned long number)
{
    bool body = strcmp(word, "schema") == 0 || strcmp(word, "text") == 0;
    if (body && (number > BODY_MAX || fread(p->body, 1, number, stdin) != number))
        end_with("a body is missing or too long");
    if (strcmp(word, "schema") == 0) compile(p, number);
    else if (strcmp(word, "text") == 0) follow_text(p, number);
    else if (!p->at) puts("no 0");
    else if (strcmp(word, "accept") == 0) {
        if (status_ok(grammar_accept(p->at, (uint32_t)number)))
            printf("ok %d\n", grammar_may_end(p->at));
        else puts("no 0");
    } else if (strcmp(word, "mask") == 0 && status_ok(grammar_mask(p->at, p->mask))) {
        printf("mask %d\n", grammar_may_end(p->at));
        fwrite(p->mask, sizeof *p->mask, p->words, stdout);
    } else {
        puts("no 0");
    }
}

int main(int argc, char **argv)
{
    probe p = {0};
    char line[LINE], word[16];
    if (argc != 2) end_with("usage: grammar_probe TOKENS");
    read_vocab(&p, argv[1]);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long number = 0;
        if (sscanf(line, "%15s %lu", word, &number) < 1) continue;
        answer(&p, word, number);
        fflush(stdout);
    }
    grammar_matcher_destroy(p.at);
    grammar_release(p.form);
    grammar_vocab_destroy(p.vocab);
    free(p.mask);
    free(p.body);
    return 0;
}
