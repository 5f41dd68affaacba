"""The clients of storm.py: each sends requests of random kinds and checks the answers. About 35 %
of all requests are aborted at a random moment, by every means that a client has.

A Client belongs to one thread. An answer that no server should give is added to the mistakes of
the Tally, which all clients share."""

import collections
import json
import random
import socket
import struct
import subprocess
import threading
import time

from harness import OCTAVO, PATIENCE, need, stubs, tokens

grpc = need("grpc")
octavo, octavo_rpc, vllm, vllm_rpc, kserve, kserve_rpc = stubs("octavo", "vllm_engine", "kserve")

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob", "root": "key-of-root"}
ABORTS = 0.45 # share of the kinds that can be aborted; 35 % of all
PREFIXES = [tokens(400, 1000 + i) for i in range(8)]
WORDS = "O Romeo, Romeo, wherefore art thou Romeo? Deny thy father and refuse thy name. " * 40
LONGEST = 600 # tokens of prompt and answer together
ENDS = {"stop", "length"}
ENDS_ABORTED = ENDS | {"abort"}


def methods():
    """A retention object for each method of `octavo methods`, with a small budget, so that pages
    are dropped."""
    table = subprocess.run([OCTAVO, "methods"], capture_output=True, text=True, check=True).stdout
    specs = [None]
    for line in table.split("\n\n")[0].splitlines()[1:]:
        name = line.split()[0]
        if name == "full":
            specs.append({"method": name})
        elif name.startswith("scope-"):
            specs.append({"method": name, "prefill": {"method": "h2o", "tokens": 80, "window": 8},
                          "decode": {"beta1": 4, "beta2": 4}})
        elif "32768 tokens" in line:
            specs.append({"method": name, "tokens": 96, "recurrent_chunk": 128, "sinks": 16, "window": 16})
            if name == "reform":
                specs[-1].update(gather_tokens=150, query_tokens=8)
        else:
            specs.append({"method": name, "ratio": 0.3, "window": 16} if name != "truncate" else
                         {"method": name, "ratio": 0.3})
    return specs


def cuts_prompt(spec):
    """Whether prompt logprobs are refused with this policy: tokens that are cut have none."""
    return bool(spec) and spec["method"] in ("truncate", "reform")


class Tally:
    """The outcomes of all requests, by kind and end, and the mistakes as texts."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ends, self.mistakes = collections.Counter(), []

    def add(self, kind, end):
        with self.lock:
            self.ends[kind, end] += 1

    def mistake(self, text):
        with self.lock:
            self.mistakes.append(text)


class Given(Exception):
    """This client has aborted its own request."""


class Client:
    """Sends the requests of one thread until a deadline."""

    def __init__(self, server, channels, specs, known, tally, seed, priorities):
        self.server, self.specs, self.known, self.tally, self.priorities = server, specs, known, tally, priorities
        self.random, self.name, self.n = random.Random(seed), f"c{seed}", 0
        self.channel = channels[seed % len(channels)]
        self.who = "alice" if seed % 2 else "bob"
        self.sessions = {} # id to the tokens of the conversation so far
        self.kinds = [(self.completion, 6), (self.streamed, 6), (self.chat, 3), (self.octavo, 6), (self.vllm, 4),
                      (self.kserve, 2), (self.kserve_stream, 2), (self.same_again, 3), (self.turn, 5),
                      (self.turn_by_grpc, 3), (self.aborted_by_id, 4), (self.refused, 3), (self.small, 3),
                      (self.broken_off, 2), (self.flush_and_events, 1)]

    def run(self, until):
        while time.monotonic() < until:
            kinds, weights = zip(*self.kinds)
            (kind,) = self.random.choices(kinds, weights)
            self.n += 1
            self.gives_up = self.random.random() < ABORTS
            begun = time.monotonic()
            try:
                self.tally.add(kind.__name__, kind() or "ended")
            except Given:
                self.tally.add(kind.__name__, "given up")
            except (AssertionError, OSError, ValueError, LookupError, grpc.RpcError) as e:
                self.tally.mistake(f"{kind.__name__} of {self.name} after {time.monotonic() - begun:.1f} s: "
                                   f"{type(e).__name__} {e}")

    # ---- making requests

    def bearer(self, who=None):
        return {"authorization": f"Bearer {KEYS.get(who or self.who, who)}"}

    def metadata(self, *more):
        return [*self.bearer().items(), *more]

    def prompt(self):
        r = self.random
        whole = r.choice(PREFIXES)[:r.choice((0, 16, 100, 300, 400))]
        return whole + tokens(r.randrange(1, 80), r.randrange(1 << 30))

    def fields(self, n=None):
        """Request fields that have the same names on all surfaces."""
        r = self.random
        f = {"max_tokens": r.choice((1, 2, 4, 8, 16, 32)), "ignore_eos": r.random() < 0.7}
        if r.random() < 0.4:
            f |= {"temperature": 1.0, "seed": r.randrange(1000), "top_p": 0.9}
        if r.random() < 0.2:
            f["stop"] = ["the", "\n\n"]
        if n is None and r.random() < 0.2:
            f["n"] = r.choice((2, 3, 5))
        return f

    def retention(self):
        spec = self.random.choice(self.specs)
        if spec and self.random.random() < 0.2:
            spec = {**spec, "pressure": True}
        return spec

    def http_fields(self):
        r, f = self.random, self.fields()
        if spec := self.retention():
            f["retention"] = spec
        if self.priorities and r.random() < 0.3:
            f["priority"] = r.randrange(-5, 6)
        if r.random() < 0.2:
            f["cache_salt"] = r.choice(("salt", "pepper"))
        if r.random() < 0.2:
            f["logprobs"] = 2
        if r.random() < 0.15 and not cuts_prompt(spec):
            f["prompt_logprobs"] = 2
        return f

    # ---- HTTP

    def give_up(self, c):
        """Closes a connection: by FIN or by RST."""
        if c.sock and self.random.random() < 0.5:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        raise Given

    def ask(self, path, body, status=200, headers=None):
        """The JSON of an answer, whose status must be the given one."""
        c = self.server.connect(timeout=PATIENCE)
        try:
            c.request("POST", path, json.dumps(body), {**self.bearer(), "content-type": "application/json",
                                                       **(headers or {})})
            if self.gives_up:
                c.sock.settimeout(self.random.expovariate(2) + 0.001)
            try:
                r = c.getresponse()
                text = r.read()
            except TimeoutError:
                assert self.gives_up, f"POST {path}: no answer for {PATIENCE} s"
                self.give_up(c)
            assert r.status == status, f"POST {path}: {r.status}: {text[:500]} to {json.dumps(body)[:300]}"
            return json.loads(text)
        finally:
            c.close()

    def stream(self, path, body, headers=None, most=None):
        """The events of a stream, one at a time; aborted after `most` of them."""
        c = self.server.connect(timeout=PATIENCE)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}),
                      {**self.bearer(), "content-type": "application/json", **(headers or {})})
            if most == 0:
                self.give_up(c)
            r = c.getresponse()
            assert r.status == 200, f"POST {path}: {r.status}: {r.read()[:500]}"
            seen = 0
            for line in r:
                if line == b"data: [DONE]\n":
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
                    seen += 1
                    if seen == most:
                        self.give_up(c)
            raise AssertionError(f"POST {path}: a stream that ends without [DONE] after {seen} events")
        finally:
            c.close()

    def most(self):
        return self.random.randrange(0, 12) if self.gives_up else None

    @staticmethod
    def judge(body, answer, ends=ENDS):
        n = body.get("n", 1)
        assert sorted(c["index"] for c in answer["choices"]) == list(range(n)), answer
        assert {c["finish_reason"] for c in answer["choices"]} <= ends, answer

    def judge_stream(self, body, events, ends=ENDS):
        finished = collections.Counter()
        for event in events:
            assert "error" not in event, event
            for choice in event["choices"]:
                if choice["finish_reason"]:
                    assert choice["finish_reason"] in ends, event
                    finished[choice["index"]] += 1
        assert finished == dict.fromkeys(range(body.get("n", 1)), 1), finished
        return finished

    def body(self):
        body = {"prompt": self.prompt(), **self.http_fields()}
        scored = "logprobs" in body and cuts_prompt(body.get("retention"))
        if self.random.random() < 0.15 and "prompt_logprobs" not in body and not scored:
            body["echo"] = True
        return body

    def completion(self):
        body = self.body()
        if self.random.random() < 0.1:
            body["metadata"] = {"about": "x" * 40000} # parsed by the threads for large bodies
        self.judge(body, self.ask("/v1/completions", body))

    def streamed(self):
        body = self.body()
        body.pop("prompt_logprobs", None) # which cannot be streamed
        self.judge_stream(body, self.stream("/v1/completions", body, most=self.most()))

    def chat(self):
        at = self.random.randrange(200)
        body = {"messages": [{"role": "user", "content": WORDS[at:at + self.random.randrange(1, 600)]}],
                **self.http_fields()}
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": 2}
        if "prompt_logprobs" not in body and self.random.random() < 0.5:
            self.judge_stream(body, self.stream("/v1/chat/completions", body, most=self.most()))
        else:
            self.judge(body, self.ask("/v1/chat/completions", body))

    def small(self):
        self.gives_up = False
        text = WORDS[:self.random.randrange(1, 3000)]
        ids = self.ask("/tokenize", {"prompt": text})["tokens"]
        assert self.ask("/detokenize", {"tokens": ids})["prompt"] == text
        for path in ("/health", "/ready", "/metrics", "/v1/models", "/version"):
            status, _, _ = self.server.get(path, self.bearer())
            assert status == 200, (path, status)

    def same_again(self):
        """A request with a known answer: the tokens are the same whatever runs beside it."""
        self.gives_up = False
        body, expected = self.random.choice(self.known)
        got = [c["token_ids"] for c in sorted(self.ask("/v1/completions", body)["choices"], key=lambda c: c["index"])]
        assert got == expected, f"{body} was answered by {got}, alone by {expected}"

    def refused(self):
        self.gives_up = False
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        path, body, status, headers = self.random.choice((
            ("/v1/completions", body, 401, {"authorization": "Bearer nobody's"}),
            ("/v1/completions", {**body, "retention": {"method": "bananas"}}, 400, {}),
            ("/v1/completions", {**body, "temperature": -1}, 400, {}),
            ("/v1/completions", {**body, "prompt": [1] * 5000}, 400, {}),
            ("/v1/completions", {**body, "prompt": WORDS * 30}, 400, {}),
            ("/v1/completions", {**body, "model": "bananas"}, 404, {}),
            ("/v1/completions", {**body, "n": 10 ** 6}, 400, {}),
            ("/bananas", body, 404, {})))
        self.ask(path, body, status, headers)
        stub = octavo_rpc.InferenceStub(self.channel)
        request = octavo.GenerateRequest(prompt="x", sampling=octavo.SamplingParams(max_tokens=1))
        self.grpc_refuses(grpc.StatusCode.UNAUTHENTICATED, stub.Generate(request, metadata=[
            ("authorization", "Bearer nobody's")], timeout=PATIENCE))
        request.retention_json = "{"
        self.grpc_refuses(grpc.StatusCode.INVALID_ARGUMENT, stub.Generate(request, metadata=self.metadata(),
                                                                          timeout=PATIENCE))
        self.grpc_refuses(grpc.StatusCode.PERMISSION_DENIED, stub.SubscribeKvEvents(
            octavo.SubscribeKvEventsRequest(), metadata=self.metadata(), timeout=PATIENCE))

    def broken_off(self):
        """A request of which only the beginning is sent."""
        body = json.dumps(self.body()).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nauthorization: {self.bearer()['authorization']}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        whole = head + body
        c = self.server.connect(timeout=PATIENCE)
        c.connect()
        try:
            c.sock.sendall(whole[:self.random.randrange(1, len(whole))])
            time.sleep(self.random.random() / 10)
            self.give_up(c)
        finally:
            c.close()

    # ---- sessions

    def conversation(self):
        """A session of this client, or one that several clients of its key use at once; returns its
        next prompt."""
        contested = self.random.random() < 0.3
        name = f"contested-{self.random.randrange(4)}" if contested else f"{self.name}-{self.random.randrange(2)}"
        before = self.sessions.get(name, [])
        before = [] if len(before) > LONGEST - 200 else before
        return name, before + self.prompt()[:100] + [7]

    def turn(self):
        name, prompt = self.conversation()
        body = {"prompt": prompt, "session": name, "return_token_ids": True, **self.fields(n=1)}
        if spec := self.retention():
            body["retention"] = spec
        answer = self.ask("/v1/completions", body)
        self.judge(body, answer)
        self.sessions[name] = prompt + answer["choices"][0]["token_ids"]

    def turn_by_grpc(self):
        name, prompt = self.conversation()
        spec, made = self.retention(), []
        for m in self.octavo_call(octavo.GenerateRequest(
                token_ids=octavo.TokenIds(ids=prompt), session=name, retention_json=json.dumps(spec) if spec else "",
                sampling=octavo.SamplingParams(**self.fields(n=1)))):
            made += m.token_ids
        self.sessions[name] = prompt + made

    # ---- gRPC

    @staticmethod
    def grpc_refuses(code, call):
        try:
            answer = list(call)
        except grpc.RpcError as e:
            assert e.code() == code, f"{e.code()} instead of {code}: {e.details()}"
            return
        raise AssertionError(f"answered instead of {code}: {answer}")

    def read(self, call):
        """The messages of a call, which is aborted by cancelling it or by its deadline."""
        most, seen = self.most(), 0
        try:
            if most == 0:
                time.sleep(self.random.random() / 5)
                call.cancel()
            for message in call:
                yield message
                seen += 1
                if seen == most:
                    call.cancel()
        except grpc.RpcError as e:
            if self.gives_up and e.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Given from None
            raise AssertionError(f"{e.code()} {e.details()}") from None

    def patience(self):
        return self.random.expovariate(1) + 0.01 if self.gives_up and self.random.random() < 0.3 else PATIENCE

    def octavo_call(self, request):
        call = octavo_rpc.InferenceStub(self.channel).Generate(request, metadata=self.metadata(),
                                                               timeout=self.patience())
        finished = collections.Counter()
        for m in self.read(call):
            if m.finish_reason:
                assert m.finish_reason in ENDS, m
                finished[m.index] += 1
            yield m
        assert finished == dict.fromkeys(range(request.sampling.n or 1), 1), finished

    def octavo(self):
        r, spec = self.random, self.retention()
        sampling = self.fields()
        if r.random() < 0.15 and not cuts_prompt(spec):
            sampling["prompt_logprobs"] = 1
        if r.random() < 0.2:
            sampling["logprobs"] = 1
        request = octavo.GenerateRequest(
            token_ids=octavo.TokenIds(ids=self.prompt()), sampling=octavo.SamplingParams(**sampling),
            priority=r.randrange(-5, 6) if self.priorities else 0, cache_salt="salt" if r.random() < 0.2 else "",
            retention_json=json.dumps(spec) if spec else "")
        for _ in self.octavo_call(request):
            pass

    def vllm(self):
        f, spec = self.fields(), self.retention()
        if "top_p" not in f:
            f["top_p"] = 1
        sampling = vllm.SamplingParams(repetition_penalty=1, **{"n": 1, **f})
        if self.random.random() < 0.15 and not cuts_prompt(spec):
            sampling.prompt_logprobs = 1
        request = vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=self.prompt()),
                                       sampling_params=sampling, stream=self.random.random() < 0.5)
        more = [("octavo-retention", json.dumps(spec))] if spec else []
        call = vllm_rpc.VllmEngineStub(self.channel).Generate(request, metadata=self.metadata(*more),
                                                              timeout=self.patience())
        ends = [m.complete.finish_reason for m in self.read(call) if m.WhichOneof("response") == "complete"]
        assert len(ends) == sampling.n and set(ends) <= ENDS, ends

    def kserve_request(self, **more):
        r = kserve.ModelInferRequest()
        f = {**self.fields(), **more}
        texts = [WORDS[i:i + 200] for i in range(self.random.randrange(1, 4))]
        prompts = r.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts)])
        prompts.contents.bytes_contents.extend(t.encode() for t in texts)
        r.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            json.dumps(f).encode())
        if spec := self.retention():
            r.parameters["retention"].string_param = json.dumps(spec)
        return r

    def kserve(self):
        call = kserve_rpc.GRPCInferenceServiceStub(self.channel).ModelInfer.future(
            self.kserve_request(), metadata=self.metadata(), timeout=self.patience())
        if self.gives_up:
            time.sleep(self.random.random() / 2)
            call.cancel()
        try:
            assert call.result().outputs
        except (grpc.RpcError, grpc.FutureCancelledError) as e:
            if self.gives_up and call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Given from None
            raise AssertionError(f"{call.code()} {call.details()}") from e

    def kserve_stream(self):
        requests = [self.kserve_request() for _ in range(self.random.randrange(1, 3))]
        for r in requests:
            r.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
        call = kserve_rpc.GRPCInferenceServiceStub(self.channel).ModelStreamInfer(
            iter(requests), metadata=self.metadata(), timeout=self.patience())
        finals = 0
        for m in self.read(call):
            assert not m.error_message, m.error_message
            finals += m.infer_response.parameters["triton_final_response"].bool_param
        assert finals == len(requests), finals

    # ---- ids and an admin's calls

    def abort(self, who, *ids):
        return octavo_rpc.InferenceStub(self.channel).Abort(
            octavo.AbortRequest(request_ids=ids), metadata=list(self.bearer(who).items()), timeout=PATIENCE).aborted

    def aborted_by_id(self):
        """The request ends when its own key, or an admin's, aborts its id; another key's Abort has
        no effect."""
        self.gives_up = False
        other = "bob" if self.who == "alice" else "alice"
        name, ends = f"{self.name}-{self.n}", []
        if self.random.random() < 0.5:
            messages = self.stream("/v1/completions", {"prompt": self.prompt(), "max_tokens": 200, "ignore_eos": True},
                                   headers={"x-request-id": name})
            finish = lambda m: m["choices"][0]["finish_reason"] if m["choices"] else None
        else:
            messages = octavo_rpc.InferenceStub(self.channel).Generate(octavo.GenerateRequest(
                request_id=name, token_ids=octavo.TokenIds(ids=self.prompt()),
                sampling=octavo.SamplingParams(max_tokens=200, ignore_eos=True)),
                metadata=self.metadata(), timeout=PATIENCE)
            finish = lambda m: m.finish_reason
        for i, m in enumerate(messages):
            if i == 0:
                assert self.abort(other, name) == 0, "another key's Abort found the request"
                self.abort(self.random.choice((self.who, "root")), name)
            ends += [finish(m)] if finish(m) else []
        assert len(ends) == 1 and ends[0] in ENDS_ABORTED, ends
        return "aborted by id" if ends[0] == "abort" else "ended"

    def flush_and_events(self):
        stub, root = octavo_rpc.InferenceStub(self.channel), list(self.bearer("root").items())
        events = stub.SubscribeKvEvents(octavo.SubscribeKvEventsRequest(start_sequence_number=0), metadata=root,
                                        timeout=0.5)
        stub.FlushCache(octavo.FlushCacheRequest(), metadata=root, timeout=PATIENCE)
        try:
            for batch in events:
                for block in (b for e in batch.events for b in e.stored.blocks):
                    assert not block.token_ids, "tokens of keys whose prefixes are kept apart"
        except grpc.RpcError as e:
            assert e.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OUT_OF_RANGE), e.details()
