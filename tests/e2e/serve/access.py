#!/usr/bin/env python3
"""Two keys on one server: every RPC and every route is tried with the other key. A method or a
route without a row in the tables here fails the suite.
usage: access.py OCTAVO [unittest arguments]"""

import json
import os
import re
import struct
import subprocess
import tempfile
import threading
import unittest

from harness import (LONG, OCTAVO, PAGE, PATIENCE, POOL, ROOT, SLOW, ServeTest, eventually, main, need, stubs, tokens,
                     trailers)

grpc, health, alpha, descriptors = need("grpc", "grpc_health.v1.health_pb2", "grpc_reflection.v1alpha.reflection_pb2",
                                        "google.protobuf.descriptor_pb2")
octavo, _, vllm, _, kserve, _ = stubs("octavo", "vllm_engine", "kserve")
import smg_common_pb2 as smg # pylint: disable=wrong-import-position,import-error

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob", "root": "key-of-root", "wrong": "key-of-nobody"}
DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
SECRET = "At dawn the ships of Alice sail for Illyria with the letters and the gold of her father. " * 4
GREEDY = {"max_tokens": 4, "ignore_eos": True}
SAMPLING = json.dumps(GREEDY)


def bearer(who):
    return {"authorization": f"Bearer {KEYS[who]}"} if who else {}


def guess(surface, more=""):
    """A prompt that both keys send over one surface; prompts of different surfaces share no
    prefix."""
    return f"{surface[::-1]} says: " + "the play is at the Globe on Monday, and the Queen will be there. " * 4 + more


class Refused(Exception):
    def __init__(self, error):
        super().__init__(f"{error.code()} {error.details()}")
        self.code, self.details = error.code(), error.details()


class Answer:
    """The messages of a call, serialized, and its trailing metadata."""

    def __init__(self, messages, trailing=None):
        self.messages, self.trailing = messages, trailing or {}

    def text(self):
        return b"\n".join([*self.messages, json.dumps(self.trailing).encode()])

    def report(self):
        return json.loads(self.trailing["octavo-report"])[0]


# ---- requests, and what the answer reports: (tokens found in the cache, outcome of the session)


def by_octavo(text, session):
    return octavo.GenerateRequest(prompt=text, session=session, sampling=octavo.SamplingParams(**GREEDY))


def of_octavo(answer):
    last = octavo.GenerateResponse.FromString(answer.messages[-1])
    return last.usage.cached_tokens, json.loads(last.retention_json)["session"]


def by_vllm(text, _):
    return vllm.GenerateRequest(request_id="vllm-job", text=text, stream=False, sampling_params=vllm.SamplingParams(
        top_p=1, repetition_penalty=1, n=1, **GREEDY))


def of_vllm(answer):
    return vllm.GenerateResponse.FromString(answer.messages[-1]).complete.cached_tokens, answer.report()["session"]


def by_kserve(text, session):
    r = kserve.ModelInferRequest()
    for name, value in (("text_input", text), ("sampling_parameters", SAMPLING)):
        r.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(value.encode())
    r.parameters["session"].string_param = session
    return r


def of_kserve(answer, response=None):
    response = response or kserve.ModelInferResponse.FromString(answer.messages[-1])
    at = [o.name for o in response.outputs].index("cached_tokens")
    return struct.unpack("<i", response.raw_output_contents[at])[0], answer.report()["session"]


def of_kserve_stream(answer):
    return of_kserve(answer, kserve.ModelStreamInferResponse.FromString(answer.messages[-1]).infer_response)


def by_kserve_json(text, session):
    tensors = [{"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
               for name, value in (("text_input", text), ("sampling_parameters", SAMPLING))]
    return {"inputs": tensors, "parameters": {"session": session}}


def of_kserve_json(answer):
    body = json.loads(answer.messages[0])
    (cached,) = [o["data"][0] for o in body["outputs"] if o["name"] == "cached_tokens"]
    return cached, json.loads(body["parameters"]["retention"])[0]["session"]


def by_completion(text, session):
    return {"prompt": text, "session": session, **GREEDY}


def by_chat(text, session):
    return {"messages": [{"role": "user", "content": text}], "session": session, **GREEDY}


def by_response(text, session):
    return {"input": text, "session": session, "max_output_tokens": 4, "ignore_eos": True}


def of_response(answer):
    body = json.loads(answer.messages[0])
    return body["usage"]["input_tokens_details"]["cached_tokens"], body["retention"]["session"]


def of_message(answer):
    body = json.loads(answer.messages[0])
    return body["usage"]["cache_read_input_tokens"], body["retention"]["session"]


def of_http(answer):
    body = json.loads(answer.messages[0])
    found = body["usage"].get("prompt_tokens_details") or {}
    return found.get("cached_tokens", 0), body["choices"][0]["retention"]["session"]


# ---- the tables: a row states who may call, with what, and what the answer must contain

OPEN = "open"      # needs no key
OWN = "own"        # needs a key, and shows only that key's own
ADMIN = "admin"    # an admin key


class Row:
    def __init__(self, right, request=None, generates=None, ends=True, code=None, path=None):
        self.right, self.generates, self.ends, self.code = right, generates, ends, code
        self.path = path # of a route that generates and whose paths go on behind the route's
        # A message, or (path, body) for HTTP; None where `generates` makes it.
        self.request = request


OCTAVO_V1, VLLM, KSERVE = "/octavo.v1.Inference/", "/vllm.grpc.engine.VllmEngine/", "/inference.GRPCInferenceService/"
SERVICES = alpha.ServerReflectionRequest(list_services="*")

METHODS = {
    OCTAVO_V1 + "Generate": Row(OWN, generates=(by_octavo, of_octavo)),
    OCTAVO_V1 + "Tokenize": Row(OWN, octavo.TokenizeRequest(prompt="x")),
    OCTAVO_V1 + "Detokenize": Row(OWN, octavo.DetokenizeRequest(token_ids=[1, 2])),
    OCTAVO_V1 + "ModelInfo": Row(OWN, octavo.ModelInfoRequest()),
    OCTAVO_V1 + "ServerInfo": Row(OWN, octavo.ServerInfoRequest()),
    OCTAVO_V1 + "Loads": Row(OWN, octavo.LoadsRequest()),
    OCTAVO_V1 + "Abort": Row(OWN, octavo.AbortRequest(request_ids=["alice-job"])),
    OCTAVO_V1 + "FlushCache": Row(ADMIN, octavo.FlushCacheRequest()),
    OCTAVO_V1 + "SubscribeKvEvents": Row(ADMIN, octavo.SubscribeKvEventsRequest(start_sequence_number=1), ends=False),
    VLLM + "Generate": Row(OWN, generates=(by_vllm, of_vllm)),
    VLLM + "Embed": Row(OWN, vllm.EmbedRequest(tokenized=vllm.TokenizedInput(input_ids=[1, 2]))),
    VLLM + "HealthCheck": Row(OPEN, vllm.HealthCheckRequest()),
    VLLM + "Abort": Row(OWN, vllm.AbortRequest(request_ids=["alice-job"])),
    VLLM + "FlushCache": Row(ADMIN, smg.FlushCacheRequest()),
    VLLM + "GetModelInfo": Row(OWN, vllm.GetModelInfoRequest()),
    VLLM + "GetServerInfo": Row(OWN, vllm.GetServerInfoRequest()),
    VLLM + "GetLoads": Row(OWN, vllm.GetLoadsRequest()),
    VLLM + "GetTokenizer": Row(OWN, smg.GetTokenizerRequest()),
    VLLM + "SubscribeKvEvents": Row(ADMIN, smg.SubscribeKvEventsRequest(start_sequence_number=1), ends=False),
    KSERVE + "ServerLive": Row(OPEN, kserve.ServerLiveRequest()),
    KSERVE + "ServerReady": Row(OPEN, kserve.ServerReadyRequest()),
    KSERVE + "ModelReady": Row(OPEN, kserve.ModelReadyRequest(name="demo")),
    KSERVE + "ServerMetadata": Row(OWN, kserve.ServerMetadataRequest()),
    KSERVE + "ModelMetadata": Row(OWN, kserve.ModelMetadataRequest(name="demo")),
    KSERVE + "ModelConfig": Row(OWN, kserve.ModelConfigRequest(name="demo")),
    KSERVE + "RepositoryIndex": Row(OWN, kserve.RepositoryIndexRequest()),
    KSERVE + "ModelStatistics": Row(OWN, kserve.ModelStatisticsRequest()),
    KSERVE + "ModelInfer": Row(OWN, generates=(by_kserve, of_kserve)),
    KSERVE + "ModelStreamInfer": Row(OWN, generates=(by_kserve, of_kserve_stream)),
    "/grpc.health.v1.Health/Check": Row(OPEN, health.HealthCheckRequest()),
    "/grpc.health.v1.Health/Watch": Row(OPEN, health.HealthCheckRequest(), ends=False),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Row(OWN, SERVICES),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Row(OWN, SERVICES),
}

ROUTES = {
    ("POST", "/v1/completions"): Row(OWN, generates=(by_completion, of_http)),
    ("POST", "/v1/chat/completions"): Row(OWN, generates=(by_chat, of_http)),
    ("POST", "/v1/completions/render"): Row(OWN, ("/v1/completions/render", {"prompt": "x"})),
    ("POST", "/v1/chat/completions/render"): Row(OWN, ("/v1/chat/completions/render", {
        "messages": [{"role": "user", "content": "x"}]})),
    ("POST", "/v1/embeddings"): Row(OWN, ("/v1/embeddings", {"input": "x"})),
    ("POST", "/v1/responses"): Row(OWN, generates=(by_response, of_response)),
    ("GET", "/v1/responses/"): Row(OWN, ("/v1/responses/ALICE", None), code=404),
    ("DELETE", "/v1/responses/"): Row(OWN, ("/v1/responses/ALICE", None), code=404),
    ("POST", "/v1/messages"): Row(OWN, generates=(by_chat, of_message)),
    ("POST", "/v1/messages/count_tokens"): Row(OWN, ("/v1/messages/count_tokens", {
        "messages": [{"role": "user", "content": "x"}]})),
    ("GET", "/v1/models"): Row(OWN, ("/v1/models", None)),
    ("GET", "/v1/models/"): Row(OWN, ("/v1/models/demo", None)),
    ("DELETE", "/v1/sessions/"): Row(OWN, ("/v1/sessions/POST-/v1/completions", None)), # Alice's
    ("POST", "/tokenize"): Row(OWN, ("/tokenize", {"prompt": "x"})),
    ("POST", "/detokenize"): Row(OWN, ("/detokenize", {"tokens": [1, 2]})),
    ("GET", "/v2"): Row(OWN, ("/v2", None)),
    ("GET", "/v2/health/live"): Row(OPEN, ("/v2/health/live", None)),
    ("GET", "/v2/health/ready"): Row(OPEN, ("/v2/health/ready", None)),
    ("GET", "/v2/models/stats"): Row(OWN, ("/v2/models/stats", None)),
    ("GET", "/v2/models/"): Row(OWN, ("/v2/models/demo", None)),
    ("POST", "/v2/models/"): Row(OWN, generates=(by_kserve_json, of_kserve_json), path="/v2/models/demo/infer"),
    ("POST", "/v2/repository/index"): Row(OWN, ("/v2/repository/index", {})),
    ("GET", "/tokenizer_info"): Row(OWN, ("/tokenizer_info", None)),
    ("GET", "/"): Row(OPEN, ("/", None)),
    ("GET", "/octavo/page.css"): Row(OPEN, ("/octavo/page.css", None)),
    ("GET", "/octavo/page.js"): Row(OPEN, ("/octavo/page.js", None)),
    ("GET", "/octavo/pages"): Row(OWN, ("/octavo/pages", None)),
    ("GET", "/octavo/pages/"): Row(OWN, ("/octavo/pages/alice-job", None), code=404),
    ("GET", "/health"): Row(OPEN, ("/health", None)),
    ("GET", "/ready"): Row(OPEN, ("/ready", None)),
    ("GET", "/ping"): Row(OPEN, ("/ping", None)),
    ("GET", "/version"): Row(OPEN, ("/version", None)),
    ("GET", "/metrics"): Row(OPEN, ("/metrics", None)),
}


def packed(ids):
    """Token ids as a message packs them."""
    return octavo.TokenIds(ids=ids).SerializeToString()[2:]


class AccessTest(ServeTest):
    ADMIN_KEYS = ["root"]
    response = "none"  # the id of Alice's

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.FLAGS = [*cls.FLAGS, "--served-model-name", "demo"]
        for name, who in (("api", ["alice", "bob"]), ("admin", cls.ADMIN_KEYS)):
            path = os.path.join(folder.name, name)
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(KEYS[w] + "\n" for w in who)
            cls.FLAGS += [f"--{name}-key-file", path] if who else []
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)

    def call(self, path, row, who, request=None, session=None):
        """An Answer, or Refused. An endless call is cancelled after its first message."""
        request = request if request is not None else row.request
        ask = self.channel.stream_stream(path, lambda m: m.SerializeToString(), lambda b: b)
        metadata = [*bearer(who).items(), *([("octavo-session", session)] if session else [])]
        call = ask(iter([request]), metadata=metadata, timeout=PATIENCE)
        try:
            if not row.ends:
                first = next(call)
                call.cancel()
                return Answer([first])
            return Answer(list(call), trailers(call))
        except grpc.RpcError as e:
            raise Refused(e) from None

    def http(self, method, row, who, path=None, body=None):
        path, body = (path, body) if path else row.request
        path = path.replace("ALICE", self.response)
        status, _, text = self.server.request(method, path, body, {**bearer(who), **(
            {"content-type": "application/json"} if body else {})})
        return status, Answer([text.encode()])

    def generate(self, where, row, who, more=""):
        """The report of the row's surface on a prompt that both keys send there."""
        make, read = row.generates
        surface = "-".join(where) if isinstance(where, tuple) else where
        request = make(guess(surface, more), surface)
        if isinstance(where, tuple):
            status, answer = self.http(where[0], row, who, row.path or where[1], request)
            self.assertEqual(status, 200, answer.text())
        else:
            answer = self.call(where, row, who, request, surface if where.startswith(VLLM) else None)
        return read(answer)


class Rows(AccessTest):
    """The tables contain every method and route that the server has."""

    def reflected(self):
        row = METHODS["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]

        def ask(**question):
            answer = self.call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", row, "alice",
                               alpha.ServerReflectionRequest(**question))
            return alpha.ServerReflectionResponse.FromString(answer.messages[0])

        found = set()
        for name in [s.name for s in ask(list_services="*").list_services_response.service]:
            for data in ask(file_containing_symbol=name).file_descriptor_response.file_descriptor_proto:
                f = descriptors.FileDescriptorProto.FromString(data)
                found |= {f"/{f.package}.{s.name}/{m.name}" for s in f.service for m in s.method}
        return found

    def test_every_method_has_a_row(self):
        self.assertEqual(self.reflected(), set(METHODS))

    def test_every_route_has_a_row(self):
        with open(os.path.join(ROOT, "rpc/http/routes.c"), encoding="utf-8") as f:
            table = re.search(r"http_route routes\[\] = \{(.*?)\n\};", f.read(), re.S).group(1)
        rows = re.findall(r'^    \{"(\w+)", "([^"]+)", (true|false),', table, re.M)
        self.assertEqual(len(rows), len(re.findall(r"^    \{", table, re.M)))
        self.assertEqual({(method, path) for method, path, _ in rows}, set(ROUTES))
        for method, path, needs_key in rows:
            self.assertEqual(needs_key == "true", ROUTES[method, path].right != OPEN, path)


class TwoKeys(AccessTest):
    """Alice has sent requests over every surface; Bob tries everything, and so do clients without a
    key."""

    FLAGS = ["--max-sessions", "64"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.secret = cls.server.post("/tokenize", {"prompt": SECRET}, headers=bearer("alice"))["tokens"]
        for session in ({}, {"session": "secret"}, {"cache_salt": "pepper"}):
            cls.server.post("/v1/completions", {"prompt": SECRET, **GREEDY, **session}, headers=bearer("alice"))
        cls.response = cls.server.post("/v1/responses", {"input": SECRET, "max_output_tokens": 4},
                                       headers=bearer("alice"))["id"]

    def shows_nothing(self, answer, where):
        text = answer.text()
        self.assertNotIn(b"Illyria", text, where)
        for who in KEYS.values():
            self.assertNotIn(who.encode(), text, where)
        for at in range(0, len(self.secret) - PAGE, PAGE):
            ids = self.secret[at:at + 8]
            for form in (packed(ids), json.dumps(ids)[1:-1].encode(), ",".join(map(str, ids)).encode()):
                self.assertNotIn(form, text, where)

    def refuses(self, path, row, who, code, *words):
        with self.assertRaises(Refused, msg=(path, who)) as caught:
            self.call(path, row, who, row.request or row.generates[0]("x", "s"))
        self.assertEqual(caught.exception.code, code, (path, who))
        for word in words:
            self.assertIn(word, caught.exception.details)

    def method(self, path, row):
        for who in (None, "wrong"):
            if row.right == OPEN:
                self.shows_nothing(self.call(path, row, who), path)
            else:
                self.refuses(path, row, who, UNKNOWN)
        if row.right == ADMIN:
            for who in ("alice", "bob"):
                self.refuses(path, row, who, DENIED, path[1:], "admin key")
        elif row.code:
            self.refuses(path, row, "bob", row.code)
        elif not row.generates:
            self.shows_nothing(self.call(path, row, "bob"), path)

    def route(self, where, row):
        method, path = where
        for who in (None, "wrong"):
            body = row.generates[0]("x", "s") if row.generates else None
            status, answer = self.http(method, row, who, (row.path or path) if body else None, body)
            self.assertEqual(status, 200 if row.right == OPEN else 401, where)
            self.shows_nothing(answer, where)
        if not row.generates:
            status, answer = self.http(method, row, "bob")
            self.assertEqual(status, row.code or 200, where)
            self.shows_nothing(answer, where)

    def test_every_method_and_route(self):
        everything = {**METHODS, **ROUTES}
        generating = {where: row for where, row in everything.items() if row.generates}
        for where, row in generating.items():
            self.assertEqual(self.generate(where, row, "alice"), (0, "stored"), where)
        for where, row in everything.items():
            (self.route if isinstance(where, tuple) else self.method)(where, row)
        for where, row in generating.items():
            # Neither Alice's prefix nor her session of that name exists for Bob; both still exist
            # for her.
            self.assertEqual(self.generate(where, row, "bob", "Or so"), (0, "stored"), where)
            found, said = self.generate(where, row, "alice", "Or so")
            self.assertGreaterEqual(found, 2 * PAGE, where)
            self.assertIn("does not extend the session", said, where)

    def test_stored_responses(self):
        more = {"previous_response_id": self.response, "input": "x", "max_output_tokens": 4}
        for who, status in (("alice", 200), ("bob", 400), ("root", 400)):
            answer = self.server.post("/v1/responses", more, status, bearer(who))
            self.shows_nothing(Answer([json.dumps(answer).encode()]), who)
            path = f"/v1/responses/{self.response}"
            self.assertEqual(self.server.get(path, bearer(who))[0], 200 if who == "alice" else 404)

    def test_keys_of_anthropic(self):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        for headers, status in (({"x-api-key": KEYS["bob"]}, 200), ({"x-api-key": KEYS["wrong"]}, 401), (
                {"x-api-key": KEYS["bob"], **bearer("wrong")}, 401), ({"x-api-key": "Bearer " + KEYS["bob"]}, 401), (
                    {"x-api-key": KEYS["bob"] + "x" * 300}, 401)):
            self.server.post("/v1/messages", body, status, headers)
        # The same key is the same client, whichever header carries it.
        headers = {"x-api-key": KEYS["alice"]}
        self.assertEqual(self.server.get(f"/v1/responses/{self.response}", headers)[0], 200)

    def test_what_an_admin_key_opens(self):
        for path in (OCTAVO_V1, VLLM):
            self.call(path + "FlushCache", METHODS[path + "FlushCache"], "root")
            row = METHODS[path + "SubscribeKvEvents"]
            self.assertTrue(self.call(path + "SubscribeKvEvents", row, "root").messages)

    def test_events_tell_no_tokens(self):
        """Prefixes of several keys are kept apart: an admin sees their hashes only."""
        call = self.channel.unary_stream(
            OCTAVO_V1 + "SubscribeKvEvents", octavo.SubscribeKvEventsRequest.SerializeToString,
            octavo.KvEventBatch.FromString)(octavo.SubscribeKvEventsRequest(start_sequence_number=1),
                                            metadata=list(bearer("root").items()), timeout=PATIENCE)
        stored = 0
        for batch in call:
            for event in batch.events:
                for block in event.stored.blocks:
                    self.assertEqual(list(block.token_ids), [])
                    self.assertNotEqual(block.block_hash, 0)
                    stored += 1
            if stored >= len(self.secret) // PAGE:
                break
        call.cancel()


class Ids(AccessTest):
    """Request ids belong to the key that used them, over every surface."""

    MODEL = SLOW

    def run_jobs(self, who):
        """Runs a long request over each surface that takes an id, each with the id "job"-surface
        and a thread."""
        long = {"max_tokens": LONG, "ignore_eos": True}
        ends = {}

        def over_http():
            _, answer = self.http("POST", None, who, "/v1/completions", {"prompt": [1, 2, 3], **long})
            ends["http"] = json.loads(answer.messages[0])["choices"][0]["finish_reason"]

        def over_octavo():
            answer = self.call(OCTAVO_V1 + "Generate", METHODS[OCTAVO_V1 + "Generate"], who, octavo.GenerateRequest(
                request_id="job-octavo", prompt="x", sampling=octavo.SamplingParams(**long)))
            ends["octavo"] = octavo.GenerateResponse.FromString(answer.messages[-1]).finish_reason

        def over_vllm():
            answer = self.call(VLLM + "Generate", METHODS[VLLM + "Generate"], who, vllm.GenerateRequest(
                request_id="job-vllm", text="x", sampling_params=vllm.SamplingParams(
                    top_p=1, repetition_penalty=1, n=1, **long)))
            ends["vllm"] = vllm.GenerateResponse.FromString(answer.messages[-1]).complete.finish_reason

        threads = [threading.Thread(target=job, daemon=True) for job in (over_http, over_octavo, over_vllm)]
        for thread in threads:
            thread.start()
        return threads, ends

    def http(self, method, row, who, path=None, body=None):
        status, _, text = self.server.request(method, path, body, {
            **bearer(who), "content-type": "application/json", "x-request-id": "job-http"})
        return status, Answer([text.encode()])

    def abort(self, who, *ids):
        answer = self.call(OCTAVO_V1 + "Abort", METHODS[OCTAVO_V1 + "Abort"], who,
                           octavo.AbortRequest(request_ids=ids))
        return octavo.AbortResponse.FromString(answer.messages[0]).aborted

    def running(self):
        return self.server.metric("num_requests_running")

    JOBS = ["job-http", "job-octavo", "job-vllm"]

    def test_ids(self):
        for who, n in (("alice", 3), ("root", 3)):
            threads, ends = self.run_jobs("alice")
            eventually("Alice's requests run", lambda: self.running() == 3)
            row = METHODS[VLLM + "Abort"]
            self.assertEqual(self.call(VLLM + "Abort", row, "bob", vllm.AbortRequest(request_ids=self.JOBS)).messages,
                             self.call(VLLM + "Abort", row, "bob", vllm.AbortRequest(request_ids=["none"])).messages)
            self.assertEqual(self.abort("bob", *self.JOBS, "none"), 0)
            # Bob may use the same ids meanwhile, and aborts only his own by them.
            theirs, ended = self.run_jobs("bob")
            eventually("all requests run", lambda: self.running() == 6)
            self.assertEqual(self.abort("bob", *self.JOBS), 3)
            for thread in theirs:
                thread.join(PATIENCE)
            self.assertEqual(ended, {"http": "abort", "octavo": "abort", "vllm": "abort"})
            self.assertEqual(self.running(), 3)
            self.assertEqual(self.abort(who, *self.JOBS), n)
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(ends, {"http": "abort", "octavo": "abort", "vllm": "abort"})


class NoAdmin(AccessTest):
    """With clients' keys only, calls for an admin are refused with a text that says how to allow
    them."""

    ADMIN_KEYS = []

    def test_refused_by_name(self):
        for path, row in METHODS.items():
            if row.right != ADMIN:
                continue
            for who in ("alice", "bob"):
                with self.assertRaises(Refused) as caught:
                    self.call(path, row, who)
                self.assertEqual(caught.exception.code, DENIED)
                self.assertIn(path[1:], caught.exception.details)
                self.assertIn("--admin-key-file", caught.exception.details)


class Shared(AccessTest):
    """--share-prefixes: keys hit each other's prefixes, and an admin reads the tokens of these, but
    of no salt and no session."""

    FLAGS = ["--share-prefixes"]

    def ask(self, who, ids, **fields):
        body = self.server.post("/v1/completions", {"prompt": ids, **GREEDY, **fields}, headers=bearer(who))
        return body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)

    def test_shared(self):
        plain, salted, session = tokens(5 * PAGE, 1), tokens(5 * PAGE, 2), tokens(5 * PAGE, 3)
        self.assertEqual(self.ask("alice", plain), 0)
        self.assertEqual(self.ask("bob", plain), 4 * PAGE)
        self.assertEqual(self.ask("alice", salted, cache_salt="pepper"), 0)
        self.assertEqual(self.ask("bob", salted), 0)
        self.assertEqual(self.ask("alice", session, session="chat"), 0)
        end = tokens(2 * PAGE, 4)
        self.ask("alice", end)
        told, hidden = [], 0
        call = self.channel.unary_stream(
            OCTAVO_V1 + "SubscribeKvEvents", octavo.SubscribeKvEventsRequest.SerializeToString,
            octavo.KvEventBatch.FromString)(octavo.SubscribeKvEventsRequest(start_sequence_number=1),
                                            metadata=list(bearer("root").items()), timeout=PATIENCE)
        for batch in call:
            for block in (b for e in batch.events for b in e.stored.blocks):
                told += block.token_ids
                hidden += not block.token_ids
            if told[-PAGE:] == end[:PAGE]:
                break
        call.cancel()
        self.assertEqual(told[:5 * PAGE], plain)
        self.assertEqual(told[5 * PAGE:10 * PAGE], salted) # as Bob sent it, without a salt
        self.assertEqual(hidden, 10)
        self.assertEqual(len(told), 11 * PAGE)


class Flags(unittest.TestCase):
    def refuses(self, text, *flags):
        p = subprocess.run([OCTAVO, "serve", *POOL, "--http", "127.0.0.1:0", "--grpc", "none", *flags],
                           capture_output=True, cwd=ROOT, timeout=PATIENCE)
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr.decode(), text)
        return p.stderr.decode()

    def test_key_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="utf-8") as f:
                f.write("# none\n")
            self.refuses("--admin-key-file: .* holds no key", "--admin-key-file", path)
            with open(path, "a", encoding="utf-8") as f:
                f.write("one\ntwo\n")
            self.refuses("--admin-key-file: its key number 2 is also an API key",
                         "--admin-key-file", path, "--api-key", "two")

    def test_what_is_no_key(self):
        """A line is accepted as a whole key, or refused before the model is loaded; it is never
        cut."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            for line in (b"correct horse", b"key # of Alice", "k\u00e9y".encode(), b"k" * 257, b"\xef\xbb\xbfkey"):
                with open(path, "wb") as f:
                    f.write(b"# keys\n  good\t\r\n\n" + line + b"\n")
                for flag in ("--api-key-file", "--admin-key-file"):
                    said = self.refuses(f"octavo serve: {flag}: {path}, line 4: a key has", flag, path)
                    self.assertNotIn("weights", said)
            with open(path, "wb") as f:
                f.write(b"good\nba\0d\n")
            self.refuses("holds a NUL", "--api-key-file", path)
            self.refuses("--api-key: a key has", "--api-key", "correct horse")


if __name__ == "__main__":
    main()
