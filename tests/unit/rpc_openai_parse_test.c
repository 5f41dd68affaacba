/* OpenAI's request bodies: what is accepted and what it means, and what is refused, by field. */
#include "rpc/openai/reasoning.h"
#include "rpc/openai/tools/tools.h"
#include "tests/unit/rpc_openai_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int setup(void **state)
{
    openai_fixture *f = malloc(sizeof *f);
    error err = {{0}};
    if (!f || !status_ok(openai_fixture_open(f, &err))) fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    openai_fixture_close(*state);
    free(*state);
    return 0;
}

static openai_call parse(void **state, bool chat, const char *body)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    bool ok = chat ? openai_parse_chat(&f->service, body, strlen(body), &c, &e)
                   : openai_parse_completion(&f->service, body, strlen(body), &c, &e);
    if (!ok) fail_msg("%s: %s", body, e.message);
    return c;
}

static openai_error refuse(void **state, bool chat, const char *body, size_t n)
{
    openai_fixture *f = *state;
    openai_call c;
    openai_error e = {0};
    bool ok = chat ? openai_parse_chat(&f->service, body, n, &c, &e)
                   : openai_parse_completion(&f->service, body, n, &c, &e);
    if (ok) fail_msg("taken: %s", body);
    assert_null(c.requests);
    return e;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void prompts_of_each_form(void **state)
{
    openai_call c = parse(state, false, "{\"model\": \"demo\", \"prompt\": \"a\\u0000b\"}");
    assert_int_equal(c.n_requests, 1);
    assert_int_equal(c.n_choices, 1);
    assert_string_equal(c.model, "demo");
    assert_int_equal(c.requests[0].prompt_bytes, 3);
    assert_memory_equal(c.requests[0].prompt, "a\0b", 4);
    assert_int_equal(c.requests[0].max_tokens, 0);
    assert_int_equal(c.requests[0].open_max_tokens, 16);
    openai_call_destroy(&c);

    c = parse(state, false, "{\"prompt\": [\"one\", \"two\"], \"n\": 3, \"max_tokens\": 7}");
    assert_string_equal(c.model, "demo");
    assert_int_equal(c.n_requests, 2);
    assert_int_equal(c.n_choices, 3);
    assert_string_equal(c.requests[1].prompt, "two");
    assert_int_equal(c.requests[0].max_tokens, 7);
    assert_int_equal(c.requests[1].max_tokens, 7);
    openai_call_destroy(&c);

    c = parse(state, false, "{\"model\": \"also/demo\", \"prompt\": [5, 6, 7]}");
    assert_string_equal(c.model, "also/demo");
    assert_int_equal(c.n_requests, 1);
    assert_int_equal(c.requests[0].n_prompt_token_ids, 3);
    assert_int_equal(c.requests[0].prompt_token_ids[2], 7);
    openai_call_destroy(&c);

    c = parse(state, false, "{\"prompt\": [[5, 6], [8]], \"stop\": [\"x\", \"y\"]}");
    assert_int_equal(c.n_requests, 2);
    assert_int_equal(c.requests[0].n_prompt_token_ids, 2);
    assert_int_equal(c.requests[1].prompt_token_ids[0], 8);
    assert_string_equal(c.requests[1].stop[1], "y");
    openai_call_destroy(&c);
}

static void a_benchmark_clients_bodies(void **state)
{
    openai_call c =
        parse(state, false,
              "{\"model\": \"demo\", \"prompt\": \"x\", \"repetition_penalty\": 1.0, "
              "\"max_tokens\": 128, \"logprobs\": null, \"stream\": true, \"temperature\": 0.0, "
              "\"stream_options\": {\"include_usage\": true}, \"ignore_eos\": true}");
    assert_true(c.stream && c.include_usage && !c.continuous_usage && !c.logprobs && !c.echo);
    assert_int_equal(c.requests[0].max_tokens, 128);
    assert_int_equal(c.requests[0].logprobs, -1);
    assert_true(c.requests[0].ignore_eos);
    openai_call_destroy(&c);

    c = parse(state, true,
              "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
              "\"x\"}]}], \"max_completion_tokens\": 9, \"stream\": true, "
              "\"stream_options\": {\"include_usage\": true, \"continuous_usage_stats\": true}}");
    assert_true(c.chat && c.stream && c.include_usage && c.continuous_usage);
    assert_int_equal(c.requests[0].max_tokens, 9);
    assert_int_equal(json_array_size(c.requests[0].messages), 1);
    openai_call_destroy(&c);
}

#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"

static void logprobs_of_each_endpoint(void **state)
{
    openai_call c = parse(state, false, "{\"prompt\": \"x\", \"logprobs\": 0}");
    assert_true(c.logprobs);
    assert_int_equal(c.requests[0].logprobs, 0);
    assert_int_equal(c.requests[0].prompt_logprobs, -1);
    openai_call_destroy(&c);

    c = parse(state, false, "{\"prompt\": \"x\", \"logprobs\": 3, \"echo\": true}");
    assert_true(c.logprobs && c.echo);
    assert_int_equal(c.requests[0].prompt_logprobs, 3);
    assert_int_equal(c.prompt_logprobs, -1);
    openai_call_destroy(&c);

    c = parse(state, true, "{" MESSAGES ", \"logprobs\": true, \"top_logprobs\": 4}");
    assert_true(c.logprobs);
    assert_int_equal(c.requests[0].logprobs, 4);
    openai_call_destroy(&c);

    c = parse(state, true, "{" MESSAGES ", \"logprobs\": false, \"top_logprobs\": 0}");
    assert_false(c.logprobs);
    assert_int_equal(c.requests[0].logprobs, -1);
    openai_call_destroy(&c);
}

static void prompts_are_scored(void **state)
{
    openai_call c = parse(
        state, false, "{\"prompt\": \"x\", \"logprobs\": 1, \"echo\": true, \"max_tokens\": 0}");
    assert_true(c.requests[0].score_only);
    assert_int_equal(c.requests[0].prompt_logprobs, 1);
    openai_call_destroy(&c);

    c = parse(state, false, "{\"prompt\": \"x\", \"echo\": true, \"max_tokens\": 0}");
    assert_true(c.requests[0].score_only);
    assert_int_equal(c.requests[0].prompt_logprobs, 0);
    assert_int_equal(c.prompt_logprobs, -1);
    openai_call_destroy(&c);

    c = parse(state, false,
              "{\"prompt\": \"x\", \"echo\": true, \"logprobs\": 4, \"prompt_logprobs\": 2}");
    assert_int_equal(c.requests[0].prompt_logprobs, 4);
    assert_int_equal(c.prompt_logprobs, 2);
    openai_call_destroy(&c);

    c = parse(state, true, "{" MESSAGES ", \"prompt_logprobs\": 2, \"max_tokens\": 0}");
    assert_int_equal(c.prompt_logprobs, 2);
    openai_call_destroy(&c);
}

static void tools_reach_the_template_unless_hidden(void **state)
{
    service *s = &((openai_fixture *)*state)->service;
    s->leaves_calls = true;
    openai_call c = parse(state, true, "{" MESSAGES ", \"tools\": [{\"type\": \"function\"}]}");
    assert_int_equal(json_array_size(c.requests[0].tools), 1);
    assert_int_equal(c.requests[0].max_tokens, 0);
    openai_call_destroy(&c);
    c = parse(state, true,
              "{" MESSAGES ", \"tools\": [{\"type\": \"function\"}], \"tool_choice\": \"none\"}");
    assert_null(c.requests[0].tools);
    openai_call_destroy(&c);
    c = parse(state, true, "{" MESSAGES ", \"tools\": [], \"tool_choice\": \"auto\"}");
    assert_null(c.requests[0].tools);
    openai_call_destroy(&c);
    s->leaves_calls = false;
}

/* The marks of most formats are special tokens, which the text must show then. */
/* The template may begin reasoning in the prompt, so the reader would take a form for that. */
static void an_answer_held_to_a_form_has_no_reasoning(void **state)
{
    service *s = &((openai_fixture *)*state)->service;
    s->reasoning_parser = reasoning_parser_find("qwen3");
    openai_call c = parse(state, true, "{" MESSAGES ", \"response_format\": {\"type\": \"text\"}}");
    assert_ptr_equal(c.reasoning, s->reasoning_parser);
    openai_call_destroy(&c);
    c = parse(state, true, "{" MESSAGES ", \"response_format\": {\"type\": \"json_object\"}}");
    assert_null(c.reasoning);
    openai_call_destroy(&c);
    c = parse(state, true, "{" MESSAGES ", \"guided_choice\": [\"yes\", \"no\"]}");
    assert_null(c.reasoning);
    openai_call_destroy(&c);
    s->reasoning_parser = NULL;
}

static void calls_are_parsed_where_their_format_is_known(void **state)
{
    service *s = &((openai_fixture *)*state)->service;
    static const char tools[] = "\"tools\": [{\"type\": \"function\"}]";
    strbuf body = {0};
    openai_call c;
    openai_error e = {0};
    strbuf_printf(&body, "{" MESSAGES ", %s, \"parallel_tool_calls\": false}", tools);
    const chat_template *demo = s->o.model.chat; /* the engine refuses tools for it */
    s->o.model.chat = NULL;
    assert_false(openai_parse_chat(s, body.data, body.size, &c, &e));
    s->o.model.chat = demo;
    assert_string_equal(e.param, "tools");
    assert_non_null(strstr(e.message, "--tool-call-parser"));
    s->tool_parser = tool_parser_find("mistral");
    c = parse(state, true, body.data);
    assert_ptr_equal(c.tools, s->tool_parser);
    assert_true(c.one_call);
    assert_false(c.requests[0].skip_special_tokens);
    openai_call_destroy(&c);
    c = parse(state, true, "{" MESSAGES "}");
    assert_null(c.tools);
    assert_true(c.requests[0].skip_special_tokens);
    openai_call_destroy(&c);
    s->tool_parser = NULL;
    strbuf_destroy(&body);
}

/* Accepted: values that ask for what is done anyway. */
static void harmless_values_are_taken(void **state)
{
    static const char *const fields[] = {
        "\"user\": \"me\"",
        "\"safety_identifier\": \"me\"",
        "\"prompt_cache_key\": \"k\"",
        "\"metadata\": {\"a\": \"b\"}",
        "\"store\": false",
        "\"service_tier\": \"auto\"",
        "\"best_of\": 1",
        "\"best_of\": null",
        "\"response_format\": {\"type\": \"text\"}",
        "\"use_beam_search\": false",
        "\"length_penalty\": 1.0",
        "\"guided_json\": null",
        "\"session\": null",
        "\"session\": \"abc\"",
        "\"truncate_prompt_tokens\": null",
        "\"truncate_prompt_tokens\": -1",
        "\"bad_words\": []",
        "\"stream\": false, \"stream_options\": null",
        "\"logit_bias\": {\"5\": -100}",
        "\"stop\": null, \"n\": null, \"seed\": null, \"max_tokens\": null",
        "\"return_token_ids\": true",
        "\"request_id\": \"0123456789abcdef\"",
        "\"progress\": false",
        "\"stream\": true, \"progress\": true",
        "\"prompt_cache_retention\": \"24h\"",
        "\"suffix\": null, \"tools\": null, \"nobody_knows\": null",
    };
    char body[256];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"x\", %s}", fields[i]);
        openai_call c = parse(state, false, body);
        openai_call_destroy(&c);
        snprintf(body, sizeof body, "{" MESSAGES ", %s}", fields[i]);
        c = parse(state, true, body);
        openai_call_destroy(&c);
    }
    openai_call c = parse(state, true,
                          "{" MESSAGES ", \"modalities\": [\"text\"], \"parallel_tool_calls\": "
                          "true, \"add_generation_prompt\": true, \"echo\": false, "
                          "\"continue_final_message\": false, \"add_special_tokens\": false, "
                          "\"reasoning_effort\": \"none\", \"include_reasoning\": true, "
                          "\"max_tokens\": 5, \"max_completion_tokens\": 5}");
    openai_call_destroy(&c);
}

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *body; // a '\'' stands for '"'
    const char *param, *message;
} refusal;

#define P "'prompt': 'x', "

#define ID_32   "0123456789abcdef0123456789abcdef"
#define LONG_ID ID_32 ID_32 ID_32 ID_32

static const refusal completions[] = {
    {"", "", "body: line 1"},
    {"{'prompt': 'x'", "", "body: line 1"},
    {"{'prompt': 'x', 'prompt': 'y'}", "", "duplicate"},
    {"[]", "", "must be a JSON object"},
    {"'x'", "", "must be a JSON object"},
    {"{}", "prompt", "must be given"},
    {"{'prompt': null}", "prompt", "must be given"},
    {"{'prompt': []}", "prompt", "empty"},
    {"{'prompt': 7}", "prompt", "must be a string"},
    {"{'prompt': {}}", "prompt", "must be a string"},
    {"{'prompt': [[]]}", "prompt", "no tokens"},
    {"{'prompt': ['x', 5]}", "prompt", "must be a string"},
    {"{'prompt': [5, 'x']}", "prompt", "item 1"},
    {"{'prompt': [[5, -1]]}", "prompt", "item 1"},
    {"{'prompt': [99999999999]}", "prompt", "item 0"},
    {"{'prompt': ['1','2','3','4','5','6','7','8','9']}", "prompt", "at most 8"},
    {"{'model': 'other', 'prompt': 'x'}", "model", "The model `other` does not exist."},
    {"{'model': 'demo\\u0000', 'prompt': 'x'}", "model", "does not exist"},
    {"{'model': 5, 'prompt': 'x'}", "model", "must be a string"},
    {"{" P "'tempratur': 1}", "tempratur", "unknown field"},
    {"{" P "'messages': []}", "messages", "unknown field"},
    {"{" P "'prompt_token_ids': [1]}", "prompt_token_ids", "unknown field"},
    {"{" P "'max_tokens': 5, 'max_completion_tokens': 4}", "max_completion_tokens", "differs"},
    {"{" P "'top_logprobs': 4}", "top_logprobs", "unknown field"},
    {"{" P "'stream': 1}", "stream", "true or false"},
    {"{" P "'stream_options': {'include_usage': true}}", "stream_options", "when stream is true"},
    {"{" P "'stream': false, 'stream_options': {}}", "stream_options", "when stream is true"},
    {"{" P "'stream': true, 'stream_options': {'include_usage': 1}}",
     "stream_options.include_usage", "true or false"},
    {"{" P "'stream': true, 'stream_options': {'other': true}}", "stream_options.other",
     "not supported"},
    {"{" P "'stream': true, 'stream_options': 3}", "stream_options", "object"},
    {"{" P "'logprobs': true}", "logprobs", "0 .. 20"},
    {"{" P "'logprobs': 21}", "logprobs", "0 .. 20"},
    {"{" P "'logprobs': -1}", "logprobs", "0 .. 20"},
    {"{" P "'echo': 'yes'}", "echo", "true or false"},
    {"{" P "'temperature': 'hot'}", "temperature", "number"},
    {"{" P "'max_tokens': 1.5}", "max_tokens", "integer"},
    {"{" P "'max_tokens': -1}", "max_tokens", "integer"},
    {"{" P "'max_tokens': 0}", "max_tokens", "needs echo or prompt_logprobs"},
    {"{" P "'stream': true, 'prompt_logprobs': 0}", "prompt_logprobs", "streamed"},
    {"{" P "'n': 0}", "n", "1 or more"},
    {"{" P "'n': 1025}", "n", "1024 choices"},
    {"{" P "'n': 2147483647}", "n", "1024 choices"},
    {"{" P "'seed': 'x'}", "seed", "integer"},
    {"{" P "'stop': 5}", "stop", "string"},
    {"{" P "'logit_bias': {'x': 1}}", "logit_bias", "token id"},
    {"{" P "'best_of': 0}", "best_of", "an integer in n .. 8"},
    {"{" P "'best_of': 9}", "best_of", "an integer in n .. 8"},
    {"{" P "'n': 2, 'best_of': 1}", "best_of", "an integer in n .. 8"},
    {"{" P "'best_of': 2.0}", "best_of", "an integer in n .. 8"},
    {"{" P "'stream': true, 'best_of': 2}", "best_of", "must equal n in a stream"},
    {"{" P "'suffix': 'end'}", "suffix", "only [\"\"]"},
    {"{" P "'store': true}", "store", "only"},
    {"{" P "'service_tier': 'flex'}", "service_tier", "only"},
    {"{" P "'user': 5}", "user", "string"},
    {"{" P "'metadata': 'x'}", "metadata", "object"},
    {"{" P "'session': ''}", "session", "1 to 256 bytes"},
    {"{" P "'session': 'a\\u0000b'}", "session", "NUL"},
    {"{" P "'session': 5}", "session", "string"},
    {"{" P "'truncate_prompt_tokens': 0}", "truncate_prompt_tokens", "1 or more, or -1"},
    {"{" P "'truncate_prompt_tokens': -2}", "truncate_prompt_tokens", "1 or more, or -1"},
    {"{" P "'truncate_prompt_tokens': 1.5}", "truncate_prompt_tokens", "1 or more, or -1"},
    {"{" P "'truncate_prompt_tokens': 5, 'echo': true}", "truncate_prompt_tokens", "echo"},
    {"{" P "'guided_regex': ''}", "guided_regex", "not empty"},
    {"{" P "'guided_regex': 'a', 'grammar': 'x'}", "grammar", "already"},
    {"{" P "'guided_whitespace_pattern': ' *'}", "guided_whitespace_pattern", "not supported"},
    {"{" P "'structured_outputs': {}}", "structured_outputs", "one form"},
    {"{" P "'structured_outputs': {'regex': 'a', 'json': {}}}", "structured_outputs", "one form"},
    {"{" P "'structured_outputs': {'structural_tag': 'x'}}", "structured_outputs",
     "structural_tag"},
    {"{" P "'response_format': {'type': 'xml'}}", "response_format.type", "json_schema"},
    {"{" P "'response_format': {'type': 'text\\u0000x'}}", "response_format", "without NUL"},
    {"{" P "'service_tier': 'auto\\u0000x'}", "service_tier", "only"},
    {"{" P "'stop': 'a\\u0000b'}", "stop", "no NUL"},
    {"{" P "'stop': ['a', '\\u0000']}", "stop", "no NUL"},
    {"{" P "'retention': 'full\\u0000'}", "retention", "NUL"},
    {"{" P "'response_format': {'type': 'json_schema'}}", "response_format.json_schema", "schema"},
    {"{" P "'use_beam_search': true}", "use_beam_search", "only [false]"},
    {"{" P "'retention': 'chunkkv'}", "retention", "METHOD:RATIO"},
    {"{" P "'retention': 0.25}", "retention", "an object or METHOD:RATIO"},
    {"{" P "'retrieval': ['quest']}", "retrieval", "an object, METHOD or METHOD:TOKENS"},
    {"{" P "'retrieval': 'quest:0'}", "retrieval", "METHOD:TOKENS"},
    {"{" P "'return_token_ids': 'x'}", "return_token_ids", "true or false"},
    {"{" P "'request_id': ''}", "request_id", "1 to 128 visible"},
    {"{" P "'request_id': 5}", "request_id", "1 to 128 visible"},
    {"{" P "'request_id': 'a b'}", "request_id", "no blank"},
    {"{" P "'request_id': 'a\\u0000'}", "request_id", "no blank"},
    {"{" P "'request_id': 'a\\r\\nx: y'}", "request_id", "no blank"},
    {"{" P "'request_id': '" LONG_ID "5'}", "request_id", "1 to 128 visible"},
    {"{" P "'return_tokens_as_token_ids': 1}", "return_tokens_as_token_ids", "true or false"},
    {"{" P "'stream': true, 'progress': 1}", "progress", "true or false"},
    {"{" P "'progress': true}", "progress", "when stream is"},
};

#define M "'messages': [{'role': 'user', 'content': 'x'}], "

static const refusal chats[] = {
    {"{}", "messages", "must be given"},
    {"{'messages': 'x'}", "messages", "list"},
    {"{" M "'prompt': 'x'}", "prompt", "unknown field"},
    {"{" M "'logprobs': 1}", "logprobs", "true or false"},
    {"{" M "'top_logprobs': 2}", "top_logprobs", "needs logprobs"},
    {"{" M "'logprobs': true, 'top_logprobs': 21}", "top_logprobs", "0 .. 20"},
    {"{" M "'max_tokens': 5, 'max_completion_tokens': 6}", "max_completion_tokens", "differs"},
    {"{" M "'tool_choice': 'required'}", "tool_choice", "needs tools"},
    {"{" M "'tool_choice': {'type': 'function', 'function': {'name': 'f'}}}", "tool_choice",
     "needs tools"},
    {"{" M "'tool_choice': 'bananas'}", "tool_choice", "must be"},
    {"{" M "'tool_choice': 'auto\\u0000x'}", "tool_choice", "must be"},
    {"{" M "'tool_choice': 'none\\u0000x'}", "tool_choice", "must be"},
    {"{" M "'tool_choice': {'type': 'function'}}", "tool_choice", "must be"},
    {"{" M "'tools': {}}", "tools", "list"},
    {"{" M "'parallel_tool_calls': 1}", "parallel_tool_calls", "true or false"},
    {"{" M "'modalities': ['text', 'audio']}", "modalities", "only"},
    {"{" M "'add_generation_prompt': 1}", "add_generation_prompt", "true or false"},
    {"{" M "'chat_template_kwargs': [1]}", "chat_template_kwargs", "an object"},
    {"{" M "'chat_template': 'x'}", "chat_template", "--trust-request-chat-template"},
    {"{" M "'documents': {}}", "documents", "a list"},
    {"{" M "'documents': [{}]}", "documents", "no such variable"},
    {"{" M "'reasoning_effort': 1}", "reasoning_effort", "a string"},
    {"{" M "'reasoning_effort': 'none\\u0000x'}", "reasoning_effort", "without NUL"},
    {"{" M "'echo': true}", "echo", "only [false]"},
    {"{" M "'add_special_tokens': true}", "add_special_tokens", "only [false]"},
    {"{" M "'max_tokens': 0}", "max_tokens", "needs echo or prompt_logprobs"},
    {"{" M "'suffix': ''}", "suffix", "unknown field"},
    {"{" M "'n': 2000}", "n", "1024 choices"},
    {"{" M "'reasoning_effort': 'low'}", "reasoning_effort", "no such variable"},
};

static void quote(const char *from, char *to, size_t size)
{
    snprintf(to, size, "%s", from);
    for (; *to; to++)
        if (*to == '\'') *to = '"';
}

static void check_refusals(void **state, bool chat, const refusal *rows, size_t n)
{
    char body[512];
    for (size_t i = 0; i < n; i++) {
        quote(rows[i].body, body, sizeof body);
        openai_error e = refuse(state, chat, body, strlen(body));
        bool unknown_model = strstr(rows[i].message, "not exist");
        if (e.status != (unknown_model ? 404 : 400) || strcmp(e.param, rows[i].param) != 0 ||
            !strstr(e.message, rows[i].message))
            fail_msg("%s: %u param '%s' message '%s'", body, e.status, e.param, e.message);
        assert_string_equal(e.type, unknown_model ? "NotFoundError" : "BadRequestError");
        assert_int_equal(e.retry_after_s, 0);
    }
}

static void completions_are_refused_by_name(void **state)
{
    check_refusals(state, false, completions, sizeof completions / sizeof completions[0]);
}

static void chats_are_refused_by_name(void **state)
{
    check_refusals(state, true, chats, sizeof chats / sizeof chats[0]);
}

/* Limits on nesting, and on prompts that would each copy something long. */
/* A prompt of token ids may be as long as --max-logical-len allows. */
static void the_longest_prompts_of_ids(void **state)
{
    enum { LOGICAL = 1 << 22, MORE = 1 << 20 };
    strbuf body = {0};
    strbuf_puts(&body, "{\"prompt\": [");
    for (int i = 1; i < LOGICAL; i++) strbuf_puts(&body, "7,");
    size_t open = body.size;
    strbuf_puts(&body, "9]}");
    openai_call c = parse(state, false, body.data);
    assert_int_equal(c.requests[0].n_prompt_token_ids, LOGICAL);
    assert_int_equal(c.requests[0].prompt_token_ids[LOGICAL - 2], 7);
    assert_int_equal(c.requests[0].prompt_token_ids[LOGICAL - 1], 9);
    openai_call_destroy(&c);
    body.size = open;
    for (int i = 0; i <= MORE + 1; i++) strbuf_puts(&body, "7,");
    strbuf_puts(&body, "7]}");
    openai_error e = refuse(state, false, body.data, body.size);
    assert_non_null(strstr(e.message, "5242880 values"));
    strbuf_destroy(&body);
}

static void bodies_are_capped(void **state)
{
    strbuf body = {0};
    strbuf answer = {0};
    strbuf_puts(&body, "{\"prompt\": ");
    for (int i = 0; i < 100000; i++) strbuf_putc(&body, '[');
    openai_error e = refuse(state, false, body.data, body.size);
    assert_int_equal(e.status, 400);

    strbuf_clear(&body);
    static const char *const shared[] = {"cache_salt", "guided_regex"};
    for (size_t field = 0; field < sizeof shared / sizeof shared[0]; field++) {
        strbuf_clear(&body);
        strbuf_printf(&body, "{\"prompt\": [\"a\", \"b\", \"c\", \"d\"], \"%s\": \"",
                      shared[field]);
        for (int i = 0; i < 5 * 1024 * 1024; i++) strbuf_putc(&body, 'x');
        strbuf_puts(&body, "\"}");
        e = refuse(state, false, body.data, body.size);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "prompt");
    }

    /* Few bytes that would take much memory; inside a string they are only text. */
    strbuf_clear(&body);
    strbuf_puts(&body, "{\"prompt\": \"x\", \"metadata\": {\"a\": [");
    for (int i = 0; i < 70000; i++) strbuf_puts(&body, "{},");
    strbuf_puts(&body, "{}]}}");
    e = refuse(state, false, body.data, body.size);
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "65536 objects and lists"));
    strbuf_clear(&body);
    strbuf_puts(&body, "{\"prompt\": [");
    for (int i = 0; i < 1 << 20; i++) strbuf_puts(&body, "\"\",");
    strbuf_puts(&body, "\"\"]}");
    e = refuse(state, false, body.data, body.size);
    assert_non_null(strstr(e.message, "1048576 strings"));
    strbuf_clear(&body);
    strbuf_puts(&body, "{\"prompt\": \"\\\"");
    for (int i = 0; i < 1 << 20; i++) strbuf_puts(&body, "[,");
    strbuf_puts(&body, "\\\\\"}");
    openai_call c = parse(state, false, body.data);
    openai_call_destroy(&c);

    /* Text that is tokenized on the spot is bounded, so that other requests do not wait long. */
    strbuf_clear(&body);
    strbuf_puts(&body, "{\"prompt\": \"");
    while (body.size < (1 << 18) - 2) strbuf_putc(&body, 'x');
    strbuf_puts(&body, "\"}");
    openai_fixture *f = *state;
    assert_true(openai_tokenize(&f->service, body.data, body.size, &answer, &e));
    strbuf_putc(&body, ' ');
    assert_false(openai_tokenize(&f->service, body.data, body.size, &answer, &e));
    assert_int_equal(e.status, 400);
    assert_non_null(strstr(e.message, "262144"));
    strbuf_destroy(&answer);
    strbuf_destroy(&body);
}

/* ---- errors of the engine -------------------------------------------------------------------- */

static void errors_have_a_status_a_type_and_a_field(void **state)
{
    static const struct {
        status_code code;
        unsigned status;
        const char *text, *type, *param, *message;
    } rows[] = {
        {STATUS_INVALID, 400, "n: 9 is not in 1 .. 8", "BadRequestError", "n",
         "n: 9 is not in 1 .. 8"},
        {STATUS_INVALID, 400, "request: top_p: must be", "BadRequestError", "top_p",
         "top_p: must be"},
        {STATUS_UNSUPPORTED, 400, "messages[0].content[1]: only", "BadRequestError",
         "messages[0].content[1]", "messages[0].content[1]: only"},
        {STATUS_INVALID, 400, "retention.ratio is 0: must", "BadRequestError", "retention.ratio",
         "retention.ratio is 0: must"},
        {STATUS_INVALID, 400, "retention: \"ratio\" is 2, must be", "BadRequestError",
         "retention.ratio", "retention: \"ratio\" is 2, must be"},
        {STATUS_INVALID, 400, "retention.pool: \"kind\" must be a", "BadRequestError",
         "retention.pool.kind", "retention.pool: \"kind\" must be a"},
        {STATUS_LIMIT, 400, "prompt: 9 tokens; the maximum context length is 8", "BadRequestError",
         "input_tokens", "This model's maximum context length is 8 tokens; prompt: 9 tokens"},
        {STATUS_LIMIT, 400, "request: prompt: a list has at most 8", "BadRequestError", "prompt",
         "prompt: a list has at most 8"},
        {STATUS_INVALID, 400, "prompt: has no tokens", "BadRequestError", "prompt",
         "prompt: has no tokens"},
        {STATUS_LIMIT, 400, "needs 9 KV pages, the pool has 5: shorten", "BadRequestError", "",
         "needs 9 KV pages, the pool has 5: shorten"},
        {STATUS_QUEUE_FULL, 503, "8 requests are waiting", "ServiceUnavailableError", "",
         "8 requests are waiting"},
        {STATUS_UNAVAILABLE, 503, "draining", "ServiceUnavailableError", "", "draining"},
        {STATUS_NO_MEMORY, 503, "request: out of memory", "ServiceUnavailableError", "",
         "out of memory"},
        {STATUS_INTERNAL, 500, "", "InternalServerError", "", "internal error"},
    };
    openai_fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        openai_error e;
        error err;
        snprintf(err.text, sizeof err.text, "%s", rows[i].text);
        openai_error_from(&f->service, status_make(rows[i].code, NULL), &err, &e);
        assert_int_equal(e.status, rows[i].status);
        assert_string_equal(e.type, rows[i].type);
        assert_string_equal(e.param, rows[i].param);
        assert_string_equal(e.message, rows[i].message);
        bool overflow = strstr(e.message, "maximum context length") != NULL;
        assert_string_equal(e.code ? e.code : "", overflow ? "context_length_exceeded" : "");
        assert_int_equal(e.retry_after_s > 0, rows[i].status == 503);
    }
}

/* The message may name the field that the param's last member is in. */
static void names_are_those_of_the_api(void **state)
{
    (void)state;
    static const openai_name names[] = {
        {"form", "text.form", true}, {".function", ".own", false}, {NULL, NULL, false}};
    static const char *const rows[][4] = {
        {"form.type", "form: \"type\" must", "text.form", "text.form: \"type\" must"},
        {"form.type", "form.type: must", "text.form", "text.form: must"},
        {"tools[0].function.name", "tools[0].function: \"name\" must", "tools[0].own.name",
         "tools[0].own: \"name\" must"},
        {"tools[0].function", "tools[0]: \"function\" must", "tools[0].own",
         "tools[0]: \"function\" must"},
        {"form", "Another text", "text.form", "Another text"},
        {"form", "other: must", "text.form", "other: must"},
        {"form", "unknown field 'form'", "form", "unknown field 'form'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        openai_error e = {0};
        snprintf(e.param, sizeof e.param, "%s", rows[i][0]);
        snprintf(e.message, sizeof e.message, "%s", rows[i][1]);
        openai_rename(names, &e);
        assert_string_equal(e.param, rows[i][2]);
        assert_string_equal(e.message, rows[i][3]);
    }
}

static void errors_have_the_place_of_the_prompt(void **state)
{
    static const struct {
        const char *name, *text, *alone, *third; // of one prompt, and of the third of five
    } rows[] = {
        {"prompt", "prompt: has no tokens", "prompt|prompt: has no tokens",
         "prompt[2]|prompt[2]: has no tokens"},
        {"prompt", "prompt_token_ids[7]: 9 is outside", "prompt[7]|prompt[7]: 9 is outside",
         "prompt[2][7]|prompt[2][7]: 9 is outside"},
        {"prompt", "prompt: 9 tokens; the maximum context length is 8",
         "input_tokens|This model's maximum context length is 8 tokens; prompt: 9 tokens",
         "input_tokens|This model's maximum context length is 8 tokens; prompt[2]: 9 tokens"},
        {"input", "prompt: 9 tokens; the maximum context length is 8",
         "input_tokens|This model's maximum context length is 8 tokens; input: 9 tokens",
         "input_tokens|This model's maximum context length is 8 tokens; input[2]: 9 tokens"},
        {"prompt", "prompt_logprobs: must be", "prompt_logprobs|prompt_logprobs: must be",
         "prompt_logprobs|prompt_logprobs: must be"},
        {"prompt", "n: 8 tokens; prompt: 3", "n|n: 8 tokens; prompt: 3",
         "n|n: 8 tokens; prompt: 3"},
    };
    openai_fixture *f = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (uint32_t n = 1; n <= 5; n += 4) {
            openai_error e;
            error err;
            char got[640];
            snprintf(err.text, sizeof err.text, "%s", rows[i].text);
            status_code code = strstr(rows[i].text, "maximum") ? STATUS_LIMIT : STATUS_INVALID;
            openai_error_from(&f->service, status_make(code, NULL), &err, &e);
            openai_place_prompt(rows[i].name, n, n / 2, &e);
            snprintf(got, sizeof got, "%s|%s", e.param, e.message);
            assert_string_equal(got, n == 1 ? rows[i].alone : rows[i].third);
        }
}

static void error_bodies(void **state)
{
    (void)state;
    openai_error e = {.status = 400, .type = "BadRequestError", .param = "n", .message = "a \"b\""};
    strbuf out = {0};
    openai_error_json(&e, &out);
    assert_string_equal(out.data, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
                                  "\"BadRequestError\",\"param\":\"n\",\"code\":400}}");
    strbuf_clear(&out);
    e.param[0] = '\0';
    openai_error_json(&e, &out);
    assert_string_equal(out.data, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":"
                                  "\"BadRequestError\",\"param\":null,\"code\":400}}");
    strbuf_destroy(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_each_form),
        cmocka_unit_test(a_benchmark_clients_bodies),
        cmocka_unit_test(logprobs_of_each_endpoint),
        cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(tools_reach_the_template_unless_hidden),
        cmocka_unit_test(an_answer_held_to_a_form_has_no_reasoning),
        cmocka_unit_test(calls_are_parsed_where_their_format_is_known),
        cmocka_unit_test(harmless_values_are_taken),
        cmocka_unit_test(completions_are_refused_by_name),
        cmocka_unit_test(chats_are_refused_by_name),
        cmocka_unit_test(bodies_are_capped),
        cmocka_unit_test(errors_have_a_status_a_type_and_a_field),
        cmocka_unit_test(names_are_those_of_the_api),
        cmocka_unit_test(errors_have_the_place_of_the_prompt),
        cmocka_unit_test(error_bodies),
        cmocka_unit_test(the_longest_prompts_of_ids),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
