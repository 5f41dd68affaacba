"""tools/gpu_check.sh, its table and gpu_peer.py, rehearsed: every stage over the emulated device,
whose clock is made of bytes and operations (tests/simt/device.h), with stand-ins for NVIDIA's tools
and PyTorch. What the programs printed is then played again with good figures, which must end well,
and with a check that fails, a command line that is refused, and too little time.

usage: gpu_check.py OCTAVO HOME KERNELS_CHECK NCCL_CHECK FAKE_NCCL"""

import json
import os
import re
import stat
import subprocess
import sys
import tempfile

octavo, home, kernels_check, nccl_check, fake_nccl = map(os.path.abspath, sys.argv[1:6])

# The stages in their order, and those that need what no stand-in has.
with open("tests/cuda/kernels_cuda_check.c", encoding="utf-8") as f:
    GROUPS = re.findall(r'\{"(\w+)", check_\w+\}', f.read())
STAGES = ("driver", "built", "sass_facts", *(f"kernels_{g}" for g in GROUPS), "bench_kernels", "counters", "sweep_parts",
          "bench_engine", "bench_long", "bench_measured", "bench_deep", "nccl_one_rank", "tp2_one_gpu", "wide", "demo",
          "tp2_gpus", "tp2_gpus_wide", "bench_tp2", "bench_retention", "peer", "bench_fp8", "bench_int8", "bench_int4",
          "sweep_few", "flashinfer", "memcheck", "racecheck", "synccheck")
SKIPPED = ("sass_facts", "flashinfer")

# Runs a program and keeps what it printed and wrote, or plays that again. Only kernels of answers
# that are compared, of one bench and of quick checks are run. Those of the other benches are
# counted; checks that take long are kernels_simt_strict_check's, and those of rows are run instead.
SHIM = r"""#!/bin/sh
name=$(basename "$0")
key=$name-$(echo "$*" | sed -E 's|--prompts [^ ]*jsonl|--prompts|; s|/[^ ]*/logs/|logs/|g' | cksum | tr -d ' ')
at=$RECORDS/$key
out=$(echo "$*" | sed -nE 's|.*--out ([^ ]*).*|\1|p')
if [ -z "$REPLAY" ]; then
    case "$*" in
    "$REALLY") ;;
    bench*) export OCTAVO_TEST_IDLE=1 ;;
    esac
    echo "$*" >"$at.line"
    for group in $LONG; do
        [ "$name $2 $3" != "kernels_cuda_check --small $group" ] || set -- "$1" --small rows
    done
    "$REAL/$name" "$@" >"$at.out.$$" 2>"$at.err.$$"
    status=$?
    cat "$at.out.$$"
    cat "$at.err.$$" >&2
    echo $status >"$at.end"
    mv "$at.out.$$" "$at.out"
    mv "$at.err.$$" "$at.err"
    [ -z "$out" ] || cp "$out" "$at.json"
    exit $status
fi
[ -e "$at.end" ] || { echo "nothing was recorded of: $name $*" && exit 3; }
[ ! -e "$at.pause" ] || sleep "$(cat "$at.pause")"
cat "$at.out"
cat "$at.err" >&2
[ -z "$out" ] || cp "$at.json" "$out"
exit "$(cat "$at.end")"
"""

NVIDIA_SMI = r"""#!/bin/sh
case "$*" in
-L) echo "GPU 0: NVIDIA H100"; echo "GPU 1: NVIDIA H100" ;;
"--query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader") echo "NVIDIA H100, $DRIVER, 81559 MiB, 1980 MHz" ;;
"--query-gpu=driver_version --format=csv,noheader") echo "$DRIVER"; echo "$DRIVER" ;;
"--query-gpu=memory.total --format=csv,noheader,nounits") echo 143771; echo 143771 ;;
*) exit 9 ;;
esac
"""

NVCC = r"""#!/bin/sh
[ "$*" = --version ] && echo "Cuda compilation tools, release 13.99, V13.99.1"
"""

NO_CODE = "#!/bin/sh\n"

# The check is run by one group, of which the launches of a real sanitizer would be seen.
SANITIZER = r"""#!/bin/sh
[ "$1 $3 $4" = "--tool --error-exitcode 9" ] || exit 9
case $2 in memcheck | racecheck | synccheck) ;; *) exit 9 ;; esac
shift 4
exec "$@" rows
"""

# A name must be one that some kernel has as ncu writes it, and octavo must take its flags: where it
# sees no device it says so, with another status than for a flag that it does not know.
NCU = r"""#!/usr/bin/env python3
import os, re, subprocess, sys
flags = sys.argv[1:]
known = {"--kernel-name-base": "demangled", "--launch-count": "1", "--kill": "yes", "--launch-skip": "2"}
asked = {}
while flags and flags[0].startswith("--"):
    if flags[0] == "--csv":
        flags.pop(0)
        continue
    asked[flags[0]] = flags[1]
    flags = flags[2:]
assert all(asked.pop(k) == v for k, v in known.items()), asked
name, metrics = asked.pop("--kernel-name").removeprefix("regex:"), asked.pop("--metrics").split(",")
assert not asked, asked
def spelled(row):
    name = re.sub(r"(?<=[<,])(true|false)(?=[,>])", lambda m: "(bool)" + "01"[m[1] == "true"], row)
    name = re.sub(r"(?<=[<,])(\d+)(?=[,>])", r"(int)\1", name).replace(",", ", ")
    return f"void {name}(job)"
with open("tools/sass_facts.txt", encoding="utf-8") as f:
    names = [spelled(line.split()[1]) for line in f if line.startswith("sm_90")]
found = [n for n in names if re.search(name, n)]
assert found, name
ran = subprocess.run([os.environ["REAL"] + "/octavo", *flags[1:]], env=dict(os.environ, OCTAVO_TEST_DEVICES="0"),
                     capture_output=True, text=True, check=False)
assert ran.returncode == 1 and "shows no device" in ran.stderr, (flags, ran.stderr)
print("==PROF== Connected to process 1 (octavo)")
print('"ID","Process ID","Process Name","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for metric in metrics:
    stalls = ["long_scoreboard", "barrier"] if "regex:" in metric else [""]
    for i, stall in enumerate(stalls):
        told = f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio" if stall else metric
        print(f'"0","1","octavo","{found[0]}","{told}","%","{1000 + i:,.1f}"')
"""


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


KERNELS = "bench kernels --device cuda --rows 256"


class Rehearsal:
    def __init__(self, folder):
        self.folder = folder
        for name in ("tools", "real", "build", "build/tests", "records"):
            os.mkdir(self.at(name))
        for name, text in (("nvidia-smi", NVIDIA_SMI), ("nvcc", NVCC), ("cuobjdump", NO_CODE), ("nvdisasm", NO_CODE),
                           ("compute-sanitizer", SANITIZER), ("ncu", NCU)):
            write(self.at("tools", name), text)
        os.symlink(sys.executable, self.at("tools", "python3"))
        plugin = os.path.join(home, "liboctavo_cuda.so")
        for name, file in (("octavo", octavo), ("liboctavo_cuda.so", plugin), ("tests/kernels_cuda_check", kernels_check),
                           ("tests/cuda_nccl_check", nccl_check)):
            os.symlink(file, self.at("build", name))
        subprocess.run(["tools/carry_gpu_build.sh", self.at("build"), self.at("built")], check=True)
        for name in ("octavo", "kernels_cuda_check", "cuda_nccl_check"):
            os.rename(self.at("built", name), self.at("real", name))
            write(self.at("built", name), SHIM)
        os.symlink(self.at("built", "liboctavo_cuda.so"), self.at("real", "liboctavo_cuda.so"))
        assert os.path.exists(self.at("built", "lib", "libjansson.so.4")), "a library is missing"
        os.symlink(os.path.join(home, "libcuda.so.1"), self.at("built", "lib", "libcuda.so.1"))
        os.symlink(fake_nccl, self.at("built", "lib", "libnccl.so.2"))

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, name, **more):
        """(exit status, table, output) of the script."""
        env = dict(os.environ, PATH=f"{self.at('tools')}:{os.environ['PATH']}", PYTHONPATH=os.path.abspath("tests/fake"),
                   PYTHONDONTWRITEBYTECODE="1", RECORDS=self.at("records"), REAL=self.at("real"), REALLY=KERNELS, LONG="experts pages wide retrieve ranks",
                   REPLAY="", DRIVER="580.95.05",
                   OUT=self.at(name), OCTAVO_TEST_NAME="NVIDIA H100 80GB HBM3", OCTAVO_TEST_COMPUTE="90",
                   OCTAVO_TEST_DEVICES="2", GPU_PEER_CPU="1", CUDA_HOME="/none", GPU_CHECK_SECONDS="3000")
        env.update(more)
        command = ["tools/gpu_check.sh", "--built", self.at("built"), "--small", self.at("work")]
        ran = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
        table = self.at(name, "table.txt")
        return ran.returncode, read(table) if os.path.exists(table) else "", ran.stdout + ran.stderr

    def record(self, line, ending):
        """The file of what a command printed, whose arguments have these words."""
        for name in os.listdir(self.at("records")):
            if name.endswith(".line") and re.search(line, read(self.at("records", name))):
                return self.at("records", name.removesuffix("line") + ending)
        raise AssertionError(f"no command was run with {line}")


def verdicts(table):
    """stage -> verdict, in the table's order."""
    return {m[1]: m[2].strip() for m in re.finditer(r"^(\w+) +([A-Z][A-Za-z() \d]+?) +\d+ s$", table, re.M)}


def rehearse(r):
    """Every stage over the emulator."""
    status, table, said = r.run("first")
    print(table)
    for line in re.findall(r"^== .*$", said, re.M):
        print(line)
    found = verdicts(table)
    assert tuple(found) == STAGES, (tuple(found), said[-3000:])
    for stage, verdict in found.items():
        expected = "SKIPPED" if stage in SKIPPED else "PASS"
        assert verdict == expected, f"{stage}: {verdict}: {read(r.at('work', 'logs', stage + '.log'))[-2000:]}"
    for words in ("not measured", "unknown", "no launch", "nan", "inf"):
        assert not re.search(rf"\b{words}\b", table), words
    shares = re.findall(r"^(?:decode|a chunk|prefill) .*? ([\d.]+) % +([\d.]+) %  ", table, re.M)
    assert len(shares) == 8 and all(1 < float(s) < 115 for pair in shares for s in pair), shares
    # Models are timed by the host's clock, so that any number will do.
    assert len(re.findall(r"^8B .*? ([\d.]+) % +([\d.]+) %  ", table, re.M)) == 8
    assert status == 1 and " missed" in table  # an emulated engine reaches no bar
    assert "0 of" not in table and re.search(r"every kernel agrees with the reference +(\d+)/\1 +all +met", table), table
    beside = re.findall(r"^(?:decode attention \d+ x \d+|8B .*tokens/s) +(.*?); (.*)$", table, re.M)
    assert [len(mine.split()) for mine, _ in beside] == [2] * 6, beside  # a unit, or two rounds
    assert [them.count(",") for _, them in beside] == [3, 3, 2, 2, 1, 1], beside
    assert len(re.findall(r"^(?:fp8|int8|int4): ", table, re.M)) >= 13, table
    assert "\nattention beside FlashInfer, us of each round\nnone: no flashinfer\n" in table, table
    steps = re.split(r"^batch \d+ at 1024 +[\d.]+; [\d.]+ \([-+][\d.]+ %\)\n", table, flags=re.M)[1:]
    assert len(steps) == 3, table
    for step in steps:  # of two layers
        assert re.match(r" +all products [\d.]+, \d+ % at the limits; decode attention [\d.]+, \d+ % at", step), table
        names = re.findall(r"^  (\w[\w ]*\w) +(\d+) +[\d.]+ +([\d.]+) %$", step, re.M)
        found = {name: int(n) for name, n, _ in names}
        assert found["norm"] == 5 and found["decode attention"] == found["gate"] == found["heads"] == 2, table
        assert sum(n for name, n in found.items() if name.startswith("product")) == 9, table
        assert abs(sum(float(share) for *_, share in names) - 100) < 0.6, table
    return table


def play_well(r):
    """The same with figures above the bars."""
    for name in ("engine.json", "engine_long.json", "engine_deep.json", "measured.json", "retention.json"):
        path = r.record(rf"--out \S*/{name}", "json")
        report = json.loads(read(path))
        for row in report["rows"]:
            for key in [k for k in row if k.endswith("_share")]:
                row[key] = 0.9
            row.update({"gb_s": 3000, "gflop_s": 800e3} if "gb_s" in row else {})
            row.update((key, 0.001) for key in ("share_of_prefill", "more") if key in row)
        write(path, json.dumps(report))
    path = r.record(f"^{KERNELS}$", "out")
    write(path, re.sub(r" us +\d+ (GB/s .* )[\d.]+ (TFLOP/s)", r" us 2900 \g<1>800.0 \2", read(path)))
    status, table, said = r.run("second", REPLAY="1")
    assert status == 0, (table, said[-3000:])
    assert " missed" not in table and "FAIL" not in table


def play_badly(r):
    """A check that fails and a command line that is refused."""
    write(r.record("--small experts$", "out"), "FAIL  experts of bf16    1.00e+00  <= 1e-04\nFAIL: 1 of 2 pass\n")
    bad = {"kernels_experts": ("--small experts$", 1), "bench_int8": ("--dtype int8 --kv-dtype int8", 2)}
    for line, code in bad.values():
        write(r.record(line, "end"), f"{code}\n")
    status, table, said = r.run("third", REPLAY="1")
    found = verdicts(table)
    assert status == 1 and tuple(found) == STAGES, (table, said[-3000:])
    for stage, verdict in found.items():
        expected = f"FAIL ({bad[stage][1]})" if stage in bad else "SKIPPED" if stage in SKIPPED else "PASS"
        assert verdict == expected, (stage, verdict)
    assert re.search(r"every kernel agrees with the reference +\d+/\d+ +all +missed", table), table
    assert "    FAIL  experts of bf16" in table


def run_out(r):
    """A stage that never ends takes the rest of the time, of which nothing is left for any stage
    behind it."""
    write(r.record(r"--out \S*/engine_long.json", "pause"), "600\n")
    status, table, said = r.run("fourth", REPLAY="1", GPU_CHECK_SECONDS="12")
    found = verdicts(table)
    assert status == 1 and tuple(found) == STAGES, (table, said[-3000:])
    late = [read(r.at("work", "logs", f"{stage}.log")) == "SKIPPED: no time left\n" for stage in STAGES]
    first = late.index(True)  # earlier on a machine that is busy
    assert first <= STAGES.index("bench_long") + 1 and all(late[first:]), late
    if first > STAGES.index("bench_long"):
        assert found["bench_long"] == "FAIL (time)", found
    assert all(found[stage] == "SKIPPED" for stage in STAGES[first:]), found


def refuse(r):
    """A driver that is older than the runtime, and a build that does not run here."""
    status, table, said = r.run("fifth", REPLAY="1", DRIVER="570.10")
    assert status == 1 and list(verdicts(table)) == ["driver", "built"], (table, said)
    assert "570.10 is too old" in said and "580" in said, said


def main():
    with tempfile.TemporaryDirectory() as folder:
        r = Rehearsal(folder)
        rehearse(r)
        play_well(r)
        play_badly(r)
        run_out(r)
        refuse(r)
    print("ok")


main()
