#!/usr/bin/env python3
"""Tries "Adding things" of ARCHITECTURE.md: adds a retention scorer, a model family, a counter and
a request field to a copy of the tree, each by the edits that the document names, builds the copy,
and uses each of them. The paths come from the document, so the test fails when the document is
wrong and when an addition needs another file. The modules in BELOW, which know none of what is
added, are those of the tree's own build.
usage: additions.py BUILD [CMAKE OPTIONS]   (from the root)
"""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

build, *cmake_options = sys.argv[1:]
sys.argv[1:] = []
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve"))
import harness  # noqa: E402

# A build without optimisation takes a fraction of the time, and speed is not what is tried here.
BUILD = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0", "-DOCTAVO_CUDA=OFF", "-DOCTAVO_UCX=OFF"]
TARGETS = ["octavo", "paged_kv_retention_test"]
# What these folders may include is in these folders (ARCHITECTURE.md's layers).
BELOW = ["base", "disk", "transfer", "text", "kernels"]
TAKE = """  if(name MATCHES "^({names})$")
    add_library(octavo_${{name}} STATIC IMPORTED GLOBAL)
    set_target_properties(octavo_${{name}} PROPERTIES IMPORTED_LOCATION "{build}/${{name}}/liboctavo_${{name}}.a")
    list(TRANSFORM M_DEPENDS PREPEND octavo_)
    target_link_libraries(octavo_${{name}} INTERFACE octavo_flags ${{M_DEPENDS}} ${{M_LIBRARIES}})
    return()
  endif()
"""


def run(*command, cwd=None, status=0):
    """Output of a command, which must end with this status."""
    # The copy has a new folder each time, which ccache must not count as another compilation.
    environment = {**os.environ, "CCACHE_BASEDIR": tempfile.gettempdir(), "CCACHE_NOHASHDIR": "1"}
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if done.returncode != status:
        sys.exit(f"{' '.join(command[:6])}: exit {done.returncode}, not {status}\n{done.stdout[-6000:]}")
    return done.stdout


# ---- the tree, and what the document says about it -----------------------------------------------


class Tree:
    """A copy of the tree without what is built, and without models, which the build does not need
    and which can be large."""

    def __init__(self, folder):
        self.root = os.path.join(folder, "tree")
        self.build = os.path.join(folder, "build")
        built = [name for name in os.listdir(harness.ROOT) if name.startswith("build")]
        shutil.copytree(harness.ROOT, self.root, symlinks=True,
                        ignore=shutil.ignore_patterns(".git", "shared", "models", "__pycache__", *built))
        text = self.read("ARCHITECTURE.md")
        self.entries = text.split("\n## Adding things\n")[1].split("\n## ")[0]

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as f:
            return f.read()

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
            f.write(text)

    def named(self, addition, name):
        """The path that ends in `name`, out of the document's entry for an addition."""
        entry = re.search(rf"\*\*{addition}\*\*(.*?)(?=\*\*|\Z)", self.entries, re.S)
        words = re.findall(r"`([^`]+)`", entry.group(1)) if entry else []
        found = [word for word in words if word.endswith(name)]
        if len(found) != 1:
            sys.exit(f"ARCHITECTURE.md, Adding things: '{addition}' names {name} {len(found)} times: {words}")
        return found[0]

    def add_file(self, path, text):
        if os.path.exists(os.path.join(self.root, path)):
            sys.exit(f"{path}: is there already")
        self.write(path, text)

    def add_row(self, path, pattern, change):
        """Adds change(match) behind the one match of a pattern."""
        text = self.read(path)
        matches = list(re.finditer(pattern, text, re.S | re.M))
        if len(matches) != 1:
            sys.exit(f"{path}: {len(matches)} matches of {pattern}")
        at = matches[0].end()
        self.write(path, text[:at] + change(matches[0].group(0)) + text[at:])

    def take_below(self, build):
        """The build links the libraries of another build instead of making those of BELOW."""
        self.add_row("CMakeLists.txt", r"^function\(octavo_module name\)\n[^\n]*\n",
                     lambda _: TAKE.format(names="|".join(BELOW), build=build))

    def make(self):
        self.octavo = os.path.join(self.build, "octavo")
        run("cmake", "-S", self.root, "-B", self.build, *BUILD, *cmake_options)
        run("cmake", "--build", self.build, "--parallel", str(os.cpu_count()), "--target", *TARGETS)


# ---- the additions -------------------------------------------------------------------------------


def add_scorer(tree):
    """`addition` keeps the largest keys, where `knorm` keeps the smallest."""
    presets = tree.named("A retention method", "presets.c")
    folder = os.path.dirname(presets)
    scorer = os.path.join(folder, tree.named("A retention method", "score_NAME.c"))
    knorm = tree.read(scorer.replace("NAME", "knorm"))
    assert "score_negated" in knorm, knorm
    tree.add_file(scorer.replace("NAME", "addition"),
                  knorm.replace("knorm", "addition").replace("score_negated", "score_measured"))
    changes = {"knorm": "addition", "KNORM": "ADDITION", "smallest": "largest"}
    tree.add_row(presets, r'^    \{\.name = "knorm",.*?\}\},\n',
                 lambda row: re.sub("knorm|KNORM|smallest", lambda m: changes[m.group(0)], row))
    tree.add_row(tree.named("A retention method", "docs/retention.md"), r"^\| knorm \|.*?\n",
                 lambda row: row.replace("knorm", "addition"))


def add_family(tree):
    """A family whose models are Llama's by another name."""
    path = tree.named("A model family", "NAME.c")
    text = tree.read(path.replace("NAME", "llama"))
    tree.add_file(path.replace("NAME", "addition"),
                  re.sub(r"\bllama\b|(?<=_)llama\b", "addition", text).replace("Llama", "Addition"))


def add_counter(tree):
    path = tree.named("A counter", "scheduler.h")
    tree.add_row(path, r"^#define SCHED_COUNTERS\(X\) +\\\n",
                 lambda _: '    X(additions, "additions_total", "Counts what this test adds.") \\\n')


def add_field(tree):
    path = tree.named("A request field", "request_fields.inc")
    tree.add_row(path, r"^FIELD\(FLOAT, temperature,.*?\)\n(?=FIELD|OWN|\n)",
                 lambda _: 'FIELD(FLOAT, addition, 0, ABOVE(-1, 2), FLAG("addition", "X"), "does nothing")\n')
    tree.add_row(tree.named("A request field", "octavo.proto"), r"^message SamplingParams \{\n",
                 lambda _: "  float addition = 100;  // does nothing\n")


# ---- what they do --------------------------------------------------------------------------------


def kept(tree, method):
    """The positions that a method keeps of a prompt of the demo model."""
    retention = {"method": method, "ratio": 0.5, "scope": "layer", "report": "positions"}
    line = run(tree.octavo, "run", *harness.POOL, "--prompt", "a prompt of many words " * 8, "--json",
               "--max-tokens", "4", "--retention", json.dumps(retention), cwd=harness.ROOT).splitlines()[-1]
    report = json.loads(line)["retention"]
    assert report["method"] == method, report
    return report["kept"]


def check_scorer(tree):
    run(os.path.join(tree.build, "tests", "paged_kv_retention_test"), cwd=tree.root)
    assert re.search(r"^addition +ratio or tokens", run(tree.octavo, "methods"), re.M)
    assert kept(tree, "addition") != kept(tree, "knorm")


def make_model(folder):
    """The demo model as one of the new family."""
    model = os.path.join(folder, "model")
    shutil.copytree(os.path.join(harness.ROOT, harness.MODEL), model)
    path = os.path.join(model, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config["architectures"] = ["AdditionForCausalLM"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return model


def check_page(tree):
    """docs/api.md, as the tool makes it of the changed tables, has a line for each."""
    page = run(sys.executable, "tools/make_api_page.py", ".", cwd=tree.root)
    for line in ("| `addition` | all but VllmEngine | number | above -1, at most 2 | 0 | Does nothing. |",
                 "| `addition` | keeps the largest keys; ignores the query |",
                 "| `octavo:additions_total` | counter |"):
        assert line in page, (line, [row for row in page.splitlines() if "addition" in row])


def check_flag(tree):
    flags = ["run", *harness.POOL, "--prompt", "a", "--max-tokens", "1", "--addition"]
    run(tree.octavo, *flags, "2", cwd=harness.ROOT)
    said = run(tree.octavo, *flags, "-1", cwd=harness.ROOT, status=2)
    assert "--addition: '-1' must be a number above -1 and up to 2" in said, said


def call(server, addition):
    """Headers and trailers of octavo.v1's Generate, by curl. The fields' numbers are those of
    proto/octavo.proto: prompt 3 and sampling 6, in which max_tokens is 8 and addition 100."""
    sampling = b"\x40\x01" + b"\xa5\x06" + struct.pack("<f", addition)
    message = b"\x1a\x01a" + b"\x32" + bytes([len(sampling)]) + sampling
    done = subprocess.run(
        ["curl", "-sS", "--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers",
         "--data-binary", "@-", "-D", "-", "-o", os.devnull, f"http://{server.target}/octavo.v1.Inference/Generate"],
        input=b"\0" + struct.pack(">I", len(message)) + message, stdout=subprocess.PIPE, timeout=harness.PATIENCE)
    return done.stdout.decode()


def check_server(tree, model):
    """A server of the new family's model, asked for all other additions."""
    harness.OCTAVO = tree.octavo
    with harness.Server(model=["--model", model, "--kv-memory", "64M"]) as server:
        body = {"prompt": "a prompt of many words " * 8, "max_tokens": 4, "ignore_eos": True, "addition": 1.5,
                "retention": {"method": "addition", "ratio": 0.5, "scope": "layer"}}
        assert server.post("/v1/completions", body)["usage"]["completion_tokens"] == 4
        error = server.refused("/v1/completions", {**body, "addition": 2.5})
        assert error["message"] == "addition: must be in (-1, 2]" and error["param"] == "addition", error
        error = server.refused("/v1/completions", {**body, "addition": "1"})
        assert error["message"] == "addition: must be a number", error
        assert server.metric("additions_total") == 0
        said = call(server, 1.5)
        assert "grpc-status: 0" in said, said
        said = call(server, 2.5)
        assert "grpc-status: 3" in said and "addition: must be in (-1, 2]" in said, said


def main():
    os.chdir(harness.ROOT)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        tree.take_below(os.path.abspath(build))
        for add in (add_scorer, add_family, add_counter, add_field):
            add(tree)
        tree.make()
        check_scorer(tree)
        check_page(tree)
        check_flag(tree)
        check_server(tree, make_model(folder))
    print("additions: a scorer, a family, a counter and a field work as ARCHITECTURE.md says")


if __name__ == "__main__":
    main()
