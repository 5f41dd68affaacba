#!/usr/bin/env python3
"""Spans of requests over OTLP, decoded by OpenTelemetry's own package.
usage: traces.py OCTAVO [unittest arguments]"""

import http.server
import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

from harness import LONG, OCTAVO, PAGE, PATIENCE, POOL, SLOW, HeldPort, Server, certificates, eventually, main, need, stubs
from harness import tokens

grpc = need("grpc")
service = need("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
trace = need("opentelemetry.proto.trace.v1.trace_pb2")
pb, rpc, vllm_pb, vllm_rpc, kserve_pb, kserve_rpc = stubs("octavo", "vllm_engine", "kserve")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SECRET = "wherefore-art-thou"
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "0"}


def parent(sampled=True, trace=TRACE):
    return {"traceparent": f"00-{trace}-{SPAN}-0{int(sampled)}"}


def value_of(v):
    kind = v.WhichOneof("value")
    if kind == "array_value":
        return [value_of(x) for x in v.array_value.values]
    return getattr(v, kind)


class Span:
    def __init__(self, span):
        self.message = span
        self.all = {a.key: value_of(a.value) for a in span.attributes}
        assert len(self.all) == len(span.attributes), "a key comes twice"
        self.trace, self.id, self.parent = (x.hex() for x in (span.trace_id, span.span_id, span.parent_span_id))

    def __getitem__(self, key):
        return self.all[key]


class Receiver:
    """An HTTP server that takes OTLP as a collector does. code: what it answers with."""

    def __init__(self, context=None):
        self.spans, self.bodies, self.headers, self.resources = [], [], [], []
        self.code, self.codes = 200, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                code = outer.take(self.path, self.headers, body)
                self.send_response(code)
                answer = service.ExportTraceServiceResponse().SerializeToString()
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # a connection that a test's server cut
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def take(self, path, headers, body):
        self.headers.append(dict(headers.items()))
        self.bodies.append(body)
        self.codes.append(self.code)
        if self.code == 200:
            assert path == "/v1/traces", path
            for r in service.ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append({a.key: value_of(a.value) for a in r.resource.attributes})
                for s in r.scope_spans:
                    assert s.scope.name == "octavo" and s.scope.version
                    self.spans += map(Span, s.spans)
        return self.code

    def wait(self, n):
        eventually(f"{n} spans", lambda: len(self.spans) >= n)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()


def tracing(receiver, *flags, model=POOL, env=None):
    return Server("--otlp-traces-endpoint", receiver.url, *flags, model=model, env={**AT_ONCE, **(env or {})})


class Traced(unittest.TestCase):
    """A server whose spans come one by one, as its requests end."""

    @classmethod
    def setUpClass(cls):
        cls.receiver = Receiver()
        cls.addClassCleanup(cls.receiver.close)
        cls.server = tracing(cls.receiver, "--log-prompts", "--max-sessions", "8", env={
            "OTEL_SERVICE_NAME": "verona", "OTEL_RESOURCE_ATTRIBUTES": "zone=b%20c",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-tenant=capulet"})
        cls.channel = grpc.insecure_channel(cls.server.target)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.stop()

    def setUp(self):
        self.before = len(self.receiver.spans)

    def fresh(self, n=1):
        """The n spans that have come since the test began."""
        self.receiver.wait(self.before + n)
        spans = self.receiver.spans[self.before:]
        self.assertEqual(len(spans), n)
        return spans

    def check(self, span, prompt_tokens=None, completion_tokens=None, n=1, finish="length", below=SPAN):
        m = span.message
        self.assertEqual((m.name, m.kind), ("llm_request", trace.Span.SPAN_KIND_SERVER))
        self.assertEqual((len(m.trace_id), len(m.span_id)), (16, 8))
        self.assertEqual(span.parent, below or "")
        self.assertEqual(m.flags, 0x301 if below else 0x101)
        if below:
            self.assertEqual(span.trace, TRACE)
        else:
            self.assertNotEqual(span.trace, TRACE)
        if prompt_tokens is not None:
            self.assertEqual(span["gen_ai.usage.prompt_tokens"], prompt_tokens)
        if completion_tokens is not None:
            self.assertEqual(span["gen_ai.usage.completion_tokens"], completion_tokens)
        self.assertEqual(span["gen_ai.request.n"], n)
        self.assertEqual(span["gen_ai.usage.num_sequences"], n)
        self.assertEqual(span["gen_ai.response.finish_reasons"], [finish] * n)
        self.assertEqual(span["gen_ai.response.model"], "demo")
        e2e = span["gen_ai.latency.e2e"]
        self.assertEqual(m.end_time_unix_nano - m.start_time_unix_nano, round(e2e * 1e6) * 1000)
        if "gen_ai.latency.time_to_first_token" in span.all:
            first, queue = span["gen_ai.latency.time_to_first_token"], span["gen_ai.latency.time_in_queue"]
            self.assertTrue(0 <= queue <= first <= e2e)
            self.assertAlmostEqual(span["gen_ai.latency.time_in_model_prefill"], first - queue, 6)
            self.assertAlmostEqual(span["gen_ai.latency.time_in_model_decode"], e2e - first, 6)
            self.assertAlmostEqual(span["gen_ai.latency.time_in_model_inference"], e2e - queue, 6)
        return span

    def post(self, path, body, headers=None, status=200):
        return self.server.post(path, body, status=status, headers=parent() if headers is None else headers)

    def line_of(self, span):
        """The log line of the span's request: it names the trace."""
        lines = eventually("the line", lambda: [e for e in self.server.events() if e["event"] == "request"
                                                and e.get("id") == span["gen_ai.request.id"]] or None)
        self.assertEqual(lines[-1]["trace_id"], span.trace)
        return lines[-1]

    # ---- HTTP

    def test_completion(self):
        body = {"prompt": tokens(40, 1), "max_tokens": 7, "temperature": 0.5, "top_p": 0.75, "ignore_eos": True}
        self.post("/v1/completions", body, headers={**parent(), "X-Request-Id": "romeo",
                                                    "tracestate": "a=1, b@c=2"})
        span = self.check(self.fresh()[0], 40, 7)
        self.assertEqual(span["gen_ai.request.id"], "romeo")
        self.assertEqual(span["gen_ai.request.max_tokens"], 7)
        self.assertEqual(span["gen_ai.request.temperature"], 0.5)
        self.assertEqual(span["gen_ai.request.top_p"], 0.75)
        self.assertEqual(span["gen_ai.usage.cached_tokens"], 0)
        self.assertEqual(span["octavo.surface"], "http")
        self.assertEqual(span.message.trace_state, "a=1, b@c=2")
        self.assertEqual(span.message.status.code, trace.Status.STATUS_CODE_UNSET)
        self.assertIn("gen_ai.latency.time_to_first_token", span.all)
        line = self.line_of(span)
        self.assertAlmostEqual(span["gen_ai.latency.e2e"] * 1000, line["total_ms"], 2)
        self.assertAlmostEqual(span["gen_ai.latency.time_in_queue"] * 1000, line["queue_ms"], 2)
        resource, headers = self.receiver.resources[-1], self.receiver.headers[-1]
        self.assertEqual((resource["service.name"], resource["zone"]), ("verona", "b c"))
        self.assertTrue(resource["service.version"])
        self.assertEqual((headers["x-tenant"], headers["Content-Type"]), ("capulet", "application/x-protobuf"))
        # The prompt is cached now.
        self.before += 1
        self.post("/v1/completions", body)
        self.assertEqual(self.fresh()[0]["gen_ai.usage.cached_tokens"], 2 * PAGE)

    def test_chat_streamed(self):
        self.server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Good morrow"}],
                                                    "max_tokens": 9, "ignore_eos": True})
        span = self.check(self.fresh()[0], completion_tokens=9, below=None)
        self.assertTrue(self.line_of(span))

    def test_chat(self):
        self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Good morrow"}],
                                           "max_tokens": 5, "ignore_eos": True})
        self.check(self.fresh()[0], completion_tokens=5)

    def test_choices(self):
        self.post("/v1/completions", {"prompt": "O", "max_tokens": 6, "n": 2, "temperature": 1, "ignore_eos": True})
        self.check(self.fresh()[0], completion_tokens=12, n=2)

    def test_prompts(self):
        """Each prompt of a list is a request, and has a span."""
        self.post("/v1/completions", {"prompt": [tokens(9, 2), tokens(5, 3)], "max_tokens": 3, "ignore_eos": True})
        spans = sorted(self.fresh(2), key=lambda s: s["octavo.prompt_index"])
        self.assertEqual([s["octavo.prompt_index"] for s in spans], [0, 1])
        self.check(spans[0], 9, 3)
        self.check(spans[1], 5, 3)
        self.assertNotEqual(spans[0].id, spans[1].id)
        self.assertEqual(spans[0]["gen_ai.request.id"], spans[1]["gen_ai.request.id"])

    def test_other_routes(self):
        """Every route that runs a request passes the parent on."""
        self.post("/v1/embeddings", {"input": "Romeo"})
        self.post("/v1/responses", {"input": "Romeo", "max_output_tokens": 4})
        self.post("/v1/messages", {"messages": [{"role": "user", "content": "Romeo"}], "max_tokens": 4,
                                   "model": "demo"})
        self.post("/v2/models/demo/infer", {
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Romeo"]}],
            "parameters": {"max_tokens": 4}})
        spans = self.fresh(4)
        for span in spans:
            self.assertEqual((span.trace, span.parent), (TRACE, SPAN))
        self.assertEqual([s["octavo.surface"] for s in spans], ["http", "http", "http", "kserve"])
        self.assertNotIn("gen_ai.latency.time_to_first_token", spans[0].all)

    def test_unsampled(self):
        self.post("/v1/completions", {"prompt": "O", "max_tokens": 2}, headers=parent(sampled=False))
        self.post("/v1/completions", {"prompt": "O", "max_tokens": 2}, headers={"X-Request-Id": "last"})
        self.assertEqual(self.fresh()[0]["gen_ai.request.id"], "last")

    def test_malformed_parents(self):
        """They begin a trace, as if there were none."""
        zero = "0" * 32
        bad = ["", "00", "ff" + parent()["traceparent"][2:], parent()["traceparent"].upper(),
               parent(trace=zero)["traceparent"], parent()["traceparent"] + "-00", "x" * 9000]
        for text in bad:
            self.post("/v1/completions", {"prompt": "O", "max_tokens": 1},
                      headers={"traceparent": text, "tracestate": "a=1"})
        for span in self.fresh(len(bad)):
            self.check(span, below=None)
            self.assertEqual(span.message.trace_state, "")

    def test_refused(self):
        """A request that never began has no span."""
        body = {"prompt": "O", "max_tokens": 1}
        self.post("/v1/completions", {**body, "temperature": -1}, status=400)
        self.post("/v1/completions", {**body, "model": "other"}, status=404)
        self.post("/v1/completions", {**body, "n": 100}, status=400)
        self.post("/v1/completions", body, headers={"X-Request-Id": "last"})
        self.assertEqual(self.fresh()[0]["gen_ai.request.id"], "last")

    def test_error(self):
        """A request that fails after it was accepted: tokenizing finds its prompt too long."""
        self.post("/v1/completions", {"prompt": SECRET * 4000, "max_tokens": 1}, status=400)
        span = self.check(self.fresh()[0], finish="error")
        self.assertEqual(span.message.status.code, trace.Status.STATUS_CODE_ERROR)
        self.assertEqual(span.message.status.message, "")
        self.assertTrue(span["error.type"])

    def test_session_and_retention(self):
        body = {"prompt": tokens(600, 4), "max_tokens": 4, "ignore_eos": True, "session": SECRET,
                "retention": {"method": "streaming", "ratio": 0.25}}
        answer = self.post("/v1/completions", {**body, "return_token_ids": True})["choices"][0]["token_ids"]
        first = self.check(self.fresh()[0], 600, 4)
        self.assertEqual(first["octavo.retention.method"], "streaming")
        self.assertEqual(first["octavo.session"], "stored")
        self.assertTrue(0 < first["octavo.retention.kept_tokens"] < first["octavo.retention.logical_tokens"])
        self.assertGreater(first["octavo.retention.pages_dropped"], 0)
        self.before += 1
        self.post("/v1/completions", {**body, "prompt": body["prompt"] + answer + tokens(20, 5)})
        self.assertEqual(self.fresh()[0]["octavo.session"], "continued")

    def test_nothing_private(self):
        """No prompt, answer, session or key is in what was sent."""
        text = self.post("/v1/completions", {"prompt": SECRET, "max_tokens": 20, "session": f"s-{SECRET}",
                                             "cache_salt": f"c-{SECRET}", "ignore_eos": True},
                         headers={"Authorization": f"Bearer {SECRET}"})["choices"][0]["text"]
        self.fresh()
        every = b"".join(self.receiver.bodies)
        self.assertNotIn(SECRET.encode(), every)
        self.assertNotIn(text.encode()[:12], every)

    # ---- gRPC

    def test_octavo_v1(self):
        metadata = [*parent().items(), ("tracestate", "a=1"), ("tracestate", "b=2")]
        request = pb.GenerateRequest(prompt="O Romeo", request_id="mine",
                                     sampling=pb.SamplingParams(max_tokens=5, ignore_eos=True))
        list(rpc.InferenceStub(self.channel).Generate(request, metadata=metadata, timeout=PATIENCE))
        span = self.check(self.fresh()[0], completion_tokens=5)
        self.assertEqual(span["octavo.surface"], "octavo.v1")
        self.assertEqual(span["gen_ai.request.id"], "mine")
        self.assertEqual(span.message.trace_state, "a=1,b=2")

    def test_vllm(self):
        stub = vllm_rpc.VllmEngineStub(self.channel)
        ids = vllm_pb.TokenizedInput(input_ids=tokens(12, 6))
        request = vllm_pb.GenerateRequest(request_id="v", tokenized=ids, stream=True, sampling_params=vllm_pb.SamplingParams(
            max_tokens=4, temperature=0, top_p=1, n=1, ignore_eos=True, repetition_penalty=1))
        list(stub.Generate(request, metadata=list(parent().items()), timeout=PATIENCE))
        stub.Embed(vllm_pb.EmbedRequest(request_id="e", tokenized=ids), metadata=list(parent().items()), timeout=PATIENCE)
        spans = self.fresh(2)
        self.check(spans[0], 12, 4)
        self.assertEqual([s["octavo.surface"] for s in spans], ["vllm", "vllm"])
        self.assertEqual([s.parent for s in spans], [SPAN, SPAN])

    def test_kserve(self):
        tensor = kserve_pb.ModelInferRequest.InferInputTensor(
            name="text_input", datatype="BYTES", shape=[1], contents=kserve_pb.InferTensorContents(bytes_contents=[b"O"]))
        request = kserve_pb.ModelInferRequest(model_name="demo", inputs=[tensor])
        request.parameters["max_tokens"].int64_param = 3
        kserve_rpc.GRPCInferenceServiceStub(self.channel).ModelInfer(request, metadata=list(parent().items()), timeout=PATIENCE)
        self.assertEqual(self.check(self.fresh()[0], finish=self.receiver.spans[-1]["gen_ai.response.finish_reasons"][0])
                         ["octavo.surface"], "kserve")

    def test_metrics(self):
        self.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
        self.fresh()
        eventually("all are counted", lambda: self.server.metric("trace_spans_total", result="sent")
                   == len(self.receiver.spans))
        for result in ("rejected", "failed", "queue_full"):
            self.assertEqual(self.server.metric("trace_spans_total", result=result), 0)


class Ends(unittest.TestCase):
    def test_a_client_that_leaves(self):
        with Receiver() as receiver, tracing(receiver, model=SLOW) as server:
            body = json.dumps({"prompt": "O", "max_tokens": LONG, "ignore_eos": True, "stream": True})
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=PATIENCE) as s:
                s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                          f"traceparent: {parent()['traceparent']}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                while b"data: " not in s.recv(4096):
                    pass
            receiver.wait(1)
            (span,) = receiver.spans
            self.assertEqual(span["gen_ai.response.finish_reasons"], ["abort"])
            self.assertEqual((span.trace, span.parent), (TRACE, SPAN))
            self.assertLess(span["gen_ai.usage.completion_tokens"], LONG)
            self.assertEqual(span.message.status.code, trace.Status.STATUS_CODE_UNSET)

    def test_spans_that_wait_are_sent_at_the_end(self):
        """Also those of requests that the end of the server aborts."""
        with Receiver() as receiver:
            with tracing(receiver, "--drain-timeout", "0", model=SLOW, env={"OTEL_BSP_SCHEDULE_DELAY": "3600000"}) as server:
                server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
                c = server.connect()
                self.addCleanup(c.close)
                c.request("POST", "/v1/completions", json.dumps({"prompt": "O", "max_tokens": LONG, "ignore_eos": True}))
                eventually("it runs", lambda: server.metric("num_requests_running") == 1)
                self.assertEqual(receiver.spans, [])
            self.assertEqual(sorted(s["gen_ai.response.finish_reasons"][0] for s in receiver.spans)[0], "abort")
            self.assertEqual(len(receiver.spans), 2)

    def test_a_receiver_that_recovers(self):
        with Receiver() as receiver, tracing(receiver) as server:
            receiver.code = 503
            server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
            eventually("an attempt", lambda: len(receiver.codes) > 0)
            receiver.code = 200
            receiver.wait(1)
            self.assertEqual(len({b for b in receiver.bodies}), 1)
            notes = [e for e in server.events() if e["event"] == "traces"]
            self.assertEqual(len(notes), 1)
            self.assertIn("HTTP 503", notes[0]["message"])
            self.assertEqual(notes[0]["level"], "warning")

    def test_nobody_listens(self):
        """Requests are answered as ever, and the server ends at once."""
        held = HeldPort()
        self.addCleanup(held.close)
        flags = ["--otlp-traces-endpoint", f"http://127.0.0.1:{held.number}/v1/traces"]
        with Server(*flags, env={**AT_ONCE, "OTEL_BSP_EXPORT_TIMEOUT": "1"}) as server:
            for _ in range(3):
                server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
            eventually("it is counted", lambda: server.metric("trace_spans_total", result="failed") >= 1)

    def test_keys(self):
        """Without a key there is no span, whatever the request says."""
        with Receiver() as receiver, tracing(receiver, "--api-key", SECRET) as server:
            body = {"prompt": "O", "max_tokens": 1}
            server.post("/v1/completions", body, status=401, headers=parent())
            server.post("/v1/completions", body, headers={**parent(), "Authorization": f"Bearer {SECRET}"})
            receiver.wait(1)
            self.assertEqual(len(receiver.spans), 1)
            self.assertNotIn(SECRET.encode(), b"".join(receiver.bodies))

    def test_sampler(self):
        env = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
        with Receiver() as receiver, tracing(receiver, env=env) as server:
            for headers in ({}, parent(sampled=False), parent()):
                server.post("/v1/completions", {"prompt": "O", "max_tokens": 1}, headers=headers)
            receiver.wait(1)
            self.assertEqual([s.parent for s in receiver.spans], [SPAN])

    def test_https(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        made = certificates(folder.name)
        if not made:
            self.skipTest("no openssl")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made["server.pem"], made["server.key"])
        with Receiver(context) as receiver:
            # The system's authorities did not sign it: nothing is sent.
            with tracing(receiver, env={"OTEL_BSP_EXPORT_TIMEOUT": "1"}) as server:
                server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
                eventually("it is counted", lambda: server.metric("trace_spans_total", result="failed") == 1)
            self.assertEqual(receiver.bodies, [])
            with tracing(receiver, env={"OTEL_EXPORTER_OTLP_CERTIFICATE": made["ca.pem"]}) as server:
                server.post("/v1/completions", {"prompt": "O", "max_tokens": 1})
                receiver.wait(1)

    def test_bad_settings_end_the_start(self):
        """Before a model is loaded: this one does not exist."""
        for url, env, words in (("grpc://localhost:4317", {}, "must be a URL of http or https"),
                                ("http://localhost/", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc' is not supported"),
                                ("http://localhost/", {"OTEL_TRACES_SAMPLER": "all"}, "OTEL_TRACES_SAMPLER")):
            p = subprocess.run([OCTAVO, "serve", "/nowhere", "--http", "127.0.0.1:0", "--grpc", "none",
                                "--otlp-traces-endpoint", url], env={**os.environ, **env}, capture_output=True,
                               timeout=PATIENCE, text=True, check=False)
            self.assertEqual(p.returncode, 1)
            self.assertIn(words, p.stderr)


if __name__ == "__main__":
    main()
