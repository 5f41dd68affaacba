#!/usr/bin/env python3
"""Finds comments and documents that are wider than 100 columns, and comments that open with "Of",
which hides what they are about. Tables, blocks of code, headings and words that cannot be broken,
such as links, may be wider. usage: check_comments.py [ROOT]"""

import ast
import io
import os
import re
import sys
import tokenize

from check_text import C_FILES, files

COLUMNS = 100
# Strings are matched so that what looks like a comment inside one is skipped.
C_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
OPENING = re.compile(r'\s*(?:/\*+|//+|#+|r?""")?\s*Of\s')
HASH_FILES = (".sh", ".cmake", ".yml", "CMakeLists.txt", "dev", "run")


def comments_of_c(text):
    """(offset, text) of each comment."""
    for match in C_COMMENT.finditer(text):
        if match.group(0)[0] == "/":
            yield match.start(), match.group(0)


def comments_of_python(text):
    """(line, first column, text) of each comment and docstring."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.start[1], token.string
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            lines = text.split("\n")[doc.lineno - 1:doc.end_lineno]
            yield doc.lineno, 0, "\n".join(lines)


def comments(path, text):
    """(line, first column, text) of each comment of a file."""
    if path.endswith(".py"):
        yield from comments_of_python(text)
    elif path.endswith(C_FILES + (".proto", ".inc")):
        for at, comment in comments_of_c(text):
            start = text.rfind("\n", 0, at) + 1
            yield text.count("\n", 0, at) + 1, at - start, comment
    elif path.endswith(HASH_FILES):
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("#"):
                yield number, 0, line


def check_comments(path, text, problems):
    for number, column, comment in comments(path, text):
        if OPENING.match(comment):
            problems.append(f"{path}:{number}: a comment opens with 'Of': begin with what it is about")
        for i, line in enumerate(comment.split("\n")):
            width = len(line) + (column if i == 0 else 0)
            if width > COLUMNS and "://" not in line:
                problems.append(f"{path}:{number + i}: a comment reaches column {width}, the limit is {COLUMNS}")


def check_document(path, text, problems):
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if code or fence or len(line) <= COLUMNS or line.lstrip().startswith(("|", "#")):
            continue
        if not re.fullmatch(r"\s*(?:[-*] |> )?\S+", line):
            problems.append(f"{path}:{number}: {len(line)} columns, the limit is {COLUMNS}")


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    problems = []
    for path in files(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        if path.endswith(".md"):
            check_document(path, text, problems)
        else:
            check_comments(path, text, problems)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
