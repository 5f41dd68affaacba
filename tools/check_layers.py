#!/usr/bin/env python3
"""Checks the layers: who may include whom, and that only public headers cross a module's border.

A module is a top-level folder with C in it and one row in the table below. CMake's DEPENDS must stay
within the same row; a module made of several libraries names them MODULE_PART. Adding a module means
adding its row here and in ARCHITECTURE.md."""

import os
import re
import sys

# module: (modules whose public headers it may include, single headers beyond those)
ALLOWED = {
    "base": ([], []),
    "text": (["base"], []),
    "comm": (["base"], []),
    # simt.h: kernels/cuda compiled for the CPU, in tests alone.
    "kernels": (["base"], ["tests/simt/simt.h"]),
    "paged_kv": (["base"], []),
    "scheduler": (["paged_kv", "base"], []),
    "model": (["kernels", "paged_kv", "comm", "text", "base"], ["scheduler/backend.h"]),
    "engine": (["scheduler", "paged_kv", "text", "base"], []),
    "proto": (["base"], []),
    "rpc": (["engine", "proto", "base"], ["scheduler/backend.h", "comm/comm.h"]),
    "quality": (["engine", "text", "base"], ["model/probe.h"]),
    "cli": (["quality", "rpc", "engine", "model", "text", "scheduler", "paged_kv", "kernels", "comm", "base"], []),
    "bench": (["engine", "model", "text", "scheduler", "paged_kv", "kernels", "comm", "base"], []),
    "tests": (["rpc", "proto", "engine", "model", "text", "scheduler", "paged_kv", "kernels", "comm", "base", "cli", "quality"], []),
}

# What a module shows to others; every other header is private. base: all of them.
PUBLIC = {
    "kernels": ["kernels.h", "measure.h", "cuda/cuda_kernels.h"],
    "comm": ["comm.h"],
    "paged_kv": ["paged_kv.h", "retention/retention.h"],
    "scheduler": ["scheduler.h", "backend.h"],
    "model": ["model.h", "probe.h"],
    "text": ["tokenizer.h", "chat_template.h", "merges.h"],
    "engine": ["engine.h", "metrics.h"],
    "proto": ["proto.h"],
    "rpc": ["rpc.h", "worker.h"],
    "quality": ["quality.h"],
    "cli": [],
}

# Made by the build: proto/NAME.pb-c.h comes from proto/NAME.proto, the lists of scores and families from file names.
GENERATED = re.compile(r"^(proto/\w+)\.pb-c\.h$")
LISTS = {"paged_kv/retention/scores.gen.h", "model/families.gen.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"', re.M)


def sources(root):
    for top in sorted(os.listdir(root)):
        if top.startswith((".", "build")) or not os.path.isdir(os.path.join(root, top)):
            continue
        for folder, dirs, files in os.walk(os.path.join(root, top)):
            dirs.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc", ".inc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def is_public(header):
    module, rest = header.split("/", 1)
    return module == "base" or rest in PUBLIC.get(module, [])


def exists(root, header):
    if header in LISTS:
        return True
    made = GENERATED.match(header)
    return os.path.isfile(os.path.join(root, made.group(1) + ".proto" if made else header))


def mirrored(path, module):
    """A unit test or fuzz target named after a module may look inside that module; tests/simt is the
    GPU's other half, and tests/cuda draws beside the CPU's sampler."""
    folder, name = os.path.split(path)
    if (folder, module) in (("tests/simt", "kernels"), ("tests/cuda", "model")):
        return True
    return folder in ("tests/unit", "tests/fuzz") and name.startswith(module + "_")


def check_file(root, path, problems):
    module = path.split("/", 1)[0]
    if module not in ALLOWED:
        problems.append(f"{path}: folder '{module}' has no row in tools/check_layers.py")
        return
    modules, headers = ALLOWED[module]
    with open(os.path.join(root, path), encoding="utf-8") as f:
        text = f.read()
    for match in INCLUDE.finditer(text):
        header = match.group(1)
        where = f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}"
        target = header.split("/", 1)[0]
        if not exists(root, header):
            problems.append(f'{where}: "{header}" is not a path from the root')
        elif target == module:
            continue
        elif target not in modules and header not in headers:
            problems.append(f'{where}: {module} must not include "{header}"')
        elif not is_public(header) and not mirrored(path, target) and header not in headers:
            problems.append(f'{where}: "{header}" is private to {target}')


def check_cmake(root, module, problems):
    modules, headers = ALLOWED[module]
    may = set(modules) | {h.split("/", 1)[0] for h in headers}
    for folder, dirs, names in os.walk(os.path.join(root, module)):
        dirs.sort()
        if "CMakeLists.txt" not in names:
            continue
        path = os.path.relpath(os.path.join(folder, "CMakeLists.txt"), root)
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        for call in re.findall(r"octavo_module\(([^)]*)\)", text):
            depends = re.search(r"\bDEPENDS\b(.*?)(?:\b(?:SOURCES|LIBRARIES)\b|$)", call, re.S)
            for name in depends.group(1).split() if depends else []:
                if name not in may and not name.startswith(module + "_"):
                    problems.append(f"{path}: {module} must not depend on {name}")


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    problems = []
    for module, headers in PUBLIC.items():
        for header in headers:
            if os.path.isdir(os.path.join(root, module)) and not os.path.isfile(
                os.path.join(root, module, header)
            ):
                problems.append(f"{module}/{header}: a public header that does not exist")
    for path in sources(root):
        check_file(root, path, problems)
    for module in ALLOWED:
        check_cmake(root, module, problems)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
