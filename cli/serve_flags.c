/* The flags of `octavo serve`. */
#include "cli/serve.h"

#include <stdlib.h>
#include <string.h>

static const arg_flag flags_table[] = {
    ARG_ROW("http", "HOST:PORT", ARG_TEXT, serve_flags, http,
            "where OpenAI-compatible HTTP listens; port 0 is any free one, none is off",
            .initial = "127.0.0.1:8000"),
    ARG_ROW("host", "HOST", ARG_TEXT, serve_flags, host,
            "the host of --http alone, such as 0.0.0.0, which is every address of this machine"),
    ARG_ROW("port", "N", ARG_COUNT, serve_flags, port, "the port of --http alone", .max = 65535),
    ARG_ROW("grpc", "HOST:PORT", ARG_TEXT, serve_flags, grpc,
            "where gRPC listens; port 0 is any free one, none is off",
            .initial = "127.0.0.1:50051"),
    ARG_ROW("served-model-name", "NAME", ARG_LIST, serve_flags, names,
            "a name that requests call the model by; may be repeated (default: the folder's name)",
            .also = "-a --alias"),
    ARG_ROW("max-requests", "N", ARG_COUNT, serve_flags, max_requests,
            "requests that wait or run; more are refused at once", .min = 1, .max = 65536,
            .initial = "4096"),
    ARG_ROW("api-key", "KEY", ARG_LIST, serve_flags, keys,
            "clients must send one of these as bearer token; may be repeated. Others on this "
            "machine can see a command line: prefer the environment or --api-key-file"),
    ARG_ROW("api-key-file", "FILE", ARG_TEXT, serve_flags, key_file,
            "more of them, one a line; lines that begin with # are skipped"),
    ARG_ROW("admin-key-file", "FILE", ARG_TEXT, serve_flags, admin_key_file,
            "keys, one a line, that may also read KV events, flush the prefix cache and abort the "
            "requests of other keys; where there are API keys alone these calls are refused"),
    ARG_ROW(
        "cors-origin", "ORIGIN", ARG_LIST, serve_flags, cors_origins,
        "pages of this origin, such as https://example.org, may call the server from a browser; "
        "may be repeated, and * is all"),
    ARG_ROW("no-ui", NULL, ARG_SWITCH, serve_flags, no_ui,
            "HTTP serves no page at / for people, and not the data that it shows",
            .also = "--no-webui"),
    ARG_ROW("share-prefixes", NULL, ARG_SWITCH, serve_flags, share_prefixes,
            "requests of different keys hit each other's prefixes, which cached_tokens and the "
            "page map show (default: only with the same key)"),
    ARG_ROW(
        "kv-events-config", "JSON", ARG_TEXT, serve_flags, kv_events_config,
        "publish KV events, which tell the tokens of prompts, over ZeroMQ as vLLM does, such as "
        "{\"enable_kv_cache_events\":true,\"endpoint\":\"tcp://router:5557\"}"),
    ARG_ROW("otlp-traces-endpoint", "URL", ARG_TEXT, serve_flags, otlp_traces_endpoint,
            "send a span of each request there, as OpenTelemetry does over HTTP, such as "
            "http://localhost:4318/v1/traces; its variables OTEL_* set the rest"),
    ARG_ROW("disk-cache", "DIR", ARG_TEXT, serve_flags, disk_cache,
            "blocks that leave the prefix cache go to files in this folder, from where later "
            "requests take them, also after a restart; the K and V of prompts lie there (CPUs, of "
            "one rank or several, K and V of 8 bits or more)"),
    ARG_ROW(
        "disk-size", "BYTES", ARG_BYTES, serve_flags, disk_size,
        "the files of --disk-cache together, at most; those used longest ago make room. A quarter "
        "is for embeddings of sessions where the model has heads for method reform",
        .min = 1 << 20, .max = 0x1p50, .initial = "32G"),
    ARG_ROW("kv-transfer-listen", "HOST:PORT", ARG_TEXT, serve_flags, transfer_listen,
            "computed prompts are held here for other servers, which fetch their K and V from this "
            "address (disaggregated prefill); port 0 is any free one. For a network that clients "
            "are not on"),
    ARG_ROW("kv-transfer-peers", "HOST:PORT", ARG_LIST, serve_flags, transfer_peers,
            "a server's --kv-transfer-listen, from which requests may have their prompt fetched; "
            "may be repeated, and others are refused"),
    ARG_ROW("kv-transfer-memory", "BYTES", ARG_BYTES, serve_flags, transfer_memory,
            "prompts that are held for other servers, and those that were fetched, together; those "
            "fetched for one API key have at most three quarters of it",
            .min = 1 << 20, .max = 0x1p50, .initial = "1G"),
    ARG_ROW("kv-transfer-ttl", "SECONDS", ARG_COUNT, serve_flags, transfer_ttl_s,
            "a held prompt that no server fetches within this time is forgotten", .min = 1,
            .max = 86400, .initial = "120"),
    ARG_ROW("kv-transfer-timeout", "SECONDS", ARG_COUNT, serve_flags, transfer_timeout_s,
            "a server that sends or takes nothing for so long is given up, and the prompt is "
            "computed here",
            .min = 1, .max = 3600, .initial = "10"),
    ARG_ROW("tls-cert", "FILE", ARG_TEXT, serve_flags, tls_cert,
            "certificate chain (PEM): both servers speak TLS only",
            .also = "--ssl-certfile --ssl-cert-file"),
    ARG_ROW("tls-key", "FILE", ARG_TEXT, serve_flags, tls_key, "its private key (PEM)",
            .also = "--ssl-keyfile --ssl-key-file"),
    ARG_ROW("tls-client-ca", "FILE", ARG_TEXT, serve_flags, tls_client_ca,
            "clients must show a certificate signed by one of these (PEM)"),
    ARG_ROW("max-body", "BYTES", ARG_BYTES, serve_flags, max_body,
            "largest HTTP body and gRPC message; a server needs 32 times as much memory beside the "
            "model, since that is what tokenizing the worst of texts takes",
            .min = 1024, .max = 0x1p30, .initial = "8M"),
    ARG_ROW("max-connections", "N", ARG_COUNT, serve_flags, max_connections,
            "HTTP connections at once", .min = 1, .max = 65536, .initial = "4096"),
    ARG_ROW("max-streams", "N", ARG_COUNT, serve_flags, max_streams,
            "calls at once on one gRPC connection", .min = 1, .max = 65536, .initial = "1024"),
    ARG_ROW("grpc-threads", "N", ARG_COUNT, serve_flags, grpc_threads,
            "threads that serve gRPC calls, with a completion queue each", .min = 1, .max = 64,
            .initial = "2"),
    ARG_ROW("tokenizer-threads", "N", ARG_COUNT, serve_flags, tokenizer_threads,
            "threads that turn prompts into tokens, the shortest prompt of a priority first; but "
            "after 8 others have passed it, the oldest is next",
            .min = 1, .max = 64, .initial = "2"),
    ARG_ROW("stall-timeout", "SECONDS", ARG_COUNT, serve_flags, stall_timeout_s,
            "an answer is aborted when its client has not read for so long", .min = 1, .max = 86400,
            .initial = "30"),
    ARG_ROW("keepalive-timeout", "SECONDS", ARG_COUNT, serve_flags, keepalive_timeout_s,
            "an idle connection, or an HTTP request that trickles in, is closed after so long",
            .min = 1, .max = 86400, .initial = "60"),
    ARG_ROW("drain-timeout", "SECONDS", ARG_COUNT, serve_flags, drain_timeout_s,
            "time that requests have to finish after SIGTERM", .max = 86400, .initial = "30"),
    ARG_ROW(
        "step-timeout", "SECONDS", ARG_COUNT, serve_flags, step_timeout_s,
        "a step that takes longer is stuck: its requests fail and the backend is restarted; 0 is "
        "never (default: 60 s; without a GPU also what a very slow CPU needs for the largest step)",
        .max = 86400),
    ARG_ROW("tool-call-parser", "NAME", ARG_TEXT, serve_flags, tool_call_parser,
            "format of tool calls in answers: hermes, llama3_json, pythonic, mistral, deepseek or "
            "json; auto is what the chat template tells, none leaves calls in the text",
            .initial = "auto"),
    ARG_ROW("reasoning-parser", "NAME", ARG_TEXT, serve_flags, reasoning_parser,
            "how reasoning is marked in answers: qwen3, deepseek_r1, mistral or granite; auto is "
            "what the chat template tells, none leaves it in the text",
            .initial = "auto"),
    ARG_ROW("responses-memory", "BYTES", ARG_BYTES, serve_flags, responses_memory,
            "answers of /v1/responses that later requests can go on from, together; the API key "
            "that has most loses those used longest ago; 0 keeps none",
            .max = 0x1p40, .initial = "64M"),
    ARG_ROW("responses-ttl", "SECONDS", ARG_COUNT, serve_flags, responses_ttl_s,
            "such an answer is forgotten when nobody has used it for so long", .min = 1,
            .max = 31536000, .initial = "3600"),
    ARG_ROW("trust-request-chat-template", NULL, ARG_SWITCH, serve_flags, request_templates,
            "requests may bring a chat template of their own"),
    ARG_ROW("log-prompts", NULL, ARG_SWITCH, serve_flags, log_prompts,
            "write prompts and outputs into the log"),
    ARG_ROW("log-file", "FILE", ARG_TEXT, serve_flags, log_file,
            "append the log to this file (default: stderr)"),
};

arg_group serve_flags_group(serve_flags *target)
{
    target->step_timeout_s = SERVE_STEP_TIMEOUT_AUTO;
    target->port = SERVE_PORT_OF_HTTP;
    return (arg_group){"Serving", flags_table, sizeof flags_table / sizeof flags_table[0], target};
}

status serve_flags_join(serve_flags *f, error *err)
{
    bool has_port = f->port != SERVE_PORT_OF_HTTP;
    if (!f->host && !has_port) return STATUS_IS_OK;
    const char *colon = strrchr(f->http, ':');
    if (!colon)
        return error_set(err, STATUS_INVALID, "--%s: --http is %.64s, which has no host and port",
                         f->host ? "host" : "port", f->http);
    if (f->host && !*f->host) return error_set(err, STATUS_INVALID, "--host: names no host");
    strbuf text = {0};
    bool bare_v6 = f->host && strchr(f->host, ':') && *f->host != '[';
    if (f->host) strbuf_printf(&text, "%s%s%s", bare_v6 ? "[" : "", f->host, bare_v6 ? "]" : "");
    else strbuf_append(&text, f->http, (size_t)(colon - f->http));
    if (has_port) strbuf_printf(&text, ":%u", f->port);
    else strbuf_puts(&text, colon);
    if (text.failed) {
        strbuf_destroy(&text);
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    f->http = f->http_text = text.data;
    return STATUS_IS_OK;
}

void serve_flags_destroy(serve_flags *f)
{
    free(f->http_text);
    free(f->key_file_text);
    free(f->admin_key_file_text);
    free(f->names.items);
    free(f->keys.items);
    free(f->admin_keys.items);
    free(f->cors_origins.items);
    free(f->transfer_peers.items);
}
