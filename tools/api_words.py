"""What docs/api.md says about names whose tables in the source hold no sentence. make_api_page.py
refuses a name of the source that has no sentence here, and a sentence whose name is gone. $NAME is
the value of a constant of the source."""

# What only some surfaces do with an engine field, after the sentence of its row.
FIELD_NOTES = {
    "max_tokens": "Completions: $COMPLETION_MAX_TOKENS by default, and `echo` does for 0, too.",
    "prompt_logprobs": "Over HTTP not with `stream`.",
}

# Where octavo.v1 and VllmEngine have an engine field under another name.
OTHER_NAMES = {
    "octavo": {"messages": "chat", "tools": "chat.tools_json", "prompt_token_ids": "token_ids",
               "retention": "retention_json", "retrieval": "retrieval_json",
               "structured_outputs": "structured_outputs_json"},
    "vllm": {"prompt": "text", "prompt_token_ids": "tokenized.input_ids",
             "retention": "metadata octavo-retention", "retrieval": "metadata octavo-retrieval",
             "session": "metadata octavo-session", "kv_transfer_params": "kv_transfer_params_json"},
}
# Engine fields that KServe refuses, because its prompt is a tensor and no tensor has logprobs.
NOT_KSERVE = {"prompt", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
              "continue_final_message", "prompt_token_ids", "logprobs", "top_logprobs", "prompt_logprobs",
              "kv_transfer_params"}

# Fields of HTTP bodies that are read by the HTTP endpoints themselves.
HTTP_FIELDS = {
    "model": ("string", "a served name", "the served model", "The model. GET /v1/models lists the names."),
    "stream": ("boolean", "", "false", "Sends server-sent events, one for each token, and at the end `data: [DONE]`; for "
               "responses and messages the events of these APIs."),
    "stream_options": ("object", "include_usage, continuous_usage_stats; include_obfuscation: false", "none",
                       "`include_usage` adds an event with the usage at the end, `continuous_usage_stats` adds the "
                       "usage so far to every event."),
    "return_token_ids": ("boolean", "", "false", "Adds `token_ids` to each choice, and `prompt_token_ids`."),
    "return_tokens_as_token_ids": ("boolean", "", "false",
                                   "Logprobs name tokens by their ids, as `token_id:5`, in place of their texts."),
    "request_id": ("string", "1 to 128 visible ASCII characters", "made by the server",
                   "The request's id, in the answer's `id` and its header `X-Request-Id`. The header of this name in "
                   "the request goes before it, and an id that a running request has is replaced."),
    "progress": ("boolean", "needs stream", "false",
                 "Events named `octavo.progress` tell how far a prompt that takes several steps is, at most ten times a "
                 "second."),
    "best_of": ("integer", "`n` to $ENGINE_N_MAX, at most --max-batch", "`n`",
                "Completions: generates so many choices and gives the `n` whose tokens have the greatest mean "
                "log-probability. `usage` counts all of them. More than `n` cannot be streamed."),
    "echo": ("boolean", "", "false", "Puts the prompt before the text of each choice."),
    "tool_choice": ("string or object", "auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": …}}",
                    "auto", "`none` does not pass the tools to the chat template. `required` holds the answer to calls "
                    "of the tools, and a function's name to one call of it, as [serving.md](docs/serving.md) says. A named "
                    "function is {\"type\": \"function\", \"name\": …} for responses; messages have {\"type\": …} with "
                    "auto, none, any or tool and its `name`, and `disable_parallel_tool_use`."),
    "reasoning_effort": ("string", "", "none", "The template's variable of this name. Refused where the template does "
                         "not read it, except `none`."),
    "documents": ("list of objects", "", "none", "The template's variable of this name; likewise."),
    "include_reasoning": ("boolean", "", "true", "False leaves `reasoning_content` out of the answer."),
    "parallel_tool_calls": ("boolean", "", "true", "False leaves all but the first tool call out of an answer; a forced answer has one then."),
    "input": ("string or list", "messages with text; function_call, function_call_output and reasoning items", "",
              "The conversation, or what is new of it. The role developer is the system's. Images, files and items of "
              "other types are refused by name. For embeddings: a text, a list of token ids, or a list of either."),
    "encoding_format": ("string", "float, base64", "float", "A list of numbers, or little-endian f32 in base64."),
    "dimensions": ("integer", "", "none", "Refused: the model's vectors cannot be shortened."),
    "pooling": ("string", "last, mean", "last", "The hidden state of the text's last token, or the mean over its "
                "tokens."),
    "normalize": ("boolean", "", "true", "False gives the vector as it is, otherwise its L2 norm is 1."),
    "instructions": ("string", "", "none", "A system message in front, of this request alone."),
    "previous_response_id": ("string", "the id of a stored response of the same API key", "none",
                             "The conversation goes on from this response: its messages come first, at most "
                             "$RESPONSE_TURNS_MAX turns. With `retention` its pages are a [session](docs/serving.md)."),
    "store": ("boolean", "", "true", "Keep the answer, so that a later request can go on from it. For responses it is "
              "the answer's `store` whether that is so (--responses-memory, --responses-ttl)."),
    "max_output_tokens": ("integer", "1 or more", "as many as fit", "Most tokens of the answer, reasoning included."),
    "text": ("object", "format: text, json_object or json_schema; verbosity: medium", "text",
             "The form of the answer, as `response_format` of chat."),
    "reasoning": ("object", "effort; summary: auto", "none", "`effort` is chat's `reasoning_effort`. There are no "
                  "summaries: the reasoning's own text is in the answer."),
    "include": ("list of strings", "reasoning.encrypted_content", "none",
                "Changes nothing: items of reasoning have their text, and nothing is encrypted."),
    "system": ("string or list of text blocks", "", "none", "The system's message."),
    "stop_sequences": ("list of strings", "as stop", "none", "`stop`, by Anthropic's name."),
    "thinking": ("object", "type: enabled, adaptive or disabled", "the template's", "Sets the template's variable "
                 "enable_thinking where it reads one. budget_tokens bounds nothing."),
    "output_config": ("object", "format: json_schema; effort", "none", "The form of the answer, and chat's "
                      "`reasoning_effort`."),
    "tokens": ("list of integers", "ids; at most $DETOKENIZE_MAX or the context", "", "The tokens to make text of."),
}

ROUTES = {
    "POST /v1/completions": "Goes on from a text or from token ids.",
    "POST /v1/chat/completions": "Answers a conversation.",
    "POST /v1/completions/render": "Takes a body of `/v1/completions` of at most $TOKENIZE_BYTES_MAX bytes and gives the tokens of "
                                   "its prompts. llm-d's endpoint picker finds by them what is cached.",
    "POST /v1/chat/completions/render": "Takes a body of `/v1/chat/completions`, likewise, and gives the tokens of its prompt.",
    "POST /v1/embeddings": "Gives a vector for each text: the last hidden state of its last token, or their mean.",
    "POST /v1/responses": "Answers a conversation in OpenAI's newer form, and keeps the answer to go on from.",
    "GET /v1/responses/": "Gives a stored response of the caller's key: its id follows the path.",
    "DELETE /v1/responses/": "Forgets it, and the session that holds its conversation's pages; what went on from it is gone, too.",
    "POST /v1/messages": "Answers a conversation in Anthropic's form.",
    "POST /v1/messages/count_tokens": "Counts the tokens of such a body's prompt: `input_tokens`. The body has at most "
                                      "$COUNT_BYTES_MAX bytes.",
    "GET /v1/models": "Lists the names that the model is served by.",
    "GET /v1/models/": "Describes one of them: the name follows the path.",
    "DELETE /v1/sessions/": "Forgets the session whose id follows the path, in memory at once and on disk within moments, if the caller's key "
                            "has one; that of a `cache_salt` is named by the header `octavo-cache-salt` too.",
    "POST /tokenize": "Gives the token ids of a text or a conversation. The body has at most $TOKENIZE_BYTES_MAX bytes.",
    "POST /detokenize": "Gives the text of token ids.",
    "GET /v2": "KServe: what the server is. Errors of /v2 are `{\"error\": \"text\"}`.",
    "GET /v2/health/live": "KServe: the process answers.",
    "GET /v2/health/ready": "KServe: 200 while new requests are taken, else 503.",
    "GET /v2/models/": "KServe: describes a model's tensors. The name follows the path, then perhaps `/versions/1`, then "
                       "perhaps `/ready`, `/config` or `/stats`.",
    "GET /v2/models/stats": "Triton: counts and times of requests.",
    "POST /v2/models/": "KServe: generates whole answers; the path ends in `NAME/infer` or `NAME/versions/1/infer`. Tensors "
                        "and parameters are those of gRPC's ModelInfer, as JSON or as bytes behind it "
                        "(`binary_data_size`, `binary_data`, `Inference-Header-Content-Length`).",
    "POST /v2/repository/index": "Triton: the models, and whether they are ready.",
    "GET /tokenizer_info": "Gives the model's tokenizer_config.json, with its chat template and without names of files.",
    "GET /": "A page for people: a chat, the pool, and the page map of a request while it runs. --no-ui takes this "
             "route and the four below away.",
    "GET /octavo/page.css": "A file of that page.",
    "GET /octavo/page.js": "A file of that page.",
    "GET /octavo/pages": "The pool, and the live requests: with an admin key, or without any keys, all, else those of the "
                         "caller's key.",
    "GET /octavo/pages/": "The page map of one of them, whose id (`X-Request-Id`) follows the path.",
    "GET /health": "200 while new requests are taken, else 503 with the reason.",
    "GET /ready": "The same as /health.",
    "GET /ping": "The same, by the name that SageMaker asks for.",
    "GET /version": "Gives the server's version.",
    "GET /metrics": "Gives the [metrics](#metrics) in Prometheus' text format.",
}

# Keys of answers, by the file that writes them.
HTTP_ANSWER = {
    "id": "`cmpl-` or `chatcmpl-`, and the request's id.",
    "object": "`text_completion`, `chat.completion` or `chat.completion.chunk`.",
    "created": "Seconds since 1970.",
    "model": "The model's name as the request gave it.",
    "system_fingerprint": "Version and instruction set. Answers to the same seed may differ where this differs.",
    "choices": "A list, one item for each choice; in a stream one item in each event.",
    "index": "The choice's number, over all prompts of the body.",
    "text": "Completions: the choice's text; in a stream what is new.",
    "message": "Chat: the choice's message.",
    "delta": "Chat in a stream: what is new of the message.",
    "role": "Chat: `assistant`; in a stream in the first event of a choice.",
    "content": "Chat: the text. In `logprobs`: the list of tokens.",
    "refusal": "Chat: always null.",
    "logprobs": "The choice's log-probabilities, or null.",
    "finish_reason": "`stop`, `length`, `abort`, or `tool_calls` for a choice that ended by itself and calls tools; "
                     "null while the choice goes on.",
    "stop_reason": "The stop string or stop token id of the request that ended the choice, else null.",
    "retention": "The [report](#report) of the choice's retention, in the event or item that ends it.",
    "retrieval": "The [report](#report) of the choice's retrieval, likewise.",
    "token_ids": "With `return_token_ids`: the choice's tokens.",
    "prompt_token_ids": "With `return_token_ids`: the prompt's tokens.",
    "prompt_logprobs": "With `prompt_logprobs`: a list with an item for each token of the prompt, null for the first.",
    "progress": "With `progress`, in an event of its own, which has no choices: the `index` of the prompt's first "
                "choice and the three keys below. A slow reader gets the latest such event alone.",
    "phase": "What is being computed: `prefill`, or of method `reform` `read`, `gather` and `recompute`.",
    "computed_tokens": "Tokens of the phase that have been computed; it never falls.",
    "usage": "The counts below, over all choices.",
    "prompt_tokens": "Tokens of the prompts.",
    "completion_tokens": "Tokens generated.",
    "total_tokens": "The sum of both. In `progress`: the tokens of the phase.",
    "prompt_tokens_details": "An object with `cached_tokens`.",
    "cached_tokens": "Prompt tokens found in the prefix cache, or fetched from another server.",
    "kv_transfer_params": "With `kv_transfer_params`, in a stream in the event that ends the choice: what another server "
                          "fetches the prompt by, or in `note` where its K and V came from. "
                          "[cluster.md](docs/cluster.md) says more.",
}
TALK_KEYS = {
    "role": "`assistant`; in a stream in the first event of a choice.",
    "reasoning_content": "The model's reasoning, where the answer has any.",
    "content": "The text; null beside reasoning or tool calls when there is none.",
    "refusal": "Always null; not in a delta.",
    "tool_calls": "The list of calls that the model made, where the request has tools.",
    "index": "In a delta: the call's number.",
    "id": "The call's id, which the message with its result repeats as `tool_call_id`.",
    "type": "`function`.",
    "function": "An object with `name` and `arguments`.",
    "name": "The function's name.",
    "arguments": "Its arguments: a text of JSON as the model wrote it; in a delta what is new of it.",
}
RESPONSE_KEYS = {
    "id": "`resp_` and 32 digits, which nobody can guess; of an item that it begins with.",
    "object": "`response`.",
    "created_at": "Seconds since 1970.",
    "status": "`completed`, `incomplete`, `cancelled` or `failed`; `in_progress` while it is written. Of items, too.",
    "model": "The model's name as the request gave it.",
    "error": "Of a failed response: `code` and `message`; else null.",
    "code": "`server_error`.",
    "message": "What went wrong.",
    "param": "Always null.",
    "incomplete_details": "Of an answer that is cut short: `reason`; else null.",
    "reason": "`max_output_tokens`.",
    "kv_transfer_params": "Where the request has this field: what became of its prompt, as for chat.",
    "output": "The items: reasoning, a message, function calls.",
    "type": "`reasoning`, `message`, `function_call`; `reasoning_text`, `output_text`; the name of an event.",
    "role": "`assistant`.",
    "summary": "Always empty.",
    "content": "Of a message or reasoning: a list with its one part.",
    "reasoning_content": "Not shown; the name of reasoning in what is stored.",
    "text": "The part's text.",
    "annotations": "Always empty.",
    "logprobs": "Always empty.",
    "call_id": "The id by which a function_call_output refers to the call.",
    "name": "The function's name.",
    "arguments": "Its arguments: a text of JSON as the model wrote it.",
    "tool_calls": "Not shown; the name of calls in what is stored.",
    "function": "Likewise.",
    "usage": "The counts below; null until the end.",
    "input_tokens": "Tokens of the prompt, the stored conversation included.",
    "input_tokens_details": "An object with `cached_tokens`.",
    "cached_tokens": "Prompt tokens found in the prefix cache; those that a session goes on from are not counted.",
    "output_tokens": "Tokens generated.",
    "output_tokens_details": "An object with `reasoning_tokens`.",
    "reasoning_tokens": "Tokens up to the end of the reasoning, where the answer has any.",
    "total_tokens": "The sum of both.",
    "retention": "The [report](#report) of the answer's retention.",
    "retrieval": "The [report](#report) of the answer's retrieval.",
    "sequence_number": "Of an event: 0, 1, …",
    "response": "Of an event: the response as it is now.",
    "output_index": "Of an event: which item it is about.",
    "item_id": "Likewise, by its id.",
    "item": "Of an event: the item as it is now.",
    "content_index": "Of an event: always 0.",
    "part": "Of an event: the part as it is now.",
    "delta": "Of an event: what is new of the text or the arguments.",
    "deleted": "DELETE: true.",
}
MESSAGE_KEYS = {
    "id": "`msg_` and the request's id; of a tool_use block that of the call.",
    "type": "`message`; `text`, `thinking` or `tool_use`; the name of an event or a delta.",
    "role": "`assistant`.",
    "model": "The model's name as the request gave it.",
    "content": "The blocks.",
    "text": "Of a text block.",
    "thinking": "Of a thinking block: the model's reasoning.",
    "signature": "Of a thinking block: always empty.",
    "name": "Of a tool_use block: the tool's name.",
    "input": "Of a tool_use block: its arguments, an object; empty where the call was cut short.",
    "stop_reason": "`end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, or `pause_turn` of an answer that was aborted.",
    "stop_sequence": "The stop sequence that ended the answer, else null.",
    "retention": "The [report](#report) of the answer's retention; in a stream in the delta of message_delta.",
    "retrieval": "The [report](#report) of the answer's retrieval, likewise.",
    "usage": "The counts below; those of message_delta are final.",
    "input_tokens": "Tokens of the prompt that were not found in the cache; in message_start all of them.",
    "cache_creation_input_tokens": "Always 0: prompts are kept without a price.",
    "cache_read_input_tokens": "Prompt tokens found in the prefix cache; those that a session goes on from are not counted.",
    "output_tokens": "Tokens generated.",
    "message": "Of message_start: the message without blocks.",
    "index": "Of an event: which block it is about.",
    "content_block": "Of content_block_start: the block without content.",
    "delta": "Of content_block_delta: what is new of the block; of message_delta: why it ended.",
    "partial_json": "Of a delta of a tool_use block: what is new of its arguments, as the model wrote it.",
    "error": "Of an error: its `type` and `message`.",
}
LOGPROB_KEYS = {
    "token": "Chat: the token's text.",
    "logprob": "The natural logarithm of the token's probability.",
    "bytes": "Chat: the token's bytes, which may be part of a character.",
    "rank": "`prompt_logprobs`: 1 is the likeliest token.",
    "decoded_token": "`prompt_logprobs`: the token's text.",
    "top_logprobs": "The likeliest tokens in this place.",
    "text_offset": "Completions: where each token begins in the text, in characters.",
    "token_logprobs": "Completions: each token's log-probability.",
    "tokens": "Completions: each token's text.",
}
PAGES_ANSWERS = {
    "model": "/octavo/pages: the model's name.",
    "chat": "/octavo/pages: whether it has a chat template.",
    "time_ms": "/octavo/pages: the server's clock, from which rates of its counters follow.",
    "pages": "/octavo/pages: pages of the pool, of a layer and a KV head each.",
    "used": "/octavo/pages: those that requests or sessions hold.",
    "cached": "/octavo/pages: those that the prefix cache alone holds.",
    "host_pages": "/octavo/pages: pages that the host tier can hold.",
    "host_used": "/octavo/pages: those that it holds.",
    "running": "/octavo/pages: choices in the batch.",
    "waiting": "/octavo/pages: requests that wait.",
    "generated_tokens": "/octavo/pages: tokens generated since the start.",
    "read_prompt_tokens": "/octavo/pages: prompt tokens taken in since the start.",
    "methods": "/octavo/pages: names of all retention methods.",
    "requests": "/octavo/pages: live requests, at most $REQUESTS_MOST, with `id`, `surface`, `age_ms`, `prompts`, `choices`.",
    "left_out": "/octavo/pages: how many more there are.",
    "surface": "How a request came: `http`, `octavo.v1`, `vllm` or `kserve`.",
    "choices": "Choices of each of its prompts.",
    "id": "The request's id.",
    "prompts": "Its prompts. The map is that of the first one.",
    "age_ms": "Milliseconds since it came.",
    "map_age_ms": "Milliseconds since its map was drawn; null: it has none yet.",
    "map": "The map, or null: asking has it drawn after the next step.",
}
PAGE_MAP = {
    "state": "`preparing` (its tokens are made), `waiting`, `running`, `swapped` (in the host tier) or `ended`. Other keys "
             "are there from `waiting` on, those from `layers` on while it runs.",
    "method": "Its retention method.",
    "choice": "The choice that is shown: the first one that goes on.",
    "choices": "How many the request has.",
    "prompt_tokens": "Tokens of its prompt.",
    "output_tokens": "Tokens that the choice has generated.",
    "kept_tokens": "Tokens that attention still reads in a layer, on average over layers and KV heads.",
    "pages_dropped": "Pages that the choice has given up, of a layer and a KV head each.",
    "reading": "With `retrieval`: the report so far.",
    "layers": "Layers of the model.",
    "kv_heads": "KV heads of a layer.",
    "page_tokens": "Tokens of a page.",
    "tables": "The page tables that the choice has: one, one for each layer group, or for each KV head of them.",
    "tables_seen": "How many of them were looked at: fewer, where KV heads were left out to look at fewer pages.",
    "row_layers": "Layers in a row of the map, which has at most $PKV_MAP_ROWS_MOST rows. The last row may have fewer.",
    "column_tokens": "Tokens in a column, one or more pages; there are at most $PKV_MAP_COLUMNS_MOST columns.",
    "columns": "Columns of the map.",
    "first_token": "The token at which the first column begins: those before it were cut off by the method.",
    "rows": "A list of [how many rows in succession are alike, their cells]. Cells are letters, each after its number where "
            "several are alike: `.` nothing is kept, `a` to `h` so many eighths of the tokens are, `A` to `H` the same "
            "where other requests or sessions hold a page too.",
    "attention": "Where the attention of one token went, which was computed since the map was asked for before: null, or an "
                 "object with the keys below and with `columns` and `column_tokens` of its own. Its `rows` are those of the "
                 "map: null where no layer of the row was measured, or [the tokens that a KV head read of a layer, on "
                 "average, a letter for each column]. Layers with a sliding window are not measured, nor all layers where "
                 "those and the pages are very many.",
    "token": "`attention`: the number of the token that attended, counted from 0, with the prompt's. A letter is `.` where "
             "it read nothing; the others in order of their codes, from `!` on but without the quotation mark, the full "
             "stop and the backslash, are its share of the attention in the layer: the last, `~`, is all, each one before "
             "is less by a factor of 10^(1/20), and `!` is also what is less than that.",
    "attention_lacks": "Why there is no attention: what the backend cannot measure, by name. GPUs have neither what tokens "
                       "read by `retrieval` nor the attention of a method that keeps running sums.",
}
SMALL_ANSWERS = {
    "tokens": "/tokenize: the token ids.",
    "token_ids": "render: the token ids of a prompt. The answer for completions is a list of such objects, one for each prompt.",
    "count": "/tokenize: how many there are.",
    "max_model_len": "/tokenize, /v1/models: the context of prompt and output together, in tokens.",
    "max_logical_len": "/v1/models: the same with a retention method whose positions are contiguous.",
    "token_strs": "/tokenize: always null.",
    "prompt": "/detokenize: the text.",
    "version": "/version: the server's version.",
    "object": "/v1/models: `list` or `model`. /v1/sessions: `session`.",
    "deleted": "/v1/sessions: true, whether there was such a session or not.",
    "data": "/v1/models: the list of models.",
    "id": "/v1/models: the model's name. /v1/sessions: the session's id.",
    "created": "/v1/models: when the server started, in seconds since 1970.",
    "owned_by": "/v1/models: `octavo`.",
    "root": "/v1/models: the model's folder.",
    "parent": "/v1/models: always null.",
}
ERROR_KEYS = {
    "error": "The object with the keys below.",
    "message": "What is wrong, and where.",
    "type": "The kind of error, as in the table below.",
    "param": "The field that is wrong, or null.",
    "code": "The HTTP status; `context_length_exceeded` where the prompt, or it and `max_tokens`, exceed the context.",
}
# The engine's status codes, as a client meets them.
STATUSES = {
    "INVALID": "a field is wrong",
    "UNSUPPORTED": "a field or value is not supported",
    "CORRUPT": "the body is not JSON",
    "LIMIT": "the prompt or a list is too long",
    "NOT_FOUND": "the model is not served here",
    "QUEUE_FULL": "too many requests wait and run",
    "NO_PAGES": "there are too few KV pages",
    "UNAVAILABLE": "the server drains or its backend is down",
    "ABORTED": "the request was aborted",
    "NO_MEMORY": "the server has no memory left",
    "IO": "a file cannot be read",
    "INTERNAL": "an error of the server",
}
RUN_LINE = {
    "id": "The line's `id`, or its number.",
    "index": "The choice's number.",
    "text": "The choice's text.",
    "token_ids": "Its tokens.",
    "logprobs": "With `logprobs`: `content` is a list of tokens, as in chat answers, with `rank`.",
    "prompt_logprobs": "With `prompt_logprobs`: the same of the prompt's tokens, null for the first.",
    "finish_reason": "`stop`, `length` or `abort`.",
    "usage": "`prompt_tokens`, `completion_tokens`, and `cached_tokens` in `prompt_tokens_details`.",
    "retention": "The report, where the request or a flag asked for retention.",
    "retrieval": "The report, where the request asked for retrieval.",
    "timings": "`queue_ms`, `ttft_ms` and `total_ms` since the request was submitted.",
    "error": "Instead of all others but `id`, in a line that could not be run: `message`, and `line`, its number.",
}
# Keys inside the values of RUN_LINE.
RUN_INSIDE = {"content", "token", "logprob", "bytes", "rank", "top_logprobs", "prompt_tokens", "completion_tokens",
              "prompt_tokens_details", "cached_tokens", "queue_ms", "ttft_ms", "total_ms", "message", "line"}
REPORT = {
    "method": "string; the method that was used.",
    "logical_tokens": "integer; tokens of prompt and answer that the choice has seen.",
    "kept_tokens": "number; tokens that attention still read when the choice ended, averaged over layers and heads.",
    "pages_dropped": "integer; pages that its tables gave up: pages of a layer where the method selects by layer (`scope`), of a "
                     "layer and a KV head where it selects by head, of all layers where they share one selection. A shared page "
                     "may live on for others.",
    "budget_raised": "boolean; whether a budget was too small for what the method protects, and was raised.",
    "scoring_ms": "number; time spent on measuring and selecting.",
    "fields": "object, of a method that selects at chunks: the values used of the keys below up to `gather_tokens`, also where the "
              "request gave none and defaults were lowered to the model's positions.",
    "tokens": "integer; tokens that stayed at most; absent where the request gave `ratio`.",
    "recurrent_chunk": "integer; prompt tokens between two selections.",
    "sinks": "integer; first tokens that always stayed.",
    "window": "integer; last tokens that always stayed.",
    "gather_tokens": "integer, of method `reform`; tokens that were computed again at most.",
    "reform": "object, of method `reform`: the keys below up to `recompute_ms`.",
    "layers_run": "integer; layers that the reading ran.",
    "read_tokens": "integer; prompt tokens that were read for their embeddings.",
    "reused_tokens": "integer; prompt tokens whose embeddings the session had.",
    "reading_kept_tokens": "number; tokens in the reading's cache at its end.",
    "gathered_tokens": "integer; tokens before the question that were found.",
    "recomputed_tokens": "integer; tokens that were computed with all layers: these and the question.",
    "read_ms": "number; time of the reading, from its first step on.",
    "gather_ms": "number; time of gathering, that in its queue included.",
    "recompute_ms": "number; time from then to the first token.",
    "session": "string; `stored`, `continued`, `restarted: …`, `ended: …` or `ignored: …`, if the request named a session.",
    "kept": "list; with `\"report\": \"positions\"` one item for each layer whose heads keep the same tokens, else one for each head.",
    "layers": "first and last layer of the table.",
    "heads": "first and last KV head of the table.",
    "ranges": "list of [from, to): the token positions that were kept.",
}
RETRIEVAL_REPORT = {
    "rows": "integer; tokens of the choice that were computed by reading a part of the context.",
    "context_tokens": "number; tokens that each of them could have read, its own included, on average.",
    "read_tokens": "number; tokens that each of them read in a layer that reads by retrieval, averaged over these layers and their "
                   "heads.",
    "read_blocks": "number; the blocks that these tokens are in, likewise.",
    "selections": "integer; how often blocks were selected: once for each layer that selects and each run of heads that select "
                  "together.",
    "audited_rows": "integer; rows whose recall was computed (`audit`).",
    "recall": "number; with audited rows: the share of the softmax mass of full attention that the blocks hold, averaged over these "
              "rows, their layers and query heads.",
    "least_recall": "number; the least of these shares.",
    "missed_at_most": "number; with `epsilon`: the greatest bound on the share of the softmax mass that a query head missed.",
    "above_epsilon": "integer; selections whose bound is above `epsilon`, because `second_block_count` ended them.",
}

# Keys of a retention object: type and range where the source has none, and what the key does.
RETENTION_KEYS = {
    "method": ("string", "a method below", "The row that supplies every default."),
    "ratio": ("number", "above 0, at most 1", "The share of the prompt's tokens that stays."),
    "tokens": ("integer", "1 or more", "The number of tokens that stays, instead of `ratio`. The default of recurrent methods and `reform`: 32768, "
               "at most half of the model's positions."),
    "score": ("string", "a score below", "What tokens are ranked by."),
    "variant": ("string", "a variant below", "Which reading of the paper the score follows."),
    "pool": ("object", "{\"kind\": none, max or avg, \"kernel\": odd, 1 to $RETENTION_KERNEL_MAX}",
             "Smooths the scores of tokens along the sequence."),
    "unit": ("string", "a unit below", "What is kept or given up as one."),
    "chunk": ("integer", "", "Tokens of a chunk."),
    "scope": ("string", "a scope below", "The tables that share one selection."),
    "reuse_layers": ("integer", "", "Layers that share one selection."),
    "allocator": ("string", "an allocator below", "How layers and heads divide the budget."),
    "schedule": ("string", "a schedule below", "When the method selects."),
    "interval": ("integer", "", "Generated tokens between two selections."),
    "recurrent_chunk": ("integer", "", "Prompt tokens between two selections. Where positions close up, the default is at most a "
                        "quarter of the model's."),
    "rows": ("integer", "", "Query rows that are measured, if not those of the window."),
    "beta": ("number", "", "The slope of the pyramid over the layers."),
    "floor": ("number", "", "The share of its budget that each head keeps whatever others score."),
    "bias": ("number", "", "Added to the product with the output."),
    "theta": ("number", "", "The temperature of the attention that the output is made of."),
    "positions": ("string", "original or cache",
                  "`cache` gives kept tokens consecutive RoPE positions after each selection."),
    "sinks": ("integer", "", "First tokens that always stay; of recurrent methods and `reform` at most a sixteenth of the model's "
              "positions, if not given."),
    "window": ("integer", "", "Last tokens that always stay; likewise."),
    "gather_tokens": ("integer", "", "Tokens that `reform` computes again, the question among them. The default: 8192, at most half of "
                      "the model's positions."),
    "gather_window": ("integer", "1 or more, odd", "The window of the max-pool of their scores."),
    "query_tokens": ("integer", "",
                     "Tokens of `reform`'s question, at the end of the last user message (if not given: all of it), or "
                     "of a prompt."),
    "exit_layer": ("integer", "", "Layers that `reform`'s reading runs, if not those that embeddings need."),
    "pressure": ("boolean", "", "Lets the server drop pages by --pressure-retention before it preempts."),
    "report": ("string", "counts or positions", "`positions` makes the report say which tokens stayed."),
    "prefill": ("object", "these keys",
                "The retention of the prompt, for methods with a budget of its own for the answer."),
    "decode": ("object", "beta1, beta2, horizon, scope, score", "The retention of the answer, for the same methods."),
}
