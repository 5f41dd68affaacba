#!/usr/bin/env python3
"""Checks the layers: which module includes which, and that only public headers cross a module's
border.

A module is a top-level folder with C in it and one row in the table of modules in ARCHITECTURE.md,
which this program reads. A row's third cell names the headers that others may include, or says
"all". Its last cell names the modules and single headers that it may include itself, "all" for
every module, "nothing" for none; text in parentheses is for readers. CMake's DEPENDS must stay
within the same row; a module made of several libraries names them MODULE_PART.

usage: check_layers.py [ROOT]"""

import os
import re
import sys

# The first line of the table of modules, and the form of its rows.
TABLE = re.compile(r"^\| folder \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", re.M)
FOLDER = re.compile(r"`(\w+)/`")
QUOTED = re.compile(r"`([^`]+)`")


class Module:
    """A row. public: its headers that others may include (None: all of them). modules: the folders
    whose public headers it may include. headers: single headers beyond those."""

    def __init__(self, public, modules, headers):
        self.public, self.modules, self.headers = public, modules, headers


# The build makes these headers: proto/NAME.pb-c.h from proto/NAME.proto, the lists of scores and
# families from file names.
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


def read_row(line, names, problems):
    """Reads a row of the table: (folder, Module)."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    folder = FOLDER.fullmatch(cells[0]).group(1)
    public = None if cells[2] == "all" else QUOTED.findall(cells[2])
    words = [word.strip() for word in re.sub(r"\([^)]*\)", "", cells[3]).split(",")]
    modules, headers = [], []
    for word in filter(None, words):
        quoted = QUOTED.fullmatch(word)
        if quoted:
            headers.append(quoted.group(1))
        elif word == "all":
            modules = list(names)
        elif word in names:
            modules.append(word)
        elif word != "nothing":
            problems.append(f"ARCHITECTURE.md: the row of {folder}/ allows '{word}', which is no row of the table")
    return folder, Module(public, modules, headers)


def read_table(root, problems):
    """Reads the modules of ARCHITECTURE.md, by folder."""
    with open(os.path.join(root, "ARCHITECTURE.md"), encoding="utf-8") as f:
        table = TABLE.search(f.read())
    if not table:
        problems.append("ARCHITECTURE.md: no table that begins with '| folder |'")
        return {}
    lines = []
    for line in table.group(1).splitlines():
        if re.fullmatch(r"\| `\w+/` \|[^|]*\|[^|]*\|[^|]*\|", line):
            lines.append(line)
        else:
            problems.append(f"ARCHITECTURE.md: no row of a module with four cells: {line}")
    names = [FOLDER.search(line).group(1) for line in lines]
    return dict(read_row(line, names, problems) for line in lines)


def is_public(table, header):
    module, rest = header.split("/", 1)
    if module not in table:
        return False
    public = table[module].public
    return public is None or rest in public


def exists(root, header):
    if header in LISTS:
        return True
    made = GENERATED.match(header)
    return os.path.isfile(os.path.join(root, made.group(1) + ".proto" if made else header))


def mirrored(path, module):
    """Whether a test may include a module's private headers: a unit test or fuzz target named after
    the module; tests/simt, the GPU's emulator; and tests/cuda, which samples beside the CPU."""
    folder, name = os.path.split(path)
    if (folder, module) in (("tests/simt", "kernels"), ("tests/cuda", "model")):
        return True
    return folder in ("tests/unit", "tests/fuzz") and name.startswith(module + "_")


def check_file(root, table, path, problems):
    module = path.split("/", 1)[0]
    if module not in table:
        problems.append(f"{path}: folder '{module}' has no row in ARCHITECTURE.md's table of modules")
        return
    modules, headers = table[module].modules, table[module].headers
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
        elif not is_public(table, header) and not mirrored(path, target) and header not in headers:
            problems.append(f'{where}: "{header}" is private to {target}')


def check_cmake(root, table, module, problems):
    modules, headers = table[module].modules, table[module].headers
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
    table = read_table(root, problems)
    for module, row in table.items():
        if not os.path.isdir(os.path.join(root, module)):
            problems.append(f"ARCHITECTURE.md: {module}/ is no folder")
        for header in row.public or []:
            if not os.path.isfile(os.path.join(root, module, header)):
                problems.append(f"{module}/{header}: a public header that does not exist")
        check_cmake(root, table, module, problems)
    for path in sources(root):
        check_file(root, table, path, problems)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
