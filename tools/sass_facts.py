#!/usr/bin/env python3
"""Reads the machine code of the plugin for GPUs and compares it with tools/sass_facts.txt: what
each kernel keeps in local memory (spilled registers), how many of its blocks fit on a
multiprocessor, by which instructions it uses tensor cores, which share of the loads from global
memory in its loops are 16 bytes wide, and how many bytes are on their way. Without a table it says
which kernels touch memory before they have waited for the kernel in front, of which products of few
rows alone may, and should; which of these read by the read-only path what that kernel may write;
which store in pieces that should not; and whether large products are cublasLt's. Exits with 1 and
names each kernel of which a fact got worse, and with 77 where cuobjdump and nvdisasm are missing or
the table is another compiler's.
usage: sass_facts.py [--table | --write] [--nvcc PATH] [--cache FOLDER] PLUGIN_OR_OBJECT...
  --table  prints all that was read instead, registers and shared memory too
  --write  writes the table, after a change whose figures are wanted
  --cache  keeps what was read of each file's code, since the disassembler takes a minute for all
A table that was written by another version of nvcc says little: it is not compared then."""

import argparse
import glob
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools/sass_facts.txt"
SOURCES = ROOT / "kernels/cuda"
SKIPPED = 77

# What a multiprocessor has: bytes of shared memory, of which each block takes 1 KB for the system.
# Registers are the same for all: 65,536, given to warps in units of 256.
SHARED_OF_SM = {"sm_80": 164 * 1024, "sm_86": 100 * 1024, "sm_89": 100 * 1024, "sm_90": 228 * 1024,
                "sm_90a": 228 * 1024, "sm_100": 228 * 1024, "sm_120": 100 * 1024}
BLOCKS_OF_SM = {"sm_80": 32, "sm_86": 16, "sm_89": 24, "sm_90": 32, "sm_90a": 32, "sm_100": 32,
                "sm_120": 24}
THREADS_OF_SM = {"sm_80": 2048, "sm_86": 1536, "sm_89": 1536, "sm_90": 2048, "sm_90a": 2048,
                 "sm_100": 2048, "sm_120": 1536}
NO_WAITS = {"sm_80", "sm_86", "sm_89"}  # a kernel begins when the one in front has ended
REGISTERS_OF_SM, REGISTER_UNIT, SYSTEM_SHARED, WARP = 65536, 256, 1024, 32

# The kernels whose speed matters, in the order of the table, and the threads of a block where the
# source states no __launch_bounds__, or more than is usual: a name of its constants. Of the other
# kernels only those that use local memory are in the table.
HOT = {
    "attention_kernel": None, "keeping_kernel": None, "wide_kernel": None, "merge_kernel": None,
    "few_kernel": None,
    "grouped_kernel": None, "grouped_wide_kernel": None, "grouped_narrow_kernel": None,
    "grouped_any_kernel": None,
    "dequant_kernel": "CONVERT_THREADS", "convert_kernel": "CONVERT_THREADS",
    "narrow_row_kernel": None, "narrow_group_kernel": None, "rows_kernel": "NARROW_THREADS",
    "scale_kernel": None,
    "norm_kernel": "ROW_THREADS", "gate_kernel": "ROW_THREADS", "embed_kernel": "ROW_THREADS",
    "heads_kernel": "HEAD_THREADS", "move_kernel": "HEAD_THREADS",
    "draw_kernel": None, "mask_kernel": None,
    "mass_kernel": None, "scores_kernel": None, "outputs_kernel": None, "along_kernel": None,
    "logits_kernel": None, "covariance_kernel": None, "projection_kernel": None,
    "directions_kernel": None, "norms_kernel": "GROUP_SLOTS", "cosines_kernel": "GROUP_SLOTS",
    "missing_kernel": "LIST_THREADS", "make_kernel": None, "score_kernel": None,
    "select_kernel": None,
}


def fail(message, code=1):
    print(f"sass_facts.py: {message}", file=sys.stderr)
    sys.exit(code)


# ---- tools ---------------------------------------------------------------------------------------


def find_tool(name, nvcc):
    """A tool of the toolkit: on the path, beside nvcc, or in NVIDIA's Python packages, which
    tools/make_client_venv.sh installs into build/cuda-venv."""
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), name) if nvcc else ""
    found = shutil.which(name) or (beside if os.path.exists(beside) else None)
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations) if spec else []
    roots += glob.glob(str(ROOT / "build/cuda-venv/lib/python*/site-packages/nvidia"))
    for root in roots:
        found = found or next(iter(sorted(glob.glob(f"{root}/*/bin/{name}"))), None)
    return found


def run(command, folder=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        fail(f"{' '.join(command[:2])}: {done.stderr.strip()[:400]}")
    return done.stdout


def compiler_of(nvcc):
    """Such as 13.0; None without an nvcc."""
    found = re.search(r"release (\d+\.\d+)", run([nvcc, "--version"])) if nvcc else None
    return found[1] if found else None


# ---- the source ----------------------------------------------------------------------------------


def product(text, known):
    """The value of NAME * NAME * NUMBER; None where a name is unknown."""
    value = 1
    for part in text.split("*"):
        part = part.strip()
        factor = int(part) if part.isdigit() else known.get(part)
        if factor is None:
            return None
        value *= factor
    return value


def constants_of(text):
    known = {"WARP": WARP}
    for name, value in re.findall(r"\b([A-Z][A-Z0-9_]*) = ([A-Z0-9_ *]+?)\s*[,;}/\n]", text):
        number = product(value, known)
        if number is not None:
            known.setdefault(name, number)
    return known


def read_source():
    """(constants, kernel -> threads of a block), both as the source states them."""
    texts = {p.name: p.read_text(encoding="utf-8")
             for p in sorted(SOURCES.glob("*")) if p.suffix in (".cu", ".cuh", ".h")}
    everywhere = {}
    for text in texts.values():
        everywhere.update(constants_of(text))
    threads = {}
    for text in texts.values():
        known = {**everywhere, **constants_of(text)}
        for bounds, kernel in re.findall(
                r"__global__ void (?:__launch_bounds__\(([A-Z_]+)(?:, .+?)?\)\s+)?(\w+)\(", text):
            name = HOT.get(kernel) or bounds
            if kernel in HOT and name:
                threads[kernel] = known[name]
    missing = [kernel for kernel in HOT if kernel not in threads]
    if missing:
        fail(f"kernels/cuda has no {', '.join(missing)}, or no number of its threads")
    return everywhere, threads


class Stage:
    """What attention.cuh says of a kernel's shared memory: its `layout`, in the same words."""

    def __init__(self, known, kv, dim, decode):
        narrow, scaled = kv in ("e4m3", "i8"), kv == "i8"
        size, row = 1 if narrow else 2, dim + known["PAD"]
        step = 32 if dim > 128 and not decode else 64
        rows = known["GPU_DECODE_ROWS" if decode else "GPU_PREFILL_ROWS"]
        row_bytes = dim * size + known["ROW_PAD"]
        stage = 2 * step * row_bytes + (2 * step * 2 if scaled else 0)
        self.shared = rows * row * 2 + 2 * stage
        self.bytes = 2 * step * dim * size  # of K and V
        chunks = step * dim * size // 16
        self.copies = 2 * -(-chunks // known["THREADS"]) + scaled


class WideStage:
    """What attention_wide.cuh says of its kernel's shared memory (`wide_layout`). Its loop fills
    two stages: by copies, or, from pages of 8 bits, by loads and copies of scales."""

    def __init__(self, known, kv, dim):
        narrow, scales = kv in ("e4m3", "i8"), kv == "i8"
        step, row_bytes, blocks = 32 if dim > 128 else 64, known["ROW_BYTES"], -(-dim // 64)
        stages, scale_stages = 4 if narrow else 5, 4
        self.bytes = 2 * step * dim * (1 if narrow else 2)
        self.shared = known["SWIZZLED"] + stages * 2 * blocks * step * row_bytes \
            + blocks * known["GPU_WIDE_ROWS"] * row_bytes + scale_stages * scales * 2 * step * 2
        self.copies = 2 * (self.bytes // 16 // known["WIDE_THREADS"] + scales)


class GroupedStage:
    """The shared memory of products of experts: `grouped_stages` of grouped.cuh."""

    def __init__(self, known, name, wide):
        bits = int(found[1]) if (found := re.search(r"quant_stage<\w+,(\d)", name)) else 16
        scales = 0 if bits == 16 else 2 * 8 * (8 if "true>" in name else 4)  # of a panel
        rows, outs, step = known["GPU_GROUPED_ROWS"], known["OUTS"], known["STEP"]
        x, w, pieces = rows * step * 2, outs * step * bits // 8, known["GROUPED_THREADS"] * 16
        self.bytes = x + w + outs // 16 * scales
        swizzled = 8 * step * 2
        stage, y = -(-self.bytes // swizzled) * swizzled, rows * (outs + 4) * 4
        self.shared = max(known["GROUPED_STAGES"] * stage, y) + (swizzled if wide else 0)
        self.copies = (x + w) // pieces + (scales > 0)


class NarrowStage:
    """What grouped_narrow_wide.cu says of its kernel's shared memory (`narrow_stages`). A turn of
    the loop fills two."""

    def __init__(self, known):
        rows, outs, step = known["GPU_GROUPED_ROWS"], known["OUTS"], known["NARROW_STEP"]
        x, w, pieces = rows * step, outs * step, known["GROUPED_THREADS"] * 16
        stage, swizzled = x + w + outs * 4 + rows * 16, 8 * step
        self.bytes = 2 * stage
        self.shared = swizzled + known["NARROW_STAGES"] * -(-stage // swizzled) * swizzled
        self.copies = 2 * ((x + w) // pieces + 2)


# ---- machine code --------------------------------------------------------------------------------

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)([^;]*);")
COUNTED = re.compile("Function :|STL|LDL|LDG|STG|LD\\.|ST\\.|ATOM|RED|ACQBULK|MMA|BRA")
# Products of a warpgroup, of bf16 and f16, e4m3 and integers; a warp's are HMMA, QMMA and IMMA.
WGMMA = ("HGMMA", "QGMMA", "IGMMA")
GLOBAL = {"LDG", "LDGSTS", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG"}
WAIT = "ACQBULK"  # for the kernels in front
TABLES = {"angles_kernel"}  # kernels that read constants of CUDA's own from global memory
WHOLE_STORES = {"norm_kernel<float>"}  # kernels that store 16 bytes at a time, and no less
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def width_of(op):
    return next((WIDTHS[part] for part in op.split(".")[1:] if part in WIDTHS), 4)


class Code:
    """Counts of a kernel's instructions. asks: (address, operation) of loads from global memory and
    of copies from there to shared memory. ahead: instructions that touch global memory in front of
    the last wait for other kernels."""

    def __init__(self):
        self.stores = self.loads = 0  # bytes of local memory that one thread writes and reads
        self.touched = self.ahead = 0
        self.waits = False
        self.puts = []  # operations of stores to global memory
        self.asks, self.tensor, self.jumps = [], [], []
        self.kinds = set()  # of the tensor cores' instructions

    def take(self, address, op, operands):
        kind = op.split(".")[0]
        self.touched += kind in GLOBAL
        if kind == WAIT:
            self.waits, self.ahead = True, self.touched
        if kind == "STG":
            self.puts.append(op)
        if kind == "STL":
            self.stores += width_of(op)
        elif kind == "LDL":
            self.loads += width_of(op)
        elif kind in ("LDG", "LDGSTS"):
            self.asks.append((address, op))
        elif kind.endswith("MMA") and kind != "HFMA2":
            self.tensor.append(address)
            self.kinds.add("wgmma" if kind in WGMMA else "mma")
        elif kind == "BRA":
            target = re.search(r"0x([0-9a-f]+)\s*$", operands)
            if target and int(target[1], 16) < address:
                self.jumps.append((int(target[1], 16), address))

    def repeated(self):
        """Loads and copies in loops; all of a kernel that asks for nothing in a loop."""
        inside = [op for at, op in self.asks if any(start <= at <= end for start, end in self.jumps)]
        return inside or [op for _, op in self.asks]

    def loop(self):
        """What the loop around the tensor cores' instructions asks memory for: the loop that asks
        for most, of those the shortest."""
        best = []
        for start, end in sorted(self.jumps, key=lambda j: j[1] - j[0]):
            if any(start <= at <= end for at in self.tensor):
                asks = [op for at, op in self.asks if start <= at <= end]
                best = asks if len(asks) > len(best) else best
        return best


def unpack(cuobjdump, path, folder):
    """[(arch, file)]: the machine code in a plugin or object, in its order."""
    run([cuobjdump, "-xelf", "all", os.path.abspath(path)], folder)
    found = {}
    for name in os.listdir(folder):
        if parts := re.search(r"\.(\d+)\.(sm_\w+)\.cubin$", name):
            found[int(parts[1])] = (parts[2], pathlib.Path(folder, name))
    return [found[number] for number in sorted(found)]


def disassemble(cuobjdump, code, cache):
    """The lines of a file's disassembly that class Code counts, out of the cache if it has them."""
    digest = hashlib.sha256(pathlib.Path(cuobjdump).read_bytes() + code.read_bytes())
    digest.update(COUNTED.pattern.encode())
    kept = pathlib.Path(cache, digest.hexdigest()) if cache else None
    if kept and kept.exists():
        kept.touch()
        return kept.read_text(encoding="utf-8").splitlines()
    lines = [line for line in run([cuobjdump, "-sass", str(code)]).splitlines() if COUNTED.search(line)]
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f"{kept.name}.{os.getpid()}")
        new.write_text("\n".join(lines), encoding="utf-8")
        new.replace(kept)
    return lines


def read_code(lines):
    """mangled name -> [Code]; a name can be in several files."""
    found, code = {}, None
    for line in lines:
        instruction = INSTRUCTION.match(line)
        if instruction and code:
            code.take(int(instruction[1], 16), instruction[2], instruction[3])
        elif "Function :" in line:
            code = Code()
            found.setdefault(line.split(":")[1].strip(), []).append(code)
    return found


def forget_old(cache):
    """Drops what no run has used for a week."""
    for kept in pathlib.Path(cache).glob("*"):
        if time.time() - kept.stat().st_mtime > 7 * 24 * 3600:
            kept.unlink(missing_ok=True)


def read_usage(cuobjdump, path):
    """arch -> mangled name -> [(registers, bytes of shared memory)]."""
    usage, arch, name = {}, None, None
    for line in run([cuobjdump, "-res-usage", path]).splitlines():
        if line.startswith("arch = "):
            arch = line.split("=")[1].strip()
        elif line.startswith(" Function "):
            name = line.strip()[len("Function "):-1]
        elif name and (numbers := re.match(r"\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", line)):
            pair = (int(numbers[1]), int(numbers[2]))
            usage.setdefault(arch, {}).setdefault(name, []).append(pair)
            name = None
    return usage


def plain_names(mangled):
    """mangled name -> few_kernel<plain_tile<bf16>,2,1>."""
    names = sorted(mangled)
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        fail("c++filt does not run")
    plain = {}
    for name, text in zip(names, done.stdout.splitlines()):
        text = re.sub(r"\((?:[^()]|\(\w+\))*\)$", "", text).removeprefix("void ")
        plain[name] = re.sub(r"\(\w+\)", "", text).replace(" ", "").replace("::", ":")
    return plain


# ---- facts ---------------------------------------------------------------------------------------


TENSOR = ("-", "mma", "wgmma")  # the worst first


class Facts:
    """What is known of a kernel for an architecture. blocks: those that fit on a multiprocessor;
    flight: KB that they ask memory for in a turn of their loop, None where no loop waits for it."""

    def __init__(self, arch, name, code, registers, shared):
        self.arch, self.name, self.code, self.registers = arch, name, code, registers
        self.local = code.stores + code.loads
        self.tensor = "mma" if "mma" in code.kinds else "wgmma" if code.kinds else "-"
        asks = code.repeated()
        self.wide = 100 * sum(width_of(op) == 16 for op in asks) // len(asks) if asks else 100
        # Since sm_90 the block's kilobyte for the system is among the kernel's own.
        self.shared = max(0, shared - (SYSTEM_SHARED if int(arch[3:].rstrip("af")) >= 90 else 0))
        self.blocks = self.flight = None
        self.ahead, self.least_ahead = code.ahead, 0
        # The compiler's own choice; load_once, which strict.cc judges, passes the first cache.
        judged = code.waits and name not in TABLES
        self.stale = sum(".CONSTANT" in op and ".NA." not in op for _, op in code.asks) if judged else 0
        self.pieces = sum(width_of(op) < 16 for op in code.puts) if name in WHOLE_STORES else 0

    kernel = property(lambda self: self.name.split("<")[0])
    arguments = property(lambda self: self.name[len(self.kernel) + 1:-1].split(","))

    def place(self, threads):
        warps = threads // WARP
        unit = -(-self.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        self.blocks = min(REGISTERS_OF_SM // (unit * warps), THREADS_OF_SM[self.arch] // threads,
                          BLOCKS_OF_SM[self.arch],
                          SHARED_OF_SM[self.arch] // (self.shared + SYSTEM_SHARED))

    def add_source(self, known, threads):
        """Adds what only the source says: dynamic shared memory, and the threads of a block."""
        stage = None
        if self.kernel in ("attention_kernel", "keeping_kernel"):
            kv, dim, *rest = self.arguments
            stage = Stage(known, kv, int(dim), rest in ([], ["true"]))
            self.shared += stage.shared
        elif self.kernel == "wide_kernel":
            stage = WideStage(known, self.arguments[0], int(self.arguments[1]))
            self.shared += stage.shared
        elif self.kernel in ("grouped_kernel", "grouped_wide_kernel"):
            stage = GroupedStage(known, self.name, self.kernel == "grouped_wide_kernel")
            self.shared += stage.shared
        elif self.kernel == "grouped_narrow_kernel":
            stage = NarrowStage(known)
            self.shared += stage.shared
        elif self.kernel == "mass_kernel":
            rows = known["SLOTS"] + known["TILE_ROWS"]
            self.shared += rows * (int(self.arguments[1]) + known["PAD"]) * 2
        self.place(threads)
        if stage:
            copies = sum(op.startswith("LDGSTS") or ".NA." in op + "." for op in self.code.loop())
            if copies != stage.copies:
                fail(f"{self.arch} {self.name}: its loop has {copies} copies, the layout in the "
                     f"source {stage.copies}: is class {type(stage).__name__} still what it says?")
            self.flight = stage.bytes * self.blocks // 1024
        elif self.kernel == "few_kernel":  # W is what is read past the first cache
            asks = [op for op in self.code.loop() if ".NA." in op + "."]
            self.flight = sum(map(width_of, asks)) * threads * self.blocks // 1024
            if self.arch not in NO_WAITS:
                self.least_ahead = known["AHEAD"] * int(self.arguments[-2])


def worst(found):
    """Joins the facts of a kernel that is in several files: the worst of each."""
    first = found[0]
    for other in found[1:]:
        first.local = max(first.local, other.local)
        first.registers = max(first.registers, other.registers)
        first.shared = max(first.shared, other.shared)
        first.wide = min(first.wide, other.wide)
        first.ahead = max(first.ahead, other.ahead)
        first.stale = max(first.stale, other.stale)
        first.pieces = max(first.pieces, other.pieces)
        first.tensor = min(first.tensor, other.tensor, key=TENSOR.index)
    return first


def read_codes(cuobjdump, path, cache):
    """arch -> mangled name -> [Code], as read_usage has them."""
    codes = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = unpack(cuobjdump, path, folder)
        texts = pool.map(lambda job: disassemble(cuobjdump, job[1], cache), jobs)
        for (arch, _), lines in zip(jobs, texts):
            for name, several in read_code(lines).items():
                codes.setdefault(arch, {}).setdefault(name, []).extend(several)
    return codes


def read_facts(cuobjdump, paths, cache=None):
    """[Facts], the hot ones first in the order of HOT, of each architecture."""
    known, threads = read_source()
    usages = {path: read_usage(cuobjdump, path) for path in paths}
    codes = {path: read_codes(cuobjdump, path, cache) for path in paths}
    plain = plain_names({name for path in paths for code in codes[path].values() for name in code})
    found = {}
    for path, arch in ((path, arch) for path in paths for arch in sorted(usages[path])):
        for name, several in codes[path].get(arch, {}).items():
            usage = usages[path][arch].get(name, [])
            if len(usage) != len(several):
                fail(f"{path}: {name}: code of {len(several)} and registers of {len(usage)}")
            for one, (registers, shared) in zip(several, usage):
                key = (arch, plain[name])
                found.setdefault(key, []).append(Facts(*key, one, registers, shared))
    order = list(HOT)
    facts = [worst(several) for several in found.values()]
    for f in facts:
        if f.kernel in HOT:
            f.add_source(known, threads[f.kernel])
    return sorted(facts, key=lambda f: (f.arch, order.index(f.kernel) if f.kernel in HOT else 99,
                                        re.sub(r"\d+", lambda n: n[0].rjust(4), f.name)))


# ---- the table -----------------------------------------------------------------------------------

HEADER = """\
# What the machine code of the kernels is held to by tools/sass_facts.py, whose --write makes this.
# nvcc {nvcc}
# local: bytes of local memory that a thread writes and reads, at most, each instruction once
# blocks: blocks on a multiprocessor, at least
# tensor: whether it multiplies by tensor cores, all by those of a warpgroup (wgmma) or not (mma)
# wide: loads of 16 bytes from global memory, in percent of all those in its loops, at least
# flight: KB that these blocks ask memory for in a turn of their loop, at least
"""
LINE = "{:<6} {:<48} {:>6} {:>6} {:>6} {:>6} {:>6}"


def cells(f):
    return [f.arch, f.name, str(f.local), "-" if f.blocks is None else str(f.blocks),
            f.tensor, str(f.wide), "-" if f.flight is None else str(f.flight)]


def write_table(facts, nvcc):
    lines = [LINE.format("arch", "kernel", "local", "blocks", "tensor", "wide", "flight")]
    lines += [LINE.format(*cells(f)) for f in facts if f.kernel in HOT or f.local]
    TABLE.write_text(HEADER.format(nvcc=nvcc) + "\n".join(lines) + "\n", encoding="utf-8")


def read_table():
    """(nvcc, (arch, kernel) -> [local, blocks, tensor, wide, flight])."""
    text = TABLE.read_text(encoding="utf-8")
    nvcc = re.search(r"^# nvcc (\S+)$", text, re.M)
    rows = [line.split() for line in text.splitlines() if line and line[0] != "#"][1:]
    if not nvcc or any(len(row) != 7 for row in rows):
        fail(f"{TABLE.name} is not what --write makes")
    return nvcc[1], {(row[0], row[1]): row[2:] for row in rows}


def worse(f, row):
    """What of a kernel got worse than its row; and whether something got better."""
    local, blocks, tensor, wide, flight = row
    bad, better = [], False
    for what, now, then, sign in (("bytes of local memory", f.local, local, -1),
                                  ("blocks on a multiprocessor", f.blocks, blocks, 1),
                                  ("% of loads of 16 bytes", f.wide, wide, 1),
                                  ("KB in flight", f.flight, flight, 1)):
        if now is None or then == "-":
            if (now is None) != (then == "-"):
                bad.append(f"{what}: {now}, not {then}")
        elif sign * (now - int(then)) < 0:
            bad.append(f"{now} {what}, not {then}")
        else:
            better = better or now != int(then)
    if tensor not in TENSOR:
        bad.append(f"tensor: {f.tensor}, not {tensor}")
    elif TENSOR.index(f.tensor) < TENSOR.index(tensor):
        bad.append("no tensor cores" if f.tensor == "-" else f"{f.tensor}, not {tensor}")
    return bad, better


def broken(f):
    """What is wrong with a kernel, whatever the table says."""
    if f.ahead < f.least_ahead:
        yield f"{f.ahead} loads ahead of the wait for the kernel in front, not {f.least_ahead}"
    if f.ahead and not f.least_ahead:
        yield f"touches memory {f.ahead} times before it has waited for the kernel in front"
    if f.stale:
        yield f"{f.stale} loads by the read-only path, which the kernel in front may write to"
    if f.pieces:
        yield f"{f.pieces} stores of less than 16 bytes"


def compare(facts, rows, archs):
    bad, better, seen = [], 0, set()
    for f in facts:
        bad += [f"{f.arch} {f.name}: {what}" for what in broken(f)]
        seen.add((f.arch, f.name))
        row = rows.get((f.arch, f.name))
        if not row and f.kernel not in HOT:
            row = ["0", "-", "-", "0", "-"]
        if not row:
            bad.append(f"{f.arch} {f.name}: not in {TABLE.name} (--write adds it)")
            continue
        found, is_better = worse(f, row)
        better += is_better and not found and f.kernel in HOT
        if found:
            bad.append(f"{f.arch} {f.name}: {'; '.join(found)}")
    bad += [f"{arch} {name}: in {TABLE.name}, but not in the code"
            for arch, name in rows if arch in archs and (arch, name) not in seen]
    return bad, better


def print_table(facts):
    line = "{:<6} {:<48} {:>9} {:>7} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6}"
    print(line.format("arch", "kernel", "registers", "stored", "loaded", "shared", "blocks", "tensor",
                      "wide", "flight"))
    for f in facts:
        arch, name, _, blocks, tensor, wide, flight = cells(f)
        print(line.format(arch, name, f.registers, f.code.stores, f.code.loads, f.shared,
                          blocks, tensor, wide, flight))


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("sass_facts.py"):])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cache")
    parser.add_argument("--nvcc", default=shutil.which("nvcc"))
    parser.add_argument("files", nargs="+")
    a = parser.parse_args()
    cuobjdump, nvdisasm = find_tool("cuobjdump", a.nvcc), find_tool("nvdisasm", a.nvcc)
    if not cuobjdump or not nvdisasm:
        print("SKIPPED: no cuobjdump and nvdisasm (tools/make_client_venv.sh cuda installs them)")
        sys.exit(SKIPPED)
    os.environ["PATH"] += os.pathsep + os.path.dirname(nvdisasm)  # cuobjdump starts it
    facts = read_facts(cuobjdump, a.files, a.cache)
    if a.cache:
        forget_old(a.cache)
    nvcc = compiler_of(a.nvcc)
    if a.table:
        print_table(facts)
        return
    if a.write:
        write_table(facts, nvcc)
        return
    table_nvcc, rows = read_table()
    if nvcc != table_nvcc:
        print(f"SKIPPED: {TABLE.name} is of nvcc {table_nvcc}, this is {nvcc or 'unknown'}")
        sys.exit(SKIPPED)
    bad, better = compare(facts, rows, {f.arch for f in facts})
    bad += [f"{path}: large products are not cublasLt's" for path in a.files
            if path.endswith(".so") and b"cublasLtMatmul\0" not in pathlib.Path(path).read_bytes()]
    for line in bad:
        print(line)
    print(f"{len(facts)} kernels, {len(bad)} facts worse than {TABLE.name}"
          + (f"; {better} better: --write keeps that" if better else ""))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
