/* model/load/safetensors.c: valid files, and every kind of wrong file. */
#include "model/load/safetensors.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static int setup(void **state)
{
    folder *f = calloc(1, sizeof *f);
    folder_make(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    folder_remove(*state);
    free(*state);
    return 0;
}

static const uint8_t zeros[256] = {0};

static safetensors opened(const folder *f)
{
    safetensors st;
    error err = {""};
    if (!status_ok(safetensors_open(f->dir, &st, &err))) fail_msg("%s", err.text);
    return st;
}

/* The folder is refused with `code`, in one line that contains all of a, b and c. */
static void refused(const folder *f, status_code code, const char *a, const char *b)
{
    safetensors st;
    error err = {""};
    status s = safetensors_open(f->dir, &st, &err);
    if (s.code != code || !strstr(err.text, a) || !strstr(err.text, b) || strchr(err.text, '\n'))
        fail_msg("due %s with \"%s\" and \"%s\", is %s: %s", status_text(code), a, b,
                 status_text(s.code), err.text);
}

static void reads_what_the_format_allows(void **state)
{
    folder *f = *state;
    uint8_t data[34];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    /* Valid: tensors out of order, unaligned data (27 header bytes precede f32), zero-size
     * dimensions, a scalar, leading whitespace, trailing padding, unknown members. */
    folder_safetensors(f, "model.safetensors",
                       " \n{\"z.f32\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[3,27]},"
                       "\"__metadata__\":{\"format\":\"pt\"},"
                       "\"a.u8\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                       "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[27,27]},"
                       "\"nothing\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[34,34]},"
                       "\"scalar\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[27,29]},"
                       "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,5],\"data_offsets\":[29,34],"
                       "\"more\":1}}   ",
                       data, sizeof data);
    safetensors st = opened(f);
    assert_int_equal(st.n_files, 1);
    assert_int_equal(st.n_tensors, 6);
    for (size_t i = 1; i < st.n_tensors; i++)
        assert_true(strcmp(st.tensors[i - 1].name, st.tensors[i].name) < 0);

    const safetensors_tensor *t = safetensors_find(&st, "z.f32");
    assert_non_null(t);
    assert_int_equal(t->type, SAFETENSORS_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 24);
    assert_memory_equal(st.files[t->file].map.data + t->begin, data + 3, 24);

    t = safetensors_find(&st, "a.u8");
    assert_memory_equal(st.files[t->file].map.data + t->begin, data, 3);
    t = safetensors_find(&st, "scalar");
    assert_int_equal(t->n_dims, 0);
    assert_int_equal(t->bytes, 2);
    assert_memory_equal(st.files[t->file].map.data + t->begin, data + 27, 2);
    t = safetensors_find(&st, "empty");
    assert_int_equal(t->bytes, 0);
    assert_int_equal(t->shape[1], 7);
    assert_int_equal(safetensors_find(&st, "f4")->bytes, 5);
    assert_null(safetensors_find(&st, "z.f3"));
    assert_null(safetensors_find(&st, "__metadata__"));
    safetensors_close(&st);
    safetensors_close(&st);

    folder_safetensors(f, "model.safetensors", "{}", NULL, 0);
    st = opened(f);
    assert_int_equal(st.n_tensors, 0);
    assert_null(safetensors_find(&st, "a"));
    safetensors_close(&st);
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static void lying_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        status_code code;
        const char *says;
    } cases[] = {
        {"{" T("a", "F32", "[2]", "0", "8") "}", 7, STATUS_CORRUPT, "tensors end at 8"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 9, STATUS_CORRUPT, "tensors end at 8"},
        {"{}", 1, STATUS_CORRUPT, "1 bytes of data"},
        /* overlap, hole, reversed */
        {"{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "2", "6") "}", 6, STATUS_CORRUPT,
         "tensor \"b\": bytes 2 to 6, but the one before ends at 4"},
        {"{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "0", "4") "}", 4, STATUS_CORRUPT,
         "tensor \"b\""},
        {"{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "5", "9") "}", 9, STATUS_CORRUPT,
         "tensor \"b\": bytes 5 to 9"},
        {"{" T("a", "U8", "[4]", "1", "5") "}", 5, STATUS_CORRUPT, "tensor \"a\": bytes 1 to 5"},
        {"{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[0]", "4", "2") "}", 4, STATUS_CORRUPT,
         "tensor \"b\": bytes 4 to 2"},
        /* shape against bytes */
        {"{" T("a", "F32", "[3]", "0", "8") "}", 8, STATUS_CORRUPT, "shape and dtype make 12"},
        {"{" T("a", "BF16", "[2,2]", "0", "16") "}", 16, STATUS_CORRUPT, "make 8"},
        {"{" T("a", "F4", "[3]", "0", "1") "}", 1, STATUS_CORRUPT, "whole number of bytes"},
        {"{" T("a", "U8", "[4294967296,4294967296]", "0", "0") "}", 0, STATUS_CORRUPT, "overflows"},
        {"{" T("a", "U64", "[1152921504606846976]", "0", "0") "}", 0, STATUS_CORRUPT, "overflows"},
        {"{" T("a", "U8", "[4294967296,4294967296,0]", "0", "0") "}", 0, STATUS_CORRUPT,
         "overflows"},
        {"{" T("a", "U8", "[-1]", "0", "1") "}", 1, STATUS_CORRUPT, "\"shape\" must be"},
        {"{" T("a", "U8", "[1.0]", "0", "1") "}", 1, STATUS_CORRUPT, "\"shape\" must be"},
        {"{" T("a", "U8", "3", "0", "3") "}", 3, STATUS_CORRUPT, "no \"shape\""},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, STATUS_LIMIT, "8 dimensions"},
        {"{" T("a", "U8", "[1]", "-1", "0") "}", 1, STATUS_CORRUPT, "data_offsets"},
        {"{" T("a", "U8", "[1]", "0", "18446744073709551616") "}", 1, STATUS_CORRUPT, "line 1"},
        {"{" T("a", "U8", "[9223372036854775807]", "0", "9223372036854775807") "}", 1,
         STATUS_CORRUPT, "overflows"},
        {"{" T("a", "U8", "[1152921504606846976]", "0", "1152921504606846976") "}", 1,
         STATUS_CORRUPT, "truncated"},
        /* members */
        {"{" T("a", "F31", "[1]", "0", "4") "}", 4, STATUS_UNSUPPORTED, "\"F31\""},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, STATUS_CORRUPT, "no \"dtype\""},
        {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, STATUS_CORRUPT,
         "no \"dtype\""},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, STATUS_CORRUPT, "no \"shape\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, STATUS_CORRUPT, "data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, STATUS_CORRUPT,
         "data_offsets"},
        {"{\"a\":[1]}", 1, STATUS_CORRUPT, "tensor \"a\""},
        {"{\"a\\nb\":3}", 0, STATUS_CORRUPT, "tensor \"a?b\""},
        {"{\"__metadata__\":{\"format\":1}}", 0, STATUS_CORRUPT, "__metadata__"},
        {"{\"__metadata__\":[]}", 0, STATUS_CORRUPT, "__metadata__"},
        /* JSON */
        {"{" T("a", "U8", "[1]", "0", "1") "," T("a", "U8", "[1]", "1", "2") "}", 2, STATUS_CORRUPT,
         "line 1"},
        {"{" T("a", "U8", "[1]", "0", "1"), 1, STATUS_CORRUPT, "line 1"},
        {"{" T("a", "U8", "[1]", "0", "1") "} x", 1, STATUS_CORRUPT, "line 1"},
        {"[]", 0, STATUS_CORRUPT, "must be an object"},
        {"", 0, STATUS_CORRUPT, "line 1"},
        {"{\"a\xff\":1}", 0, STATUS_CORRUPT, "not UTF-8"},
    };
    folder *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_safetensors(f, "model.safetensors", cases[i].header, zeros, cases[i].data);
        refused(f, cases[i].code, "model.safetensors: ", cases[i].says);
    }
}

static void lying_lengths(void **state)
{
    folder *f = *state;
    refused(f, STATUS_NOT_FOUND, "model.safetensors", "");
    folder_write(f, "model.safetensors", zeros, 0);
    refused(f, STATUS_CORRUPT, "model.safetensors", "0 bytes");
    folder_write(f, "model.safetensors", zeros, 7);
    refused(f, STATUS_CORRUPT, "model.safetensors", "7 bytes");

    uint8_t file[64] = {0};
    memcpy(file + 8, "{}", 2);
    file[0] = 3; /* one byte more than the file has */
    folder_write(f, "model.safetensors", file, 10);
    refused(f, STATUS_CORRUPT, "header of 3 bytes in a file of 10", "truncated");
    memset(file, 0xff, 8);
    folder_write(f, "model.safetensors", file, 10);
    refused(f, STATUS_CORRUPT, "18446744073709551615 bytes", "100000000");
    uint32_t n = 100000001;
    memset(file, 0, 8);
    memcpy(file, &n, 4);
    folder_write(f, "model.safetensors", file, 10);
    refused(f, STATUS_CORRUPT, "100000001", "limit");
    n = 100000000;
    memcpy(file, &n, 4);
    folder_write(f, "model.safetensors", file, 10);
    refused(f, STATUS_CORRUPT, "100000000", "truncated");

    /* Ten bytes of a file must not take hundreds of bytes of memory. */
    size_t bomb_bytes = 10 << 20;
    char *bomb = malloc(bomb_bytes + 1);
    for (size_t i = 0; i < bomb_bytes; i += 2) memcpy(bomb + i, "0,", 2);
    memcpy(bomb, "{\"a\":[", 6);
    memcpy(bomb + bomb_bytes - 4, "00]}", 5);
    folder_safetensors(f, "model.safetensors", bomb, NULL, 0);
    refused(f, STATUS_LIMIT, "model.safetensors", "JSON values");
    memset(bomb, 'n', bomb_bytes);
    memcpy(bomb, "{\"", 2);
    memcpy(bomb + bomb_bytes - 4, "\":1}", 5);
    folder_safetensors(f, "model.safetensors", bomb, NULL, 0);
    refused(f, STATUS_LIMIT, "model.safetensors", "a name of more than");
    free(bomb);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void write_shards(const folder *f)
{
    folder_safetensors(f, "one.safetensors",
                       "{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[1]", "2", "3") "}",
                       "ABC", 3);
    folder_safetensors(f, "two.safetensors", "{" T("c", "U8", "[2]", "0", "2") "}", "DE", 2);
    /* Never opened, since it is not in the index. */
    folder_puts(f, "consolidated.safetensors", "rubbish");
    folder_puts(f, "model.safetensors", "rubbish");
}

static void write_index(const folder *f, const char *weight_map)
{
    char text[512];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":5},\"weight_map\":%s}", weight_map);
    folder_puts(f, "model.safetensors.index.json", text);
}

static void shards_are_joined(void **state)
{
    folder *f = *state;
    write_shards(f);
    write_index(f,
                "{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\",\"b\":\"one.safetensors\"}");
    safetensors st = opened(f);
    assert_int_equal(st.n_files, 2);
    assert_int_equal(st.n_tensors, 3);
    const char *names[] = {"a", "b", "c"}, *bytes[] = {"AB", "C", "DE"};
    for (int i = 0; i < 3; i++) {
        const safetensors_tensor *t = safetensors_find(&st, names[i]);
        assert_non_null(t);
        assert_int_equal(t->bytes, strlen(bytes[i]));
        assert_memory_equal(st.files[t->file].map.data + t->begin, bytes[i], t->bytes);
    }
    safetensors_close(&st);
}

static void lying_indexes(void **state)
{
    folder *f = *state;
    write_shards(f);
    static const struct {
        const char *weight_map;
        status_code code;
        const char *says;
    } cases[] = {
        {"{\"a\":\"one.safetensors\",\"c\":\"three.safetensors\"}", STATUS_NOT_FOUND,
         "three.safetensors"},
        {"{\"a\":\"one.safetensors\",\"d\":\"two.safetensors\"}", STATUS_CORRUPT,
         "tensor \"d\" is not in two.safetensors"},
        {"{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}", STATUS_CORRUPT,
         "tensor \"b\" is not in two.safetensors"},
        {"{\"a\":\"../one.safetensors\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"x/../../one.safetensors\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"x/..\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"..\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"./one.safetensors\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"/etc/passwd\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"x//one.safetensors\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"x/\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":\"one.safetensors\\u0000\"}", STATUS_CORRUPT, "not a file of this folder"},
        {"{\"a\":7}", STATUS_CORRUPT, "tensor \"a\""},
        {"{\"a\":\"consolidated.safetensors\"}", STATUS_CORRUPT, "consolidated.safetensors"},
        {"{}", STATUS_CORRUPT, "weight_map"},
        {"[]", STATUS_CORRUPT, "weight_map"},
        {"{", STATUS_CORRUPT, "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(f, cases[i].weight_map);
        refused(f, cases[i].code, f->dir, cases[i].says);
    }

    folder_safetensors(f, "two.safetensors",
                       "{" T("c", "U8", "[2]", "0", "2") "," T("b", "U8", "[1]", "2", "3") "}",
                       "DEF", 3);
    write_index(f, "{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}");
    refused(f, STATUS_CORRUPT, "tensor \"b\" is also in", "one.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_what_the_format_allows, setup, teardown),
        cmocka_unit_test_setup_teardown(lying_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(lying_lengths, setup, teardown),
        cmocka_unit_test_setup_teardown(shards_are_joined, setup, teardown),
        cmocka_unit_test_setup_teardown(lying_indexes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
