/* VllmEngine's GetTokenizer: sends the tokenizer's files as a zip, read piece by piece. */
#include "base/sha256.h"
#include "rpc/services/vllm.h"
#include "rpc/services/zip.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECE_BYTES = 256 << 10 };
/* The most bytes of all files together, below the 4 GiB that the zip can hold. */
static const uint64_t ZIP_BYTES_MAX = 1ull << 30;

/* Files of a model folder that tokenizing and chat templates need. Files that exist are sent. */
static const char *const files[] = {
    "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   "generation_config.json",
    "config.json",
};
enum { N_FILES = sizeof files / sizeof files[0] };

typedef struct transfer {
    size_t next; // the file to open next
    FILE *file;  // the file being read
    zip zip;
    sha256 hash;
    strbuf piece;
    bool over;
} transfer;

static void fail_transfer(rpc_call *c, transfer *t, status_code code, const char *text)
{
    error err = {{0}};
    status st = error_set(&err, code, "%s", text);
    t->over = true;
    call_fail(c, st, &err);
}

/* Opens the next file that exists. False when none is left. */
static bool open_next(const char *dir, transfer *t)
{
    char path[4096];
    while (!t->file && t->next < N_FILES) {
        const char *name = files[t->next++];
        if (!status_ok(file_join(path, sizeof path, dir, name, NULL))) continue;
        t->file = fopen(path, "rb");
        if (t->file) zip_begin(&t->zip, name, &t->piece);
    }
    return t->file != NULL;
}

/* Appends more of the open file, up to the size of a piece. False when it cannot be read. */
static bool read_on(transfer *t)
{
    char buffer[16 << 10];
    while (t->file && t->piece.size < PIECE_BYTES) {
        size_t n = fread(buffer, 1, sizeof buffer, t->file);
        zip_add(&t->zip, buffer, n, &t->piece);
        if (t->zip.bytes > ZIP_BYTES_MAX || ferror(t->file)) return false;
        if (n == sizeof buffer) continue;
        fclose(t->file);
        t->file = NULL;
        zip_end(&t->zip, &t->piece);
    }
    return true;
}

void vllm_tokenizer_writable(rpc_call *c)
{
    transfer *t = call_state(c);
    if (!t || t->over || !call_can_send(c)) return;
    bool ok = true;
    strbuf_clear(&t->piece);
    while (ok && t->piece.size < PIECE_BYTES && open_next(call_service(c)->o.model.dir, t))
        ok = read_on(t);
    bool last = ok && !t->file && t->next == N_FILES;
    if (last) zip_finish(&t->zip, &t->piece);
    if (t->piece.failed) {
        fail_transfer(c, t, STATUS_NO_MEMORY, "tokenizer: out of memory");
        return;
    }
    if (!ok) {
        fail_transfer(c, t, STATUS_IO, "tokenizer: its files cannot be read");
        return;
    }
    char hex[SHA256_HEX_BYTES];
    Smg__Grpc__Common__GetTokenizerChunk m = SMG__GRPC__COMMON__GET_TOKENIZER_CHUNK__INIT;
    m.data = call_bytes(t->piece.data, t->piece.size);
    sha256_add(&t->hash, t->piece.data, t->piece.size);
    if (last) {
        sha256_finish(&t->hash, hex);
        m.sha256 = field_of(hex);
    }
    call_send(c, &m.base);
    if (!last) return;
    t->over = true;
    call_finish(c, GRPC_STATUS_OK, NULL);
}

void vllm_tokenizer(rpc_call *c, const ProtobufCMessage *message)
{
    (void)message;
    transfer *t = calloc(1, sizeof *t);
    if (!t) {
        error err = {{0}};
        call_fail(c, error_set(&err, STATUS_NO_MEMORY, "tokenizer: out of memory"), &err);
        return;
    }
    sha256_init(&t->hash);
    call_set_state(c, t);
    call_wake(c);
}

void vllm_tokenizer_ended(rpc_call *c)
{
    transfer *t = call_state(c);
    if (!t) return;
    if (t->file) fclose(t->file);
    strbuf_destroy(&t->piece);
    free(t);
}
