"""Shared by the serving benches: a server of their own, its metrics, its threads' CPU time and
memory, the load generator, and results with the facts of their origin."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(ROOT, "models/demo")
# Threads that compute. All other threads serve: HTTP, gRPC, tokenizing, signals.
ENGINE_THREADS = ("oct-engine", "oct-compute")
PATIENCE = 120
CPU_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A bench that could not be done."""


class Server:
    """`octavo serve` on free ports; its log goes to a file. `with` ends it by SIGTERM."""

    def __init__(self, octavo, *flags, model=("--model", DEMO)):
        self.folder = tempfile.TemporaryDirectory(prefix="octavo-bench-")
        self.log_path = os.path.join(self.folder.name, "log")
        log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [octavo, "serve", *model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT)
        log.close()
        self.pid = self.process.pid
        try:
            self.http, self.grpc = self._ports()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.url = f"http://127.0.0.1:{self.http}"

    def _ports(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = [re.search(words, self.log())
                     for words in (r"HTTP at http://\S+?:(\d+),", r"gRPC at \S+?:(\d+),")]
            if all(found):
                return [int(m.group(1)) for m in found]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise Failed(f"octavo serve did not start:\n{self.log()[-3000:]}")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.exit_status = self.process.wait()
        if self.exit_status != 0:
            print(f"octavo serve ended with status {self.exit_status}:\n{self.log()[-2000:]}")
        self.folder.cleanup()

    def metrics(self):
        """The samples of /metrics: {"kv_pages_used": 12.0, …}. A family with labels gives its sum,
        and each sample as "name:reason"."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE) as answer:
            page = answer.read().decode()
        out = {}
        for line in page.splitlines():
            if line.startswith("#") or "_bucket{" in line:
                continue
            name, value = line.rsplit(" ", 1)
            reason = re.search(r'reason="([^"]*)"', name)
            name = name.split("{", 1)[0].removeprefix("octavo:")
            out[name] = out.get(name, 0.0) + float(value)
            if reason:
                out[f"{name}:{reason.group(1)}"] = float(value)
        return out

    def wait_pages_free(self, limit_s, start=None):
        """Seconds (since `start`) until no page is referenced, or None."""
        start = start or time.monotonic()
        while time.monotonic() - start < limit_s:
            if self.metrics()["kv_pages_used"] == 0:
                return time.monotonic() - start
            time.sleep(0.02)
        return None

# ---- the kernel's figures ------------------------------------------------------------------------

    def rss(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024

    def cpu_by_thread(self):
        """Seconds of CPU time by (thread id, name), without threads that have ended."""
        out = {}
        for tid in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{tid}/stat", encoding="utf-8") as f:
                    stat = f.read()
                name = stat[stat.index("(") + 1:stat.rindex(")")]
                fields = stat[stat.rindex(")") + 2:].split()
                seconds = (int(fields[11]) + int(fields[12])) * CPU_TICK
                with open(f"/proc/{self.pid}/task/{tid}/schedstat", encoding="ascii") as f:
                    seconds = int(f.read().split()[0]) / 1e9 or seconds
            except OSError:
                pass
            else:
                out[int(tid), name] = seconds
        return out


def cpu_by_name(before, after):
    """CPU seconds between two results of Server.cpu_by_thread, by name of the threads."""
    out = {}
    for key, seconds in after.items():
        out[key[1]] = out.get(key[1], 0.0) + seconds - before.get(key, 0.0)
    return out


class RssSampler:
    """Resident memory of a server, sampled while the `with` lasts: [(seconds, bytes)]."""

    def __init__(self, server, every_s=0.5):
        self.server, self.every_s, self.samples = server, every_s, []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        start = time.monotonic()
        while not self.stop.wait(self.every_s):
            self.samples.append((time.monotonic() - start, self.server.rss()))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def drift(self, last_s):
        """Rise of a line through the last seconds, as a share of their mean."""
        end = self.samples[-1][0]
        points = [(t, b) for t, b in self.samples if t >= end - last_s]
        mean_t = sum(t for t, _ in points) / len(points)
        mean_b = sum(b for _, b in points) / len(points)
        spread = sum((t - mean_t) ** 2 for t, _ in points)
        slope = sum((t - mean_t) * (b - mean_b) for t, b in points) / spread if spread else 0.0
        return slope * (points[-1][0] - points[0][0]) / mean_b


# ---- the load generator --------------------------------------------------------------------------


class Client:
    """`octavo bench serve` in the background. result() is its JSON; with requests=True also a line
    for each request."""

    def __init__(self, octavo, url, *flags, requests=False):
        self.folder = tempfile.TemporaryDirectory(prefix="octavo-bench-")
        self.json = os.path.join(self.folder.name, "json")
        self.lines = os.path.join(self.folder.name, "requests") if requests else None
        more = ["--requests", self.lines] if requests else []
        self.process = subprocess.Popen(
            [octavo, "bench", "serve", "--url", url, *map(str, flags), "--json", self.json, *more],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)

    def result(self, timeout=3600):
        output, _ = self.process.communicate(timeout=timeout)
        try:
            with open(self.json, encoding="utf-8") as f:
                result = json.load(f)
        except OSError:
            raise Failed(f"octavo bench serve: {output.decode(errors='replace')[-2000:]}") from None
        for key in ("input_lens", "output_lens", "ttfts", "itls"):
            result.pop(key)
        if self.lines:
            with open(self.lines, encoding="utf-8") as f:
                result["requests"] = [json.loads(line) for line in f]
        self.folder.cleanup()
        return result

    def kill(self):
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()


def load(octavo, url, *flags, requests=False):
    return Client(octavo, url, *flags, requests=requests).result()


# ---- results -------------------------------------------------------------------------------------


def facts(octavo):
    """The origin of the figures: commit, machine, load."""
    def ask(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
        except OSError:
            return ""

    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = re.search(r"model name\s*: (.*)", f.read())
    changed = ask("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": ask("git", "rev-parse", "--short", "HEAD") + ("+changes" if changed else ""),
        "cpu": model.group(1) if model else "",
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "load_before": os.getloadavg()[0],
    }


def table(rows):
    """Formats rows of (what, measured, bar, passed or None)."""
    width = max(len(r[0]) for r in rows)
    for what, measured, bar, passed in rows:
        mark = "" if passed is None else "ok" if passed else "MISSED"
        print(f"  {what:<{width}}  {measured:<44} {bar:<22} {mark}")
