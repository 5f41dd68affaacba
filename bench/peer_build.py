"""The peer llama.cpp, fetched and built in a folder outside the tree.

Its source comes out of the package llama-cpp-python, by pip, in a venv of its own. A second call
reuses what the first one made; another version, other flags or another CPU build again."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

from serve_server import Failed

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
TARGETS = ("llama-bench", "llama-batched-bench", "llama-server")
OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF")


def default_work():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "octavo-peer")


def cpu_info(field):
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        found = re.search(rf"^{field}\s*: (.*)$", f.read(), re.M)
    return found.group(1).strip() if found else ""


def compiler_flags():
    """Flags for this CPU. The peer's attention in AVX512-FP16 is slow for heads of 64, so without
    it the peer is at its best."""
    flags = ["-march=native"]
    if "avx512_fp16" in cpu_info("flags").split():
        flags.append("-mno-avx512fp16")
    return " ".join(flags)


def call(log, *command):
    """Runs a step of the build; its output goes to the log."""
    with open(log, "ab") as f:
        f.write((" ".join(command) + "\n").encode())
        f.flush()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            raise Failed(f"{' '.join(command)}\n{f.read()[-2000:]}\n(all of it: {log})")


def fetch(work, log):
    """Returns the unpacked source's folder; fetches it first if it is missing."""
    source = os.path.join(work, f"source-{VERSION}")
    if os.path.exists(os.path.join(source, "CMakeLists.txt")):
        return source
    print(f"peer: fetching {PACKAGE} {VERSION}", flush=True)
    venv = os.path.join(work, "venv")
    if not os.path.exists(os.path.join(venv, "bin/pip")):
        call(log, sys.executable, "-m", "venv", venv)
    pip = os.path.join(venv, "bin/pip")
    # The package's build backend makes its metadata. Without this line pip would install the
    # backend anew each time.
    call(log, pip, "install", "--quiet", "scikit-build-core")
    call(log, pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
         "--dest", work, f"{PACKAGE}=={VERSION}")
    (archive,) = glob.glob(os.path.join(work, f"*{VERSION}.tar.gz"))
    part = source + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    call(log, "tar", "-xzf", archive, "-C", part, "--strip-components=3", "--wildcards", "*/vendor/llama.cpp/*")
    os.rename(part, source)
    return source


class Peer:
    """The built peer. tool(name) is the path of an executable."""

    def __init__(self, work):
        self.work = os.path.abspath(work)
        self.flags = compiler_flags()
        self.build = os.path.join(self.work, "build")
        os.makedirs(self.work, exist_ok=True)

    def tool(self, name):
        return os.path.join(self.build, "bin", name)

    def make(self):
        stamp = os.path.join(self.build, "octavo-peer.json")
        wanted = {"version": VERSION, "flags": self.flags, "cpu": cpu_info("model name"), "options": list(OPTIONS)}
        log = os.path.join(self.work, "build.log")
        source = fetch(self.work, log)
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as f:
                if json.load(f) == wanted:
                    self._make_depth(source, log)
                    return
            shutil.rmtree(self.build)
        print(f"peer: building llama.cpp with {self.flags} (minutes; {log})", flush=True)
        call(log, "cmake", "-S", source, "-B", self.build, "-G", "Ninja", *OPTIONS,
             f"-DCMAKE_C_FLAGS={self.flags}", f"-DCMAKE_CXX_FLAGS={self.flags}")
        call(log, "cmake", "--build", self.build, "--target", *TARGETS)
        with open(stamp, "w", encoding="utf-8") as f:
            json.dump(wanted, f)
        self._make_depth(source, log)

    def _make_depth(self, source, log):
        """Builds peer_depth.c, which lies beside this file."""
        libraries = os.path.join(self.build, "bin")
        call(log, "cc", "-O2", os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_depth.c"),
             f"-I{source}/include", f"-I{source}/ggml/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama",
             "-lggml", "-lggml-base", "-o", self.tool("peer_depth"))

    def describe(self):
        """Names the peer for the results."""
        said = subprocess.run([self.tool("llama-batched-bench"), "--version"], capture_output=True, text=True,
                              check=False)
        build = re.search(r"version: *(\S+)", said.stdout + said.stderr)
        return (f"llama.cpp of {PACKAGE} {VERSION}" + (f" ({build.group(1)})" if build else "") +
                f", {self.flags}")
