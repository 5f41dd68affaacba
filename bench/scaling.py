#!/usr/bin/env python3
"""How Octavo's decode grows with batch and context: tokens/s as a table and as drawings with this
machine's limits in them. Needs the standard library only.

    bench/scaling.py --octavo build/octavo --out bench/results/NAME

writes NAME.md, NAME.json and NAME.svg. The limit of a point is computed from its bytes and
operations: the products at the read bandwidth or the rate of FMAs (of 8-bit integers, for quantised
weights), then attention in the same way; all limits are measured right after each round. Points
that do not fit the KV pool are left out.
"""

import argparse
import html
import json
import math
import os
import subprocess
import sys
import time

import serve_server
from serve_server import Failed, ROOT

FORMATS = ("bf16", "int8", "int4")
BATCHES, CONTEXTS = "1,2,4,8,16,32,64", "1,1024,4096,8192,16384,32768"


def measure(args, kind):
    """Measures the decodes of one format and returns their rows."""
    flags = [] if kind == "bf16" else ["--quantize", kind]
    words = [args.octavo, "bench", "engine", "--shape", "1.1b", *flags, "--threads", str(args.threads),
             "--kv-memory", args.kv_memory, "--prefill", "16", "--batch", args.batch, "--context", args.context,
             "--rounds", str(args.rounds), "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: status {done.returncode}")
    return [r for r in json.loads(done.stdout)["rows"] if r["what"] == "decode"]


def context_name(tokens):
    return "0" if tokens == 1 else f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def axes(rows):
    return sorted({r["batch"] for r in rows}), sorted({r["tokens"] for r in rows})


def point(rows, batch, context):
    found = [r for r in rows if (r["batch"], r["tokens"]) == (batch, context)]
    return found[0] if found else None


# ---- the table -----------------------------------------------------------------------------------


def number(v):
    return f"{v:.1f}" if v < 100 else f"{v:.0f}"


def cell(row):
    return f"{number(row['tokens_s'])} ({row['tokens_s'] / row['limit_tokens_s']:.0%})" if row else ""


def markdown(results):
    facts = results["facts"]
    text = ["# Decode over batch and context, 1.1B shape, random weights\n",
            f"{facts['date']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, {facts['threads']} "
            f"threads, {results['rounds']} rounds, load average before {facts['load_before']:.1f}; 16-bit KV cache. "
            "Tokens/s of all\nsequences together, and in brackets the share of what the limits allow: medians.\n"]
    for kind, rows in results["formats"].items():
        batches, contexts = axes(rows)
        text.append(f"## {kind}\n")
        lines = [["batch", *(f"context {context_name(c)}" for c in contexts)], ["---"] * (len(contexts) + 1)]
        lines += [[str(b), *(cell(point(rows, b, c)) for c in contexts)] for b in batches]
        text.append("\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    text.append(f"![tokens/s over batch and context, limits dashed]({results['name']}.svg)")
    return "\n".join(text) + "\n"


# ---- the drawing ---------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 380, 300, 52, 34, 14, 40
COLOURS = ("#1b6ca8", "#2a9d5c", "#c98a10", "#c0392b", "#7d3c98", "#34495e", "#888888")


def colours(contexts):
    return [(context, COLOURS[i % len(COLOURS)]) for i, context in enumerate(contexts)]


class Panel:
    """The drawing of one format: tokens/s over the batch, both axes logarithmic; a line for each
    context, its limit dashed."""

    def __init__(self, rows, left, top_rate, contexts):
        self.rows, self.left, self.top_rate, self.contexts = rows, left, top_rate, contexts
        self.batches = axes(rows)[0]

    def x(self, batch):
        span = math.log2(max(self.batches[-1], 2))
        return self.left + LEFT + (WIDTH - LEFT - RIGHT) * math.log2(batch) / span

    def y(self, rate):
        share = math.log10(max(rate, 1)) / math.log10(self.top_rate)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def line(self, context, key, colour, more):
        points = [(self.x(r["batch"]), self.y(r[key])) for r in sorted(self.rows, key=lambda r: r["batch"])
                  if r["tokens"] == context]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "" if more else "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
                                       for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" {more}/>' + dots

    def draw(self, title):
        bottom, right = HEIGHT - BOTTOM, self.left + WIDTH - RIGHT
        out = [f'<text x="{self.left + LEFT}" y="20" font-weight="bold">{html.escape(title)}</text>']
        rates = [n * 10 ** p for p in range(6) for n in (1, 2, 5) if n * 10 ** p <= self.top_rate]
        for rate in rates:
            y = self.y(rate)
            out.append(f'<line x1="{self.left + LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
                       f'<text x="{self.left + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate}</text>')
        for batch in self.batches:
            out.append(f'<text x="{self.x(batch):.1f}" y="{bottom + 16}" text-anchor="middle">{batch}</text>')
        out.append(f'<text x="{(self.left + LEFT + right) / 2:.0f}" y="{bottom + 32}" text-anchor="middle">'
                   "sequences</text>")
        for context, colour in colours(self.contexts):
            out.append(self.line(context, "limit_tokens_s", colour, 'stroke-width="1" stroke-dasharray="4 3"'))
            out.append(self.line(context, "tokens_s", colour, ""))
        return out


def legend(contexts, at_y):
    out = []
    for i, (context, colour) in enumerate(colours(contexts)):
        x = LEFT + 130 * i
        out.append(f'<line x1="{x}" y1="{at_y}" x2="{x + 22}" y2="{at_y}" stroke="{colour}" stroke-width="2"/>'
                   f'<text x="{x + 28}" y="{at_y + 4}">{context_name(context)} tokens held</text>')
    out.append(f'<text x="{LEFT}" y="{at_y + 22}">tokens/s of all sequences; dashed: what bytes and operations allow '
               "at the limits measured in the same run</text>")
    return out


def drawing(formats):
    top_rate = max(r[key] for rows in formats.values() for r in rows for key in ("tokens_s", "limit_tokens_s")) * 1.2
    contexts = sorted({r["tokens"] for rows in formats.values() for r in rows})
    width, height = max(WIDTH * len(formats), LEFT + 130 * len(contexts)), HEIGHT + 46
    body = []
    for i, (kind, rows) in enumerate(formats.items()):
        body += Panel(rows, i * WIDTH, max(top_rate, 10), contexts).draw(f"{kind} weights, 1.1B shape")
    body += legend(contexts, HEIGHT + 12)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' +
            "\n".join(body) + "\n</svg>\n")


# ---- the command ---------------------------------------------------------------------------------


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octavo", default=os.path.join(ROOT, "build/octavo"), help="the executable")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of weights (%(default)s)")
    parser.add_argument("--batch", default=BATCHES, help="sequences (%(default)s)")
    parser.add_argument("--context", default=CONTEXTS, help="tokens that each holds (%(default)s; 1 stands for none)")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--kv-memory", default="12G", help="of the KV pool (%(default)s)")
    parser.add_argument("--out", required=True, help="NAME of NAME.md, NAME.json, NAME.svg; other formats of a "
                        "NAME.json of the same commit stay in it")
    args = parser.parse_args()
    facts = {**serve_server.facts(args.octavo), "date": time.strftime("%Y-%m-%d"), "threads": args.threads}
    results = {"name": os.path.basename(args.out), "facts": facts, "rounds": args.rounds, "formats": {}}
    if os.path.exists(args.out + ".json"):
        with open(args.out + ".json", encoding="utf-8") as f:
            known = json.load(f)
        if known["facts"]["commit"] == facts["commit"]:
            results["formats"] = known["formats"]
    for kind in args.formats.split(","):
        try:
            results["formats"][kind] = measure(args, kind)
        except Failed as e:
            print(f"not done: {e}")
            return 1
        write(args.out + ".json", json.dumps(results, indent=1) + "\n")
        write(args.out + ".md", markdown(results))
        write(args.out + ".svg", drawing(results["formats"]))
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
