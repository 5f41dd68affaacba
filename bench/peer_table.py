"""The table of bench/peer.py: which figures are compared, their bars, and the Markdown."""

import statistics
import textwrap
from typing import NamedTuple

import peer_models
from peer_build import cpu_info

# Each peer's format with as many bits as Octavo's.
LLAMA = "llama.cpp"
PAIRS = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
KINDS = {LLAMA: PAIRS, **{name: {f: f for f in PAIRS} for name in ("openvino", "vllm")}}
PREFILL, BATCHES, DEPTHS, CLIENTS = 512, (1, 8, 16, 32), (4096, 16384), (8, 32)
DEEP = ("bf16", "int8")  # formats of the sections long and depth
LONG = 16384
# Octavo's pages at depth, and what the name of a metric ends in with them.
PAGES = {"bf16": "", "int8": ", int8 pages"}
FARS = (131072, 262144)
FAR_READS = ("everything", "16K", "8K")  # by `octavo bench retrieval` without --retrieval
FASTEST = "read in the fastest step"
LIMITS = ("read", "rate", FASTEST)

CLASSES = ("AVX2", "AVX-512", "AMX")  # classes of CPUs; each has bars of its own
NONE = (None, None, None)


class Bar(NamedTuple):
    """ratio: Octavo's figure to the best peer's, for each class of CPU. share: of the named limit,
    for each class of CPU, needed as well; the limit "rate" is that of the fastest instruction for
    the type."""

    ratio: tuple = NONE
    limit: str = ""
    share: tuple = NONE


# (section, metric, formats, bar). Of several formats Octavo's best counts, and each peer's best.
ALL = list(PAIRS)
COMPARED = [
    ("prefill", f"prefill {PREFILL}", ALL, Bar((1.8, 1.3, 1.3), "rate", (None, 0.7, 0.55))),
    ("prefill", f"prefill {PREFILL}", ["bf16"], Bar((1.5, 1.25, 1.25), "rate", (None, 0.7, 0.55))),
    *(("prefill", f"prefill {PREFILL}", [f], Bar()) for f in ("int8", "int4")),
    *(("long", f"prefill {LONG}", [f], Bar((1.5, 1.3, 1.3))) for f in DEEP),
    *(("decode", "decode 1", [f], Bar((low, 1.0, 1.0), "read", (None, 0.88, 0.88)))
      for f, low in (("bf16", 1.3), ("int8", 1.4), ("int4", 1.5))),
    *(("decode", f"decode {n}", [f], Bar((1.9, 1.3, 1.5))) for n in (8, 16, 32) for f in ALL),
    *(("depth", f"decode 1 at {depth}{pages}", [f], bar)
      for depth, bar in zip(DEPTHS, (Bar((3, 1.6, 1.6)), Bar((5.5, 2.7, 3)))) for pages in PAGES.values() for f in DEEP),
    *(("far", f"decode at {far}, reads {what}", ["int4"], Bar()) for far in FARS for what in FAR_READS),
    *(row for n in CLIENTS for row in (
        ("server", f"{n} clients, tokens/s", ALL, Bar((1.9, 1.3, 1.3))),
        ("server", f"{n} clients, TTFT p50 ms", ALL, Bar((0.5, 0.8, 0.8))))),
    *(("load", "start to serving s", [f], Bar()) for f in ALL),
]
LOAD_BARS = {"bf16": 5, "int8": 5}  # seconds


def falls(metric):
    """Whether less is better."""
    return metric.endswith((" ms", " s"))


def better(metric):
    return min if falls(metric) else max


def best(samples, who, formats, metric):
    """Returns (format, samples) of the best median. A server's latency is that of the format with
    the best throughput."""
    judge = metric.replace("TTFT p50 ms", "tokens/s")
    found = [(statistics.median(v), f) for f in formats if (v := samples.get(f"{who} {f} {judge}"))]
    if not found:
        return None, None
    chosen = better(judge)(found)[1]
    return chosen, samples[f"{who} {chosen} {metric}"]


def number(v):
    return f"{v:.0f}" if v >= 1000 else f"{v:.3g}"


def spread(values):
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def shares_of(samples, ours, metric):
    """Medians of Octavo's shares by the limit's name."""
    return {key: statistics.median(v) for key in LIMITS if (v := samples.get(f"octavo {ours} {metric}|{key}"))}


def shares_text(shares):
    return ", ".join(f"{share:.0%} of {key}" for key, share in shares.items())


def verdict(bar, cpu, metric, ratio, shares):
    """Returns (the bar in words, whether it is met)."""
    low, share_low = bar.ratio[cpu], bar.share[cpu]
    if low is None:
        return "", ""
    met = ratio <= low if falls(metric) else ratio >= low
    words = f"{'<=' if falls(metric) else '>='} {low}"
    if share_low and bar.limit in shares:
        met = met and shares[bar.limit] >= share_low
        words += f" and >= {share_low:.0%} of {bar.limit}"
    return words, "yes" if met else "**no**"


def best_peer(samples, formats, metric):
    """Returns (its name and format, samples) of the best median among all peers."""
    found = [(f"{peer} {kind}", values) for peer, kinds in KINDS.items()
             for kind, values in [best(samples, peer, [kinds[f] for f in formats], metric)] if values]
    return better(metric)(found, key=lambda one: statistics.median(one[1]), default=(None, None))


def best_of_peers(samples, formats, metric):
    """The best sample of all peers."""
    names = [f"{peer} {kinds[f]} {metric}" for peer, kinds in KINDS.items() for f in formats]
    return better(metric)(v for name in names for v in samples.get(name, []))


def compared_rows(results, cpu):
    for section, metric, formats, bar in COMPARED:
        samples = results.get(section, {}).get("samples", {})
        ours, a = best(samples, "octavo", formats, metric)
        theirs, b = best_peer(samples, formats, metric)
        if not a or not b:
            continue
        ratios = [x / y for x, y in zip(a, b)]
        middle, shares = statistics.median(ratios), shares_of(samples, ours, metric)
        what = metric + (", best format" if len(formats) > 1 else "")
        yield [what, f"{ours} / {theirs}", spread(a), spread(b),
               f"**{middle:.2f}** ({min(ratios):.2f} to {max(ratios):.2f})",
               f"{better(metric)(a) / best_of_peers(samples, formats, metric):.2f}",
               *verdict(bar, cpu, metric, middle, shares), shares_text(shares)]


def load_rows(results):
    samples = results.get("load", {}).get("samples", {})
    for ours, values in ((f, samples.get(f"octavo {f} load s")) for f in PAIRS):
        if values:
            bar = LOAD_BARS.get(ours)
            middle = statistics.median(values)
            yield ["weights packed and ready, s", ours, spread(values), "", "", "", f"< {bar}" if bar else "",
                   "" if not bar else "yes" if middle < bar else "**no**", ""]


def every_sample(results):
    """Rows of all formats, which show which of them was best."""
    for section, part in results.items():
        for key, values in part["samples"].items():
            if "|" not in key:
                who, kind, metric = key.split(" ", 2)
                yield [section, metric, f"{who} {kind}", spread(values),
                       shares_text(shares_of(part["samples"], kind, metric)) if who == "octavo" else ""]


def markdown_table(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def wrapped(text, indent=""):
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def cpu_class():
    """Index into CLASSES of this machine's CPU."""
    flags = cpu_info("flags").split()
    return 2 if "amx_tile" in flags else 1 if "avx512_vnni" in flags else 0


def markdown(results):
    cpu = cpu_class()
    text = [f"# Octavo beside other CPU engines: {peer_models.SHAPE}, random weights\n"]
    for section, part in results.items():
        facts = part["facts"]
        text.append(wrapped(
            f"- {section}: {facts['date']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, "
            f"{facts['threads']} threads, {part['rounds']} rounds, load average before "
            f"{facts['load_before']:.1f}; our integers in groups of {facts.get('group', 32)}; {facts['peer']}", "  "))
    text.append("\n" + wrapped(
        "Runs take turns, ours and the peers'. Medians (ranges); the ratio is the median of the rounds' ratios to "
        "the best peer. Of bests: our best round to the best round of all peers, which a slow moment of the host does "
        "not change. Shares: of this machine's read bandwidth and of the rate at which the fastest instruction "
        "for the type multiplies from registers alone, the best of many short measurements beside each of our runs. "
        f"Bars: {CLASSES[cpu]}.") + "\n")
    head = ["what", "formats", "octavo", "best peer", "ratio", "of bests", "bar", "met", "octavo's shares"]
    text.append(markdown_table(head, [*compared_rows(results, cpu), *load_rows(results)]))
    text.append("\nEvery format:\n")
    text.append(markdown_table(["section", "what", "who", "median (range)", "shares"], every_sample(results)))
    return "\n".join(text) + "\n"
