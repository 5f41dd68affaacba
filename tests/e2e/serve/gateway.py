#!/usr/bin/env python3
"""smg (the gateway of the package smg) in front of two replicas over gRPC: it tokenizes with what
GetTokenizer returned, sends a prompt where KV events show its prefix as cached, loses no request
when a replica dies, and reads tool calls. usage: gateway.py OCTAVO [unittest arguments]"""

import http.client
import itertools
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from harness import PAGE, PATIENCE, HeldPort, Server, eventually, main, need, stubs

need("smg")
openai, grpc = need("openai", "grpc")
_, _, pb, _ = stubs("smg_common", "vllm_engine")

from openai_tools import PARIS, TOOLS, Format, joined, told  # noqa: E402

PREFIXES, TURNS = 12, 4
GREEDY = {"max_tokens": 4, "temperature": 0}


def prefix(i):
    """A text that shares no prefix with another, of several pages."""
    return f"{i} and {i * 7}: " + f"the {i}th player enters with a letter and reads it aloud. " * 6


class Smg:
    """The gateway, in a folder of its own that contains no model."""

    def __init__(self, *replicas, flags=()):
        self.held = [HeldPort(), HeldPort()] # it starts slowly
        self.port, self.metrics_port = (port.number for port in self.held)
        self.folder = tempfile.TemporaryDirectory()
        with open(f"{self.folder.name}/log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(self.port),
                 "--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port),
                 *(["--worker-urls", *[f"grpc://{r.target}" for r in replicas]] if replicas else []),
                 "--policy", "cache_aware",
                 "--block-size", str(PAGE), "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1",
                 "--health-failure-threshold", "1", "--health-success-threshold", "1",
                 "--cb-timeout-duration-secs", "1", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder.name)

    def log(self):
        with open(f"{self.folder.name}/log", encoding="utf-8", errors="replace") as f:
            return f.read()[-20000:]

    def stop(self):
        """It waits for five seconds before it exits by itself."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.folder.cleanup()
        for port in self.held:
            port.close()

    def ask(self, prompt, **fields):
        """(status, body)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            c.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": prompt, **GREEDY, **fields}),
                      {"content-type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read())
        finally:
            c.close()

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"smg: exit {self.process.returncode}\n{self.log()}")
        try:
            return self.ask("x")[0] == 200
        except OSError:
            return False

    def event_hits(self):
        """Requests that were routed by KV events."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE) as page:
            found = re.search(r'smg_cache_aware_policy_branch_total\{branch="event_hit"\} (\d+)', page.read().decode())
        return int(found.group(1)) if found else 0


class Gateway(unittest.TestCase):
    def setUp(self):
        ports = [HeldPort(), HeldPort()] # a replica comes back at its own
        for port in ports:
            self.addCleanup(port.close)
        self.replicas = [Server("--served-model-name", "demo", "--grpc", f"127.0.0.1:{port.number}") for port in ports]
        self.addCleanup(lambda: [r.stop() for r in self.replicas])
        self.smg = Smg(*self.replicas)
        self.addCleanup(self.smg.stop)
        eventually("smg has its workers", self.smg.ready)

    def ask(self, prompt):
        """(text, prompt tokens, cached tokens)"""
        status, body = self.smg.ask(prompt)
        self.assertEqual(status, 200, body)
        usage = body["usage"]
        return (body["choices"][0]["text"], usage["prompt_tokens"],
                (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def served(self):
        """Prompt tokens that each replica has received."""
        return [r.metric("prompt_tokens_total") for r in self.replicas]

    def both_work(self):
        """Waits until both replicas have received one of many uncached prompts."""
        numbers = itertools.count()
        eventually("both replicas have work", lambda: self.ask(f"{next(numbers)} fools") and all(self.served()))

    def begin(self):
        """Sends every prefix once; returns which replica computed each."""
        where, texts = [], []
        self.both_work()
        for i in range(PREFIXES):
            before = self.served()
            texts.append(self.ask(prefix(i))[0])
            where.append([now > then for now, then in zip(self.served(), before)].index(True))
        return where, texts

    def learnt(self, i):
        """Whether a request was routed by events to the replica that has its prefix cached."""
        before = self.smg.event_hits()
        self.ask(prefix(i))
        return self.smg.event_hits() > before

    def test_cache_aware(self):
        where, texts = self.begin()
        direct = self.replicas[0].post("/v1/completions", {"prompt": prefix(3), **GREEDY})
        self.assertEqual(texts[3], direct["choices"][0]["text"])
        self.assertEqual(set(where), {0, 1})
        # A replica's events come in order: when its last prefix is known, so are the earlier ones.
        last = [max(i for i in range(PREFIXES) if where[i] == r) for r in range(2)]
        for i in last:
            eventually(f"prefix {i} is known", lambda i=i: self.learnt(i))
        hits, turns, cached, asked = self.smg.event_hits(), 0, 0, 0
        for turn in range(TURNS):
            for i in set(range(PREFIXES)) - set(last):
                _, n_prompt, n_cached = self.ask(prefix(i) + f"Turn {turn}.")
                turns, cached, asked = turns + 1, cached + n_cached, asked + n_prompt
        self.assertEqual(self.smg.event_hits() - hits, turns)
        self.assertGreater(cached, 0.8 * asked)

    def test_a_replica_dies_and_comes_back(self):
        where, texts = self.begin()
        answers, ends = queue.Queue(), threading.Event()

        def client(seed):
            i = seed
            while not ends.is_set():
                i = (i * 5 + 1) % PREFIXES
                try:
                    status, body = self.smg.ask(prefix(i))
                    answers.put((status, i, body["choices"][0]["text"] if status == 200 else body))
                except OSError as e:
                    answers.put((0, i, repr(e)))

        def more(n):
            goal = answers.qsize() + n
            eventually(f"{n} more answers", lambda: answers.qsize() >= goal)

        clients = [threading.Thread(target=client, args=(s,), daemon=True) for s in range(4)]
        for c in clients:
            c.start()
        try:
            more(40)
            dead = self.replicas[where[0]]
            dead.process.kill()
            dead.wait()
            more(60)
            self.replicas[where[0]] = Server("--served-model-name", "demo", "--grpc", dead.target)
            self.both_work()
            more(40)
        finally:
            ends.set()
            for c in clients:
                c.join(PATIENCE)
        got = [answers.get() for _ in range(answers.qsize())]
        self.assertEqual([a for a in got if a[0] != 200], [])
        self.assertEqual([a for a in got if a[2] != texts[a[1]]], [])


# smg's parser reads a call only where line breaks are around its object, as Qwen's models write it:
# one behind a space, which Octavo's own parser reads too, stays text.
CALLS = ['<tool_call>\n{"name": "weather", "argu', 'ments": {"city": "Par', 'is {}\\n"}}\n</tool', "_call>\n<tool",
         '_call>\n{"name": "time"', ', "arguments": {}}\n</tool_call>']
# Tools whose arguments end, whatever the model would say.
CLOSED = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"],
    "additionalProperties": False}}} for name in ("weather", "time")]


class Between(grpc.GenericRpcHandler):
    """Passes smg's calls on to a server, and each token of an answer in a message of its own: smg
    reads one tool call from each message, and Octavo puts all tokens that are there into one."""

    def __init__(self, server):
        self.asked = []  # what smg sent to Generate
        self.channel = grpc.insecure_channel(server.target)
        self.server = grpc.server(ThreadPoolExecutor(16), handlers=[self])
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self):
        self.server.stop(0).wait(PATIENCE)
        self.channel.close()

    def service(self, details):
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self.pass_on(details.method, request, context))

    def pass_on(self, method, request, context):
        call = self.channel.unary_stream(method)(request)
        context.add_callback(call.cancel)
        generates = method.endswith("/Generate")
        if generates:
            self.asked.append(pb.GenerateRequest.FromString(request))
        try:
            for message in call:
                yield from self.singles(message) if generates else (message,)
        except grpc.RpcError as e:
            context.abort(e.code(), e.details())

    @staticmethod
    def singles(message):
        answer = pb.GenerateResponse.FromString(message)
        ids = list(answer.chunk.token_ids)
        for token in ids:
            answer.chunk.token_ids[:] = [token]
            yield answer.SerializeToString()
        if not ids:
            yield message


class GatewayTools(unittest.TestCase):
    """The gateway renders the template and reads calls; Octavo holds answers to its schemas."""

    def setUp(self):
        self.model = Format("hermes", "--served-model-name", "demo", more={"#call": CALLS})
        self.addCleanup(self.model.__exit__, None, None, None)
        self.between = Between(self.model.server)
        self.addCleanup(self.between.stop)
        self.smg = Smg(self.between, flags=["--tool-call-parser", "qwen"])
        self.addCleanup(self.smg.stop)
        eventually("smg has its worker", self.smg.ready)
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.smg.port}/v1", api_key="none", max_retries=0)

    def ask(self, text, **more):
        return self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": text}], max_tokens=60,
            **{"tools": TOOLS, "temperature": 0, **more})

    def test_calls(self):
        both = [("weather", PARIS), ("time", {})]
        answer = self.ask("#call")
        self.assertEqual(told(answer.choices[0].message.tool_calls), both)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        direct = self.model.ask("#call")
        self.assertEqual(answer.usage.prompt_tokens, direct.usage.prompt_tokens)
        _, calls, finish = joined(self.ask("#call", stream=True))
        self.assertEqual(([call[1:] for call in calls], finish), (both, "tool_calls"))
        single = self.ask("#call", parallel_tool_calls=False).choices[0].message
        self.assertEqual(told(single.tool_calls), both[:1])
        for text, more in (("#plain", {}), ("#call", {"tool_choice": "none"})):
            message = self.ask(text, **more).choices[0].message
            self.assertEqual((message.content, message.tool_calls),
                             ("".join(CALLS) if more else "It is warm.", None))

    def test_what_it_passes_on(self):
        """All of these fields but logit_bias, which smg 1.13 does not send over gRPC."""
        fields = {"temperature": 0.5, "top_p": 0.25, "frequency_penalty": 0.5, "presence_penalty": 0.25, "seed": 7, "n": 2,
                  "stop": ["xyzzy"]}
        more = {"top_k": 20, "min_p": 0.125, "repetition_penalty": 1.5, "ignore_eos": True, "stop_token_ids": [9]}
        answer = self.ask("#plain", tools=openai.NOT_GIVEN, logit_bias={"40": 100}, extra_body=more, **fields)
        self.assertEqual(len(answer.choices), 2)
        sent = self.between.asked[-1].sampling_params
        for name, value in {**fields, **more, "max_tokens": 60, "logit_bias": {}}.items():
            got = getattr(sent, name)
            self.assertEqual(type(value)(got) if isinstance(value, (list, dict)) else got, value, name)

    def test_a_named_call(self):
        choice = {"type": "function", "function": {"name": "weather"}}
        answer = self.ask("#plain", tools=CLOSED, tool_choice=choice).choices[0]
        self.assertEqual(told(answer.message.tool_calls), [("weather", {"city": "Paris"})])
        _, calls, finish = joined(self.ask("#plain", tools=CLOSED, tool_choice=choice, stream=True))
        self.assertEqual(([call[1:] for call in calls], finish), ([("weather", {"city": "Paris"})], "tool_calls"))

    def test_a_call_is_required(self):
        """smg's schema lets a call have more members than it reads, with which this model does not
        end: max_tokens cuts the answer, whose stream has the first call, while whole it is text."""
        _, calls, finish = joined(self.ask("#plain", tools=CLOSED, tool_choice="required", stream=True))
        self.assertIn(calls[0][1], ("weather", "time"))
        self.assertEqual((calls[0][2], finish), ({"city": "Paris"}, "length"))
        answer = self.ask("#plain", tools=CLOSED, tool_choice="required").choices[0]
        self.assertIsNone(answer.message.tool_calls)
        self.assertRegex(answer.message.content, r'^\[\{"name":"(weather|time)","parameters":\{"city":"Paris"\},')


if __name__ == "__main__":
    main()
