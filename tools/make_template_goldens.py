"""Writes tests/golden/templates/*.json: the results of jinja2, set up by Hugging Face transformers,
for our templates.

    python3 tools/make_template_goldens.py [--random 500 --seed 1 --out FILE]

With --random only that many random expressions are rendered, into FILE, and text_chat_template_test
FILE compares them. A file holds groups {"name", "template", "cases": [{"vars"?, "output"} or
{"vars"?, "error", "exact"}]}; a case without vars uses the "vars" of the file. `exact` says that
our error must carry the same text (what the template raised, what is undefined).
"""
import argparse
import copy
import datetime
import json
import pathlib
import random
import warnings

import jinja2
from transformers.utils import chat_template_utils

import template_cases as C

NOW = 1721952000 + 43200 + 754  # 26 Jul 2024, 12:12:34 UTC
OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/templates"
# Errors with these words name Python's own types, so their text is not compared.
PYTHON_ONLY = ("amespace", "LoopContext", "iterator object", "reversed object")
warnings.simplefilter("ignore")  # "str" is callable, and such


def strftime_now(fmt):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(fmt)


def render(source, variables, fold=True):
    try:
        t = chat_template_utils._cached_compile_jinja_template(source)
        if not fold:
            t.environment.optimized = False
            t = t.environment.from_string(source)
        t.globals["strftime_now"] = strftime_now
        return {"output": t.render(**{"tools": None, "documents": None, **copy.deepcopy(variables)})}
    except RecursionError:
        return None
    except Exception as e:
        exact = type(e) in (jinja2.exceptions.TemplateError, jinja2.exceptions.UndefinedError, jinja2.exceptions.SecurityError)
        return {"error": str(e), "exact": exact and not any(w in str(e) for w in PYTHON_ONLY)}


def write(name, groups, variables):
    OUT.mkdir(parents=True, exist_ok=True)
    n = sum(len(g["cases"]) for g in groups)
    text = "{\"now\": %d,\n\"vars\": %s,\n\"groups\": [\n%s\n]}\n" % (
        NOW, json.dumps(variables, ensure_ascii=False), ",\n".join(json.dumps(g, ensure_ascii=False) for g in groups))
    (OUT / f"{name}.json").write_text(text)
    print(f"{name}: {len(groups)} templates, {n} cases, {len(text)} bytes")


def group(name, source, all_vars=(None,)):
    cases = []
    for v in all_vars:
        r = render(source, C.VARS if v is None else v)
        cases.append(r if v is None else {"vars": v, **r})
    return {"name": name, "template": source, "cases": cases}


def expressions(text):
    """Makes each line of the tables a template of its own, and one more of each of its outermost
    pieces."""
    groups = []
    joined = text.strip("\n").replace("\\\n", "\\\x01").split("\n")
    for i, line in enumerate(x.replace("\x01", "\n") for x in joined):
        # ' | ' separates expressions unless what follows is a filter's name
        parts, depth, quote, start, j = [], 0, None, 0, 0
        while j < len(line):
            c = line[j]
            if quote:
                j += 2 if c == "\\" else 1
                if c == quote:
                    quote = None
                continue
            if c in "'\"":
                quote = c
            depth += (c in "([{") - (c in ")]}")
            if depth == 0 and (line.startswith(" | ", j) and not is_filter(line[j + 3:]) or line.startswith(", ", j)):
                parts.append(line[start:j])
                j += 3 if line[j] == " " else 2
                start = j
                continue
            j += 1
        parts.append(line[start:])
        groups += [group(f"line {i + 1}.{k + 1}", "{{ " + p + " }}") for k, p in enumerate(parts)]
    return groups


FILTER_NAMES = set(jinja2.filters.FILTERS) | {"tojson"}


def is_filter(rest):
    name = rest.split("(")[0].split(" ")[0].split(",")[0].split(".")[0].split("[")[0]
    return name in FILTER_NAMES and name not in ("d", "e")


class Random:
    """Random expressions over C.VARS."""
    NAMES = list(C.VARS) + ["undef"]
    LITERALS = ["0", "1", "2", "-1", "3", "1.5", "0.1", "1e20", "''", "'a'", "'b,c'", "' x\\n'", "'é東'", "true", "false", "none", "[]", "{}", "()", "[1, 'a']", "(2, 'b')", "{'a': 1, 'b': none}", "range(3)"]
    FILTERS = ["upper", "lower", "trim", "title", "capitalize", "length", "first", "last", "list", "string", "tojson", "join", "join(',')", "sort", "reverse", "reverse | list", "unique | list", "sum", "min", "max", "default('z')", "default(1, true)", "int", "float",
               "abs", "round", "round(1)", "items | list", "dictsort", "map('string') | list", "map(attribute='name') | list", "select | list", "select('string') | list", "reject('number') | list", "selectattr('age') | list", "replace('a', 'b')", "indent", "tojson(indent=1)", "count", "d", "attr('x')"]
    TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "callable", "upper", "lower", "divisibleby 2", "eq 1", "in [1, 'a']", "gt 1"]
    METHODS = ["strip()", "split()", "split(',')", "upper()", "lower()", "title()", "items() | list", "keys() | list", "get('a')", "get('a', 1)", "startswith('a')", "endswith('c')", "replace('a', 'xy')", "find('a')", "count('a')", "splitlines()", "join(['a', 'b'])", "index(1)", "isdigit()", "rsplit(',', 1)", "partition(',')"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def expr(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice(self.NAMES) if r.random() < 0.6 else r.choice(self.LITERALS)
        sub = lambda: self.expr(depth - 1 - r.randrange(2))
        k = r.randrange(16)
        if k < 3:
            return f"({sub()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {sub()})"
        if k < 5:
            return f"({sub()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'and', 'or'])} {sub()})"
        if k < 9:
            return f"({sub()} | {r.choice(self.FILTERS)})"
        if k < 11:
            return f"({sub()} is {r.choice(['', 'not '])}{r.choice(self.TESTS)})"
        if k < 12:
            return f"({sub()} if {sub()} else {sub()})"
        if k < 13:
            return f"({sub()}).{r.choice(self.METHODS)}"
        if k < 14:
            return f"({sub()})[{r.choice(['0', '-1', '1', repr('a'), repr('name'), ':2', '1:', '::-1', '-2:', sub()])}]"
        if k < 15:
            return f"({sub()}).{r.choice(['a', 'b', 'name', 'c', 'zz', '0'])}"
        return f"({r.choice(['not ', '-', '+'])}{sub()})"


    SPACE = ["", "", " ", "\n", "\n  ", "  \n", "\t", "\n\n", " x", "y ", "z\n", "\r\n", "} ", "%}", "\u00a0"]

    def tag(self, inside, kind="%"):
        r = self.r
        a, b = {"%": ("{%", "%}"), "{": ("{{", "}}"), "#": ("{#", "#}")}[kind]
        left = r.choice(["", "", "", "-", "-", "+"]) if kind != "{" else r.choice(["", "", "-"])
        right = r.choice(["", "", "", "-", "-", "+"]) if kind != "{" else r.choice(["", "", "-"])
        return r.choice(self.SPACE) + a + left + r.choice([" ", "\n", "  "]) + inside + r.choice([" ", "\n "]) + right + b + r.choice(self.SPACE)

    def block(self, depth, loop):
        return "".join(self.statement(depth, loop) for _ in range(self.r.randrange(1, 4)))

    def statement(self, depth, loop=False):
        """Text, tags and white space around them; inside a loop also break, continue and loop.*"""
        r, t = self.r, self.tag
        k = r.randrange(14 if depth > 0 else 5)
        if k < 2:
            what = r.choice(["a", "b", "v", "n", "xs", "loop.index", "loop.last", "ns.t"]) if loop else r.choice(["a", "b", "v", "n", "s", "ns.t"])
            return t(what, "{")
        if k == 2:
            return t("set " + r.choice(["a", "b", "v", "ns.t"]) + " = " + r.choice(["1", "n", "'q'", "xs | length", "(a, 2)", "loop.index" if loop else "3"]))
        if k == 3:
            return t("note " + r.choice(["", "{{ x }}", "{% if %}", "\n"]), "#")
        if k == 4:
            return t(r.choice(["break", "continue"])) if loop and r.random() < 0.3 else r.choice(self.SPACE)
        if k < 8:
            other = t("elif " + r.choice(["a", "no", "n > 3"])) + self.block(depth - 1, loop) if r.random() < 0.4 else ""
            other += t("else") + self.block(depth - 1, loop) if r.random() < 0.5 else ""
            return t("if " + r.choice(["yes", "no", "a", "b is defined", "v == 1", "n % 2"])) + self.block(depth - 1, loop) + other + t("endif")
        if k < 11:
            other = t("else") + self.block(depth - 1, loop) if r.random() < 0.3 else ""
            over = r.choice(["v in xs", "a in 'xyz'", "v in []", "a, b in d.items()", "v in range(3) if v != 1", "v in xs recursive", "v in undef"])
            return t("for " + over) + self.block(depth - 1, True) + other + t("endfor")
        if k == 11:
            return t("set " + r.choice(["a", "b"])) + self.block(depth - 1, False) + t("endset")
        if k == 12:
            return t("macro m(a, b=1)") + self.block(depth - 1, False) + t("endmacro") + t(r.choice(["m(5)", "m(a)", "m(b=2, a=1) | trim"]), "{")
        return t("raw") + r.choice(["{{ x }}", " {% y %} ", "\n"]) + t("endraw") if r.random() < 0.5 else t("with a = 7") + self.block(depth - 1, loop) + t("endwith")

    def template(self):
        return "{% set ns = namespace(t=0) %}" + "".join(self.statement(3) for _ in range(self.r.randrange(1, 6))) + self.r.choice(["", "\n", "\n\n"])


def random_groups(n, seed):
    g, groups = Random(seed), []
    while len(groups) < n:
        # Not "{{ expr }}", because Jinja evaluates constant outputs when it compiles, and turns
        # some of their errors into undefined.
        source = "{% set q = " + g.expr(g.r.randrange(1, 5)) + " %}{{ q }}"
        if len(groups) % 3 == 2:
            source = g.template()
        r = render(source, C.VARS, fold=False)
        shown = json.dumps(r)
        # Results that depend on the machine or the language: addresses, integers beyond 64 bits,
        # complex numbers.
        if r is None or " at 0x" in shown.lower() or "built-in method" in shown or "complex" in shown or "<class" in shown or len(shown) > 20000:
            continue
        if any(len(w.strip("-")) > 18 and w.strip("-").isdigit() for w in "".join(c if c.isalnum() or c == "-" else " " for c in shown).split()):
            continue
        groups.append({"name": f"random {seed}.{len(groups)}", "template": source, "cases": [r]})
    return groups


def main():
    global OUT
    ap = argparse.ArgumentParser()
    ap.add_argument("--random", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", type=pathlib.Path)
    a = ap.parse_args()
    if a.random:
        OUT = a.out.parent
        write(a.out.stem, random_groups(a.random, a.seed), C.VARS)
        return
    write("expressions", expressions(C.EXPRESSIONS), C.VARS)
    tests = [group(f"{v} {t}", "{{ " + t.format(v=v if " " not in v else f"({v})") + " }}") for v in C.TEST_VALUES for t in C.TESTS.strip().split(" | ")]
    write("tests", tests + expressions(C.MORE_TESTS), C.VARS)
    write("filters", expressions(C.FILTERS), C.VARS)
    write("methods", expressions(C.METHODS), C.VARS)
    write("statements", [group(k, v) for k, v in C.STATEMENTS.items()], C.VARS)
    write("errors", [group(t, t) for t in C.ERRORS], C.VARS)
    write("random", random_groups(450, 1), C.VARS)
    formats = []
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    for name, source in C.FORMATS.items():
        cases = [{"messages": m, "add_generation_prompt": g, **tokens} for m in C.CONVERSATIONS for g in (True, False)]
        cases += [{"messages": m, "add_generation_prompt": True, "tools": [C.TOOL, C.TOOL], **tokens} for m in C.CONVERSATIONS[:10]]
        cases += [{"messages": C.CONVERSATIONS[1], "add_generation_prompt": True, "enable_thinking": False, "tools_in_user_message": False, "tools": [C.TOOL], **tokens}]
        formats.append(group(name, source, cases))
    write("formats", formats, {})


if __name__ == "__main__":
    main()
