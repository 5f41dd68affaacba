#!/usr/bin/env python3
"""Octavo beside llama.cpp: fetches and builds the peer outside the tree, makes random weights of one shape for
both, interleaves their runs, and prints medians, ranges and ratios beside the bars. Its own library only;
needs cmake, ninja, a C++ compiler and, the first time, pip's index.

    bench/peer.py --octavo build/octavo --out bench/results/NAME.md       # everything
    bench/peer.py --only decode --formats int8 --rounds 3 --out FILE.md   # a part, joined with FILE's others

  prefill   a prompt of 512 tokens
  decode    1, 8, 16 and 32 sequences at 128 tokens
  depth     1 sequence at 4096 and 16384 tokens; both fill their caches with copies of a prompt's
  server    8 and 32 clients at once, 256 + 64 tokens, no shared prefix
  load      from the start of the server to ready, files in the page cache

--out FILE.md also writes FILE.json, with every sample. What it holds already stays in the table: other sections,
and other formats and clients of the same commit with as many rounds.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import NamedTuple

import peer_models
import serve_server
from peer_build import Peer, cpu_info, default_work
from serve_server import Failed, ROOT, Server, load

PAIRS = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
PREFILL, CONTEXT, BATCHES, DEPTHS, CLIENTS = 512, 128, (1, 8, 16, 32), (4096, 16384), (8, 32)
INPUT, OUTPUT = 256, 64
PEER_STEPS, DEPTH_STEPS = 16, 16  # tokens that the peer decodes for one sample
OUR_ROUNDS = 3                    # likewise ours: medians of so many rounds of at least 0.3 s
POOL = "1G"
PATIENCE = 600


# ---- samples --------------------------------------------------------------------------------------


def interleave(rounds, runs):
    """runs: [(name, function)], ours and the peer's in turn; each gives {metric: value}. The samples of all
    rounds: {"name metric": [values]}."""
    samples = {}
    for i in range(rounds):
        for name, run in runs:
            measured = run()
            for metric, value in measured.items():
                samples.setdefault(f"{name} {metric}", []).append(value)
            shown = ", ".join(f"{m} {v:.4g}" for m, v in measured.items() if "|" not in m)
            print(f"  round {i + 1}, {name}: {shown}", flush=True)
    return samples


def command(*words, timeout=PATIENCE):
    """What it writes to stdout."""
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Failed(str(e)) from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}\n{done.stderr[-2000:]}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Setting:
    """What the sections need of the command line."""

    def __init__(self, args):
        self.octavo = os.path.abspath(args.octavo)
        self.peer = Peer(args.work)
        self.threads, self.rounds = args.threads, args.rounds
        self.formats = args.formats.split(",")
        self.clients = [int(n) for n in args.clients.split(",")]
        wrong = [f for f in self.formats if f not in PAIRS]
        if wrong:
            raise Failed(f"--formats: {wrong[0]} is none of {', '.join(PAIRS)}")

    def pairs(self):
        return [(ours, PAIRS[ours]) for ours in self.formats]

    def weights(self, kind):
        return peer_models.gguf(self.peer.work, kind)

    def alternate(self, ours, theirs):
        """Runs of all formats, ours beside the peer's; each function takes the format's name."""
        return [run for our, their in self.pairs()
                for run in ((f"octavo {our}", lambda f=our: ours(f)), (f"peer {their}", lambda f=their: theirs(f)))]


def quantize(ours):
    return [] if ours == "bf16" else ["--quantize", ours]


def our_rows(s, ours, prefill, batches, contexts, rounds):
    out = command(s.octavo, "bench", "engine", "--shape", "1.1b", *quantize(ours), "--threads", s.threads,
                  "--kv-memory", POOL, "--prefill", prefill, "--batch", ",".join(map(str, batches)),
                  "--context", ",".join(map(str, contexts)), "--rounds", rounds, "--json")
    return json.loads(out)["rows"]


def shares(metric, row, ours):
    """Beside a rate: its shares of the limits that were measured with it, as "metric|limit"."""
    rate = "fma" if ours == "bf16" else "int"
    return {metric: row["tokens_s"], f"{metric}|read": row["read_share"], f"{metric}|{rate}": row[f"{rate}_share"]}


# ---- prefill, decode, depth -----------------------------------------------------------------------


def prefill_section(s):
    def ours(f):
        (row,) = [r for r in our_rows(s, f, PREFILL, [1], [16], 1) if r["what"] == "prefill"]
        return shares(f"prefill {PREFILL}", row, f)

    def theirs(f):
        (row,) = json_lines(command(s.peer.tool("llama-bench"), "-m", s.weights(f), "-p", PREFILL, "-n", 0, "-r", 1,
                                    "-t", s.threads, "-fa", 1, "-o", "jsonl"))
        return {f"prefill {PREFILL}": row["avg_ts"]}

    return interleave(s.rounds, s.alternate(ours, theirs))


def decode_section(s):
    def ours(f):
        out = {}
        for row in our_rows(s, f, 16, BATCHES, [CONTEXT], OUR_ROUNDS):
            if row["what"] == "decode":
                out.update(shares(f"decode {row['batch']}", row, f))
        return out

    def theirs(f):
        # The prompt is shared, so that its 128 tokens are computed once; each sequence has its own copy of its
        # cache. One sequence is measured three times: its steps are short.
        rows = json_lines(command(
            s.peer.tool("llama-batched-bench"), "-m", s.weights(f), "-t", s.threads, "-tb", s.threads, "-fa", "on",
            "-c", max(BATCHES) * 256, "-b", 2048, "-ub", 512, "-no-kvu", "-pps", "-npp", CONTEXT, "-ntg", PEER_STEPS,
            "-npl", ",".join(map(str, [1, 1, *BATCHES])), "--output-format", "jsonl"))
        out = {}
        for n in BATCHES:
            rates = [r["speed_tg"] for r in rows if r["pl"] == n]
            if not rates:
                raise Failed(f"llama-batched-bench left out {n} sequences")
            out[f"decode {n}"] = statistics.median(rates)
        return out

    return interleave(s.rounds, s.alternate(ours, theirs))


def depth_section(s):
    """int8 weights and a 16-bit cache for both."""
    def ours(f):
        out = {}
        for row in our_rows(s, f, 16, [1], DEPTHS, OUR_ROUNDS):
            if row["what"] == "decode":
                out.update(shares(f"decode 1 at {row['tokens']}", row, f))
        return out

    with PeerDepth(s, "Q8_0") as peer:
        return interleave(s.rounds, [("octavo int8", lambda: ours("int8")), ("peer Q8_0", peer.decode)])


class PeerDepth:
    """The peer with contexts of all depths, each a prompt's cache over and over, as ours are."""

    def __init__(self, s, kind):
        self.folder = tempfile.TemporaryDirectory(prefix="contexts-", dir=s.peer.work)
        self.process = subprocess.Popen(
            [s.peer.tool("peer_depth"), s.weights(kind), str(s.threads), str(max(DEPTHS) + 1024)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask("save", self._file("prompt"), PREFILL)
        with open(self._file("prompt"), "rb") as f:
            prompt = f.read()
        for depth in DEPTHS:
            with open(self._file(depth), "wb") as f:
                f.write(peer_models.stretch_state(prompt, depth))

    def _file(self, name):
        return os.path.join(self.folder.name, str(name))

    def _ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed("peer_depth ended; see above")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()

    def decode(self):
        return {f"decode 1 at {depth}": float(self._ask("decode", self._file(depth), DEPTH_STEPS))
                for depth in DEPTHS}


# ---- servers --------------------------------------------------------------------------------------


class PeerServer:
    """llama-server on a free port; its log goes to a file. start_s: seconds until it was ready."""

    def __init__(self, s, kind, slots, context, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log")
        self.url = f"http://127.0.0.1:{self.port}"
        started = time.monotonic()
        self.process = subprocess.Popen(
            [str(w) for w in (
                s.peer.tool("llama-server"), "-m", s.weights(kind), "--host", "127.0.0.1", "--port", self.port,
                "-t", s.threads, "-tb", s.threads, "-np", slots, "-c", context, "-no-kvu", "-cb", "-fa", "on",
                "-b", 2048, "-ub", 512, "--cache-ram", 0, *flags)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        self.start_s = time.monotonic() - started

    def _wait(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.005)
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            raise Failed(f"llama-server did not start:\n{f.read()[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def our_server(s, ours, batch):
    return Server(s.octavo, *quantize(ours), "--threads", str(s.threads), "--kv-memory", POOL,
                  "--max-batch", str(batch), "--max-requests", str(2 * batch),
                  model=["--model", peer_models.folder(s.peer.work)])


def put_load(s, url, clients, seed):
    """As many requests as clients, or 16: all clients start at once."""
    result = load(s.octavo, url, "--input-len", INPUT, "--output-len", OUTPUT, "--vocab", peer_models.VOCAB,
                  "--num-prompts", max(16, clients), "--max-concurrency", clients, "--seed", seed)
    if result["failed"]:
        raise Failed(f"{url}: {result['ends']} {result['examples']}")
    return {f"{clients} clients, tokens/s": result["output_throughput"],
            f"{clients} clients, TTFT p50 ms": result["median_ttft_ms"]}


def server_section(s):
    """Both servers stay up while their runs take turns: one that has nothing to do uses no CPU."""
    samples, seed = {}, 0

    def runs(theirs, ours, our, their, clients):
        def run(url):
            nonlocal seed
            seed += 1  # prompts of its own: no cache has seen them
            return put_load(s, url, clients, seed)
        return [(f"octavo {our}", lambda: run(ours.url)), (f"peer {their}", lambda: run(theirs.url))]

    for our, their in s.pairs():
        for clients in s.clients:
            with PeerServer(s, their, clients, clients * 512) as theirs, our_server(s, our, clients) as ours:
                samples.update(interleave(s.rounds, runs(theirs, ours, our, their, clients)))
    return samples


def warm(path):
    with open(path, "rb") as f:
        while f.read(1 << 24):
            pass


def load_section(s):
    folder = peer_models.folder(s.peer.work)

    def ours(f):
        warm(os.path.join(folder, "model.safetensors"))
        start = time.monotonic()
        with our_server(s, f, 32) as server:
            whole = time.monotonic() - start
            ready = re.search(r"ready in ([\d.]+) s", server.log())
        return {"load s": float(ready.group(1)), "start to serving s": whole}

    def theirs(f):
        warm(s.weights(f))
        with PeerServer(s, f, 1, 4096) as server:
            return {"start to serving s": server.start_s}

    return interleave(s.rounds, s.alternate(ours, theirs))


SECTIONS = {"prefill": prefill_section, "decode": decode_section, "depth": depth_section,
            "server": server_section, "load": load_section}


# ---- the table ------------------------------------------------------------------------------------

class Bar(NamedTuple):
    """ratio: of ours to the peer's, on AVX2 and on AVX-512. share: of the limit named (the rate: of what the format's
    products are made of), likewise; needed as well, or instead."""

    ratio: tuple = (None, None)
    limit: str = ""
    share: tuple = (None, None)
    instead: bool = False


# (section, metric, our formats, the peer's, bar). Of several formats the best counts.
ALL, ANY = list(PAIRS), list(PAIRS.values())
READ = {"bf16": (0.85, 0.8), "int8": (0.85, 0.8), "int4": (0.75, 0.8)}
COMPARED = [
    ("prefill", f"prefill {PREFILL}", ALL, ANY, Bar((1.15, 1.25), "rate", (0.7, None))),
    ("prefill", f"prefill {PREFILL}", ["bf16"], ["BF16"], Bar((1.3, 4), "rate", (0.75, None))),
    *(("decode", "decode 1", [ours], [PAIRS[ours]], Bar((low, 1.0), "read", READ[ours]))
      for ours, low in (("bf16", 0.97), ("int8", 1.0), ("int4", 1.0))),
    *(("decode", f"decode {n}", ALL, ANY, Bar(ratios, "rate", (0.7, None), instead=True))
      for n, ratios in ((8, (1.15, 1.5)), (16, (1.3, 2)), (32, (1.5, 2.5)))),
    *(("depth", f"decode 1 at {depth}", ["int8"], ["Q8_0"], Bar((low, low))) for depth, low in zip(DEPTHS, (1.7, 2.5))),
    *(row for n in CLIENTS for row in (
        ("server", f"{n} clients, tokens/s", ALL, ANY, Bar((1.3, 1.8))),
        ("server", f"{n} clients, TTFT p50 ms", ALL, ANY, Bar((0.7, 0.5))))),
    *(("load", "start to serving s", [ours], [PAIRS[ours]], Bar()) for ours in ALL),
]
LOAD_BARS = {"bf16": 5, "int4": 8}  # seconds


def falls(metric):
    """Less is better."""
    return metric.endswith((" ms", " s"))


def best(samples, who, formats, metric):
    """(format, samples) of the best median. A server's latency is that of the format with the best throughput."""
    judge = metric.replace("TTFT p50 ms", "tokens/s")
    found = [(statistics.median(v), f) for f in formats if (v := samples.get(f"{who} {f} {judge}"))]
    if not found:
        return None, None
    chosen = (min(found) if falls(judge) else max(found))[1]
    return chosen, samples[f"{who} {chosen} {metric}"]


def number(v):
    return f"{v:.0f}" if v >= 1000 else f"{v:.3g}"


def spread(values):
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


LIMIT_NAMES = {"read": "read", "fma": "FMA", "int": "int"}


def shares_of(samples, ours, metric):
    """Medians by the limit's name."""
    return {key: statistics.median(v) for key in LIMIT_NAMES if (v := samples.get(f"octavo {ours} {metric}|{key}"))}


def shares_text(shares):
    return ", ".join(f"{share:.0%} of {LIMIT_NAMES[key]}" for key, share in shares.items())


def verdict(bar, wide, metric, ratio, shares):
    """(the bar in words, whether it is met)."""
    low, share_low = bar.ratio[wide], bar.share[wide]
    if low is None:
        return "", ""
    met = ratio <= low if falls(metric) else ratio >= low
    words = f"{'<=' if falls(metric) else '>='} {low}"
    key = bar.limit if bar.limit != "rate" else "int" if "int" in shares else "fma"
    if share_low and key in shares:
        reached = shares[key] >= share_low
        met = (met or reached) if bar.instead else (met and reached)
        words += f" {'or' if bar.instead else 'and'} >= {share_low:.0%} of {LIMIT_NAMES[key]}"
    return words, "yes" if met else "**no**"


def compared_rows(results, wide):
    for section, metric, our_formats, their_formats, bar in COMPARED:
        samples = results.get(section, {}).get("samples", {})
        ours, a = best(samples, "octavo", our_formats, metric)
        theirs, b = best(samples, "peer", their_formats, metric)
        if not a or not b:
            continue
        ratios = [x / y for x, y in zip(a, b)]
        middle, shares = statistics.median(ratios), shares_of(samples, ours, metric)
        yield [metric, f"{ours} / {theirs}", spread(a), spread(b),
               f"**{middle:.2f}** ({min(ratios):.2f} to {max(ratios):.2f})",
               *verdict(bar, wide, metric, middle, shares), shares_text(shares)]


def load_rows(results):
    samples = results.get("load", {}).get("samples", {})
    for ours, values in ((f, samples.get(f"octavo {f} load s")) for f in PAIRS):
        if values:
            bar = LOAD_BARS.get(ours)
            middle = statistics.median(values)
            yield ["weights packed and ready, s", ours, spread(values), "", "", f"< {bar}" if bar else "",
                   "" if not bar else "yes" if middle < bar else "**no**", ""]


def every_sample(results):
    """All formats, for whoever asks which of them was best."""
    for section, part in results.items():
        for key, values in part["samples"].items():
            if "|" not in key:
                who, kind, metric = key.split(" ", 2)
                yield [section, metric, f"{who} {kind}", spread(values),
                       shares_text(shares_of(part["samples"], kind, metric)) if who == "octavo" else ""]


def markdown_table(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def markdown(results):
    wide = any(f.startswith("avx512") for f in cpu_info("flags").split())
    text = [f"# Octavo beside llama.cpp: {peer_models.SHAPE}, random weights\n"]
    for section, part in results.items():
        facts = part["facts"]
        text.append(f"- {section}: {facts['date']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, "
                    f"{facts['threads']} threads, {part['rounds']} rounds, load average before "
                    f"{facts['load_before']:.1f}; {facts['peer']}, flash attention on, f16 cache")
    text.append("\nRuns take turns, ours and the peer's. Medians (ranges); the ratio is the median of the rounds' "
                "ratios.\nShares: of this machine's read bandwidth and of the FMA or 8-bit integer rate of registers "
                f"alone, measured beside each of our runs. Bars: {'AVX-512' if wide else 'AVX2'}.\n")
    text.append(markdown_table(["what", "formats", "octavo", "llama.cpp", "ratio", "bar", "met", "octavo's shares"],
                               [*compared_rows(results, wide), *load_rows(results)]))
    text.append("\nEvery format:\n")
    text.append(markdown_table(["section", "what", "who", "median (range)", "shares"], every_sample(results)))
    return "\n".join(text) + "\n"


# ---- the whole ------------------------------------------------------------------------------------


def read_results(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except OSError:
        return {}


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def run_sections(s, names, results, out):
    missed = []
    for name in names:
        print(f"{name}:", flush=True)
        facts = {**serve_server.facts(s.octavo), "date": time.strftime("%Y-%m-%d"), "threads": s.threads,
                 "peer": s.peer.describe()}
        start = time.monotonic()
        try:
            samples = SECTIONS[name](s)
        except Failed as e:
            print(f"  not done: {e}", flush=True)
            missed.append(name)
            continue
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
        known = results.get(name)
        if not known or known["facts"]["commit"] != facts["commit"] or known["rounds"] != s.rounds:
            known = results[name] = {"facts": facts, "rounds": s.rounds, "samples": {}}
        known["samples"].update(samples)
        if out:
            write(out, markdown(results))
            write(os.path.splitext(out)[0] + ".json", json.dumps(results, indent=1) + "\n")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octavo", default=os.path.join(ROOT, "build/octavo"), help="the executable")
    parser.add_argument("--work", default=default_work(), help="where the peer and the weights are (%(default)s)")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between (%(default)s)")
    parser.add_argument("--formats", default=",".join(PAIRS), help="ours; each beside the peer's of as many bits")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="of the server section (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each (%(default)s)")
    parser.add_argument("--out", help="write the table there, and the samples beside it")
    args = parser.parse_args()
    names = args.only.split(",")
    wrong = [n for n in names if n not in SECTIONS]
    if wrong:
        parser.error(f"--only: {wrong[0]} is none of {', '.join(SECTIONS)}")
    try:
        s = Setting(args)
        s.peer.make()
        for kind in PAIRS.values():
            s.weights(kind)
    except Failed as e:
        print(f"not done: {e}")
        return 1
    results = read_results(os.path.splitext(args.out)[0] + ".json") if args.out else {}
    missed = run_sections(s, names, results, args.out)
    print(markdown(results))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
