"""Shared by the suites of a live server: which Python has the clients, a server of their own, small
HTTP helpers. usage of a suite: python3 tests/e2e/serve/SUITE.py OCTAVO [unittest arguments]"""

import http.client
import importlib
import json
import os
import random
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MODEL = "models/demo"
POOL = ["--model", MODEL, "--kv-memory", "64M"]
# Flags for suites that lose no rank by its silence: on a busy machine one may wait for a core for
# seconds.
PATIENT = ["--workers-timeout", "60000"]
# Set for builds in which a token takes many times as long (sanitizers): tests of arithmetic, rather
# than of bytes and threads, run in part. A soak runs all of them.
LIGHT = "OCTAVO_TESTS_LIGHT" in os.environ and "OCTAVO_SOAK" not in os.environ
# A slow model with the same vocabulary: thousands of tokens take seconds. An answer of LONG tokens
# goes on for minutes: it has not ended when a test that waited for a core looks at it.
SLOW_LAYERS = 4 if LIGHT else 32
# Layers of the slow model where long prompts are computed often; LONG tokens take it a minute.
FEW_SLOW_LAYERS = 4 if LIGHT else 8


def slow_model(layers, *memory):
    return ["--model", MODEL, *memory, "--load-format", "dummy", "--override", f"num_hidden_layers={layers}",
            "--override", "max_position_embeddings=32768", "--threads", "1"]


SLOW = slow_model(SLOW_LAYERS, "--kv-memory", "512M")
LONG = 30000
KV_HEADS = 4
VOCAB = 1024
PAGE = 16
CONTEXT = 4096
# Seconds until an awaited event counts as lost (sanitizers on a busy machine are slow).
PATIENCE = 180
SKIP = 77


def need(*modules, venv="clients"):
    """Imports modules from the Python that tools/make_client_venv.sh made; skips the suite where
    they are missing."""
    try:
        found = [importlib.import_module(name) for name in modules]
        return found[0] if len(found) == 1 else found
    except ImportError as e:
        python = os.path.join(ROOT, f"build/{venv}-venv/bin/python")
        if os.path.exists(python) and not sys.prefix.endswith("-venv"):
            os.execv(python, [python, *sys.argv])
        print(f"SKIPPED {os.path.basename(sys.argv[0])}: no Python package '{e.name}' "
              f"(tools/make_client_venv.sh{'' if venv == 'clients' else ' ' + venv} installs it)")
        sys.exit(SKIP)


OCTAVO = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""


def main():
    os.chdir(ROOT)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)


def tokens(n, seed):
    """n ordinary token ids of the demo model."""
    r = random.Random(seed)
    return [r.randrange(1000) for _ in range(n)]


def eventually(what, condition, seconds=PATIENCE):
    """Waits until condition() is true (not None, not False) and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value is not None and value is not False:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


# ---- a server ------------------------------------------------------------------------------------


class Server:
    """octavo serve on free ports; its log is collected. `with` stops the server and requires exit
    status 0."""

    def __init__(self, *flags, model=POOL, env=None, scheme="http", tls=None, limits=None):
        """limits: (soft, hard) limits of the process, by their names in `resource`."""
        self.scheme, self.tls = scheme, tls
        self.http_port = self.grpc_port = 0
        self.lines = []
        self.process = subprocess.Popen(
            [OCTAVO, "serve", *model, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT,
            preexec_fn=limits and (lambda: [resource.setrlimit(k, (n, n)) for k, n in limits.items()]),
            env={**{k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}, **(env or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        eventually("the server listens", lambda: self._ports() or self.process.poll() is not None)
        if self.process.poll() is not None:
            self.reader.join(PATIENCE)
            raise AssertionError(f"octavo serve: exit {self.process.returncode}\n{self.log()}")

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    def _ports(self):
        text = self.log()
        found = [re.search(words, text) for words in (r"HTTP at https?://\S+?:(\d+),", r"gRPC at \S+?:(\d+),")]
        if not all(found):
            return False
        self.http_port, self.grpc_port = (int(m.group(1)) for m in found)
        return True

    def log(self):
        return "\n".join(self.lines)

    def events(self):
        """The lines of the log that are JSON, as objects."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.http_port}"

    @property
    def target(self):
        return f"127.0.0.1:{self.grpc_port}"

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        code = self.process.wait(PATIENCE * 2)
        self.reader.join(PATIENCE)
        self.process.stderr.close()
        return code

    def stop(self):
        """Sends SIGTERM: the exit status must be 0, which under ASan also means that nothing
        leaked."""
        if self.process.poll() is None:
            self.terminate()
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()
            raise AssertionError(f"SIGTERM did not end the server\n{self.log()}") from None
        if code != 0:
            raise AssertionError(f"octavo serve: exit {code}\n{self.log()[-20000:]}")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.stop()
        else:
            self.process.kill()
            self.wait()

    # ---- HTTP by Python's own library

    def connect(self, timeout=PATIENCE):
        if self.scheme == "https":
            return http.client.HTTPSConnection("127.0.0.1", self.http_port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body as text)"""
        c = self.connect()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode("utf-8")
        finally:
            c.close()

    def get(self, path, headers=None):
        return self.request("GET", path, None, headers)

    def post(self, path, body, status=200, headers=None):
        """The JSON of the answer, whose status must be the given one."""
        got, _, text = self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        if got != status:
            raise AssertionError(f"POST {path}: {got}, expected {status}: {text[:1000]}")
        return json.loads(text, object_pairs_hook=object_of)

    def refused(self, path, body, status=400):
        """The error object of a refusal, which must have all its members."""
        error = self.post(path, body, status)
        if sorted(error) != ["error"] or sorted(error["error"]) != ["code", "message", "param", "type"]:
            raise AssertionError(f"not an error body: {error}")
        if error["error"]["code"] not in (status, "context_length_exceeded"):
            raise AssertionError(f"code is not the status {status}: {error}")
        return error["error"]

    def stream(self, path, body):
        """The events of a streamed answer, which must end with [DONE]."""
        c = self.connect()
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}))
            r = c.getresponse()
            if r.status != 200 or not r.headers["content-type"].startswith("text/event-stream"):
                raise AssertionError(f"POST {path}: {r.status} {r.headers['content-type']} {r.read()[:500]}")
            return sse(r.read().decode("utf-8"))
        finally:
            c.close()

    def metrics(self):
        """Samples of /metrics: name, or name{labels} with sorted labels, mapped to the value."""
        status, _, text = self.get("/metrics")
        if status != 200:
            raise AssertionError(f"/metrics: {status}")
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def metric(self, stem, page=None, **labels):
        """The sum of the samples octavo:stem with these labels, now or in a page read before."""
        total, found = 0.0, False
        for name, value in (page or self.metrics()).items():
            if re.split(r"[{ ]", name)[0] == f"octavo:{stem}" and all(
                    f'{k}="{v}"' in name for k, v in labels.items()):
                total, found = total + value, True
        if not found:
            raise AssertionError(f"no metric octavo:{stem} {labels}")
        return total

    def idle(self):
        """Waits until no page is referenced and no request runs or waits."""
        for stem in ("num_requests_running", "num_requests_waiting", "kv_pages_used"):
            eventually(f"octavo:{stem} is 0", lambda stem=stem: self.metric(stem) == 0)


def sse(text):
    """The JSON of each event of a whole stream."""
    events = []
    frames = [f for f in text.split("\n\n") if f and not f.startswith(":")]
    if not text.endswith("\n\n") or frames[-1] != "data: [DONE]":
        raise AssertionError(f"a stream that does not end by [DONE]: ...{text[-500:]!r}")
    for frame in frames[:-1]:
        if not frame.startswith("data: ") or "\n" in frame:
            raise AssertionError(f"not a frame of one data line: {frame!r}")
        events.append(json.loads(frame[len("data: "):]))
    return events


def object_of(members):
    """A JSON object, none of whose names may come twice: readers disagree about what that means."""
    made = dict(members)
    if len(made) != len(members):
        raise AssertionError(f"a name comes twice among {[name for name, _ in members]}")
    return made


class ServeTest(unittest.TestCase):
    """A test class with a server of its own."""

    FLAGS = []
    MODEL = POOL
    ENV = {}
    LIMITS = None
    server = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS, model=cls.MODEL, env=cls.ENV, limits=cls.LIMITS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


def run_offline(requests, *flags):
    """The output lines of `octavo run --prompts`, by (id, index)."""
    p = run_prompts(requests, [OCTAVO, "run", *POOL, "--prompts", "-", *flags])
    return {(line["id"], line["index"]): line for line in map(json.loads, p.stdout.splitlines())}


def run_prompts(requests, command, env=None):
    """The process of a command that answered all requests."""
    text = "".join(json.dumps(r) + "\n" for r in requests)
    p = subprocess.run([*command, *PATIENT], input=text.encode(), capture_output=True, cwd=ROOT, timeout=PATIENCE * 2,
                       env=env)
    if p.returncode != 0:
        raise AssertionError(f"octavo run: exit {p.returncode}: {p.stderr.decode()}{p.stdout.decode()[:500]}")
    return p


# ---- gRPC ----------------------------------------------------------------------------------------


_folder = None


def stubs(*names):
    """The modules NAME_pb2 and NAME_pb2_grpc for each NAME.proto of proto/, made by grpc_tools."""
    global _folder
    protoc, grpc_tools = need("grpc_tools.protoc", "grpc_tools")
    if _folder is None:
        _folder = tempfile.TemporaryDirectory()
        sys.path.insert(0, _folder.name)
    here = os.path.join(ROOT, "proto")
    include = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    code = protoc.main(["protoc", f"-I{here}", f"-I{include}", f"--python_out={_folder.name}",
                        f"--grpc_python_out={_folder.name}", *[f"{here}/{n}.proto" for n in (*names, *_imports(names))]])
    if code != 0:
        raise AssertionError("grpc_tools.protoc failed")
    return [importlib.import_module(f"{n}{end}") for n in names for end in ("_pb2", "_pb2_grpc")]


def _imports(names):
    """Files of proto/ that these files import."""
    found = set()
    for name in names:
        with open(os.path.join(ROOT, "proto", f"{name}.proto"), encoding="utf-8") as f:
            found |= set(re.findall(r'^import "(?:proto/)?(\w+)\.proto"', f.read(), re.M))
    return found - set(names)


def trailers(call):
    """Trailing metadata as a dict."""
    return {key: value for key, value in call.trailing_metadata() or ()}


# An RSA key takes seconds.
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def certificates(folder, names=("IP:127.0.0.1", "DNS:localhost")):
    """A CA, and certificates of a server and a client, made by the openssl tool: paths by name;
    None without the tool."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    try:
        openssl("version")
    except OSError:
        return None
    openssl("req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=test ca",
            "-keyout", "ca.key", "-out", "ca.pem")
    for who in ("server", "client"):
        openssl("req", *NEW_KEY, "-subj", f"/CN={who}", "-keyout", f"{who}.key",
                "-out", f"{who}.csr")
        with open(os.path.join(folder, f"{who}.ext"), "w", encoding="utf-8") as f:
            f.write(f"subjectAltName={','.join(names)}\n")
        openssl("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-out", f"{who}.pem", "-extfile", f"{who}.ext")
    return {name: os.path.join(folder, name) for name in
            ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")}


def tls_context(ca, certificate=None, key=None):
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


# ---- sockets -------------------------------------------------------------------------------------


class HeldPort:
    """A port of 127.0.0.1 that no other program is given until it is closed. A server can listen
    there nevertheless: the socket that holds it does not, and shares it."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", 0))
        self.number = self.socket.getsockname()[1]

    def close(self):
        self.socket.close()


def raw(port, data, timeout=PATIENCE):
    """Sends bytes and returns everything that comes back until the server closes (or is silent for
    a while)."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as s:
        answer = b""
        try:
            s.sendall(data)
            while True:
                part = s.recv(65536)
                if not part:
                    return answer, True
                answer += part
        except ConnectionError:
            return answer, True
        except TimeoutError:
            return answer, False
