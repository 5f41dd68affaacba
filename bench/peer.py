#!/usr/bin/env python3
"""Octavo beside llama.cpp, OpenVINO GenAI and vLLM: fetches and builds the peers outside the tree,
makes random weights of one shape for all, interleaves their runs, and prints medians, ranges and
ratios to the best peer beside the bars. Needs the standard library only, cmake, ninja, a C++
compiler and, the first time, pip's index.

    # everything, beside llama.cpp
    bench/peer.py --octavo build/octavo --out bench/results/NAME.md
    # beside llama.cpp, OpenVINO and vLLM
    bench/peer.py --peer openvino,vllm --only prefill,decode,long,depth
    # 128K and 256K tokens, read whole and in part
    bench/peer.py --peer openvino --only far --rounds 3
    # a part, added to FILE's others
    bench/peer.py --only decode --formats int8 --rounds 3 --out FILE.md

  prefill   a prompt of 512 tokens
  decode    1, 8, 16 and 32 sequences at 128 tokens
  long      a prompt of 16384 tokens, bf16 and int8; not llama.cpp, which takes minutes for it and
            is not built where no other section is asked for
  depth     1 sequence at 4096 and 16384 tokens, bf16 and int8; all but vLLM fill their caches with
            copies of a prompt's; Octavo's with pages of bf16 and of int8
  far       1 sequence at 131072 and 262144 tokens, int4, caches filled likewise: Octavo reads
            everything, or few blocks by retrieval; not vLLM, whose prefill would take an hour
  server    8 and 32 clients at once, 256 + 64 tokens, no shared prefix; llama.cpp alone, because
            OpenVINO GenAI has no server and vLLM's takes a third core
  load      from the start of the server to ready, files in the page cache; llama.cpp alone

--out FILE.md also writes FILE.json, with every sample. Results that the file holds already stay in
the table: those of other sections, and those of other formats and clients from the same commit with
as many rounds and the same groups.
"""

import argparse
import contextlib
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

import peer_models
import serve_server
from peer_build import Peer, default_work
from peer_openvino import OpenVino
from peer_table import (BATCHES, CLIENTS, DEEP, DEPTHS, FAR_READS, FARS, FASTEST, LLAMA, LONG, PAGES, PAIRS,
                        PREFILL, markdown)
from peer_vllm import Vllm
from serve_server import Failed, ROOT, Server, load

INPUT, OUTPUT, CONTEXT = 256, 64, 128
PEER_STEPS, DEPTH_STEPS, FAR_STEPS = 16, 16, 6  # tokens that a peer decodes for one sample
# Octavo's sample is the median of these rounds of at least 0.3 s. It lasts some seconds, as that of
# a peer does, because the host of a virtual machine may change its speed within one second.
OUR_ROUNDS = 9
POOL = "1G"
PATIENCE = 600
INSTALLED = {peer.name: peer for peer in (OpenVino, Vllm)}


# ---- samples -------------------------------------------------------------------------------------


def interleave(rounds, runs):
    """Calls the runs [(name, function)], Octavo's and the peers', in turn; each returns
    {metric: value}. Returns the samples of all rounds: {"name metric": [values]}."""
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
    """Runs a command and returns its stdout."""
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
    """The command line's settings that the sections need."""

    def __init__(self, args):
        self.octavo = os.path.abspath(args.octavo)
        self.peer = Peer(args.work)
        self.others = [INSTALLED[name](args.work) for name in args.peer.split(",") if name != LLAMA]
        self.threads, self.rounds = args.threads, args.rounds
        self.formats = args.formats.split(",")
        self.clients = [int(n) for n in args.clients.split(",")]
        self.group = args.quantize_group
        self.with_llama = True
        wrong = [f for f in self.formats if f not in PAIRS]
        if wrong:
            raise Failed(f"--formats: {wrong[0]} is none of {', '.join(PAIRS)}")

    def pairs(self):
        return [(ours, PAIRS[ours]) for ours in self.formats]

    def weights(self, kind):
        return peer_models.gguf(self.peer.work, kind)

    def make(self, sections):
        """Makes the peers and the models that the sections need."""
        self.with_llama = any(name != "long" for name in sections)
        if self.with_llama:
            self.peer.make()
            for theirs in PAIRS.values():
                self.weights(theirs)
        for other in self.others:
            other.make()
            for kind in filter(self.formats.__contains__, other.formats):
                other.weights(kind)

    def describe(self):
        llama = [f"{self.peer.describe()}, flash attention on, f16 cache"] if self.with_llama else []
        return "; ".join([*llama, *(other.describe() for other in self.others)])

    def deep(self):
        """Formats of the sections with long contexts."""
        return [f for f in self.formats if f in DEEP]

    def with_format(self, ours):
        """The peers beside llama.cpp that have the format."""
        return [other for other in self.others if ours in other.formats]

    def alternate(self, ours, theirs, pipelined=None):
        """Runs of all formats, Octavo's beside the peers'. A function takes the format's name, but
        that of the peers in a Pipeline takes one."""
        def run(other, f):
            with other.run(f, self.threads) as pipeline:
                return pipelined(pipeline)

        runs = []
        for our, their in self.pairs():
            runs.append((f"octavo {our}", lambda f=our: ours(f)))
            runs.append((f"{LLAMA} {their}", lambda f=their: theirs(f)))
            if pipelined:
                runs += [(f"{other.name} {our}", lambda p=other, f=our: run(p, f)) for other in self.with_format(our)]
        return runs


def quantize(s, ours):
    return [] if ours == "bf16" else ["--quantize", ours, "--quantize-group", str(s.group)]


def our_rows(s, ours, prefill, batches, contexts, rounds, pages="bf16"):
    out = command(s.octavo, "bench", "engine", "--shape", "1.1b", *quantize(s, ours), "--threads", s.threads,
                  "--kv-dtype", pages, "--kv-memory", POOL, "--prefill", prefill, "--batch", ",".join(map(str, batches)),
                  "--context", ",".join(map(str, contexts)), "--rounds", rounds, "--json")
    return json.loads(out)["rows"]


def shares(metric, row, ours):
    """A rate, with its shares of the limits that were measured beside it as "metric|limit"."""
    rate = "fma" if ours == "bf16" else "int"
    out = {metric: row["tokens_s"], f"{metric}|read": row["read_share"], f"{metric}|rate": row[f"{rate}_share"]}
    if row["what"] == "decode":
        out[f"{metric}|{FASTEST}"] = row["best_read_share"]
    return out


# ---- prefill, decode, depth ----------------------------------------------------------------------


def prefill_section(s):
    def ours(f):
        (row,) = [r for r in our_rows(s, f, PREFILL, [1], [16], 1) if r["what"] == "prefill"]
        return shares(f"prefill {PREFILL}", row, f)

    def theirs(f):
        (row,) = json_lines(command(s.peer.tool("llama-bench"), "-m", s.weights(f), "-p", PREFILL, "-n", 0, "-r", 1,
                                    "-t", s.threads, "-fa", 1, "-o", "jsonl"))
        return {f"prefill {PREFILL}": row["avg_ts"]}

    return interleave(s.rounds, s.alternate(
        ours, theirs, lambda pipeline: {f"prefill {PREFILL}": pipeline.start(1, PREFILL)}))


def long_section(s):
    def ours(f):
        (row,) = [r for r in our_rows(s, f, LONG, [1], [16], 1) if r["what"] == "prefill"]
        return shares(f"prefill {LONG}", row, f)

    def theirs(pipeline):
        rate = pipeline.start(1, LONG)
        pipeline.stop()
        return {f"prefill {LONG}": rate}

    with contextlib.ExitStack() as stack:
        runs = []
        for f in s.deep():
            others = [(f"{other.name} {f}", stack.enter_context(other.run(f, s.threads))) for other in s.with_format(f)]
            if others:
                runs.append((f"octavo {f}", lambda f=f: ours(f)))
                runs += [(name, lambda p=pipeline: theirs(p)) for name, pipeline in others]
        if not runs:
            raise Failed("the section needs --peer openvino or vllm, and bf16 or int8")
        return interleave(s.rounds, runs)


def decode_section(s):
    def ours(f):
        out = {}
        for row in our_rows(s, f, 16, BATCHES, [CONTEXT], OUR_ROUNDS):
            if row["what"] == "decode":
                out.update(shares(f"decode {row['batch']}", row, f))
        return out

    def theirs(f):
        # The prompt is shared, so that its 128 tokens are computed once; each sequence has its own
        # copy of its cache. One sequence is measured three times, because its steps are short.
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

    def pipelined(pipeline):
        out = {}
        for n in BATCHES:
            pipeline.start(n, CONTEXT)
            out[f"decode {n}"] = pipeline.steps(PEER_STEPS)
            pipeline.stop()
        return out

    return interleave(s.rounds, s.alternate(ours, theirs, pipelined))


def depth_section(s):
    """Decode at depth with pages of 16 bits and of 8. A peer has one cache (OpenVINO of 8 bits, the
    others of 16), so its figure stands beside each of Octavo's. vLLM prefills each depth once."""
    def ours(f):
        out = {}
        for pages, name in PAGES.items():
            for row in our_rows(s, f, 16, [1], DEPTHS, OUR_ROUNDS, pages):
                if row["what"] == "decode":
                    out.update(shares(f"decode 1 at {row['tokens']}{name}", row, f))
        return out

    def theirs(rate_at):
        return {f"decode 1 at {depth}{name}": rate for depth in DEPTHS for rate in [rate_at(depth)]
                for name in PAGES.values()}

    def other_runs(stack, f):
        for other in s.with_format(f):
            at = {depth: stack.enter_context(other.run_deep(f, s.threads)) for depth in DEPTHS}
            for depth, pipeline in at.items():
                pipeline.start(1, depth)
            yield f"{other.name} {f}", lambda at=at: theirs(lambda depth: at[depth].steps(DEPTH_STEPS))

    samples = {}
    for f in s.deep():
        with contextlib.ExitStack() as stack:
            peer = stack.enter_context(PeerDepth(s, PAIRS[f], DEPTHS, DEPTH_STEPS))
            samples.update(interleave(s.rounds, [
                (f"octavo {f}", lambda f=f: ours(f)), (f"{LLAMA} {PAIRS[f]}", lambda: theirs(peer.rate)),
                *other_runs(stack, f)]))
    return samples


def far_section(s):
    """Decode at 131072 tokens and more with int4 weights and a cache of 16 bits, of OpenVINO 8. A
    peer reads everything, so its figure stands beside each of Octavo's."""
    names = {far: [f"decode at {far}, reads {what}" for what in FAR_READS] for far in FARS}

    def ours():
        out = command(s.octavo, "bench", "retrieval", "--shape", "1.1b", *quantize(s, "int4"), "--threads", s.threads,
                      "--override", f"max_position_embeddings={2 * max(FARS)}", "--page-tokens", 128,
                      "--context", ",".join(map(str, FARS)), "--rounds", 1, "--json")
        rates = [1000 / row["step_ms"] for row in json.loads(out)["rows"]]
        return dict(zip([name for far in FARS for name in names[far]], rates, strict=True))

    def reads_all(rate_at):
        return {name: rate for far in FARS for rate in [rate_at(far)] for name in names[far]}

    def openvino(pipeline, far):
        pipeline.start(1, far)
        rate = pipeline.steps(FAR_STEPS)
        pipeline.stop()
        return rate

    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(PeerDepth(s, PAIRS["int4"], FARS, FAR_STEPS))
        runs = [("octavo int4", ours), (f"{LLAMA} {PAIRS['int4']}", lambda: reads_all(peer.rate))]
        for other in s.others:
            if other.fills:
                at = stack.enter_context(other.run_deep("int4", s.threads))
                runs.append((f"{other.name} int4", lambda at=at: reads_all(lambda far: openvino(at, far))))
        return interleave(s.rounds, runs)


class PeerDepth:
    """llama.cpp with a context of each depth, which repeats a prompt's cache, as Octavo's do."""

    def __init__(self, s, kind, depths, steps):
        self.steps = steps
        self.folder = tempfile.TemporaryDirectory(prefix="contexts-", dir=s.peer.work)
        self.process = subprocess.Popen(
            [s.peer.tool("peer_depth"), s.weights(kind), str(s.threads), str(max(depths) + 1024)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask("save", self._file("prompt"), PREFILL)
        with open(self._file("prompt"), "rb") as f:
            prompt = f.read()
        for depth in depths:
            with open(self._file(depth), "wb") as f:
                peer_models.stretch_state(prompt, depth, f)

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

    def rate(self, depth):
        """Returns tokens/s behind a context of that many tokens."""
        return float(self._ask("decode", self._file(depth), self.steps))


# ---- servers -------------------------------------------------------------------------------------


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
    return Server(s.octavo, *quantize(s, ours), "--threads", str(s.threads), "--kv-memory", POOL,
                  "--max-batch", str(batch), "--max-requests", str(2 * batch),
                  model=["--model", peer_models.folder(s.peer.work)])


def put_load(s, url, clients, seed):
    """Sends as many requests as clients, at least 16; all clients start at once."""
    result = load(s.octavo, url, "--input-len", INPUT, "--output-len", OUTPUT, "--vocab", peer_models.VOCAB,
                  "--num-prompts", max(16, clients), "--max-concurrency", clients, "--seed", seed)
    if result["failed"]:
        raise Failed(f"{url}: {result['ends']} {result['examples']}")
    return {f"{clients} clients, tokens/s": result["output_throughput"],
            f"{clients} clients, TTFT p50 ms": result["median_ttft_ms"]}


def server_section(s):
    """Both servers stay up while their runs take turns, because an idle server uses no CPU."""
    samples, seed = {}, 0

    def runs(theirs, ours, our, their, clients):
        def run(url):
            nonlocal seed
            seed += 1  # new prompts, which no cache has seen
            return put_load(s, url, clients, seed)
        return [(f"octavo {our}", lambda: run(ours.url)), (f"{LLAMA} {their}", lambda: run(theirs.url))]

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


SECTIONS = {"prefill": prefill_section, "long": long_section, "decode": decode_section, "depth": depth_section,
            "far": far_section, "server": server_section, "load": load_section}


# ---- the command ---------------------------------------------------------------------------------


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
                 "peer": s.describe(), "group": s.group}
        start = time.monotonic()
        try:
            samples = SECTIONS[name](s)
        except Failed as e:
            print(f"  not done: {e}", flush=True)
            missed.append(name)
            continue
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
        known = results.get(name)
        if not known or known["rounds"] != s.rounds or any(known["facts"].get(k) != facts[k] for k in
                                                           ("commit", "group")):
            known = results[name] = {"facts": facts, "rounds": s.rounds, "samples": {}}
        known["samples"].update(samples)
        if out:
            write(out, markdown(results))
            write(os.path.splitext(out)[0] + ".json", json.dumps(results, indent=1) + "\n")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octavo", default=os.path.join(ROOT, "build/octavo"), help="the executable")
    parser.add_argument("--peer", default=LLAMA, help=f"{', '.join(INSTALLED)} or both, with a comma between: beside "
                                                      f"{LLAMA}, which always runs (%(default)s)")
    parser.add_argument("--work", default=default_work(), help="where the peers and the weights are (%(default)s)")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between (%(default)s)")
    parser.add_argument("--formats", default=",".join(PAIRS), help="ours; each beside the peers' of as many bits")
    parser.add_argument("--quantize-group", type=int, choices=[32, 64, 128], default=32,
                        help="columns that share a scale in our int8 and int4: llama.cpp has 32, the others 64 in "
                             "int4 and a row in int8 (%(default)s)")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="of the server section (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each (%(default)s)")
    parser.add_argument("--out", help="write the table there, and the samples beside it")
    args = parser.parse_args()
    names = args.only.split(",")
    for flag, given, known in (("only", names, SECTIONS), ("peer", args.peer.split(","), [LLAMA, *INSTALLED])):
        wrong = [n for n in given if n not in known]
        if wrong:
            parser.error(f"--{flag}: {wrong[0]} is none of {', '.join(known)}")
    try:
        s = Setting(args)
        s.make(names)
    except Failed as e:
        print(f"not done: {e}")
        return 1
    results = read_results(os.path.splitext(args.out)[0] + ".json") if args.out else {}
    missed = run_sections(s, names, results, args.out)
    print(markdown(results))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
