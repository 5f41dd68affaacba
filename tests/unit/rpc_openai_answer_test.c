/* Answers made from hand-written outputs: exact bodies and frames; streamed text equals the whole
 * text.
 *
 * Linked with --wrap=generation_prompt: there is no generation here, only its prompt's report. */
#include "tests/unit/rpc_openai_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct answer_fixture {
    openai_fixture f;
    openai_answer *a;
    strbuf out;
} answer_fixture;

static engine_prompt prompts[2]; // of the requests
engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request);
engine_prompt __wrap_generation_prompt(const generation *g, uint32_t request)
{
    (void)g;
    return prompts[request];
}

static int setup(void **state)
{
    answer_fixture *x = calloc(1, sizeof *x);
    error err = {{0}};
    if (!x || !status_ok(openai_fixture_open(&x->f, &err))) fail_msg("%s", err.text);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    answer_fixture *x = *state;
    openai_fixture_close(&x->f);
    strbuf_destroy(&x->out);
    free(x);
    return 0;
}

/* ---- making outputs -------------------------------------------------------------------------- */

static const uint32_t the_cat[] = {83, 257, 286, 308};

static void begin(answer_fixture *x, bool chat, const char *body)
{
    service *s = &x->f.service;
    openai_call c;
    openai_error e = {0};
    bool ok = chat ? openai_parse_chat(s, body, strlen(body), &c, &e)
                   : openai_parse_completion(s, body, strlen(body), &c, &e);
    if (!ok) fail_msg("%s: %s", body, e.message);
    for (int i = 0; i < 2; i++) prompts[i] = (engine_prompt){.tokens = the_cat, .n_tokens = 4};
    x->a = openai_answer_create(s, &c, "ID");
    assert_non_null(x->a);
    assert_null(c.requests);
    strbuf_clear(&x->out);
}

static generation_output token(uint32_t index, uint32_t id, const char *text)
{
    generation_output o = {.index = index, .out = {.stop_token = -1}};
    o.out.has_token = true;
    o.out.sample = (step_sample){.token = id, .logprob = -0.5f, .rank = 1};
    o.out.text = text;
    o.out.text_bytes = strlen(text);
    return o;
}

static generation_output with_end(generation_output o, engine_finish finish, uint32_t n_tokens)
{
    o.out.finish = finish;
    o.out.usage = (engine_usage){4, n_tokens, 2};
    return o;
}

static generation_output with_top(generation_output o, uint32_t id, float logprob)
{
    o.out.sample.top_ids[o.out.sample.n_top] = id;
    o.out.sample.top_logprobs[o.out.sample.n_top++] = logprob;
    return o;
}

static void take(answer_fixture *x, generation_output o)
{
    openai_answer_take(x->a, NULL, &o, &x->out);
}

/* Replaces the answer's time by 0. */
static void hide_time(strbuf *out)
{
    static const char key[] = "\"created\":";
    strbuf hidden = {0};
    const char *at = out->data ? out->data : "";
    for (const char *hit; (hit = strstr(at, key)); at = hit) {
        hit += sizeof key - 1;
        strbuf_append(&hidden, at, (size_t)(hit - at));
        hit += strspn(hit, "0123456789");
        strbuf_putc(&hidden, '0');
    }
    strbuf_puts(&hidden, at);
    strbuf_destroy(out);
    *out = hidden;
}

static void end(answer_fixture *x, const char *expected)
{
    openai_answer_finish(x->a, &x->out);
    hide_time(&x->out);
    assert_string_equal(x->out.data, expected);
    openai_answer_destroy(x->a);
    x->a = NULL;
}

#define HEAD(prefix, object)                                                                       \
    "{\"id\":\"" prefix "-ID\",\"object\":\"" object                                               \
    "\",\"created\":0,\"model\":\"demo\",\"system_fingerprint\":\"octavo-1.2.3-isa\",\"choices\":" \
    "["
#define WHOLE     HEAD("cmpl", "text_completion")
#define CHUNK     "data: " WHOLE
#define CHAT      HEAD("chatcmpl", "chat.completion")
#define CHATCHUNK "data: " HEAD("chatcmpl", "chat.completion.chunk")
#define SO_FAR(p, c, t)                                                                            \
    "\"usage\":{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c ",\"total_tokens\":" #t "}"
#define USAGE(p, c, t, cached)                                                                     \
    "\"usage\":{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c ",\"total_tokens\":" #t        \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" #cached "}}"
#define SO_FAR_1          SO_FAR(4, 1, 5)
#define SO_FAR_2          SO_FAR(4, 2, 6)
#define USAGE_0           USAGE(4, 0, 4, 2)
#define USAGE_1           USAGE(4, 1, 5, 2)
#define USAGE_2           USAGE(4, 2, 6, 2)
#define USAGE_3           USAGE(4, 3, 7, 2)
#define USAGE_4           USAGE(4, 4, 8, 2)
#define USAGE_TWO_PROMPTS USAGE(8, 4, 12, 4)
#define GOES_ON           "\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null"
#define DONE              "data: [DONE]\n\n"
#define MESSAGE           "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

/* ---- completions ----------------------------------------------------------------------------- */

static void a_whole_completion(void **state)
{
    answer_fixture *x = *state;
    begin(x, false, "{\"prompt\":\"the cat\"}");
    assert_false(openai_answer_streams(x->a));
    take(x, token(0, 39, "H\"\n"));
    assert_int_equal(x->out.size, 0);
    take(x, with_end(token(0, 78, "o"), ENGINE_FINISH_LENGTH, 2));
    assert_null(openai_answer_error(x->a));
    end(x, WHOLE "{\"index\":0,\"text\":\"H\\\"\\no\",\"logprobs\":null,"
                 "\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE_2 "}");
}

static void a_streamed_completion(void **state)
{
    answer_fixture *x = *state;
    begin(x, false,
          "{\"prompt\":\"the cat\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_true(openai_answer_streams(x->a));
    take(x, token(0, 39, "H"));
    take(x, token(0, 78, ""));
    take(x, with_end(token(0, 1023, "o"), ENGINE_FINISH_STOP, 3));
    end(x, CHUNK "{\"index\":0,\"text\":\"H\"," GOES_ON "}],\"usage\":null}\n\n" //
        CHUNK "{\"index\":0,\"text\":\"\"," GOES_ON "}],\"usage\":null}\n\n"     //
        CHUNK "{\"index\":0,\"text\":\"o\",\"logprobs\":null,\"finish_reason\":\"stop\","
                 "\"stop_reason\":null}],\"usage\":null}\n\n" //
        CHUNK "]," USAGE_3 "}\n\n" DONE);
}

/* Choices come in order, whichever ends first; each prompt is counted once. */
static void choices_of_several_prompts(void **state)
{
    answer_fixture *x = *state;
    generation_output o;
    begin(x, false, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stop\":\"END\",\"stop_token_ids\":[7]}");
    take(x, with_end(token(3, 39, "d"), ENGINE_FINISH_LENGTH, 1));
    o = with_end(token(1, 39, "b"), ENGINE_FINISH_STOP, 1);
    o.out.stop_string = "END";
    take(x, o);
    o = with_end(token(2, 39, "c"), ENGINE_FINISH_STOP, 1);
    o.out.stop_token = 7;
    take(x, o);
    o = with_end(token(0, 39, "a"), ENGINE_FINISH_STOP, 1);
    o.out.stop_token = 1023; // EOS
    take(x, o);
    end(x, WHOLE "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":\"stop\","
                 "\"stop_reason\":null},"
                 "{\"index\":1,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":\"stop\","
                 "\"stop_reason\":\"END\"},"
                 "{\"index\":2,\"text\":\"c\",\"logprobs\":null,\"finish_reason\":\"stop\","
                 "\"stop_reason\":7},"
                 "{\"index\":3,\"text\":\"d\",\"logprobs\":null,\"finish_reason\":\"length\","
                 "\"stop_reason\":null}]," USAGE_TWO_PROMPTS "}");
}

/* Half characters, two tokens with the same text, and probabilities of zero. */
static void completion_logprobs_with_offsets(void **state)
{
    answer_fixture *x = *state;
    begin(x, false, "{\"prompt\":\"the cat\",\"logprobs\":2}");
    take(x, with_top(with_top(token(0, 266, " w"), 266, -0.5f), 39, -1.25f));
    take(x, with_top(with_top(token(0, 127, ""), 114, -1), 127, -2));
    take(x, with_top(with_top(token(0, 114, "\xc3\xb6"), 39, -INFINITY), 39, -3));
    take(x, with_end(token(0, 81, "r"), ENGINE_FINISH_LENGTH, 4));
    end(x, WHOLE
        "{\"index\":0,\"text\":\" w\xc3\xb6r\",\"logprobs\":{\"text_offset\":[0,2,2,3],"
        "\"token_logprobs\":[-0.5,-0.5,-0.5,-0.5],"
        "\"tokens\":[\" w\",\"bytes:\\\\xc3\",\"bytes:\\\\xb6\",\"r\"],"
        "\"top_logprobs\":[{\" w\":-0.5,\"H\":-1.25},"
        "{\"bytes:\\\\xc3\":-0.5,\"bytes:\\\\xb6\":-1},{\"bytes:\\\\xb6\":-0.5,\"H\":-9999.0},"
        "{\"r\":-0.5}]},\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE_4 "}");
}

static const float prompt_logprobs[] = {NAN, -1, -2, -3};
static const uint32_t prompt_ranks[] = {0, 1, 2, 3};
static const uint32_t prompt_tops[] = {0, 257, 78, 308};
static const float prompt_top_logprobs[] = {0, -1, -0.25f, -3};

static engine_prompt scored(void)
{
    return (engine_prompt){.tokens = the_cat,
                           .n_tokens = 4,
                           .logprobs = prompt_logprobs,
                           .ranks = prompt_ranks,
                           .n_top = 1,
                           .top_ids = prompt_tops,
                           .top_logprobs = prompt_top_logprobs};
}

/* return_tokens_as_token_ids: tokens with the same text differ by their ids. */
static void logprobs_name_tokens_by_their_ids(void **state)
{
#define BY_ID ",\"return_tokens_as_token_ids\":true"
    answer_fixture *x = *state;
    begin(x, false, "{\"prompt\":\"the cat\",\"logprobs\":2" BY_ID "}");
    take(x, with_top(with_top(token(0, 266, " w"), 266, -0.5f), 39, -1.25f));
    take(x, with_end(with_top(token(0, 1500, ""), 1501, -1), ENGINE_FINISH_LENGTH, 2));
    end(x, WHOLE "{\"index\":0,\"text\":\" w\",\"logprobs\":{\"text_offset\":[0,2],"
                 "\"token_logprobs\":[-0.5,-0.5],"
                 "\"tokens\":[\"token_id:266\",\"token_id:1500\"],"
                 "\"top_logprobs\":[{\"token_id:266\":-0.5,\"token_id:39\":-1.25},"
                 "{\"token_id:1500\":-0.5,\"token_id:1501\":-1}]},\"finish_reason\":\"length\","
                 "\"stop_reason\":null}]," USAGE_2 "}");

    begin(x, false,
          "{\"prompt\":\"the cat\",\"logprobs\":0,\"echo\":true,\"max_tokens\":1" BY_ID "}");
    prompts[0] = scored();
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    end(x, WHOLE "{\"index\":0,\"text\":\"the catH\",\"logprobs\":{\"text_offset\":[0,1,3,5,7],"
                 "\"token_logprobs\":[null,-1,-2,-3,-0.5],"
                 "\"tokens\":[\"token_id:83\",\"token_id:257\",\"token_id:286\",\"token_id:308\","
                 "\"token_id:39\"],\"top_logprobs\":[null,{\"token_id:257\":-1},"
                 "{\"token_id:286\":-2},{\"token_id:308\":-3},{\"token_id:39\":-0.5}]},"
                 "\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE_1 "}");

    begin(x, true, "{" MESSAGE ",\"logprobs\":true,\"top_logprobs\":1" BY_ID "}");
    take(x, with_end(with_top(token(0, 39, "H"), 78, -1), ENGINE_FINISH_LENGTH, 1));
    end(x, CHAT "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"H\","
                "\"refusal\":null},\"logprobs\":{\"content\":[{\"token\":\"token_id:39\","
                "\"logprob\":-0.5,\"bytes\":[72],\"top_logprobs\":[{\"token\":\"token_id:78\","
                "\"logprob\":-1,\"bytes\":[111]}]}],\"refusal\":null},\"finish_reason\":\"length\","
                "\"stop_reason\":null}]," USAGE_1 "}");
}

#define PROMPT_TOKENS "\"t\",\"he\",\" c\",\"at\""
#define PROMPT_TOPS   "null,{\"he\":-1},{\" c\":-2,\"o\":-0.25},{\"at\":-3}"

static void echo_comes_first_and_is_scored(void **state)
{
    answer_fixture *x = *state;
    static const char logprobs[] =
        "\"logprobs\":{\"text_offset\":[0,1,3,5,7],\"token_logprobs\":[null,-1,-2,-3,-0.5],"
        "\"tokens\":[" PROMPT_TOKENS ",\"H\"],\"top_logprobs\":[" PROMPT_TOPS ",{\"H\":-0.5}]}";
    char expected[2048];
    begin(x, false, "{\"prompt\":\"the cat\",\"logprobs\":1,\"echo\":true}");
    prompts[0] = scored();
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    snprintf(expected, sizeof expected,
             WHOLE "{\"index\":0,\"text\":\"the catH\",%s,\"finish_reason\":\"length\","
                   "\"stop_reason\":null}]," USAGE_1 "}",
             logprobs);
    end(x, expected);

    /* A prompt of ids, streamed: the first frame contains all of it. */
    begin(x, false, "{\"prompt\":[83,257,286,308],\"logprobs\":1,\"echo\":true,\"stream\":true}");
    prompts[0] = scored();
    take(x, token(0, 39, "H"));
    take(x, with_end(token(0, 78, "o"), ENGINE_FINISH_LENGTH, 2));
    snprintf(expected, sizeof expected,
             CHUNK "{\"index\":0,\"text\":\"the catH\",%s,\"finish_reason\":null,"
                   "\"stop_reason\":null}]}\n\n" CHUNK
                   "{\"index\":0,\"text\":\"o\",\"logprobs\":{\"text_offset\":[8],"
                   "\"token_logprobs\":[-0.5],\"tokens\":[\"o\"],\"top_logprobs\":[{\"o\":-0.5}]},"
                   "\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n" DONE,
             logprobs);
    end(x, expected);
}

/* A token that the tokenizer put before the text takes no offset. */
static void an_added_bos_takes_no_room(void **state)
{
    answer_fixture *x = *state;
    static const uint32_t with_bos[] = {1021, 83, 257};
    begin(x, false, "{\"prompt\":\"the\",\"logprobs\":0,\"echo\":true}");
    x->f.service.o.model.bos_id = 1021;
    prompts[0] = scored();
    prompts[0].tokens = with_bos;
    prompts[0].n_tokens = 3;
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    x->f.service.o.model.bos_id = -1;
    end(x, WHOLE "{\"index\":0,\"text\":\"theH\",\"logprobs\":{\"text_offset\":[0,0,1,3],"
                 "\"token_logprobs\":[null,-1,-2,-0.5],"
                 "\"tokens\":[\"<|endoftext|>\",\"t\",\"he\",\"H\"],"
                 "\"top_logprobs\":[null,{\"t\":-1},{\"he\":-2},{\"H\":-0.5}]},"
                 "\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE_1 "}");
}

/* Nothing is generated: the answer is the prompt with its scores. */
static void a_scored_prompt(void **state)
{
    answer_fixture *x = *state;
    generation_output o = with_end(token(0, 0, ""), ENGINE_FINISH_LENGTH, 0);
    o.out.has_token = false;
    begin(x, false, "{\"prompt\":\"the cat\",\"logprobs\":1,\"echo\":true,\"max_tokens\":0}");
    prompts[0] = scored();
    take(x, o);
    end(x, WHOLE "{\"index\":0,\"text\":\"the cat\",\"logprobs\":{\"text_offset\":[0,1,3,5],"
                 "\"token_logprobs\":[null,-1,-2,-3],\"tokens\":[" PROMPT_TOKENS
                 "],\"top_logprobs\":[" PROMPT_TOPS "]},\"finish_reason\":\"length\","
                 "\"stop_reason\":null}]," USAGE_0 "}");
}

#define PROMPT_LOGPROBS                                                                            \
    "\"prompt_logprobs\":[null,"                                                                   \
    "{\"257\":{\"logprob\":-1,\"rank\":1,\"decoded_token\":\"he\"}},"                              \
    "{\"286\":{\"logprob\":-2,\"rank\":2,\"decoded_token\":\" c\"},"                               \
    "\"78\":{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"o\"}},"                              \
    "{\"308\":{\"logprob\":-3,\"rank\":3,\"decoded_token\":\"at\"}}]"

/* vLLM's field: in a completion's choice, and beside the choices of a chat. */
static void prompt_logprobs_by_their_own_name(void **state)
{
    answer_fixture *x = *state;
    begin(x, false, "{\"prompt\":\"the cat\",\"prompt_logprobs\":1}");
    prompts[0] = scored();
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    end(x, WHOLE "{\"index\":0,\"text\":\"H\",\"logprobs\":null,\"finish_reason\":\"length\","
                 "\"stop_reason\":null," PROMPT_LOGPROBS "}]," USAGE_1 "}");
    begin(x, true, "{" MESSAGE ",\"prompt_logprobs\":1}");
    prompts[0] = scored();
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    end(x, CHAT "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"H\","
                "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\","
                "\"stop_reason\":null}]," USAGE_1 "," PROMPT_LOGPROBS "}");
}

static void token_ids_and_retention(void **state)
{
    answer_fixture *x = *state;
    const retention_report report = {.method = "chunkkv", .logical_tokens = 9, .kept_tokens = 4};
    strbuf text = {0};
    char expected[2048];
    retention_report_json(&report, &text);
    begin(x, false, "{\"prompt\":\"the cat\",\"return_token_ids\":true,\"stream\":true}");
    take(x, token(0, 39, "H"));
    generation_output o = with_end(token(0, 78, "o"), ENGINE_FINISH_ABORT, 2);
    o.out.report = &report;
    take(x, o);
    snprintf(expected, sizeof expected,
             CHUNK "{\"index\":0,\"text\":\"H\"," GOES_ON
                   ",\"token_ids\":[39],\"prompt_token_ids\":[83,257,286,308]}]}\n\n" CHUNK
                   "{\"index\":0,\"text\":\"o\",\"logprobs\":null,\"finish_reason\":\"abort\","
                   "\"stop_reason\":null,\"retention\":%s,\"token_ids\":[78]}]}\n\n" DONE,
             text.data);
    end(x, expected);
    strbuf_destroy(&text);
}

/* Progress has events of its own, which begin no choice. */
static void progress_comes_before_the_tokens(void **state)
{
    answer_fixture *x = *state;
    const generation_output far = {.out = {.progress = {"prefill", 512, 9000}, .text = ""}};
    begin(x, false, "{\"prompt\":\"the cat\",\"progress\":true,\"stream\":true,\"echo\":true}");
    take(x, far);
    take(x, with_end(token(0, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    end(x, "event: octavo.progress\n" CHUNK
           "],\"progress\":{\"index\":0,\"phase\":\"prefill\",\"computed_tokens\":512,"
           "\"total_tokens\":9000}}\n\n" CHUNK
           "{\"index\":0,\"text\":\"the catH\",\"logprobs\":null,\"finish_reason\":\"length\","
           "\"stop_reason\":null}]}\n\n" DONE);
}

/* ---- chat ------------------------------------------------------------------------------------ */

static void a_whole_chat(void **state)
{
    answer_fixture *x = *state;
    begin(x, true, "{" MESSAGE ",\"logprobs\":true,\"top_logprobs\":1,\"return_token_ids\":true}");
    take(x, with_top(token(0, 127, ""), 39, -0.75f));
    take(x, with_end(token(0, 114, "\xc3\xb6"), ENGINE_FINISH_STOP, 2));
    end(x, CHAT
        "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\xc3\xb6\",\"refusal\":"
        "null},\"logprobs\":{\"content\":["
        "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[195],\"top_logprobs\":["
        "{\"token\":\"H\",\"logprob\":-0.75,\"bytes\":[72]}]},"
        "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[182],\"top_logprobs\":[]}],"
        "\"refusal\":null},\"finish_reason\":\"stop\",\"stop_reason\":null,"
        "\"token_ids\":[127,114]}]," USAGE_2 ",\"prompt_token_ids\":[83,257,286,308]}");
}

/* The role comes with each choice's first token, never alone. */
static void a_streamed_chat(void **state)
{
    answer_fixture *x = *state;
    begin(x, true,
          "{" MESSAGE ",\"n\":2,\"stream\":true,\"stream_options\":"
          "{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    take(x, token(0, 39, "H"));
    take(x, with_end(token(1, 39, "I"), ENGINE_FINISH_LENGTH, 1));
    take(x, with_end(token(0, 78, "o"), ENGINE_FINISH_STOP, 2));
    end(x, CHATCHUNK "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"H\"}," GOES_ON
                     "}]," SO_FAR_1 "}\n\n" //
        CHATCHUNK "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"I\"},"
                     "\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}"
                     "]," SO_FAR_1 "}\n\n" //
        CHATCHUNK "{\"index\":0,\"delta\":{\"content\":\"o\"},\"logprobs\":null,"
                     "\"finish_reason\":\"stop\",\"stop_reason\":null}]," SO_FAR_2 "}\n\n" //
        CHATCHUNK "]," USAGE_3 "}\n\n" DONE);
}

/* A choice that ends after its last token was sent: a frame without text. */
static void an_end_of_its_own(void **state)
{
    answer_fixture *x = *state;
    begin(x, true, "{" MESSAGE ",\"stream\":true}");
    generation_output o = with_end(token(0, 0, ""), ENGINE_FINISH_ABORT, 0);
    o.out.has_token = false;
    take(x, o);
    end(x,
        CHATCHUNK "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":\"abort\",\"stop_reason\":null}]}\n\n" DONE);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static generation_output broken(void)
{
    generation_output o = {.out = {.finish = ENGINE_FINISH_ERROR, .stop_token = -1, .text = ""}};
    o.out.error_code = STATUS_UNAVAILABLE;
    o.out.error_text = "the backend has failed";
    return o;
}

#define BROKEN                                                                                     \
    "{\"error\":{\"message\":\"the backend has failed\",\"type\":\"ServiceUnavailableError\","     \
    "\"param\":null,\"code\":503}}"

static void an_error_is_the_whole_body(void **state)
{
    answer_fixture *x = *state;
    begin(x, false, "{\"prompt\":[\"a\",\"b\"]}");
    take(x, with_end(token(1, 39, "H"), ENGINE_FINISH_LENGTH, 1));
    take(x, broken());
    take(x, broken());
    assert_int_equal(openai_answer_error(x->a)->status, 503);
    assert_true(openai_answer_error(x->a)->retry_after_s > 0);
    end(x, BROKEN);
}

static void a_body_that_grows_too_long(void **state)
{
    enum { PIECE = 40 << 20 };
    answer_fixture *x = *state;
    char *text = malloc(PIECE);
    assert_non_null(text);
    memset(text, 'a', PIECE);
    begin(x, false, "{\"prompt\":\"the cat\"}");
    generation_output o = token(0, 39, "");
    o.out.text = text;
    o.out.text_bytes = PIECE;
    for (int i = 0; i < 6; i++) take(x, o);
    assert_null(openai_answer_error(x->a));
    take(x, o);
    free(text);
    assert_int_equal(openai_answer_error(x->a)->status, 400);
    openai_answer_finish(x->a, &x->out);
    assert_true(x->out.size < 1000);
    openai_answer_destroy(x->a);
}

static void an_error_ends_the_stream(void **state)
{
    answer_fixture *x = *state;
    begin(x, false,
          "{\"prompt\":[\"a\",\"b\"],\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    take(x, token(0, 39, "H"));
    assert_null(openai_answer_error(x->a));
    take(x, broken());
    assert_int_equal(openai_answer_error(x->a)->status, 503);
    take(x, token(1, 39, "H"));
    take(x, broken());
    end(x, CHUNK "{\"index\":0,\"text\":\"H\"," GOES_ON "}],\"usage\":null}\n\n" //
                 "data: " BROKEN "\n\n" DONE);
}

/* ---- property: streamed text equals the whole text ------------------------------------------ */

/* The joined texts of a stream's frames; each frame must be valid JSON. */
static void join_frames(const strbuf *out, bool chat, strbuf *text, unsigned *n_frames)
{
    const char *at = out->data;
    for (*n_frames = 0; strncmp(at, DONE, strlen(DONE)) != 0; ++*n_frames) {
        const char *stop = strstr(at, "\n\n");
        assert_non_null(stop);
        assert_memory_equal(at, "data: ", 6);
        json_t *doc = json_loadb(at + 6, (size_t)(stop - at) - 6, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(doc);
        const json_t *c = json_array_get(json_object_get(doc, "choices"), 0);
        const json_t *t = chat ? json_object_get(json_object_get(c, "delta"), "content")
                               : json_object_get(c, "text");
        strbuf_append(text, json_string_value(t), json_string_length(t));
        json_decref(doc);
        at = stop + 2;
    }
}

static void play(answer_fixture *x, bool chat, bool stream, const char *members,
                 const generation_output *outputs, unsigned n)
{
    char body[256];
    snprintf(body, sizeof body, "{%s%s%s}", chat ? MESSAGE : "\"prompt\":\"the cat\"", members,
             stream ? ",\"stream\":true" : "");
    begin(x, chat, body);
    prompts[0] = scored();
    for (unsigned i = 0; i < n; i++) take(x, outputs[i]);
    openai_answer_finish(x->a, &x->out);
    openai_answer_destroy(x->a);
}

static void check_same_text(answer_fixture *x, bool chat, const char *members,
                            const generation_output *outputs, unsigned n)
{
    strbuf joined = {0};
    unsigned frames;
    play(x, chat, true, members, outputs, n);
    join_frames(&x->out, chat, &joined, &frames);
    assert_int_equal(frames, n);
    play(x, chat, false, members, outputs, n);
    json_t *doc = json_loads(x->out.data, JSON_REJECT_DUPLICATES, NULL);
    const json_t *c = json_array_get(json_object_get(doc, "choices"), 0);
    const json_t *t = chat ? json_object_get(json_object_get(c, "message"), "content")
                           : json_object_get(c, "text");
    assert_string_equal(joined.data ? joined.data : "", json_string_value(t));
    json_decref(doc);
    strbuf_destroy(&joined);
}

static void streamed_text_is_the_whole_text(void **state)
{
    static const char *const texts[] = {"",   "a", "\n", "\"\\", "\xc3\xb6", "\xf0\x9f\x8c\x8d",
                                        "\t/"};
    static const char *const members[] = {"", ",\"echo\":true", ",\"return_token_ids\":true",
                                          ",\"logprobs\":1,\"echo\":true"};
    answer_fixture *x = *state;
    rng r = rng_seed(7);
    for (int round = 0; round < 300; round++) {
        generation_output outputs[12];
        unsigned n = 1 + rng_u32(&r) % 12, way = rng_u32(&r) % 5;
        for (unsigned i = 0; i < n; i++)
            outputs[i] = with_top(token(0, rng_u32(&r) % 1030, texts[rng_u32(&r) % 7]),
                                  rng_u32(&r) % 1030, -1);
        outputs[n - 1] = with_end(outputs[n - 1], ENGINE_FINISH_STOP, n);
        check_same_text(x, way == 4, way == 4 ? ",\"logprobs\":true" : members[way], outputs, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_completion),
        cmocka_unit_test(a_streamed_completion),
        cmocka_unit_test(choices_of_several_prompts),
        cmocka_unit_test(completion_logprobs_with_offsets),
        cmocka_unit_test(logprobs_name_tokens_by_their_ids),
        cmocka_unit_test(echo_comes_first_and_is_scored),
        cmocka_unit_test(an_added_bos_takes_no_room),
        cmocka_unit_test(a_scored_prompt),
        cmocka_unit_test(prompt_logprobs_by_their_own_name),
        cmocka_unit_test(token_ids_and_retention),
        cmocka_unit_test(progress_comes_before_the_tokens),
        cmocka_unit_test(a_whole_chat),
        cmocka_unit_test(a_streamed_chat),
        cmocka_unit_test(an_end_of_its_own),
        cmocka_unit_test(an_error_is_the_whole_body),
        cmocka_unit_test(an_error_ends_the_stream),
        cmocka_unit_test(a_body_that_grows_too_long),
        cmocka_unit_test(streamed_text_is_the_whole_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
