"""Reads the tables of the source that clients see: request fields, routes, services, metrics, and
the keys of answers. A table that cannot be read ends the program with the file's name, so that
docs/api.md never loses rows in silence."""

import ast
import pathlib
import re
import sys

TEXT = r'"(?:\\.|[^"\\\n])*"'
TEXTS = rf"{TEXT}(?:\s*{TEXT})*"  # adjacent literals are one text


def fail(message):
    sys.exit(f"make_api_page.py: {message}")


def read(root, pattern):
    """The text of the one file that the pattern names."""
    paths = sorted(pathlib.Path(root).glob(pattern))
    if len(paths) != 1:
        fail(f"{pattern}: {len(paths)} files instead of one")
    return paths[0].read_text(encoding="utf-8")


def literal(source):
    """The value of adjacent C string literals."""
    return "".join(ast.literal_eval(part) for part in re.findall(TEXT, source))


def body_of(text, head, where):
    """What stands between the braces after the first match of `head`."""
    match = re.search(head + r"[^;]*?=?\s*\{", text)
    if not match:
        fail(f"{where}: no table after '{head}'")
    depth, at = 1, match.end()
    for token in re.compile(rf"{TEXT}|[{{}}]").finditer(text, at):
        depth += {"{": 1, "}": -1}.get(token.group(0), 0)
        if depth == 0:
            return text[at:token.start()]
    return fail(f"{where}: the table after '{head}' does not end")


def rows(pattern, text, where):
    found = re.findall(pattern, text, re.M)
    if not found:
        fail(f"{where}: no row was found")
    return found


def constants(root):
    """The named limits that texts mention, by name."""
    values = {}
    for path in ("engine/engine.h", "*/backend.h", "rpc/openai/openai.h", "rpc/http/internal.h",
                 "rpc/services/fields.h", "rpc/openai/parse.c", "rpc/openai/models.c",
                 "rpc/openai/responses/store.h", "rpc/anthropic/parse.c",
                 "paged_kv/retention/method.h", "paged_kv/map.h", "rpc/pages.c"):
        for name, value in re.findall(r"\b([A-Z][A-Z0-9_]+) = ((?:\d+)(?: (?:<<|\*) \d+)*)",
                                      read(root, path)):
            product = ast.parse(value, mode="eval")
            values[name] = f"{eval(compile(product, path, 'eval')):,}"  # digits, << and * alone
    return values


# ---- requests ------------------------------------------------------------------------------------

TYPES = {"FLOAT": "number", "BOOL": "boolean", "LOGPROBS": "integer; for chat a boolean"}
RANGES = {"WITHIN": "{} to {}", "ABOVE": "above {}, at most {}", "AT_LEAST": "{} or more"}
WHOLE_RANGES = {"SEED": "64 bits", "INT": "32 bits", "BOOL": ""}
KIND_DEFAULTS = {"SEED": "another for each request", "LOGPROBS": "none", "TOP": "none", "LENGTH": "as many as fit"}


def field_range(kind, text):
    """The range of a row, in words. Constants are written as $NAME."""
    form, _, ends = text.partition("(")
    ends = [re.sub(r"^(?=[A-Z])", "$", end.strip()) for end in ends.rstrip(")").split(",")]
    return RANGES[form].format(*ends) if form in RANGES else WHOLE_RANGES[kind]


def engine_fields(root):
    """name -> (type, range, default, what it does) of the fields that the one parser of requests
    reads, in the table's order."""
    where = "engine/request_fields.inc"
    text = read(root, where)
    flag = r"(?:NO_FLAG|\w+\([^)]*\))"
    scalar = rf"FIELD\((\w+), (\w+), ([^,]+), (ANY|\w+\([^)]*\)),\s+{flag},\s+({TEXTS})\)"
    own = rf"OWN\((\w+),\s+({TEXTS}),\s+({TEXTS}),\s+({TEXTS}),\s+({TEXTS})\)"
    found = {}
    for row in rows(rf"^(?:{scalar}|{own})\n", re.sub(r"/\*.*?\*/", "", text, flags=re.S), where):
        kind, name, default, among, does = row[:5]
        if not name:
            name, *texts = row[5:]
            found[name] = tuple(map(literal, texts))
            continue
        default = KIND_DEFAULTS.get(kind) or re.sub(r"defaults->\w+", "the model's", default)
        found[name] = (TYPES.get(kind, "integer"), field_range(kind, among), default, literal(does))
    if len(found) != len(re.findall(r"^(?:FIELD|OWN)\(", text, re.M)):
        fail(f"{where}: a row cannot be read")
    return found


ENDPOINTS = {"FOR_COMPLETION": {"completions"}, "FOR_CHAT": {"chat"}, "FOR_TOKENIZE": {"tokenize"},
             "FOR_DETOKENIZE": {"detokenize"}, "GENERATES": {"completions", "chat"},
             "HAS_MESSAGES": {"chat", "tokenize"},
             "FOR_RESPONSES": {"responses"}, "FOR_MESSAGES": {"messages"}, "CONVERTED": {"responses", "messages"},
             "ANSWERS": {"completions", "chat", "responses", "messages"},
             "HAS_TOOLS": {"chat", "responses", "messages"}, "HAS_PARALLEL": {"chat", "responses"},
             "OPENAI_ANSWERS": {"completions", "chat", "responses"},
             "FOR_EMBEDDINGS": {"embeddings"}, "HAS_INPUT": {"responses", "embeddings"},
             "HAS_ID": {"completions", "chat", "responses", "messages", "embeddings"},
             "HAS_USER": {"completions", "chat", "responses", "embeddings"},
             "FOR_ANY": {"completions", "chat", "responses", "messages", "embeddings", "tokenize", "detokenize"}}


def body_fields(root):
    """(name, endpoints, rule, text) of each row of the HTTP endpoints' table."""
    where = "rpc/openai/fields.c"
    text = read(root, where)
    named = {name: literal(value) for name, value in
             re.findall(rf"static const char (\w+)\[\] = ({TEXTS});", text)}
    found = rows(rf'\{{"(\w+)", (\w+), FIELD_(\w+), (NULL|\w+|{TEXTS})\}}', text, where)
    return [(name, ENDPOINTS[who], rule, literal(what) if what[0] == '"' else named.get(what, ""))
            for name, who, rule, what in found]


def routes(root):
    """(method, path, needs_key) of each HTTP route."""
    where = "rpc/http/routes.c"
    found = rows(r'\{"([A-Z]+)", "([^"]+)", (true|false), (?:true|false), \w+\}', read(root, where), where)
    return [(method, path, key == "true") for method, path, key in found]


# ---- retention -----------------------------------------------------------------------------------

PARTS = {"score": "paged_kv/retention/score_*.c", "unit": "paged_kv/retention/parts.c",
         "scope": "paged_kv/retention/parts.c", "allocator": "paged_kv/retention/budget.c",
         "schedule": "paged_kv/retention/points.c", "variant": "paged_kv/retention/parts.c"}
NOT_ASKED = {"never", "input"}  # schedules of `full` and `truncate` alone


def retention_keys(root):
    """(name, what its effect needs, only of a request) of each key of a retention object."""
    where = "paged_kv/retention/parse.c"
    table = body_of(read(root, where), r"\}\s*keys\[\] =", where)
    found = rows(r'\{\.name = "(\w+)"((?:[^{}"]|' + TEXT + r')*)\}', table, where)
    only = [re.search(rf"\.only = ({TEXTS})", rest) for _, rest in found]
    return [(name, literal(needs.group(1)) if needs else "", ".of_request" in rest)
            for (name, rest), needs in zip(found, only)]


def retention_ranges(root):
    """The range of each number of a retention object, by key."""
    text = read(root, "paged_kv/retention/parse.c")
    ranges = {name: f"{least} or more" for name, least in
              re.findall(r"^READ_COUNT\((\w+), (\d+)\)", text, re.M)}
    for low, high, name in re.findall(r"read_number\(p, name, ([-\de.]+), ([-\de.]+), &policy->(\w+)", text):
        ranges[name] = f"{float(low):,g} to {float(high):,g}".replace("1e+06", "1,000,000")
    return ranges


def retention_defaults(root):
    """Defaults that methods share, by key."""
    where = "paged_kv/retention/presets.c"
    block = re.search(r"#define COMMON((?:.*\\\n)+.*)\n", read(root, where))
    return dict(rows(r"\.(\w+) = ([\d.]+)", block.group(1) if block else "", where))


def retention_methods(root):
    """(name, summary, source) of each method."""
    where = "paged_kv/retention/presets.c"
    found = rows(rf'\{{\.name = ({TEXTS}),\s*\.summary = ({TEXTS})', read(root, where), where)
    return [(literal(name), literal(summary)) for name, summary in found]


def retention_options(root):
    """(part, name, summary) of each word that a part may have."""
    text = {part: "".join(p.read_text() for p in sorted(pathlib.Path(root).glob(pattern)))
            for part, pattern in PARTS.items()}
    found = []
    for part, source in text.items():
        row = r"\.option =" if part == "score" else rf"\[RETENTION_{part.upper()}_\w+\] ="
        pairs = re.findall(rf"{row} \{{+\s*(?:\.option = \{{)?({TEXTS}),\s*({TEXTS})", source)
        if len(pairs) != len(re.findall(row, source)) or not pairs:
            fail(f"{PARTS[part]}: a row of {part} cannot be read")
        found += [(part, literal(name), literal(summary)) for name, summary in pairs
                  if literal(name) not in NOT_ASKED]
    return found


# ---- answers -------------------------------------------------------------------------------------

def written_keys(root, path):
    """The JSON keys that a file writes by hand."""
    return set(rows(r'\\"(\w+)\\":', read(root, path), path))


def http_errors(root):
    """(HTTP status, type, statuses of the engine, whether to retry)."""
    where = "rpc/openai/error.c"
    merged = {}
    for code, status, kind, retry in rows(r'\{STATUS_(\w+), (\d+), "(\w+)", (true|false)\}',
                                          read(root, where), where):
        merged.setdefault((status, kind, retry == "true"), []).append(code)
    return [(status, kind, codes, retry) for (status, kind, retry), codes in merged.items()]


def grpc_errors(root):
    """(gRPC code, statuses of the engine, whether to retry)."""
    where = "rpc/grpc/fail.c"
    merged = {}
    for code, grpc, retry in rows(r"\[STATUS_(\w+)\] = \{GRPC_STATUS_(\w+), (true|false)\}",
                                  read(root, where), where):
        merged.setdefault((grpc, retry == "true"), []).append(code)
    return [(grpc, codes, retry) for (grpc, retry), codes in merged.items() if grpc != "OK"]


def tensors(root, path):
    """(name, type) of KServe's tensors in a file."""
    return rows(r'\[KSERVE_\w+\] = \{"(\w+)", "(\w+)", -?\d+\}', read(root, path), path)


def tool_parsers(root):
    """(name, help) of each parser of tool calls."""
    where = "rpc/openai/tools/*.c"
    text = "".join(p.read_text(encoding="utf-8") for p in sorted(pathlib.Path(root).glob(where)))
    return [(literal(name), literal(help_)) for name, help_ in
            rows(rf"\.name = ({TEXTS}),\s*\.help = ({TEXTS})", text, where)]


def reasoning_parsers(root):
    """(name, help) of each parser of reasoning."""
    where = "rpc/openai/reasoning.c"
    table = body_of(read(root, where), r"reasoning_parser parsers\[\] =", where)
    return [(literal(name), literal(help_)) for name, help_ in rows(rf"\{{({TEXT}), ({TEXTS}),", table, where)]


# ---- metrics -------------------------------------------------------------------------------------

PREFIX = "octavo:"


def labelled_rows(function):
    kinds = {name: kind for kind, name in re.findall(r'put_labelled\(p, "(\w+)", &(\w+)\)', function)}
    for var, inside in re.findall(r"labelled (\w+) = \{(.*?)\};", function, re.S):
        name, help_, label = re.findall(TEXTS, inside)[:3]
        yield PREFIX + literal(name), kinds[var], [literal(label)], literal(help_)


def plain_rows(function):
    arrays = {name: kind for kind, name in re.findall(r'put_rows\(p, "(\w+)", &?(\w+)', function)}
    for var, inside in re.findall(r"const metric (\w+)(?:\[\])? = (\{.*?\});", function, re.S):
        for name, help_ in re.findall(rf"\{{({TEXT}),\s*({TEXTS}),", inside):
            yield PREFIX + literal(name), arrays[var], [], literal(help_)


def counter_rows(root):
    for path in ("scheduler/scheduler.h", "paged_kv/paged_kv.h", "disk/disk.h", "disk/records.h",
                 "transfer/transfer.h", "backend/backend.h"):
        for name, help_ in rows(rf"X\(\w+, ({TEXT}|NULL),[\s\\]*({TEXTS})\)", read(root, path), path):
            if name != "NULL":
                yield PREFIX + literal(name), "counter", [], literal(help_)


def answer_rows(text):
    help_ = re.search(rf'put_head\(p->out, PREFIX, "counter", name, ({TEXTS})\)', text).group(1)
    for name, label in rows(r'put_answers\(&p, s, "\w+", "(\w+)", "(\w+)"\)', text, "rpc/metrics.c"):
        yield PREFIX + name, "counter", ["code", label], literal(help_)


def single_rows(function):
    for kind, name, help_ in re.findall(rf'put_head\(p->out, PREFIX, "(\w+)", "(\w+)", ({TEXTS})\)', function):
        yield PREFIX + name, kind, re.findall(r',(\w+)=\\"%', function), literal(help_)


def bare_rows(function):
    """Metrics without the prefix, whose labels follow their names or stand in a table."""
    for kind, name, help_ in re.findall(rf'put_head\(out, "", "(\w+)",\s*"(\w+)",\s*({TEXTS})\)', function):
        sample = re.search(rf'"{name}(?:_sum)?\{{(.*?)\}}', function)
        labels = re.findall(r'(\w+)=\\"', sample.group(1)) if sample else re.findall(r'\{"(\w+)", ', function)
        yield name, kind, labels, literal(help_)


def histogram_rows(root):
    where = "engine/metrics.c"
    for name, help_ in rows(rf"ROW\(({TEXTS}),\s*({TEXTS}),", read(root, where), where):
        yield PREFIX + literal(name), "histogram", ["le"], literal(help_)


def process_rows(text):
    for kind, name, help_ in rows(rf'\{{"(gauge|counter)",\s*\{{({TEXT}),\s*({TEXTS}),', text, "rpc/metrics.c"):
        yield literal(name), kind, [], literal(help_)


def metrics(root):
    """(name, kind, labels beside those of every metric, help), in order of names."""
    text = read(root, "rpc/metrics.c")
    found = list(counter_rows(root)) + list(histogram_rows(root)) + list(process_rows(text))
    found += answer_rows(text)
    for function in re.findall(r"^static void put_\w+\(.*?^\}", text, re.S | re.M):
        found += [*plain_rows(function), *labelled_rows(function), *single_rows(function), *bare_rows(function)]
    return sorted(found)
