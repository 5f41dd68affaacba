#!/usr/bin/env python3
"""Operating the server: drain, signals, TLS, keys, environment, log, overload.
usage: operation.py OCTAVO [unittest arguments]"""

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

from harness import (LIGHT, LONG, OCTAVO, PATIENCE, POOL, ROOT, SLOW, Server, ServeTest, certificates, eventually, main, need,
                     raw, stubs, tls_context, tokens)

grpc, health, health_grpc = need("grpc", "grpc_health.v1.health_pb2", "grpc_health.v1.health_pb2_grpc")
pb, rpc = stubs("octavo")


class Load:
    """Streams over both protocols, in threads, with the outcome of each."""

    def __init__(self, server, n, max_tokens):
        self.server, self.max_tokens = server, max_tokens
        self.begun, self.ended = queue.Queue(), queue.Queue()
        self.channel = grpc.insecure_channel(server.target)
        self.threads = [threading.Thread(target=ask, args=(i,), daemon=True)
                        for i in range(n) for ask in (self.http, self.whole, self.octavo)]
        for thread in self.threads:
            thread.start()
        for _ in range(2 * n): # the streaming ones
            self.begun.get(timeout=PATIENCE)
        eventually("all are accepted", lambda: self.n_accepted() + self.ended.qsize() >= 3 * n)

    def n_accepted(self):
        page = self.server.metrics()
        return sum(self.server.metric(f"num_requests_{stem}", page) for stem in ("running", "waiting"))

    def body(self, i, **fields):
        return json.dumps({"prompt": tokens(20, i), "max_tokens": self.max_tokens, "ignore_eos": True, **fields})

    def http(self, i):
        try:
            c = self.server.connect()
            c.request("POST", "/v1/completions", self.body(i, stream=True))
            r = c.getresponse()
            first = r.readline()
            self.begun.put(r.status)
            text = (first + r.read()).decode()
            c.close()
            frames = [f for f in text.split("\n\n") if f.startswith("data: {")]
            ends = [json.loads(f[6:])["choices"][0]["finish_reason"] for f in frames]
            self.ended.put((len(frames), ends[-1], text.endswith("data: [DONE]\n\n")))
        except Exception as e: # pylint: disable=broad-except
            self.ended.put(repr(e))

    def whole(self, i):
        try:
            status, _, text = self.server.request("POST", "/v1/completions", self.body(i + 100))
            r = json.loads(text)
            self.ended.put((r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"], status == 200))
        except Exception as e: # pylint: disable=broad-except
            self.ended.put(repr(e))

    def octavo(self, i):
        try:
            call = rpc.InferenceStub(self.channel).Generate(pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=tokens(20, i + 200)),
                sampling=pb.SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)))
            messages = [next(call)]
            self.begun.put(0)
            messages += call
            self.ended.put((sum(len(m.token_ids) for m in messages), messages[-1].finish_reason, True))
        except Exception as e: # pylint: disable=broad-except
            self.ended.put(repr(e))

    def results(self):
        out = [self.ended.get(timeout=PATIENCE * 2) for _ in self.threads]
        self.channel.close()
        return out


class Drain(unittest.TestCase):
    def refused(self, server):
        """A new request is refused over either protocol."""
        try:
            status, headers, _ = server.request("POST", "/v1/completions", '{"prompt":"x","max_tokens":1}')
            self.assertEqual(status, 503)
            self.assertGreaterEqual(int(headers["retry-after"]), 1)
        except ConnectionError:
            pass
        with grpc.insecure_channel(server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            with self.assertRaises(grpc.RpcError) as caught:
                list(rpc.InferenceStub(channel).Generate(pb.GenerateRequest(prompt="x"), timeout=PATIENCE))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_loses_nothing(self):
        server = Server("--drain-timeout", str(PATIENCE), model=SLOW)
        with grpc.insecure_channel(server.target) as channel:
            watch = health_grpc.HealthStub(channel).Watch(health.HealthCheckRequest(service=""))
            self.assertEqual(next(watch).status, 1)
            n = 60 if LIGHT else 150
            load = Load(server, 4, n)
            server.terminate()
            self.assertEqual(next(watch).status, 2)
            self.refused(server)
            try:
                self.assertEqual(server.get("/ready")[0], 503)
            except ConnectionError:
                pass
            self.assertEqual(load.results(), [(n, "length", True)] * 12)
        self.assertEqual(server.wait(), 0, server.log())

    def test_timeout(self):
        """A request that is not done by then gets an error, and the exit status is still 0."""
        server = Server("--drain-timeout", "1", model=SLOW)
        load = Load(server, 2, LONG)
        server.terminate()
        results = load.results()
        self.assertEqual(server.wait(), 0, server.log())
        for result in results:
            if isinstance(result, str): # gRPC has a status for it
                self.assertIn("StatusCode.UNAVAILABLE", result)
            else:
                self.assertEqual(result[1:], ("abort", True))
                self.assertTrue(0 <= result[0] < LONG)

    def test_idle(self):
        for sign in (signal.SIGTERM, signal.SIGINT):
            server = Server()
            # Connections without a request do not delay the exit.
            idle = [socket.create_connection(("127.0.0.1", port)) for port in (server.http_port, server.grpc_port)]
            server.process.send_signal(sign)
            self.assertEqual(server.wait(), 0, server.log())
            for s in idle:
                s.close()

    def test_second_signal(self):
        server = Server(model=SLOW)
        load = Load(server, 1, LONG)
        server.terminate()
        eventually("it drains", lambda: any('"drain"' in line for line in server.lines))
        server.terminate()
        self.assertEqual(server.wait(), 130, server.log())
        self.assertEqual(len(load.results()), 3)


class Overload(ServeTest):
    MODEL = SLOW
    FLAGS = ["--max-requests", "3", "--no-ui"]

    def test_no_ui(self):
        for path in ("/", "/octavo/page.js", "/octavo/page.css", "/octavo/pages", "/octavo/pages/x"):
            self.assertEqual(404, self.server.get(path)[0], path)

    def test_at_once(self):
        """A full queue is reported at once; no request waits for room."""
        n = 250 if LIGHT else 700
        load = Load(self.server, 1, n)
        for _ in range(10):
            error = self.server.refused("/v1/completions", {"prompt": "x", "max_tokens": 1}, 503)
            self.assertTrue(error["message"])
        self.assertEqual(load.n_accepted(), 3)
        eventually("the log says why", lambda: any(
            e["event"] == "refusal" and e["code"] == "503" and "running already" in e.get("message", "")
            for e in self.server.events()))
        self.assertGreaterEqual(self.server.metric("admission_rejections_total"), 10)
        self.assertEqual(load.results(), [(n, "length", True)] * 3)


class Keys(unittest.TestCase):
    def test_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="utf-8") as f:
                f.write("# ours\nfrom-the-file\n\n  spaced \n")
            with Server("--api-key", "from-a-flag", "--api-key-file", path) as server:
                self.http(server)
                self.grpc(server)
                log = server.log()
        for key in ("from-a-flag", "from-the-file", "wrong-key"):
            self.assertNotIn(key, log)

    def http(self, server):
        body = '{"prompt":"x","max_tokens":1}'
        for key in ("from-a-flag", "from-the-file", "spaced"):
            for scheme in ("Bearer ", "bearer "):
                self.assertEqual(server.request("POST", "/v1/completions", body, {"Authorization": scheme + key})[0], 200)
        for value in (None, "", "Bearer", "Bearer ", "Bearer wrong-key", "Bearer from-a-fla", "Bearer from-a-flagg",
                      "Basic from-a-flag", "from-a-flag", "Bearer # ours"):
            for method, path in (("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
                                 ("POST", "/tokenize"), ("POST", "/detokenize")):
                status, _, text = server.request(method, path, body if method == "POST" else None,
                                                 {} if value is None else {"Authorization": value})
                self.assertEqual((status, json.loads(text)["error"]["code"]), (401, 401), (path, value))
        for path in ("/health", "/ready"):
            self.assertEqual(server.get(path)[0], 200) # a health probe has no key

    def grpc(self, server):
        with grpc.insecure_channel(server.target) as channel:
            stub = rpc.InferenceStub(channel)
            stub.ModelInfo(pb.ModelInfoRequest(), metadata=[("authorization", "Bearer from-the-file")])
            for metadata in (None, [("authorization", "Bearer wrong-key")], [("authorization", "from-a-flag")]):
                for call in (lambda m: stub.ModelInfo(pb.ModelInfoRequest(), metadata=m),
                             lambda m: list(stub.Generate(pb.GenerateRequest(prompt="x"), metadata=m)),
                             lambda m: stub.Abort(pb.AbortRequest(), metadata=m)):
                    with self.assertRaises(grpc.RpcError) as caught:
                        call(metadata)
                    self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
            self.assertEqual(health_grpc.HealthStub(channel).Check(health.HealthCheckRequest()).status, 1)


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.files = certificates(cls.folder.name)
        if cls.files is None:
            raise unittest.SkipTest("no openssl command")

    def read(self, name):
        with open(self.files[name], "rb") as f:
            return f.read()

    def flags(self, *more):
        return ["--tls-cert", self.files["server.pem"], "--tls-key", self.files["server.key"], *more]

    def generate(self, server, credentials):
        with grpc.secure_channel(server.target, credentials) as channel:
            call = rpc.InferenceStub(channel).Generate(pb.GenerateRequest(
                prompt="x", sampling=pb.SamplingParams(max_tokens=5, ignore_eos=True)), timeout=PATIENCE)
            return [i for m in call for i in m.token_ids]

    def plain_is_refused(self, server):
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=PATIENCE) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                self.assertNotIn(b"200", s.recv(1000))
            except ConnectionError:
                pass
        with grpc.insecure_channel(server.target) as channel, self.assertRaises(grpc.RpcError):
            rpc.InferenceStub(channel).ModelInfo(pb.ModelInfoRequest(), timeout=PATIENCE)

    def test_tls(self):
        with Server(*self.flags(), scheme="https", tls=tls_context(self.files["ca.pem"])) as server:
            body = {"prompt": "O Romeo", "max_tokens": 8, "ignore_eos": True}
            self.assertEqual(server.post("/v1/completions", body)["usage"]["completion_tokens"], 8)
            self.assertEqual(len(server.stream("/v1/completions", body)), 8)
            self.assertEqual(len(self.generate(server, grpc.ssl_channel_credentials(self.read("ca.pem")))), 5)
            self.plain_is_refused(server)
            server.tls = ssl.create_default_context() # does not know the authority
            with self.assertRaises(ssl.SSLError):
                server.get("/health")
            server.tls = tls_context(self.files["ca.pem"])
            server.tls.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            server.tls.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                server.get("/health")
            server.tls = tls_context(self.files["ca.pem"])
            self.assertEqual(server.get("/health")[0], 200)

    def test_mutual(self):
        context = tls_context(self.files["ca.pem"], self.files["client.pem"], self.files["client.key"])
        flags = self.flags("--tls-client-ca", self.files["ca.pem"])
        with tempfile.TemporaryDirectory() as folder, Server(*flags, scheme="https", tls=context) as server:
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})["object"], "text_completion")
            mine = grpc.ssl_channel_credentials(self.read("ca.pem"), self.read("client.key"), self.read("client.pem"))
            self.assertEqual(len(self.generate(server, mine)), 5)
            with self.assertRaises(grpc.RpcError):
                self.generate(server, grpc.ssl_channel_credentials(self.read("ca.pem")))
            other = certificates(folder) # another authority's client
            for certificate in ((), (other["client.pem"], other["client.key"])):
                server.tls = tls_context(self.files["ca.pem"], *certificate)
                try:
                    self.assertNotEqual(server.get("/v1/models")[0], 200)
                except (ssl.SSLError, ConnectionError):
                    pass
            server.tls = context
            self.assertEqual(server.get("/health")[0], 200)


class Settings(unittest.TestCase):
    def test_environment(self):
        env = {"OCTAVO_SERVED_MODEL_NAME": "from-the-environment", "OCTAVO_API_KEY": "k", "OCTAVO_MAX_REQUESTS": "7"}
        with Server("--max-requests", "9", env=env) as server:
            self.assertEqual(server.get("/v1/models")[0], 401)
            auth = {"Authorization": "Bearer k"}
            names = [m["id"] for m in json.loads(server.get("/v1/models", auth)[2])["data"]]
            self.assertEqual(names, ["from-the-environment"])
            with grpc.insecure_channel(server.target) as channel:
                info = rpc.InferenceStub(channel).ServerInfo(pb.ServerInfoRequest(), metadata=[("authorization", "Bearer k")])
                self.assertEqual(info.max_requests, 9) # a flag takes precedence

    def test_names(self):
        with Server("--served-model-name", "a", "--served-model-name", "b/c") as server:
            for name in ("a", "b/c"):
                r = server.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
                self.assertEqual(r["model"], name)
                self.assertEqual(json.loads(server.get(f"/v1/models/{name}")[2])["id"], name)
            self.assertEqual(server.refused("/v1/completions", {"model": "demo", "prompt": "x"}, 404)["type"],
                             "NotFoundError")

    def test_mistakes(self):
        with socket.socket() as taken, socket.socket() as freed:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            freed.bind(("127.0.0.1", 0))
            free = f"127.0.0.1:{freed.getsockname()[1]}"
            freed.close()
            off = ["--http", "none", "--grpc", "none"]
            for flags, env, code, word in (
                (off, {}, 2, "--http"), (["--tls-cert", "x"], {}, 2, "--tls-key"), (["--bananas"], {}, 2, "bananas"),
                (["--tls-client-ca", "x"], {}, 2, "--tls-cert"), ([], {"OCTAVO_MAX_REQUESTS": "many"}, 2, "many"),
                ([*off, "--http", f"127.0.0.1:{port}"], {}, 1, port),
                ([*off, "--grpc", f"127.0.0.1:{port}"], {}, 1, port),
                ([*off, "--http", "127.0.0.1"], {}, 1, "127.0.0.1"), ([*off, "--grpc", "nowhere:x"], {}, 1, "nowhere"),
                ([*off, "--http", "127.0.0.1:99999"], {}, 1, "99999"),
                (["--tls-cert", "no/file", "--tls-key", "no/file", "--http", "127.0.0.1:0"], {}, 1, "no/file"),
                (["--http", free, "--grpc", free], {}, 1, "http is to listen on the same port"),
                (["--retention", '{"method":"nope"}'], {}, 1, "--retention"),
                (["--pressure-retention", "snapkv:0.5"], {}, 1, "--pressure-retention"),
                (["--retention", '{"method":"chunkkv","ratio":0.5}', "--retention-allow", "snapkv"], {}, 1,
                 "'chunkkv' is not allowed"),
                (["--kv-memory", "1K"], {}, 1, "1024 bytes"),
                (["--api-key-file", "no/file"], {}, 1, "no/file"), (["--log-file", "no/folder/log"], {}, 1, "no/folder"),
            ):
                with self.subTest(flags=flags, env=env):
                    p = subprocess.run([OCTAVO, "serve", *POOL, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *flags],
                                       capture_output=True, cwd=ROOT, timeout=PATIENCE, env={**os.environ, **env},
                                       check=False)
                    err = p.stderr.decode()
                    self.assertEqual(p.returncode, code, err)
                    self.assertIn(word, err.splitlines()[-1])
                    self.assertNotIn("weights", err) # the error came before the model was loaded

    def test_log(self):
        secret, said = "Xyzzy plugh", {}
        for flags in ([], ["--log-prompts"]):
            with Server(*flags) as server:
                body = json.dumps({"prompt": secret, "max_tokens": 5, "ignore_eos": True})
                status, _, _ = server.request("POST", "/v1/completions", body, {"X-Request-Id": "mine-1"})
                self.assertEqual(status, 200)
                server.refused("/v1/completions", {"prompt": secret, secret: 1})
                with grpc.insecure_channel(server.target) as channel:
                    list(rpc.InferenceStub(channel).Generate(pb.GenerateRequest(
                        prompt=secret, request_id="mine-2", sampling=pb.SamplingParams(max_tokens=5, ignore_eos=True))))
                eventually("both are logged", lambda server=server: "mine-1" in server.log() and "mine-2" in server.log())
            start = next(i for i, line in enumerate(server.lines) if line.startswith("{"))
            events = [json.loads(line) for line in server.lines[start:]]
            for event in events:
                self.assertTrue({"time", "level", "event"} <= set(event), event)
            lines = [e for e in events if e.get("id") in ("mine-1", "mine-2")]
            self.assertEqual(len(lines), 2)
            for line in lines:
                text = json.dumps(line)
                for word in ("prompt_tokens", "completion_tokens", "ttft", "tpot", "length"):
                    self.assertIn(word, text)
            said[bool(flags)] = server.log()
        self.assertNotIn(secret, said[False])
        self.assertIn(secret, said[True])

    def test_refusals_leave_traces(self):
        secret = "xyzzy-plugh"
        with Server("--api-key", "k") as server, grpc.insecure_channel(server.target) as channel:
            key = {"Authorization": "Bearer k"}
            self.assertEqual(server.get("/v1/models")[0], 401)
            self.assertEqual(server.get("/" + secret, key)[0], 404)
            answer, _ = raw(server.http_port, b"GET /" + secret.encode() * 10000 + b" HTTP/1.1\r\n\r\n")
            self.assertIn(b" 414 ", answer[:20]) # libmicrohttpd's own answer
            for _ in range(50):
                server.post("/v1/completions", {secret: 1}, 400, key)
            for metadata, code in (([], "UNAUTHENTICATED"), ([("authorization", "Bearer k")], "INVALID_ARGUMENT")):
                with self.assertRaises(grpc.RpcError) as caught:
                    list(rpc.InferenceStub(channel).Generate(pb.GenerateRequest(), metadata=metadata))
                self.assertEqual(caught.exception.code().name, code)
            page = server.metrics()
            for code, route, n in ((401, "/v1/models", 1), (404, "other", 1), (414, "other", 1), (400, "/v1/completions", 50)):
                self.assertEqual(server.metric("http_requests_total", page, code=code, route=route), n)
            # A refusal is counted when the call ends at the server.
            for code in ("UNAUTHENTICATED", "INVALID_ARGUMENT"):
                sample = f'code="{code}",method="/octavo.v1.Inference/Generate"}} 1\n'
                eventually(f"{code} is counted", lambda s=sample: s in server.get("/metrics")[2])
            eventually("all are told", lambda: sum(e["event"] == "refusal" for e in server.events()) + sum(
                e["not_shown"] for e in server.events() if e["event"] == "refusals") == 55)
        told = [e for e in server.events() if e["event"] == "refusal"]
        self.assertEqual({"route": "/v1/models", "code": "401", "surface": "http"}.items() - told[0].items(), set())
        self.assertTrue(told[0]["message"] and told[0]["id"])
        self.assertEqual((told[2]["code"], told[2]["message"]), ("414", "libmicrohttpd could not read the request"))
        self.assertNotIn(secret, server.log())

    def test_a_key_takes_no_lines_of_another(self):
        with Server("--api-key", "noisy", "--api-key", "quiet") as server, \
                grpc.insecure_channel(server.target) as channel:
            for _ in range(100):
                server.post("/v1/completions", {}, 400, {"Authorization": "Bearer noisy"})
            server.post("/v1/completions", {}, 400, {"Authorization": "Bearer quiet", "X-Request-Id": "heard"})
            with self.assertRaises(grpc.RpcError):
                list(rpc.InferenceStub(channel).Generate(pb.GenerateRequest(),
                                                         metadata=[("authorization", "Bearer quiet")]))
            eventually("the quiet key's refusal over HTTP", lambda: any(
                e["event"] == "refusal" and e.get("id") == "heard" for e in server.events()))
            eventually("and over gRPC", lambda: any(
                e["event"] == "refusal" and e["surface"] == "grpc" for e in server.events()))

    def test_log_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            with Server("--log-file", path) as server:
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            with open(path, encoding="utf-8") as f:
                lines = [json.loads(line) for line in f]
            self.assertGreater(len(lines), 1)
            self.assertFalse([line for line in server.lines if line.startswith("{")])

    def test_log_that_may_not_grow(self):
        """A log file at its size limit takes no more lines, and requests are still answered."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            with Server("--log-file", path, limits={resource.RLIMIT_FSIZE: 2000}) as server:
                for _ in range(20):
                    server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            self.assertLessEqual(os.path.getsize(path), 2000)
            self.assertGreater(os.path.getsize(path), 1000)

    def test_log_fifo_without_a_reader(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            os.mkfifo(path)
            with Server("--log-file", path) as server:
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
                with open(path, "rb", buffering=0) as f: # the lines before are there
                    self.assertIn(b'"event":"start"', f.readline())
                    server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})

    def test_few_descriptors(self):
        """Where even the hard limit is low, idle clients do not keep others from asking for
        health."""
        with Server(limits={resource.RLIMIT_NOFILE: 64}) as server:
            self.assertIn("64 descriptors are few", server.log())
            self.ask_past_idle_clients(server)
            with grpc.insecure_channel(server.target) as channel:
                self.assertEqual(health_grpc.HealthStub(channel).Check(health.HealthCheckRequest()).status, 1)

    def test_few_connections(self):
        with Server("--max-connections", "20") as server:
            self.ask_past_idle_clients(server)
            eventually("it is told", lambda: any(e["event"] == "connections" for e in server.events()))

    def ask_past_idle_clients(self, server):
        """New connections ask for health while 100 others were opened and are silent."""
        with contextlib.ExitStack() as idle:
            for _ in range(100):
                idle.enter_context(socket.create_connection(("127.0.0.1", server.http_port), timeout=PATIENCE))
            for _ in range(30):
                self.assertEqual(server.get("/health")[0], 200)
            self.assertGreater(server.metric("http_idle_connections_closed_total"), 0)

    def test_idle_grpc_connections(self):
        """Idle connections to gRPC's port neither end its listener nor take HTTP's descriptors."""
        with Server(limits={resource.RLIMIT_NOFILE: 64}) as server:
            idle = []
            try:
                eventually("the log says it", lambda: self.add_idle_clients(server.grpc_port, idle)
                           or "gRPC connections are all" in server.log())
                for _ in range(10):
                    self.assertEqual(server.get("/health")[0], 200)
            finally:
                for s in idle:
                    s.close()
            with grpc.insecure_channel(server.target) as channel:
                check = health_grpc.HealthStub(channel).Check
                self.assertEqual(check(health.HealthCheckRequest(), wait_for_ready=True, timeout=PATIENCE).status, 1)

    def add_idle_clients(self, port, idle):
        """Opens more connections. The kernel forgets some of those that find the queue full."""
        for _ in range(5 if len(idle) < 400 else 0):
            s = socket.socket()
            idle.append(s)
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))

    def test_one_protocol(self):
        for off in ("--http", "--grpc"):
            p = subprocess.Popen([OCTAVO, "serve", *POOL, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", off, "none"],
                                 stderr=subprocess.PIPE, cwd=ROOT)
            lines = []
            while not lines or '"start"' not in lines[-1]:
                lines.append(p.stderr.readline().decode())
                self.assertTrue(lines[-1], lines)
            self.assertNotIn("HTTP at" if off == "--http" else "gRPC at", "".join(lines))
            p.terminate()
            p.stderr.read()
            self.assertEqual(p.wait(PATIENCE), 0)
            p.stderr.close()


if __name__ == "__main__":
    main()
