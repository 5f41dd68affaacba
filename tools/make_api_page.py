#!/usr/bin/env python3
"""Makes docs/api.md from the tables of the source: every request field, route, RPC, metric and
report field. Prints the page, or writes it, or compares it.
usage: make_api_page.py [--write | --check] [ROOT]"""

import os
import string
import sys
import textwrap

import api_protos
import api_tables as tables
import api_words as words
from api_tables import fail

SURFACES = ["completions", "chat", "run", "octavo.v1", "VllmEngine", "KServe"]


def same_names(found, described, what):
    """Ends the program unless both have the same names."""
    for name in found:
        if name not in described:
            fail(f"{what}: '{name}' has no sentence in tools/api_words.py")
    for name in described:
        if name not in found:
            fail(f"{what}: '{name}' of tools/api_words.py is not in the source")


class Page:
    """Collects Markdown: paragraphs wrap at 100 columns, tables do not."""

    def __init__(self, values):
        self.values = values
        self.lines = []

    def fill(self, text):
        """Puts values in for constants; links are written from the root and read from docs/."""
        return string.Template(text).substitute(self.values).replace("](docs/", "](")

    def title(self, depth, text):
        self.lines += [f"{'#' * depth} {text}", ""]

    def text(self, text):
        self.lines += [*textwrap.wrap(self.fill(text), 100, break_long_words=False, break_on_hyphens=False), ""]

    def items(self, texts):
        for text in texts:
            self.lines += textwrap.wrap(self.fill(text), 100, initial_indent="- ", subsequent_indent="  ",
                                        break_long_words=False, break_on_hyphens=False)
        self.lines.append("")

    def table(self, head, rows):
        self.lines += [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        for row in rows:
            cells = [self.fill(cell).replace("|", "\\|") for cell in row]
            self.lines.append(("| " + " | ".join(cells) + " |").replace("|  |", "| |").replace("|  |", "| |"))
        self.lines.append("")


# ---- requests ------------------------------------------------------------------------------------

def engine_surfaces(root):
    """For each engine field: surface -> the name of the field there."""
    bodies = tables.body_fields(root)
    octavo, vllm = api_protos.File(root, "octavo"), api_protos.File(root, "vllm_engine")
    protos = {"octavo.v1": (octavo, "octavo"), "VllmEngine": (vllm, "vllm")}
    found = {}
    for name in tables.engine_fields(root):
        where = {"run": name}
        for endpoint in ("completions", "chat"):
            rules = {rule for key, who, rule, _ in bodies if key == name and endpoint in who}
            if rules <= {"HERE", "ENGINE"}:
                where[endpoint] = name
        for surface, (proto, short) in protos.items():
            other = words.OTHER_NAMES[short].get(name)
            members = [m for message in ("GenerateRequest", "SamplingParams") for m, _, _ in proto.messages[message]]
            if other or name in members:
                where[surface] = other or name
        if name not in words.NOT_KSERVE:
            where["KServe"] = name
        found[name] = where
    return found


def surface_text(name, where):
    have = [s for s in SURFACES if s in where]
    lack = [s for s in SURFACES if s not in where]
    text = "all" if not lack else f"all but {' and '.join(lack)}" if len(lack) < 3 else ", ".join(have)
    renamed = [f"{s}: `{where[s]}`" for s in have if where[s] != name]
    return f"{text} ({', '.join(renamed)})" if renamed else text


def sentence(text):
    return text[0].upper() + text[1:] + "."


def request_fields(root):
    """(name, surfaces, type, range, default, what it does) of each request field."""
    where = engine_surfaces(root)
    for name, (kind, among, default, does) in tables.engine_fields(root).items():
        notes = " ".join([sentence(does), words.FIELD_NOTES.get(name, "")]).strip()
        yield name, surface_text(name, where[name]), kind, among, default, notes


def put_fields(page, root):
    page.title(2, "Request fields")
    page.text("One parser reads the fields of all surfaces, so a name means the same everywhere. A field that "
              "is null counts as absent. A field that no table has is refused by name, never ignored. "
              "“The model's” is a value of its generation_config.json; where that has none, the field "
              "changes nothing. The surfaces:")
    page.items(["**completions**, **chat**: the bodies of the two HTTP endpoints. /v1/responses and /v1/messages take the "
                "fields of chat too, beside their own, but for those that OpenAI and Anthropic name otherwise.",
                "**run**: lines of `octavo run --prompts`, and with dashes (`--max-tokens`) most of its flags.",
                "**octavo.v1**: `GenerateRequest` and its `sampling`.",
                "**VllmEngine**: `GenerateRequest` and its `sampling_params`. A field that is absent and not "
                "optional is 0 or false there; a zero of `top_p`, `repetition_penalty` and `n` means the default.",
                "**KServe**: parameters of a request, or keys of the JSON object in the tensor "
                "`sampling_parameters`; `retention` and `retrieval` are there strings that hold JSON or a method's word."])
    page.table(["field", "surfaces", "type", "range", "default", "what it does"],
               [(f"`{n}`", s, t, r, d, w) for n, s, t, r, d, w in request_fields(root)])


def put_body_fields(page, root):
    bodies = tables.body_fields(root)
    engine = tables.engine_fields(root)
    ours = [row for row in bodies if row[2] == "HERE" and row[0] not in engine]
    same_names({row[0] for row in ours}, words.HTTP_FIELDS, "HTTP fields")
    page.title(3, "Fields of HTTP bodies alone")
    page.table(["field", "endpoints", "type", "range", "default", "what it does"],
               [(f"`{n}`", ", ".join(sorted(who)), *words.HTTP_FIELDS[n])
                for n, who, _, _ in ours])
    page.text("/v1/embeddings takes `truncate_prompt_tokens`, `add_special_tokens`, `priority` and `cache_salt`, too.")
    page.text("/tokenize takes `prompt` or `messages`, what goes to the chat template, and `add_special_tokens`.")
    page.title(3, "Fields that change no answer")
    page.text("Clients of OpenAI and vLLM send these. Any other value than those listed is refused.")
    kinds = {"STRING": "any string", "OBJECT": "any object"}
    page.table(["field", "endpoints", "values"],
               [(f"`{n}`", ", ".join(sorted(who)), kinds.get(rule) or f"`{text[1:-1]}`")
                for n, who, rule, text in bodies if rule in ("VALUES", "STRING", "OBJECT")])
    page.title(3, "Fields that are refused")
    page.table(["field", "endpoints", "why"], [(f"`{n}`", ", ".join(sorted(who)), text)
                                               for n, who, rule, text in bodies if rule == "REFUSED"])


# ---- retention -----------------------------------------------------------------------------------

def put_retention(page, root):
    keys = tables.retention_keys(root)
    same_names([name for name, _, _ in keys], words.RETENTION_KEYS, "retention keys")
    ranges, defaults = tables.retention_ranges(root), tables.retention_defaults(root)
    page.title(2, "Retention")
    page.text("The object `retention` says which part of its context a request keeps: "
              "`{\"method\": \"chunkkv\", \"ratio\": 0.25}`, or in one word `\"chunkkv:0.25\"`. `ratio` or `tokens` must be given unless the "
              "method has a budget of its own. A key that the method cannot use is refused by name. A default "
              "that is empty is the method's; `octavo methods NAME` prints all of them, and "
              "[retention.md](docs/retention.md) says exactly what each part does.")
    page.table(["key", "type", "range", "default", "needs", "what it does"],
               [(f"`{n}`", words.RETENTION_KEYS[n][0], words.RETENTION_KEYS[n][1] or ranges.get(n, ""),
                 defaults.get(n, ""), "not inside prefill" if of_request else only,
                 words.RETENTION_KEYS[n][2]) for n, only, of_request in keys])
    page.title(3, "Methods")
    page.table(["method", "what it does"], [(f"`{n}`", s) for n, s in tables.retention_methods(root)])
    page.title(3, "Parts")
    page.table(["part", "value", "what it does"],
               [(part, f"`{n}`", s) for part, n, s in tables.retention_options(root)])
    page.title(2, "Report")
    page.text("The report comes with each choice's end, when the request, its session or --retention asked for "
              "retention: HTTP has it as `retention` of the choice, `octavo run` as `retention` of the line, "
              "octavo.v1 as `retention_json`, VllmEngine and KServe as an array in the trailing metadata "
              "`octavo-report`.")
    put_keys(page, root, "paged_kv/retention/report.c", words.REPORT)
    page.text("A request with `retrieval` has a report too: `retrieval` of the choice or the line, octavo.v1's "
              "`retrieval_json`, an array in the trailing metadata `octavo-retrieval-report`. Rows that were "
              "computed again after a preemption count once.")
    put_keys(page, root, "paged_kv/retrieval/reading.c", words.RETRIEVAL_REPORT)


# ---- HTTP ----------------------------------------------------------------------------------------

def put_keys(page, root, path, described, inside=()):
    same_names([k for k in sorted(tables.written_keys(root, path)) if k not in inside], described, path)
    page.table(["key", "what it is"], [(f"`{key}`", text) for key, text in described.items()])


def status_text(codes):
    for code in codes:
        if code not in words.STATUSES:
            fail(f"status {code} has no sentence in tools/api_words.py")
    return "; ".join(words.STATUSES[code] for code in codes)


def put_routes(page, root):
    routes = tables.routes(root)
    same_names([f"{m} {p}" for m, p, _ in routes], words.ROUTES, "routes")
    page.title(2, "HTTP")
    page.text("Bodies are JSON of at most --max-body bytes. Where the server has API keys, a route that needs one "
              "takes `Authorization: Bearer KEY`, or `x-api-key: KEY` where that header is absent. `X-Request-Id` of up to $HTTP_ID_BYTES_MAX printable characters "
              "becomes the request's id; every answer has the header. A header of which the server reads one value, such as "
              "`Authorization`, is refused where it comes twice. `OPTIONS` on a route answers, without a key, with "
              "the methods that its path takes, and with CORS headers where --cors-origin allows the page's origin. "
              "An answer that is no stream and has $HTTP_COMPRESSED_BYTES_MIN bytes or more is sent as gzip to a client "
              "whose `Accept-Encoding` takes it.")
    page.table(["route", "API key", "what it does"],
               [(f"`{m} {p}`", "yes" if key else "no", words.ROUTES[f"{m} {p}"]) for m, p, key in routes])


def put_answers(page, root):
    page.title(3, "Answers of completions and chat")
    put_keys(page, root, "rpc/openai/answer.c", words.HTTP_ANSWER)
    page.text("The keys inside a chat's `message` and `delta`:")
    put_keys(page, root, "rpc/openai/talk.c", words.TALK_KEYS)
    page.text("The format of tool calls is that of --tool-call-parser, or what the chat template tells:")
    page.table(["parser", "format"], [(f"`{n}`", h) for n, h in tables.tool_parsers(root)])
    page.text("Reasoning is what stands between the marks of --reasoning-parser, or of the first row whose end mark "
              "the chat template has:")
    page.table(["parser", "marks"], [(f"`{n}`", h) for n, h in tables.reasoning_parsers(root)])
    page.text("The keys inside `logprobs` and `prompt_logprobs`:")
    put_keys(page, root, "rpc/openai/logprobs.c", words.LOGPROB_KEYS)
    page.text("`prompt_logprobs` multiplies each token of the prompt with the whole vocabulary. By the model's shape "
              "that makes 1.08 times the work of prefill alone for 8B weights and 128,000 tokens of vocabulary, and "
              "23 times for 4 layers 256 wide. While other requests run or wait, such a prompt is computed in "
              "chunks that are shorter by that factor: others keep their pace, and this prompt takes longer. Alone, "
              "its chunks are as long as any. Rows that a retention method measures together stay in one step.")
    page.title(3, "Other answers")
    put_keys(page, root, "rpc/openai/models.c", words.SMALL_ANSWERS)
    page.text("The keys of /v1/responses and of its events, beside those that repeat the request. A stream ends with "
              "`response.completed`, `response.incomplete`, or `error` and `response.failed`.")
    put_keys(page, root, "rpc/openai/responses/write.c", words.RESPONSE_KEYS)
    page.text("The keys of /v1/messages and of its events:")
    put_keys(page, root, "rpc/anthropic/write.c", words.MESSAGE_KEYS)
    page.title(3, "The page map")
    page.text("The page at / shows this. A map is drawn between two steps, at most five times a second for a request "
              "and in at most a hundredth of the engine thread's time; whoever asks gets the last one and does not wait.")
    put_keys(page, root, "rpc/pages.c", words.PAGES_ANSWERS)
    put_keys(page, root, "engine/pages.c", words.PAGE_MAP)
    page.title(3, "Errors")
    page.text("A stream that has begun carries the error as an event and then `data: [DONE]`. Below /v1/messages errors "
              "have Anthropic's form: `{\"type\": \"error\", \"error\": {\"type\", \"message\"}, \"request_id\"}`.")
    put_keys(page, root, "rpc/openai/error.c", words.ERROR_KEYS)
    page.table(["status", "type", "when", "`Retry-After`"],
               [(status, kind, status_text(codes), "yes" if retry else "no")
                for status, kind, codes, retry in tables.http_errors(root)])
    page.text("Before a request reaches the engine: 401 a key is missing or wrong, 404 there is no such path, "
              "405 another method is needed, 413 the body is too large, 415 the body is not plain JSON, 503 "
              "too many connections or large requests.")


def put_run(page, root):
    page.title(2, "Lines of octavo run")
    page.text("`octavo run --prompts` reads a JSON object of request fields from each line, and an `id`. It writes "
              "one line for each choice when the choice ends:")
    put_keys(page, root, "cli/**/run_output.c", words.RUN_LINE, words.RUN_INSIDE)


# ---- gRPC ----------------------------------------------------------------------------------------

SERVICES = [("octavo", "octavo.v1"), ("vllm_engine", "VllmEngine"), ("kserve", "KServe"), ("health", "health")]


def field_rows(proto, name, known):
    """The rows of a message; request fields without a comment mean what they mean everywhere."""
    as_everywhere = "as in [Request fields](#request-fields)"
    is_request = name in ("GenerateRequest", "SamplingParams")
    return [(field, kind, comment or (as_everywhere if is_request and field in known else ""))
            for field, kind, comment in proto.messages[name]]


def put_message(page, proto, name, known):
    rows = field_rows(proto, name, known)
    if not rows:
        page.text(f"`{name}` has no fields." + (f" {proto.about[name]}" if proto.about[name] else ""))
        return
    page.text(f"`{name}`" + (f": {proto.about[name]}" if proto.about[name] else ""))
    page.table(["field", "type", "what it is"], [(f"`{f}`", kind, comment) for f, kind, comment in rows])


def put_service(page, root, name, title):
    proto, known = api_protos.File(root, name), tables.engine_fields(root)
    page.title(3, title)
    page.text(f"[proto/{name}.proto](../proto/{name}.proto). {proto.head}".replace("$", "$$"))
    for service, rpcs in proto.services.items():
        whole = f"{proto.package}.{service}"
        page.text(f"Service `{whole}`:")
        page.table(["RPC", "asks", "answers", "key", "what it does"],
                   [(f"`{rpc}`", asks, answers, api_protos.key_of(root, whole, rpc), comment)
                    for rpc, asks, answers, comment in rpcs])
    for message in proto.messages:
        put_message(page, proto, message, known)


def put_grpc(page, root):
    page.title(2, "gRPC")
    page.text("Where the server has API keys, a call takes the metadata `authorization: Bearer KEY`. The column "
              "“key” says which one: none, API, or admin (a key of --admin-key-file, where there are API keys). "
              "That metadata, and the ones whose names begin with `octavo-`, may come once in a call. "
              "Messages have at most --max-body bytes. Server reflection (v1 and v1alpha) describes all services. "
              "A request field's meaning and default is that of [Request fields](#request-fields).")
    page.table(["code", "when", "RetryInfo"],
               [(f"`{grpc}`", status_text(codes), "yes" if retry else "no")
                for grpc, codes, retry in tables.grpc_errors(root)])
    page.text("UNAUTHENTICATED: the key is missing or wrong. PERMISSION_DENIED: an admin key is needed.")
    for name, title in SERVICES:
        put_service(page, root, name, title)
        if name == "vllm_engine":
            page.text("Messages that VllmEngine shares with other engine services, "
                      "[proto/smg_common.proto](../proto/smg_common.proto):")
            common = api_protos.File(root, "smg_common")
            for message in common.messages:
                put_message(page, common, message, ())
        if name == "kserve":
            page.text("Tensors of a request and of an answer:")
            page.table(["tensor", "type", "of"],
                       [(f"`{t}`", kind, of) for of, path in (("request", "rpc/services/kserve_request.c"),
                                                              ("answer", "rpc/services/kserve_response.c"))
                        for t, kind in tables.tensors(root, path)])


# ---- the page ------------------------------------------------------------------------------------

def put_metrics(page, root):
    page.title(2, "Metrics")
    page.text("`GET /metrics` has these. Those with the prefix `octavo:` have the labels `model_name` and `engine`, "
              "and vLLM's names where vLLM has the metric.")
    page.table(["metric", "kind", "labels", "what it is"],
               [(f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), help_)
                for name, kind, labels, help_ in tables.metrics(root)])


def make(root):
    page = Page(tables.constants(root))
    page.lines += ["<!-- Made by tools/make_api_page.py from the tables of the source. -->", ""]
    page.title(1, "API reference")
    page.text("Every request field, route, RPC, metric and report field. tools/make_api_page.py makes this page "
              "from the tables that the servers themselves read, and `./dev lint` refuses a page that differs. "
              "How the surfaces are used: [serving.md](docs/serving.md).")
    for put in (put_fields, put_body_fields, put_retention, put_routes, put_answers, put_run, put_grpc, put_metrics):
        put(page, root)
    return "\n".join(page.lines).rstrip("\n") + "\n"


def check(root):
    """Prints the first line of docs/api.md that differs from what the tables give."""
    with open(os.path.join(root, "docs/api.md"), encoding="utf-8") as f:
        old = f.read().split("\n")
    new = make(root).split("\n")
    if old == new:
        return 0
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    print(f"docs/api.md:{at + 1}: differs from the tables; run: cmake --build build --target docs")
    print(f"  page:   {(old[at:] or ['(ends)'])[0][:150]}\n  tables: {(new[at:] or ['(ends)'])[0][:150]}")
    return 1


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = args[0] if args else "."
    if "--check" in sys.argv[1:]:
        return check(root)
    page = make(root)
    if "--write" in sys.argv[1:]:
        with open(os.path.join(root, "docs/api.md"), "w", encoding="utf-8") as f:
            f.write(page)
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
