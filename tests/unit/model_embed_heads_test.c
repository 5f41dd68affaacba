/* model/embed_heads.c: the file of heads beside a model, and the paper's heads. */
#include "model/embed_heads.h"
#include "tests/unit/model_folder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static model_config demo(void)
{
    model_config c;
    error err = {{0}};
    if (!status_ok(model_config_load("models/demo", NULL, 0, &c, &err))) fail_msg("%s", err.text);
    return c;
}

static status read_text(const char *text, const model_config *c, embed_choice *out, error *err)
{
    json_t *json;
    assert_true(status_ok(json_read_text("test", text, strlen(text), &json, err)));
    status s = embed_heads_read(json, "heads.json", c, out, err);
    json_decref(json);
    return s;
}

static void lists_are_read(void **state)
{
    (void)state;
    const model_config c = demo();
    embed_choice out;
    error err = {{0}};
    assert_true(status_ok(
        read_text("{\"heads\": [{\"layer\": 3, \"kind\": \"q\", \"head\": 7, \"task\": 1},"
                  "{\"head\": 2, \"kind\": \"v\", \"layer\": 0}], \"all\": []}",
                  &c, &out, &err)));
    assert_true(out.n == 2 && !out.paper);
    assert_true(out.heads[0].layer == 3 && out.heads[0].kind == EMBED_Q && out.heads[0].head == 7);
    assert_true(out.heads[1].layer == 0 && out.heads[1].kind == EMBED_V && out.heads[1].head == 2);
}

static void wrong_lists_are_named(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{}", "heads.json: heads must be a list of 1 to 8 heads"},
        {"{\"heads\": []}", "heads.json: heads must be a list"},
        {"{\"heads\": [1]}", "heads.json: heads[0]: not an object"},
        {"{\"heads\": [{\"layer\": 4, \"kind\": \"q\", \"head\": 0}]}", "heads[0]: \"layer\" is "},
        {"{\"heads\": [{\"layer\": -1, \"kind\": \"q\", \"head\": 0}]}", "heads[0]: \"layer\" is "},
        {"{\"heads\": [{\"kind\": \"q\", \"head\": 0}]}", "heads[0]: needs a layer and a head"},
        {"{\"heads\": [{\"layer\": 1, \"kind\": \"q\"}]}", "heads[0]: needs a layer and a head"},
        {"{\"heads\": [{\"layer\": 1, \"head\": 1}]}", "heads[0].kind: must be"},
        {"{\"heads\": [{\"layer\": 1, \"kind\": \"x\", \"head\": 0}]}", "heads[0].kind: must be"},
        {"{\"heads\": [{\"layer\": 1, \"kind\": \"k\", \"head\": 4}]}", "heads[0]: \"head\" is "},
        {"{\"heads\": [{\"layer\": 1, \"kind\": \"q\", \"head\": 8}]}", "heads[0]: \"head\" is "},
    };
    const model_config c = demo();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        embed_choice out;
        error err = {{0}};
        assert_int_equal(read_text(rows[i][0], &c, &out, &err).code, STATUS_INVALID);
        if (!strstr(err.text, rows[i][1])) fail_msg("%s: \"%s\"", rows[i][0], err.text);
    }
}

static void the_file_lies_beside_the_model(void **state)
{
    (void)state;
    const model_config c = demo();
    static const char one[] = "{\"heads\": [{\"layer\": 1, \"kind\": \"k\", \"head\": 3}]}";
    static const char wrong[] = "{\"heads\": 5}";
    char path[EMBED_PATH_BYTES], file[128];
    embed_choice out;
    error err = {{0}};
    folder f;
    folder_make(&f);
    assert_true(status_ok(embed_heads_load(f.dir, &c, &out, &err)));
    assert_int_equal(out.n, 0);
    folder_write(&f, "reform_heads.json", one, strlen(one));
    assert_true(status_ok(embed_heads_load(f.dir, &c, &out, &err)));
    assert_true(out.n == 1 && out.heads[0].kind == EMBED_K && out.heads[0].head == 3);
    folder_write(&f, "reform_heads.json", wrong, strlen(wrong));
    assert_int_equal(embed_heads_load(f.dir, &c, &out, &err).code, STATUS_INVALID);
    assert_non_null(strstr(err.text, "reform_heads.json: heads must be a list"));

    folder_write(&f, "m.gguf", "", 0);
    snprintf(file, sizeof file, "%s/m.gguf", f.dir);
    assert_true(status_ok(embed_heads_path(file, path, &err)));
    assert_non_null(strstr(path, "/m.gguf.reform_heads.json"));
    folder_remove(&f);
}

/* A model of the paper has its heads by shape alone; any other shape has none. */
static void shapes_of_the_paper_have_heads(void **state)
{
    (void)state;
    model_config c = demo();
    assert_int_equal(embed_heads_of_paper(&c).n, 0);
    model_config mistral;
    error err = {{0}};
    if (!status_ok(model_config_load("tests/golden/models/mistral_f32", NULL, 0, &mistral, &err)))
        fail_msg("%s", err.text);
    mistral.hidden = 5120;
    mistral.n_layers = 40;
    mistral.n_heads = 32;
    mistral.n_kv_heads = 8;
    embed_choice out = embed_heads_of_paper(&mistral);
    assert_int_equal(out.n, 4);
    assert_string_equal(out.paper, "Mistral-NeMo-Instruct-2407");
    assert_true(out.heads[0].layer == 15 && out.heads[0].kind == EMBED_Q && out.heads[0].head == 9);
    mistral.family = c.family;
    assert_int_equal(embed_heads_of_paper(&mistral).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(wrong_lists_are_named),
        cmocka_unit_test(the_file_lies_beside_the_model),
        cmocka_unit_test(shapes_of_the_paper_have_heads),
    };
    return cmocka_run_group_tests_name("model_embed_heads", tests, NULL, NULL);
}
