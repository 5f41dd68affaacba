/* Real tokenizers on 50,000 lines each, against hashes of the results of Hugging Face's library
 * (tests/golden/tokenizers_real.json, by tools/tokenizer_parity.py). The tokenizers and the lines
 * may not be redistributed: they are in the folder that OCTAVO_REAL_TOKENIZERS names. Without it,
 * or when a file is missing or differs, the test is skipped with a message. */
#include "base/sha256.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDENS    "tests/golden/tokenizers_real.json"
#define FOLDER     "OCTAVO_REAL_TOKENIZERS"
#define FILE_BYTES (512u << 20)

enum { N_PIECES = 3, HASH_CHARS = 16 };

static const char *const pieces[N_PIECES] = {"ids", "texts", "broken"};

typedef struct bytes {
    char *data;
    size_t n;
} bytes;

/* True when the file exists and is the one that was hashed. */
static bool read_same(const char *folder, const char *name, const char *due, bytes *out)
{
    char path[4096], hash[SHA256_HEX_BYTES];
    error err = {""};
    *out = (bytes){0};
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path ||
        !file_exists(path)) {
        print_message("%s is not there\n", name);
        return false;
    }
    if (!status_ok(file_read(path, FILE_BYTES, &out->data, &out->n, &err)))
        fail_msg("%s", err.text);
    sha256 h;
    sha256_init(&h);
    sha256_add(&h, out->data, out->n);
    sha256_finish(&h, hash);
    if (strcmp(hash, due) == 0) return true;
    print_message("%s is another file than the one that was compared\n", name);
    free(out->data);
    return false;
}

static void add_counted(sha256 *h, const void *data, size_t n, size_t bytes_each)
{
    uint8_t count[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    sha256_add(h, count, sizeof count);
    if (n > 0) sha256_add(h, data, n * bytes_each);
}

static void decode(const tokenizer *t, const tok_ids *ids, bool skip, strbuf *text, sha256 *h)
{
    error err = {""};
    strbuf_clear(text);
    if (!status_ok(tok_decode(t, ids->ids, ids->n, skip, text, &err))) fail_msg("%s", err.text);
    add_counted(h, text->data, text->size, 1);
}

static void add_line(const tokenizer *t, size_t number, const char *line, size_t n, tok_ids *ids,
                     strbuf *text, sha256 hashes[N_PIECES])
{
    bool skip = number / 2 % 2 == 1;
    error err = {""};
    ids->n = 0;
    if (!status_ok(tok_encode(t, line, n, number % 2 == 1, ids, &err)))
        fail_msg("line %zu: %s", number, err.text);
    add_counted(&hashes[0], ids->ids, ids->n, sizeof *ids->ids);
    decode(t, ids, skip, text, &hashes[1]);
    for (size_t i = 0, k = ids->n; i + 1 < k; i++) {
        uint32_t id = ids->ids[i];
        ids->ids[i] = ids->ids[--k];
        ids->ids[k] = id;
    }
    decode(t, ids, skip, text, &hashes[2]);
}

static int compare_block(const json_t *due, size_t block, sha256 hashes[N_PIECES])
{
    int different = 0;
    for (unsigned i = 0; i < N_PIECES; i++) {
        char hash[SHA256_HEX_BYTES];
        sha256_finish(&hashes[i], hash);
        const json_t *wanted = json_array_get(json_object_get(due, pieces[i]), block);
        assert_true(json_is_string(wanted));
        if (strncmp(hash, json_string_value(wanted), HASH_CHARS) == 0) continue;
        print_message("%s: block %zu: other %s\n", json_string_value(json_object_get(due, "name")),
                      block, pieces[i]);
        different++;
    }
    return different;
}

/* The number of hashes that differ. */
static int compare_tokenizer(const tokenizer *t, const json_t *due, const bytes *corpus,
                             size_t block_lines)
{
    tok_ids ids = {0};
    strbuf text = {0};
    sha256 hashes[N_PIECES];
    int different = 0;
    size_t number = 0;
    for (size_t at = 0; at + 4 <= corpus->n; number++) {
        if (number % block_lines == 0)
            for (unsigned i = 0; i < N_PIECES; i++) sha256_init(&hashes[i]);
        const uint8_t *count = (const uint8_t *)corpus->data + at;
        size_t n =
            count[0] | (size_t)count[1] << 8 | (size_t)count[2] << 16 | (size_t)count[3] << 24;
        assert_true(n <= corpus->n - at - 4);
        add_line(t, number, corpus->data + at + 4, n, &ids, &text, hashes);
        at += 4 + n;
        if ((number + 1) % block_lines == 0 || at == corpus->n)
            different += compare_block(due, number / block_lines, hashes);
    }
    tok_ids_destroy(&ids);
    strbuf_destroy(&text);
    return different;
}

static int compare_file(const char *folder, const json_t *due, const bytes *corpus, size_t lines)
{
    char name[256];
    bytes json;
    error err = {""};
    tokenizer *t;
    snprintf(name, sizeof name, "%s.json", json_string_value(json_object_get(due, "name")));
    if (!read_same(folder, name, json_string_value(json_object_get(due, "file")), &json)) return 0;
    if (!status_ok(tok_load_text(name, json.data, json.n, &t, &err))) fail_msg("%s", err.text);
    free(json.data);
    int different = compare_tokenizer(t, due, corpus, lines);
    print_message("%s: %d hashes differ\n", name, different);
    tok_destroy(t);
    return different;
}

static void test_real_tokenizers(void **state)
{
    (void)state;
    const char *folder = getenv(FOLDER);
    if (!folder) {
        print_message("real tokenizers: " FOLDER " names no folder\n");
        skip();
    }
    json_t *goldens;
    error err = {""};
    if (!status_ok(json_read_file(GOLDENS, 1 << 20, &goldens, &err))) fail_msg("%s", err.text);
    bytes corpus;
    const char *hash = json_string_value(json_object_get(goldens, "corpus"));
    if (!read_same(folder, "corpus.bin", hash, &corpus)) {
        json_decref(goldens);
        skip();
    }
    size_t lines = (size_t)json_integer_value(json_object_get(goldens, "block"));
    assert_true(lines > 0);
    int different = 0;
    size_t i;
    json_t *due;
    json_array_foreach(json_object_get(goldens, "tokenizers"), i, due)
    {
        different += compare_file(folder, due, &corpus, lines);
    }
    free(corpus.data);
    json_decref(goldens);
    assert_int_equal(different, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real_tokenizers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
