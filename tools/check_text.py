#!/usr/bin/env python3
"""Finds what a linter of C does not: banned calls, texts that are cut at a NUL, left-over notes,
files that are too long, paths of one machine, C files that nothing builds, documents that are named
but do not exist, and files and names that a document has in backticks but the source has not."""

import fnmatch
import os
import re
import sys

LINES_MAX = 700
# Generated tables are not read, so they may be long.
GENERATED = re.compile(r"(?:written|generated) by tools/", re.I)

BANNED_CALLS = {
    "strcpy": "memcpy with a known size",
    "strcat": "strbuf",
    "sprintf": "snprintf or strbuf_printf",
    "vsprintf": "vsnprintf",
    "gets": "fgets",
    "atoi": "number_read_whole",
    "atol": "number_read_whole",
    "atof": "number_read",
    "strtok": "strtok_r or strcspn",
    "alloca": "an arena",
    "rand": "rng_u32",
    "srand": "rng_seed",
}
# Texts that the process printed itself, or that Python's rules read, and tests.
OWN_NUMBERS = ("base/strbuf.c", "text/chat_template/", "engine/grammar/", "tests/", "bench/")
STRTOD = re.compile(r"\bstrto(?:d|f|ld)\s*\(")
CALL = re.compile(r"\b(" + "|".join(BANNED_CALLS) + r")\s*\(")
NOTES = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.$})/~-])/(?:work|home|root|tmp|usr/local)/")
# A document's name is a path from the root or from the file that names it, or stands for a name
# (NAME). A link's text may be shorter, because its target is checked.
DOCUMENT = re.compile(r"(?<![\w./-])[\w./-]+\.md\b(?!\w|\]\()")
PLACEHOLDER = re.compile(r"[A-Z]+\.md")
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
# Files and names of the source that a document has in backticks.
SOURCE_FILE = re.compile(r"`([a-z][a-z0-9_/.-]*\.(?:c|h|inc|cu|cuh|py|sh|proto))`")
SOURCE_NAME = re.compile(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`")
WRITTEN = {"quality-demo/table.md"}  # a command in the text writes it
# Comments, strings and character constants are skipped, so that a call named in prose is not
# reported.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

# The pattern of files in a CMakeLists.txt, as a path from its own folder.
GLOB = re.compile(r"(?<=\$\{CMAKE_CURRENT_SOURCE_DIR\}/)[\w/-]*\*[\w*-]*\.c\b")

C_FILES = (".c", ".h", ".cu", ".cuh", ".cc")
TEXT_FILES = C_FILES + (".proto", ".py", ".sh", ".md", ".txt", ".cmake", ".yml", ".inc")
TEXT_NAMES = ("dev", "run", "CMakePresets.json", ".clang-format")


def files(root):
    for folder, dirs, names in os.walk(root):
        at_top = folder == root
        dirs[:] = sorted(
            d for d in dirs
            if d not in (".git", "__pycache__") and not (at_top and d.startswith(("build", "shared")))
        )
        for name in sorted(names):
            if name.endswith(TEXT_FILES) or name in TEXT_NAMES:
                yield os.path.relpath(os.path.join(folder, name), root)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def check(root, path, text, problems):
    def report(pattern, subject, message):
        for match in pattern.finditer(subject):
            line = subject.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: {message(match)}")

    n_lines = text.count("\n")
    if path.endswith(C_FILES + (".py", ".sh")) and n_lines > LINES_MAX and not GENERATED.search(text[:600]):
        problems.append(f"{path}: {n_lines} lines, the limit is {LINES_MAX}")
    report(NOTES, text, lambda m: f"'{m.group(1)}': do it or file it")
    for match in DOCUMENT.finditer(text):
        name = match.group(0)
        places = (os.path.join(root, name), os.path.join(root, os.path.dirname(path), name))
        if name in WRITTEN or PLACEHOLDER.fullmatch(os.path.basename(name)):
            continue
        if not any(map(os.path.isfile, places)):
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: '{name}' is named and does not exist")
    if path.endswith(".md"):
        for match in LINK.finditer(text):
            if not os.path.exists(os.path.join(root, os.path.dirname(path), match.group(1))):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{path}:{line}: the link '{match.group(1)}' leads nowhere")
    report(MACHINE_PATH, text, lambda m: f"path of one machine: {m.group(0)}")
    if path.endswith(C_FILES):
        code = NOT_CODE.sub(blank, text)
        report(CALL, code, lambda m: f"{m.group(1)}() is banned, use {BANNED_CALLS[m.group(1)]}")
        if not path.startswith(OWN_NUMBERS):
            report(STRTOD, code, lambda m: "numbers of others are read by number_read (base/number.h)")
        check_words(path, code, problems)


def check_words(path, code, problems):
    """Finds functions that may read a client's text as a C string, which ends at its first NUL.
    In schemas engine/grammar/schema.c refuses NULs before anything else reads them."""
    if not path.startswith(("rpc/", "engine/")) or path.startswith("engine/grammar/"):
        return
    start = 0
    for end in [m.end() for m in re.finditer(r"^\}", code, re.M)]:
        function = code[start:end]
        at = function.find("json_string_value(")
        if at >= 0 and "json_string_length(" not in function:
            line = code.count("\n", 0, start + at) + 1
            problems.append(f"{path}:{line}: json_string_value without json_string_length: "
                            "a word is read by json_word")
        start = end


def check_names(documents, paths, source, problems):
    """Finds names in documents that the source does not have any more."""
    ends = {path[at:] for path in paths for at in range(len(path)) if at == 0 or path[at - 1] == "/"}
    for path, text in documents:
        for match in list(SOURCE_FILE.finditer(text)) + list(SOURCE_NAME.finditer(text)):
            name = match.group(1)
            if name not in ends and ("." in name or name not in source):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f"{path}:{line}: '{name}' is not in the source")


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    problems, c_files, built, globs = [], [], "", []
    paths, documents, source = list(files(root)), [], []
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        check(root, path, text, problems)
        if not path.endswith(".md"):
            source.append(text)
        elif not path.startswith(("bench/", "tests/")):  # records tell of the source as it was
            documents.append((path, text))
        if path.endswith((".c", ".cu", ".cc")):
            c_files.append(path)
        if os.path.basename(path) in ("CMakeLists.txt", "peer_build.py"):  # files that build others
            built += text
            folder = os.path.dirname(path)
            globs += [os.path.join(folder, glob) for glob in GLOB.findall(text)]
    check_names(documents, paths, "\n".join(source), problems)
    for path in c_files:
        name = os.path.basename(path)
        if path.startswith("tests/fuzz/"):
            name = name[:-2]  # octavo_fuzz adds the ending
        if any(fnmatch.fnmatch(path, glob) for glob in globs):
            continue
        if not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", built):
            problems.append(f"{path}: named in no CMakeLists.txt")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
