/* liboctavo as a C program uses it, with the demo model: octavo.h alone is included. */
#include "lib/octavo.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const small[] = {"kv-memory=24M", "threads=1", "max-batch=4", "prefill-chunk=32",
                                    NULL};

static octavo_engine *open_engine(const char *const *settings)
{
    char why[OCTAVO_ERROR_BYTES] = "";
    octavo_engine *e = NULL;
    octavo_engine_options o = octavo_engine_options_init();
    o.model = "models/demo";
    o.settings = settings;
    if (octavo_engine_open(&o, &e, why, sizeof why) != OCTAVO_OK) fail_msg("%s", why);
    return e;
}

static octavo_request *submit(octavo_engine *e, const octavo_params *p)
{
    char why[OCTAVO_ERROR_BYTES] = "";
    octavo_request *r = NULL;
    if (octavo_submit(e, p, &r, why, sizeof why) != OCTAVO_OK) fail_msg("%s", why);
    return r;
}

/* The whole answer of a request with one choice. */
typedef struct answer {
    char text[8192];
    uint32_t ids[1024];
    size_t bytes, n;
    char report[1024];
    octavo_output last;
} answer;

static void read_answer(octavo_request *r, answer *a)
{
    octavo_output out = octavo_output_init();
    memset(a, 0, sizeof *a);
    while (octavo_read(r, &out, -1) == OCTAVO_OK) {
        assert_int_equal(a->last.finish, OCTAVO_FINISH_NONE);
        memcpy(a->text + a->bytes, out.text, out.text_bytes);
        a->bytes += out.text_bytes;
        if (out.has_token) a->ids[a->n++] = out.token;
        if (out.retention) snprintf(a->report, sizeof a->report, "%s", out.retention);
        a->last = out;
    }
    assert_int_not_equal(a->last.finish, OCTAVO_FINISH_NONE);
    assert_int_equal(octavo_read(r, &out, 0), OCTAVO_END);
}

static void ask(octavo_engine *e, const octavo_params *p, answer *a)
{
    octavo_request *r = submit(e, p);
    read_answer(r, a);
    octavo_request_release(r);
}

/* The tokens of a text, as a request sees them. */
static size_t tokens_of(octavo_engine *e, const char *text, uint32_t *ids)
{
    octavo_params p = octavo_params_init();
    octavo_output out = octavo_output_init();
    octavo_prompt prompt = octavo_prompt_init();
    p.prompt = text;
    p.max_tokens = 1;
    octavo_request *r = submit(e, &p);
    assert_int_equal(octavo_request_prompt(r, &prompt), OCTAVO_INVALID);
    assert_int_equal(octavo_read(r, &out, -1), OCTAVO_OK);
    assert_int_equal(octavo_request_prompt(r, &prompt), OCTAVO_OK);
    memcpy(ids, prompt.tokens, prompt.n_tokens * sizeof *ids);
    size_t n = prompt.n_tokens;
    octavo_request_release(r);
    return n;
}

/* Parameters of a request that runs until somebody ends it. */
static octavo_params endless(void)
{
    octavo_params p = octavo_params_init();
    p.prompt = "O Romeo, Romeo";
    p.fields = "{\"ignore_eos\": true}";
    return p;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void texts_and_tokens_give_one_answer(void **state)
{
    octavo_engine *e = *state;
    octavo_params p = octavo_params_init(), by_ids = octavo_params_init();
    answer a, b;
    uint32_t ids[64];
    p.prompt = "O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name.";
    p.max_tokens = 12;
    p.fields = "{\"logprobs\": 2, \"prompt_logprobs\": 1}";
    octavo_request *r = submit(e, &p);
    read_answer(r, &a);
    assert_int_equal(a.last.finish, OCTAVO_FINISH_LENGTH);
    assert_int_equal(a.n, 12);
    assert_int_equal(a.last.completion_tokens, 12);
    assert_int_equal(a.last.n_top, 2);
    assert_true(a.last.logprob <= 0 && a.last.top_logprobs[0] >= a.last.top_logprobs[1]);
    assert_true(a.last.total_us >= a.last.ttft_us && a.last.ttft_us > 0);
    assert_null(a.last.retention);
    octavo_prompt prompt = octavo_prompt_init();
    assert_int_equal(octavo_request_prompt(r, &prompt), OCTAVO_OK);
    assert_int_equal(prompt.n_tokens, a.last.prompt_tokens);
    assert_int_equal(prompt.n_top, 1);
    assert_true(prompt.logprobs[1] <= 0);
    octavo_request_release(r);

    by_ids.n_token_ids = tokens_of(e, p.prompt, ids);
    by_ids.token_ids = ids;
    by_ids.max_tokens = 12;
    ask(e, &by_ids, &b);
    assert_int_equal(b.last.prompt_tokens, a.last.prompt_tokens);
    assert_true(b.last.cached_tokens > 0);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    assert_string_equal(a.text, b.text);
}

static void messages_are_rendered(void **state)
{
    octavo_params p = octavo_params_init();
    answer a;
    p.messages = "[{\"role\": \"user\", \"content\": \"Good morrow\"}]";
    p.fields = "{\"max_tokens\": 4, \"n\": 1}";
    ask(*state, &p, &a);
    assert_in_range(a.last.completion_tokens, 1, 4);
}

static void every_choice_ends(void **state)
{
    octavo_params p = octavo_params_init();
    octavo_output out = octavo_output_init();
    uint32_t ended = 0;
    p.prompt = "Enter ROMEO";
    p.max_tokens = 3;
    p.fields = "{\"n\": 3, \"temperature\": 1.0, \"seed\": 4}";
    octavo_request *r = submit(*state, &p);
    while (octavo_read(r, &out, -1) == OCTAVO_OK)
        if (out.finish != OCTAVO_FINISH_NONE) ended |= 1U << out.choice;
    assert_int_equal(ended, 7);
    octavo_request_release(r);
}

/* A long text of which a quarter is kept, and a second question of the session. */
static void a_second_question_reads_little(void **state)
{
    enum { BYTES = 2000 };
    octavo_engine *e = *state;
    octavo_stats before = octavo_stats_init(), after = octavo_stats_init();
    static uint32_t ids[8192];
    static answer a, b;
    char *text = calloc(1, BYTES + 1);
    FILE *file = fopen("tools/needle_4000.txt", "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, BYTES, file);
    fclose(file);
    text[bytes] = '\0';
    size_t n = tokens_of(e, text, ids);
    free(text);
    assert_in_range(n, 400, 1000);

    octavo_params p = octavo_params_init();
    p.token_ids = ids;
    p.n_token_ids = n;
    p.session = "play";
    p.retention = "chunkkv:0.25";
    p.max_tokens = 4;
    p.fields = "{\"ignore_eos\": true}";
    ask(e, &p, &a);
    assert_non_null(strstr(a.report, "\"session\": \"stored\""));
    assert_non_null(strstr(a.report, "\"method\": \"chunkkv\""));
    assert_int_equal(octavo_get_stats(e, &before), OCTAVO_OK);
    assert_int_equal(before.sessions, 1);

    memcpy(ids + n, a.ids, a.n * sizeof *ids);
    p.n_token_ids = n + a.n;
    for (uint32_t i = 0; i < 5; i++) ids[p.n_token_ids++] = 40 + i;
    ask(e, &p, &b);
    assert_non_null(strstr(b.report, "\"session\": \"continued\""));
    assert_int_equal(b.last.prompt_tokens, n + a.n + 5);
    assert_int_equal(octavo_get_stats(e, &after), OCTAVO_OK);
    assert_true(before.pages_dropped > 0);
    assert_in_range(after.steps - before.steps, 1, 8); /* the text takes more than 12 */

    /* The next turn would go on likewise, but the session is forgotten. */
    memcpy(ids + p.n_token_ids, b.ids, b.n * sizeof *ids);
    p.n_token_ids += b.n;
    ids[p.n_token_ids++] = 50;
    assert_int_equal(octavo_forget_session(e, "play", NULL, 0), OCTAVO_OK);
    ask(e, &p, &b);
    assert_null(strstr(b.report, "continued"));
    assert_int_equal(octavo_forget_session(e, "", NULL, 0), OCTAVO_INVALID);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void reading_waits_polls_and_ends(void **state)
{
    octavo_params p = endless();
    octavo_output out = octavo_output_init();
    octavo_request *r = submit(*state, &p);
    struct pollfd polled = {.fd = octavo_request_fd(r), .events = POLLIN};
    assert_int_equal(poll(&polled, 1, 60000), 1);
    octavo_status st;
    uint32_t n = 0;
    while ((st = octavo_read(r, &out, 0)) != OCTAVO_END) {
        if (st == OCTAVO_TIMEOUT) assert_int_equal(poll(&polled, 1, 60000), 1);
        else if (++n == 5) octavo_abort(r);
    }
    assert_true(n >= 5);
    assert_int_equal(octavo_read(r, &out, -1), OCTAVO_END);
    octavo_request_release(r);
}

/* Whether a request that waits for a place among four others is waited for in vain. */
static bool waits_in_vain(octavo_engine *e)
{
    octavo_params p = endless();
    octavo_output out = octavo_output_init();
    octavo_request *running[4], *waiting;
    for (int i = 0; i < 4; i++) running[i] = submit(e, &p); /* max-batch: the fifth waits */
    waiting = submit(e, &p);
    while (octavo_read(running[3], &out, 1000) != OCTAVO_OK) continue;
    bool in_vain = octavo_read(waiting, &out, 5) == OCTAVO_TIMEOUT;
    octavo_abort(waiting);
    while (out.finish == OCTAVO_FINISH_NONE)
        assert_int_equal(octavo_read(waiting, &out, -1), OCTAVO_OK);
    assert_int_equal(out.finish, OCTAVO_FINISH_ABORT);
    octavo_request_release(waiting);
    for (int i = 0; i < 4; i++) octavo_request_release(running[i]);
    return in_vain;
}

/* Requests that nobody reads pause and give their places to others, so where this thread did not
 * run for a while the fifth has a token, and the next try decides. */
static void a_timeout_is_kept(void **state)
{
    bool in_vain = false;
    for (int tries = 0; tries < 50 && !in_vain; tries++) in_vain = waits_in_vain(*state);
    assert_true(in_vain);
}

/* ---- engines and threads --------------------------------------------------------------------- */

static void a_closed_engine_lasts_until_the_last_release(void **state)
{
    (void)state;
    octavo_engine *e = open_engine(small);
    octavo_params p = endless();
    octavo_output out = octavo_output_init();
    octavo_request *read = submit(e, &p), *unread = submit(e, &p);
    while (octavo_read(read, &out, -1) != OCTAVO_OK) continue;
    octavo_engine_close(e);
    while (out.finish == OCTAVO_FINISH_NONE)
        assert_int_equal(octavo_read(read, &out, -1), OCTAVO_OK);
    assert_int_equal(out.finish, OCTAVO_FINISH_ABORT);
    octavo_request_release(unread);
    octavo_request_release(read);
}

typedef struct asker {
    pthread_t thread;
    octavo_engine *engine;
    const char *prompt;
    answer answer;
} asker;

static void *ask_on_thread(void *ctx)
{
    asker *a = ctx;
    octavo_params p = octavo_params_init();
    p.prompt = a->prompt;
    p.max_tokens = 10;
    ask(a->engine, &p, &a->answer);
    return NULL;
}

/* Two engines, each asked by two threads at once. */
static void engines_and_threads_are_apart(void **state)
{
    static asker askers[4];
    octavo_engine *other = open_engine(small);
    for (int i = 0; i < 4; i++) {
        askers[i].engine = i < 2 ? *state : other;
        askers[i].prompt = i % 2 ? "First Citizen:" : "ROMEO:";
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_on_thread, &askers[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(askers[i].thread, NULL);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(askers[i].answer.ids, askers[i + 2].answer.ids,
                            sizeof askers[i].answer.ids);
    assert_memory_not_equal(askers[0].answer.ids, askers[1].answer.ids,
                            sizeof askers[0].answer.ids);
    octavo_engine_close(other);
    octavo_engine_close(NULL);
    octavo_request_release(NULL);
}

/* Counts the threads of this process that block SIGINT and those that do not. */
static void count_masks(unsigned *blocking, unsigned *open)
{
    DIR *threads = opendir("/proc/self/task");
    assert_non_null(threads);
    *blocking = *open = 0;
    for (struct dirent *entry; (entry = readdir(threads));) {
        char path[300], line[128];
        unsigned long long mask;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "SigBlk: %llx", &mask) == 1)
                *(mask & 1ULL << (SIGINT - 1) ? blocking : open) += 1;
        if (status) fclose(status);
    }
    closedir(threads);
}

static void threads_block_signals(void **state)
{
    (void)state;
    unsigned blocking_before, open_before, blocking, open;
    count_masks(&blocking_before, &open_before);
    octavo_engine *e = open_engine(small);
    count_masks(&blocking, &open);
    octavo_engine_close(e);
    assert_int_equal(open, open_before);
    assert_in_range(blocking - blocking_before, 3, 100);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void check_open(const char *model, const char *setting, octavo_status status,
                       const char *text)
{
    const char *const settings[] = {setting, NULL};
    char why[OCTAVO_ERROR_BYTES] = "";
    octavo_engine *e = NULL;
    octavo_engine_options o = octavo_engine_options_init();
    o.model = model;
    o.settings = settings;
    octavo_status got = octavo_engine_open(&o, &e, why, sizeof why);
    if (got != status || !strstr(why, text)) fail_msg("%s %s: %d %s", model, setting, got, why);
    assert_null(e);
}

static void wrong_engines_are_refused(void **state)
{
    (void)state;
    check_open(NULL, NULL, OCTAVO_INVALID, "model: is missing");
    check_open("models/none", NULL, OCTAVO_NOT_FOUND, "models/none");
    check_open("models/demo", "colour=red", OCTAVO_INVALID, "unknown setting 'colour'");
    check_open("models/demo", "help", OCTAVO_INVALID, "unknown setting 'help'");
    check_open("models/demo", "kv-memory", OCTAVO_INVALID, "--kv-memory: needs a value");
    check_open("models/demo", "kv-memory=much", OCTAVO_INVALID, "--kv-memory");
    check_open("models/demo", "max-batch=0", OCTAVO_INVALID, "--max-batch");
    check_open("models/demo", "workers=local", OCTAVO_INVALID, "unknown setting 'workers'");
    check_open("models/demo", "retention={\"method\": \"best\"}", OCTAVO_INVALID, "best");
    check_open("models/demo", "isa=z80", OCTAVO_INVALID, "z80");
    octavo_engine_options unset;
    memset(&unset, 0, sizeof unset);
    octavo_engine *e = NULL;
    assert_int_equal(octavo_engine_open(&unset, &e, NULL, 0), OCTAVO_INVALID);
    assert_int_equal(octavo_engine_open(NULL, &e, NULL, 0), OCTAVO_INVALID);
}

static void check_submit(octavo_engine *e, const octavo_params *p, octavo_status status,
                         const char *text)
{
    char why[OCTAVO_ERROR_BYTES] = "";
    octavo_request *r = NULL;
    octavo_status got = octavo_submit(e, p, &r, why, sizeof why);
    if (got != status || !strstr(why, text)) fail_msg("not '%s': %d %s", text, got, why);
    assert_null(r);
}

static void wrong_requests_are_refused(void **state)
{
    static const uint32_t ids[] = {1, 2};
    const octavo_params zeros = octavo_params_init();
    octavo_params p = zeros;
    check_submit(*state, &p, OCTAVO_INVALID, "prompt");
    p.prompt = "\xff";
    check_submit(*state, &p, OCTAVO_INVALID, "prompt: is not UTF-8");
    p.prompt = "O";
    p.retention = "{\"method\": \"chunkkv\"";
    check_submit(*state, &p, OCTAVO_INVALID, "retention");
    p.retention = "{\"method\": \"best\"}";
    check_submit(*state, &p, OCTAVO_INVALID, "best");
    p.retention = "chunkkv:2";
    check_submit(*state, &p, OCTAVO_INVALID, "retention: 'chunkkv:2' must be METHOD:RATIO");
    p.retention = "[]";
    check_submit(*state, &p, OCTAVO_INVALID, "retention");
    p.retention = NULL;
    p.retrieval = "quest:some";
    check_submit(*state, &p, OCTAVO_INVALID,
                 "retrieval: 'quest:some' must be METHOD or METHOD:TOKENS");
    p.retrieval = "best:4096";
    check_submit(*state, &p, OCTAVO_INVALID, "'best' is unknown (have: ktransformers, quest");
    p.retrieval = "[]";
    check_submit(*state, &p, OCTAVO_INVALID, "retrieval");
    p.retrieval = NULL;
    p.fields = "[1]";
    check_submit(*state, &p, OCTAVO_INVALID, "fields: must be a JSON object");
    p.fields = "{\"prompt\": \"O\"}";
    check_submit(*state, &p, OCTAVO_INVALID, "prompt: is given twice");
    p.fields = "{\"colour\": 1}";
    check_submit(*state, &p, OCTAVO_INVALID, "colour");
    p.fields = "{\"prompt_token_ids\": [1]}";
    p.prompt = NULL;
    p.token_ids = ids;
    p.n_token_ids = 2;
    check_submit(*state, &p, OCTAVO_INVALID, "prompt_token_ids: is given twice");
    p = zeros;
    p.token_ids = ids;
    check_submit(*state, &p, OCTAVO_INVALID, "n_token_ids is 0");
    p = zeros;
    p.size = 0;
    check_submit(*state, &p, OCTAVO_INVALID, "was not made by octavo_params_init()");
}

/* The text of an error is cut to the buffer, and a buffer is not needed. */
static void errors_fit_their_buffer(void **state)
{
    octavo_params p = octavo_params_init();
    octavo_request *r = NULL;
    char why[8];
    memset(why, 'x', sizeof why);
    assert_int_equal(octavo_submit(*state, &p, &r, why, 4), OCTAVO_INVALID);
    assert_int_equal(strlen(why), 3);
    assert_int_equal(why[4], 'x');
    assert_int_equal(octavo_submit(*state, &p, &r, NULL, 0), OCTAVO_INVALID);
}

/* NULL in place of an engine, a request or the place of a result. */
static void what_is_not_there_is_refused(void **state)
{
    octavo_engine_options o = octavo_engine_options_init();
    octavo_params p = octavo_params_init();
    octavo_output output = octavo_output_init();
    octavo_prompt prompt = octavo_prompt_init();
    octavo_stats stats = octavo_stats_init();
    octavo_request *r = NULL;
    char why[OCTAVO_ERROR_BYTES] = "";
    o.model = "models/demo";
    p.prompt = "O";
    p.max_tokens = 1;
    assert_int_equal(octavo_engine_open(&o, NULL, why, sizeof why), OCTAVO_INVALID);
    assert_string_equal(why, "out: is NULL");
    assert_int_equal(octavo_submit(NULL, &p, &r, why, sizeof why), OCTAVO_INVALID);
    assert_string_equal(why, "engine: is NULL");
    assert_int_equal(octavo_submit(*state, &p, NULL, why, sizeof why), OCTAVO_INVALID);
    assert_string_equal(why, "out: is NULL");
    assert_int_equal(octavo_forget_session(NULL, "a", why, sizeof why), OCTAVO_INVALID);
    assert_string_equal(why, "engine: is NULL");
    assert_int_equal(octavo_get_stats(NULL, &stats), OCTAVO_INVALID);
    assert_int_equal(octavo_get_stats(*state, NULL), OCTAVO_INVALID);
    assert_int_equal(octavo_read(NULL, &output, -1), OCTAVO_INVALID);
    assert_int_equal(octavo_request_prompt(NULL, &prompt), OCTAVO_INVALID);
    assert_int_equal(octavo_request_fd(NULL), -1);
    octavo_abort(NULL);
    octavo_request_release(NULL);
    octavo_engine_close(NULL);
    assert_int_equal(octavo_submit(*state, &p, &r, why, sizeof why), OCTAVO_OK);
    assert_int_equal(octavo_read(r, NULL, -1), OCTAVO_INVALID);
    assert_int_equal(octavo_read(r, &output, -1), OCTAVO_OK);
    assert_int_equal(octavo_request_prompt(r, NULL), OCTAVO_INVALID);
    octavo_request_release(r);
}

/* A prompt beyond the context is known only when its text is tokens: the request ends. */
static void a_prompt_too_long_ends_its_request(void **state)
{
    octavo_params p = octavo_params_init();
    static uint32_t ids[100000];
    static answer a;
    p.token_ids = ids;
    p.n_token_ids = sizeof ids / sizeof *ids;
    ask(*state, &p, &a);
    assert_int_equal(a.last.finish, OCTAVO_FINISH_ERROR);
    assert_int_equal(a.last.error, OCTAVO_LIMIT);
}

/* ---- structs of other versions --------------------------------------------------------------- */

static void structs_of_other_versions_are_taken(void **state)
{
    octavo_engine *e = *state;
    struct {
        octavo_params known;
        uint64_t later;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    newer.known.prompt = "O";
    newer.known.max_tokens = 1;
    static answer a;
    ask(e, &newer.known, &a);
    newer.later = 1;
    check_submit(e, &newer.known, OCTAVO_UNSUPPORTED, "does not know");

    octavo_params older = newer.known;
    older.size = offsetof(octavo_params, fields);
    older.fields = "no JSON";
    ask(e, &older, &a);

    octavo_stats stats;
    memset(&stats, 0x5a, sizeof stats);
    stats.size = offsetof(octavo_stats, pages_used);
    assert_int_equal(octavo_get_stats(e, &stats), OCTAVO_OK);
    assert_in_range(stats.pages, 10, 100000);
    assert_int_equal(stats.page_tokens, 16);
    assert_int_equal(stats.pages_used, 0x5a5a5a5a);
    struct {
        octavo_stats known;
        uint64_t later;
    } newer_stats = {.known = octavo_stats_init(), .later = 1};
    newer_stats.known.size = sizeof newer_stats;
    assert_int_equal(octavo_get_stats(e, &newer_stats.known), OCTAVO_OK);
    assert_int_equal(newer_stats.later, 0);
    stats.size = 0;
    assert_int_equal(octavo_get_stats(e, &stats), OCTAVO_INVALID);
    octavo_output out;
    memset(&out, 0, sizeof out);
    octavo_request *r = submit(e, &older);
    assert_int_equal(octavo_read(r, &out, 0), OCTAVO_INVALID);
    octavo_request_release(r);
}

static void every_status_has_a_text(void **state)
{
    (void)state;
    static const octavo_status all[] = {
        OCTAVO_OK,        OCTAVO_TIMEOUT, OCTAVO_END,         OCTAVO_INVALID,    OCTAVO_UNSUPPORTED,
        OCTAVO_NOT_FOUND, OCTAVO_CORRUPT, OCTAVO_LIMIT,       OCTAVO_QUEUE_FULL, OCTAVO_NO_MEMORY,
        OCTAVO_IO,        OCTAVO_ABORTED, OCTAVO_UNAVAILABLE, OCTAVO_INTERNAL};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_string_not_equal(octavo_status_text(all[i]), "unknown status");
    assert_string_equal(octavo_status_text((octavo_status)999), "unknown status");
    assert_non_null(strchr(octavo_version(), '.'));
}

static int open_shared(void **state)
{
    *state = open_engine(small);
    return 0;
}

static int close_shared(void **state)
{
    octavo_engine_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_block_signals),
        cmocka_unit_test(texts_and_tokens_give_one_answer),
        cmocka_unit_test(messages_are_rendered),
        cmocka_unit_test(every_choice_ends),
        cmocka_unit_test(a_second_question_reads_little),
        cmocka_unit_test(reading_waits_polls_and_ends),
        cmocka_unit_test(a_timeout_is_kept),
        cmocka_unit_test(a_closed_engine_lasts_until_the_last_release),
        cmocka_unit_test(engines_and_threads_are_apart),
        cmocka_unit_test(wrong_engines_are_refused),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(errors_fit_their_buffer),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(a_prompt_too_long_ends_its_request),
        cmocka_unit_test(structs_of_other_versions_are_taken),
        cmocka_unit_test(every_status_has_a_text),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
