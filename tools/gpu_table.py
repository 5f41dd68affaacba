#!/usr/bin/env python3
"""Prints the bars beside the figures from tools/gpu_check.sh's logs. usage: gpu_table.py FOLDER"""

import csv
import glob
import json
import os
import re
import sys

folder = sys.argv[1]
CROWDS = ("64 x 4096", "8 x 32768")
# What NVIDIA's data sheets promise: GB/s of memory, and TFLOP/s of dense bf16 products.
SPECIFIED = (("H200", 4800, 989), ("H100 PCIe", 2000, 756), ("H100 NVL", 3900, 835), ("H100", 3350, 989),
             ("A100-SXM4-80GB", 2039, 312), ("A100-SXM4-40GB", 1555, 312), ("A100", 1935, 312))
GRAPHS = ("bench_engine", "bench_long", "demo", "wide")  # stages that decode on a single GPU


def text(name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def rows(name, **wanted):
    """The rows of a bench's JSON that have these values."""
    try:
        found = json.loads(text(name))["rows"]
    except (ValueError, KeyError):
        return []
    return [r for r in found if all(r.get(k) == v for k, v in wanted.items())]


def kernel_line(name, log="bench_kernels.log"):
    """(us, GB/s, TFLOP/s) of a line of `octavo bench kernels`."""
    m = re.search(rf"^{re.escape(name)} +([\d.]+) us +([\d.]+) GB/s .* ([\d.]+) TFLOP/s +[\d.]+ %", text(log), re.M)
    return tuple(map(float, m.groups())) if m else None


def kernel_shares(name, what):
    """A kernel's shares of the limit `what` ("copies" or "products"), measured and specified."""
    line = kernel_line(name)
    return shares(line and line[1 if what == "copies" else 2], what)


def shares(rate, what):
    """A rate's shares of the limit, measured and specified; None where one is not known."""
    return tuple(rate / of[what] if rate is not None and of else None for of in limits())


def limits():
    """(measured, specified) limits of the device, each {"copies": GB/s, "products": TFLOP/s}; None
    where they are not known."""
    log = text("bench_kernels.log")
    found = re.search(r"^limits: copy on the device ([\d.]+) GB/s, .* ([\d.]+) TFLOP/s$", log, re.M)
    measured = found and {"copies": float(found[1]), "products": float(found[2])}
    device = re.search(r"^(.*), \d+ multiprocessors, compute \d+$", log, re.M)
    for name, memory, products in SPECIFIED:
        if device and name in device[1]:
            return measured, {"copies": memory, "products": products}
    return measured, None


def percent(share):
    return f"{100 * share:.2f} %" if share is not None else "-"


def bar(what, of, at_least=None, at_most=None, by="measured", note=""):
    """of: the shares of what was measured and of the specification. `by` says which one the limit
    is for; where the specification is not known, it is for the measured one."""
    measured, specified = of
    share = specified if by == "specified" and specified is not None else measured
    limit = f">= {100 * at_least:.0f} %" if at_least else f"<= {100 * at_most:.0f} %"
    if share is None:
        print(f"{what:<46} {'':>9} {'':>9}  {limit:<8} not measured")
        return
    met = share >= at_least if at_least else share <= at_most
    print(f"{what:<46} {percent(measured):>9} {percent(specified):>9}  {limit:<8} {'met' if met else 'missed'}{note}")


def kernels():
    ends = [re.findall(r"^(?:PASS|FAIL): (\d+) of (\d+) pass$", text(os.path.basename(p)), re.M)
            for p in sorted(glob.glob(os.path.join(folder, "kernels_*.log")))]
    if not ends:
        print(f"{'every kernel agrees with the reference':<46} {'':>19}  {'all':<8} not measured")
        return
    passed, total = (sum(int(e[0][i]) for e in ends if e) for i in range(2))
    whole = all(ends) and passed == total
    print(f"{'every kernel agrees with the reference':<46} {f'{passed}/{total}':>19}  {'all':<8} "
          f"{'met' if whole else 'missed'}{'' if all(ends) else ' (a group ended early)'}")
    for path in sorted(glob.glob(os.path.join(folder, "kernels_*.log"))):
        for line in re.findall(r"^FAIL  .*$", text(os.path.basename(path)), re.M)[:5]:
            print(f"    {line}")


def graphs():
    """Prints whether decode steps were captured as graphs. A backend logs once that a capture
    failed; steps without a graph are slow, but right."""
    refused, ended = {}, False
    for name in GRAPHS:
        log = text(f"{name}.log")
        why = re.search(r"octavo: cuda: some decode steps go without a graph: (.*)", log)
        if why:
            refused[name] = why[1]
        ended = ended or (text(f"{name}.end").startswith("0 ") and not re.search("^SKIPPED", log, re.M))
    for name, why in refused.items():
        print(f"graphs: refused ({why}) in {name}: missed")
    if not refused:
        print(f"graphs: {'captured' if ended else 'not measured'}")


def engine_shares(key, limit, name="engine.json", **wanted):
    """Shares of a row of `octavo bench engine`, whose limits are measured beside each row."""
    found = rows(name, **wanted)
    if not found:
        return None, None
    rate = found[0]["gb_s"] if limit == "copies" else found[0]["gflop_s"] / 1e3
    return found[0][key], shares(rate, limit)[1]


def bars():
    line = re.search(r"^limits: .*$", text("bench_kernels.log"), re.M)
    _, specified = limits()
    print(f"\n{line[0] if line else 'limits: not measured'}")
    print("specified: {copies} GB/s, {products} TFLOP/s\n".format(**specified) if specified else "specified: unknown\n")
    print(f"{'shares of what':<46} {'measured':>9} {'specified':>9}  bar (* of the specification)")
    kernels()
    graphs()
    for crowd in CROWDS:
        bar(f"decode attention {crowd}, of copies", kernel_shares(f"decode attention {crowd}, bf16", "copies"),
            at_least=0.85)
    for kernel in (", wgmma", ""):
        bar(f"a chunk of 32 on 32768{kernel or ', mma'}, of copies",
            kernel_shares(f"chunks of 32, attention 1 x 32768, bf16{kernel}", "copies"), at_least=0.50 if kernel else 0.25)
    for crowd in ("8 x 2048", "1 x 8192"):
        for kernel in (", wgmma", ""):
            bar(f"prefill attention {crowd}{kernel or ', mma'}, of products *",
                kernel_shares(f"prefill attention {crowd}, bf16{kernel}", "products"), at_least=0.60 if kernel else 0.20,
                by="specified")
    for batch in (1, 32, 256):
        bar(f"8B decode, batch {batch}, of copies", engine_shares("read_share", "copies", what="decode", batch=batch),
            at_least=0.80)
    bar("8B decode, batch 1, of copies *", engine_shares("read_share", "copies", what="decode", batch=1), at_least=0.78,
        by="specified")
    for batch in (1, 8):
        bar(f"8B decode, batch {batch} at 32768, of copies",
            engine_shares("read_share", "copies", "engine_long.json", what="decode", batch=batch), at_least=0.80)
    bar("8B decode, batch 32 at 32768, fp8 pages, of copies *",
        engine_shares("read_share", "copies", "engine_deep.json", what="decode", batch=32), at_least=0.85, by="specified")
    for method in ("h2o", "tova"):
        found = rows("measured.json", what="measured", method=method)
        spread = " ({more_low:.4f} to {more_high:.4f})".format(**found[0]) if found else ""
        bar(f"{method} at 64 sequences, beside unmeasured steps", (found[0]["more"] if found else None, None),
            at_most=0.05, note=spread)
    bar("8B prefill of 8 x 2048, of products *", engine_shares("fma_share", "products", what="prefill", batch=8),
        at_least=0.60, by="specified")
    for r in rows("retention.json", what="cost"):
        spread = f" ({100 * r['extra_ms_low'] / r['prefill_ms']:.2f} to " \
                 f"{100 * r['extra_ms_high'] / r['prefill_ms']:.2f})"
        bar(f"{r['method']}, of a prefill", (r["share_of_prefill"], None), at_most=0.01, note=spread)
    if not rows("retention.json", what="cost"):
        bar("chunkkv, of a prefill", (None, None), at_most=0.01)


def of_peers(what, log="peer.json"):
    """The figures of the rounds, by the peer's name."""
    try:
        peers = json.loads(text(log))
    except ValueError:
        return {}
    return {p["name"]: p["rounds"] for p in peers if p["what"] == what}


def side_by_side():
    print(f"\n{'side by side':<34} octavo; others (rounds in turn)")
    for crowd in CROWDS:
        ours = kernel_line(f"decode attention {crowd}, bf16")
        others = [f"{n} {r[0]:.1f} us" for n, r in of_peers(f"attention {crowd}").items()]
        print(f"{'decode attention ' + crowd:<34} {f'{ours[0]:.1f} us' if ours else '-'}; "
              f"{', '.join(others) or '-'}")
    for what, batch, name in (("decode", 1, "8B decode, batch 1 at 1024"), ("decode", 32, "8B decode, batch 32 at 1024"),
                              ("prefill", 8, "8B prefill of 8 x 2048"), ("prefill", 1, "8B prefill of 1 x 2048")):
        ours = [r["tokens_s"] for f in ("engine.json", "engine_again.json") for r in rows(f, what=what, batch=batch)[:1]]
        others = [f"{n} {' '.join(f'{v:.0f}' for v in r)}" for n, r in of_peers(f"{what} {batch}").items()]
        print(f"{name + ', tokens/s':<34} {' '.join(f'{v:.0f}' for v in ours) or '-'}; {', '.join(others) or '-'}")
    for log in ("bench_fp8.log", "bench_int8.log", "bench_int4.log"):
        for line in re.findall(r"^decode attention (?:64|8) x.*$|^  the products of.* (?:1|32) rows.*$|^  the .*fp8 .*$", text(log), re.M):
            print(f"{log[6:-4]}: {line.strip()}")


def flashinfer():
    """Attention by octavo and by FlashInfer over pages of one layout."""
    crowds = ("decode attention 64 x 4096", "decode attention 8 x 32768", "decode attention 1 x 32768",
              "chunks of 32, attention 1 x 32768", "prefill attention 8 x 2048", "prefill attention 1 x 8192")
    print("\nattention beside FlashInfer, us of each round")
    found = {crowd: of_peers(f"{crowd}, bf16", "flashinfer.json") for crowd in crowds}
    for crowd, by_name in found.items():
        if by_name:
            print(f"{crowd:<34} " + "; ".join(f"{n} {' '.join(f'{us:.1f}' for us in r)}" for n, r in by_name.items()))
    if not any("FlashInfer" in by_name for by_name in found.values()):
        reason = re.search(r"^SKIPPED: (.*)$", text("flashinfer.log"), re.M)
        print(f"none: {reason[1]}" if reason else "not measured")


def sweep():
    """The time of attention of single rows and short chunks by the slots that a block reads."""
    found, slots = {}, None
    for line in text("sweep_parts.log").splitlines():
        if line.startswith("part-slots "):
            slots = line.split()[1]
        elif m := re.match(r"(.*attention \d+ x \d+, bf16(?:, wgmma)?) +([\d.]+) us", line):
            found.setdefault(m[1], []).append(f"{slots}: {m[2]}")
    print("\nattention by slots of a part, us")
    for crowd, times in found.items():
        print(f"{crowd:<34} {'; '.join(times)}")
    if not found:
        print("not measured")


def layers():
    """A decode step's layer in a graph, of kernels that start early and of kernels that do not."""
    found = False
    print("\na decode layer of 8B in a graph, us: each kernel behind the one before; starting early")
    for log in ("bench_kernels", "bench_fp8", "bench_int8", "bench_int4"):
        for m in re.finditer(r"^decode layer in a graph, (\d+) rows: ([\d.]+) us; .*: ([\d.]+) us, ([\d.]+) % of copy$",
                             text(f"{log}.log"), re.M):
            found = True
            name = f"{log[6:]}, {m[1]} rows".replace("kernels", "bf16")
            print(f"{name:<34} {m[2]}; {m[3]} ({100 * float(m[3]) / float(m[2]) - 100:+.1f} %), {m[4]} % of copies")
    if not found:
        print("not measured")


def launches():
    """A decode step's launches by name: one by one, and beside them the step as a graph."""
    print("\na decode step of 8B launch by launch, us; as a graph; launches by name")
    found = rows("engine.json", what="launches")
    for r in found:
        name = f"batch {r['batch']} at {r['tokens']}"
        print(f"{name:<34} {r['us']:.1f}; {r['graph_us']:.1f} ({100 * r['graph_us'] / r['us'] - 100:+.1f} %)")
        least = {"products": "all products", "attention": "decode attention"}
        print(f"{'':<34} " + "; ".join(f"{what} {r[f'{part}_us']:.1f}, {100 * r[f'{part}_least_us'] / r[f'{part}_us']:.0f} % "
                                       "at the limits" for part, what in least.items() if r[f"{part}_us"]))
        for one in r["launches"]:
            print(f"  {one['name']:<32} {one['launches']:>4} {one['us']:>9.1f} {100 * one['share']:>5.1f} %")
    if not found:
        print("not measured")


def sweep_few():
    """Times of products of few rows, and of experts, by our kernel for few rows and by others."""
    found, few = {}, None
    for line in text("sweep_few.log").splitlines():
        if m := re.match(r"few (\d+) (\w+)$", line):
            few, dtype = m[1], m[2]
        elif m := re.match(r"(?:  the products of \d+ such layers|(experts of .*)), (\d+) rows(?::)? +([\d.]+) (ms|us)", line):
            name = f"{dtype}, {m[1] or 'dense layers'}, {m[4]}"
            found.setdefault(name, {}).setdefault(m[2], {})[few] = m[3]
    print("\nproducts by rows: by the kernel for few rows / by the others")
    for name, times in found.items():
        print(f"{name:<40} " + "; ".join(f"{rows}: {t.get('512', '-')} / {t.get('1', '-')}" for rows, t in times.items()))
    if not found:
        print("not measured")


def counters():
    """A line for each kernel of which ncu read counters: the shares and the longest wait."""
    log = text("counters.log").splitlines()
    found = {}
    for row in csv.DictReader(line for line in log if line.startswith('"')):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (AttributeError, KeyError, ValueError):
            continue  # another launch's header
        found.setdefault(row["Kernel Name"], {})[row["Metric Name"]] = value
    print(f"\n{'by the counters of a launch':<34} memory; issue; bank conflicts; longest wait")
    for kernel, metrics in found.items():
        waits = [(v, re.search("stalled_(.*)_per_issue", n)[1]) for n, v in metrics.items() if "_stalled_" in n]
        wait = "{1}, {0:.1f} cycles".format(*max(waits)) if waits else "-"
        name = re.sub(r"^void |\((?:int|bool)\)|\(\w+(?:, [\w *]+)*\)$|(?<=,) ", "", kernel)
        print(f"{name:<34} "
              f"{metrics.get('dram__throughput.avg.pct_of_peak_sustained_elapsed', 0):.1f} %; "
              f"{metrics.get('sm__inst_issued.avg.pct_of_peak_sustained_active', 0):.1f} %; "
              f"{metrics.get('l1tex__data_bank_conflicts_pipe_lsu.sum', 0):.0f}; {wait}")
    for line in log:
        if line.startswith("no launch of "):
            print(line)
    if not found:
        print("not measured")


bars()
side_by_side()
flashinfer()
layers()
launches()
sweep()
sweep_few()
counters()
