#!/usr/bin/env python3
"""Draws docs/kept.svg, the README's figure: what keeping a tenth of the context gives and costs.
Every number is read from the tables of bench/results. The colors are legible on white and on black.
usage: draw_kept.py [--write | --check] [ROOT]"""

import pathlib
import re
import sys

SPEED = "bench/results/2026-11-21-zen3-2c-retention.md"
QUALITY = "bench/results/2026-11-22-zen5-2c-quality.md"
TASKS = ["demo_niah", "demo_passkey", "demo_kv"]

TEXT, FULL, PAGES, TOKENS = "#757f89", "#98a1aa", "#2f81f7", "#2ca06a"
WIDTH, HEIGHT, TOP, FLOOR = 880, 268, 62, 196  # the bars stand between TOP and FLOOR
BAR, GAP, GROUP = 32, 6, 26                    # of a bar, between bars, between groups


def fail(message):
    sys.exit(f"draw_kept.py: {message}")


def row(text, *begins):
    """The cells of the one table row whose first cells are these."""
    found = [re.split(r"\s*\|\s*", line)[1:-1] for line in text.split("\n")
             if line.startswith("| " + " | ".join(begins) + " |")]
    return found[0] if found else fail(f"no row {' | '.join(begins)}")


def number(text):
    match = re.search(r"\d+(?:\.\d+)?", text)
    return float(match.group(0)) if match else fail(f"no number in '{text}'")


def read_speed(root):
    """context -> (sequences, tokens/s) in full and kept."""
    text = (root / SPEED).read_text(encoding="utf-8")
    rows = {context: (row(text, context, "full"), row(text, context, "chunkkv"))
            for context in ("16,384", "32,768")}
    return {context: [(number(r[2]), number(r[5])) for r in pair] for context, pair in rows.items()}


def read_quality(root):
    """method -> the shares of right answers, by task."""
    text = (root / QUALITY).read_text(encoding="utf-8")
    table = next((t for t in text.split("\n\n") if "\n| snapkv-avg21 |" in t), "")
    found = {name: [number(row(table, name)[i]) for i in (2, 5, 8)] for name in ("chunkkv", "snapkv-avg21")}
    line = re.search(r"full cache:\s+([\d.]+),\s+([\d.]+)\s+and\s+([\d.]+)\)", text)
    found["full"] = [float(x) for x in line.groups()] if line else fail(f"{QUALITY}: no full cache")
    return found


# ---- drawing -------------------------------------------------------------------------------------

def label(x, y, text, size=13, anchor="middle", weight="normal", color=TEXT):
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{color}">{text}</text>')


def bars(x, heights, texts, colors, below):
    """One group of bars, with a number above each and a name below all."""
    out = []
    for i, (height, text, color) in enumerate(zip(heights, texts, colors)):
        left, top = x + i * (BAR + GAP), FLOOR - height * (FLOOR - TOP)
        out.append(f'<rect x="{left:g}" y="{top:.1f}" width="{BAR}" height="{FLOOR - top:.1f}" rx="2" fill="{color}"/>')
        out.append(label(left + BAR / 2, top - 5, text, 12, weight="bold", color=color if color != FULL else TEXT))
    wide = len(heights) * (BAR + GAP) - GAP
    out.append(label(x + wide / 2, FLOOR + 17, below, 12))
    return out, x + wide + GROUP


def short(context):
    return f"{int(number(context.replace(',', ''))) // 1024}K tokens"


def panel(x, title, under, groups):
    """Groups of (heights, texts, colors, name) under a title."""
    out, at = [label(x, 20, title, 15, "start", "bold"), label(x, 37, under, 12, "start")], x
    for group in groups:
        drawn, at = bars(at, *group)
        out += drawn
    out.append(f'<line x1="{x - 6}" y1="{FLOOR}" x2="{at - GROUP + 6:g}" y2="{FLOOR}" stroke="{TEXT}"/>')
    return out


def legend(y):
    out, x = [], 10
    for color, text, wide in ((FULL, "full cache", 108), (PAGES, "chunkkv: whole pages", 176),
                              (TOKENS, "snapkv, scores averaged over 21 tokens", 0)):
        out.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="2" fill="{color}"/>')
        out.append(label(x + 17, y, text, 12, "start"))
        x += wide
    return out


def draw(root):
    speed, quality = read_speed(root), read_quality(root)
    pair = [FULL, PAGES]
    most = max(n for context in speed.values() for n, _ in context)
    fastest = max(rate for context in speed.values() for _, rate in context)
    sequences = [([n / most for n, _ in two], [f"{n:g}" for n, _ in two], pair, short(context))
                 for context, two in speed.items()]
    rates = [([r / fastest for _, r in two], [f"{r:.1f}" for _, r in two], pair, short(context))
             for context, two in speed.items()]
    right = [([quality[m][i] for m in ("full", "chunkkv", "snapkv-avg21")],
              [f"{quality[m][i]:.3f}" for m in ("full", "chunkkv", "snapkv-avg21")], [FULL, PAGES, TOKENS],
              task.replace("demo_", "")) for i, task in enumerate(TASKS)]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">',
           "<title>A tenth of the context kept, beside the full cache</title>"]
    out += panel(10, "Sequences at once", "in the same memory: 8.5 times", sequences)
    out += panel(236, "Tokens/s of all together", "2.6 and 4.3 times", rates)
    out += panel(480, "Share of right answers", "10 % kept, three tasks, 1,024 prompts each", right)
    out += legend(FLOOR + 45)
    out.append(label(10, HEIGHT - 6, "Memory and speed: TinyLlama's shape, random weights, 2 cores (Zen 3), AVX2. "
                     "Answers: the demo model, 1,024 and 2,048 tokens.", 12, "start"))
    check_titles(speed)
    return "\n".join(out + ["</svg>"]) + "\n"


def check_titles(speed):
    """The factors in the titles are those of the bars."""
    factors = [(kept[0] / full[0], kept[1] / full[1]) for full, kept in speed.values()]
    if [f"{n:.1f}" for n, _ in factors] != ["8.5", "8.5"] or [f"{r:.1f}" for _, r in factors] != ["2.6", "4.3"]:
        fail(f"the titles say other factors than the records: {factors}")


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    root = pathlib.Path(args[0] if args else ".")
    figure = draw(root)
    if "--write" in sys.argv[1:]:
        (root / "docs/kept.svg").write_text(figure, encoding="utf-8")
        return 0
    if "--check" not in sys.argv[1:]:
        sys.stdout.write(figure)
        return 0
    if (root / "docs/kept.svg").read_text(encoding="utf-8") == figure:
        return 0
    print("docs/kept.svg: differs from bench/results; run: cmake --build build --target docs")
    return 1


if __name__ == "__main__":
    sys.exit(main())
