/* Goes on with a text and keeps a quarter of its KV pages. usage: example MODEL TEXT
 *     cc example.c $(pkg-config --cflags --libs octavo) -o example */
#include <octavo.h>
#include <stdio.h>

static int answer(octavo_engine *engine, const char *prompt)
{
    char why[OCTAVO_ERROR_BYTES];
    octavo_request *request;
    octavo_output out = octavo_output_init();
    octavo_params params = octavo_params_init();
    params.prompt = prompt;
    params.max_tokens = 24;
    params.retention = "{\"method\": \"chunkkv\", \"ratio\": 0.25}";
    params.fields = "{\"temperature\": 0.7, \"seed\": 1}";
    if (octavo_submit(engine, &params, &request, why, sizeof why) != OCTAVO_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    while (octavo_read(request, &out, -1) == OCTAVO_OK) {
        fwrite(out.text, 1, out.text_bytes, stdout);
        if (out.finish == OCTAVO_FINISH_ERROR) fprintf(stderr, "%s\n", out.error_text);
        else if (out.finish != OCTAVO_FINISH_NONE) printf("\n%s\n", out.retention);
    }
    octavo_request_release(request);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const settings[] = {"kv-memory=64M", "max-batch=4", NULL};
    char why[OCTAVO_ERROR_BYTES] = "usage: example MODEL TEXT";
    octavo_engine *engine = NULL;
    octavo_engine_options options = octavo_engine_options_init();
    options.model = argc == 3 ? argv[1] : NULL;
    options.settings = settings;
    if (argc != 3 || octavo_engine_open(&options, &engine, why, sizeof why) != OCTAVO_OK) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    int result = answer(engine, argv[2]);
    octavo_engine_close(engine);
    return result;
}
