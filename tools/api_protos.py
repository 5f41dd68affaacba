"""Reads the .proto files of the public services: services, messages and enums with the comments
that stand beside or above their members."""

import pathlib
import re

from api_tables import fail, read

FIELD = re.compile(r"(repeated )?(map<[\w, ]+>|[\w.]+) (\w+) = (\d+);")
OPTIONAL = re.compile(r"oneof \w+_opt \{ (.*?;) \}")
RPC = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\)\s*returns \((stream )?([\w.]+)\);")


class File:
    """What one .proto file declares."""

    def __init__(self, root, name):
        self.name = name
        self.head, self.package = "", ""
        self.services = {}  # name -> [(rpc, asks, answers, comment)]
        self.messages = {}  # name -> [(field, type, comment)]
        self.about = {}     # message -> comment
        self.open = []      # (kind, name) of the braces around the line
        self.pending = []   # comment lines above
        self.shared = ""    # the comment of the oneof around the line
        for line in join_lines(read(root, f"proto/{name}.proto")):
            self.take(line.strip())

    def take(self, line):
        code, _, beside = line.partition("//")
        code, beside = code.strip(), beside.strip()
        if not code:
            if beside or not self.package:  # the paragraphs of the file's head are one text
                self.pending.append(beside)
            else:
                self.pending = []
            return
        comment = " ".join(filter(None, self.pending + [beside]))
        self.pending = []
        self.take_code(code, comment)

    def path(self):
        return ".".join(name for kind, name in self.open if kind != "oneof")

    def take_code(self, code, comment):
        if code.startswith("syntax"):
            self.head = self.head or comment
        elif code.startswith("package "):
            self.package = code[len("package "):-1]
        elif RPC.match(code):
            name, asks_many, asks, answers_many, answers = RPC.match(code).groups()
            self.services[self.path()].append(
                (name, ("stream of " if asks_many else "") + asks,
                 ("stream of " if answers_many else "") + answers, comment))
        elif OPTIONAL.match(code):
            self.take_field(OPTIONAL.match(code).group(1), comment, ", optional")
        elif FIELD.match(code):
            self.take_field(code, comment, "")
        elif re.match(r"\w+ = \d+;", code):
            value = code.split(" = ")
            self.messages[self.path()].append((value[0], f"= {value[1][:-1]}", comment))
        elif re.match(r"(service|message|enum|oneof) \w+ \{", code):
            kind, name = code.split()[:2]
            self.open.append((kind, name))
            self.shared = comment
            if kind == "service":
                self.services[name] = []
            elif kind != "oneof":
                self.messages[self.path()] = []
                self.about[self.path()] = comment
            if code.endswith("}"):
                self.open.pop()
        elif code == "}":
            self.open.pop()
        elif not code.startswith("import "):
            fail(f"proto/{self.name}.proto: cannot read '{code}'")

    def take_field(self, code, comment, optional):
        repeated, kind, name, _ = FIELD.match(code).groups()
        if self.open[-1][0] == "oneof":
            optional = f", one of {self.open[-1][1]}"
            comment = comment or self.shared
        self.messages[self.path()].append((name, f"{repeated or ''}{kind}{optional}", comment))


def join_lines(text):
    """Lines, where a declaration that goes on in the next line is one."""
    whole = ""
    for line in text.split("\n"):
        whole = f"{whole} {line.strip()}" if whole else line
        code = whole.partition("//")[0].strip()
        if code and code[-1] not in ";{}":
            continue
        yield whole
        whole = ""


def key_of(root, package_service, rpc):
    """Which key a call of a method needs: none, "API" or "admin"."""
    path = f"/{package_service}/{rpc}"
    for source in sorted(pathlib.Path(root).glob("rpc/*/*.c")):
        match = re.search(rf'\.path = "{re.escape(path)}",(.*?)\}}', source.read_text(), re.S)
        if match:
            row = match.group(1)
            return "none" if ".open = true" in row else "admin" if ".admin = true" in row else "API"
    return fail(f"rpc/: no row for {path}")
