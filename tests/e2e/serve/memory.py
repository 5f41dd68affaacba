#!/usr/bin/env python3
"""Memory runs out while requests are served: each client gets an answer that says so, the server
goes on, and later requests are served.
usage: memory.py OCTAVO [unittest arguments]; FAILING_MALLOC_SO names the library made of
tests/fake/failing_malloc.c"""

import http.client
import json
import mmap
import os
import re
import resource
import struct
import subprocess
import tempfile
import threading
import unittest

from harness import OCTAVO, PATIENCE, POOL, ROOT, Server, eventually, main, sse, tokens

TEXT = "O Romeo, Romeo! wherefore art thou Romeo? " * 8
REQUESTS = {
    "a completion": ("/v1/completions", {"prompt": TEXT, "max_tokens": 4, "n": 2, "logprobs": 2, "echo": True,
                                         "stop": ["xyzzy", "plugh"], "logit_bias": {"5": 1, "6": -1}}),
    "a stream": ("/v1/completions", {"prompt": TEXT, "max_tokens": 4, "stream": True, "logprobs": 2,
                                     "retention": {"method": "chunkkv", "ratio": 0.5}}),
    "a large body": ("/v1/completions", {"prompt": TEXT, "max_tokens": 4, "metadata": {"about": "x" * 40000},
                                         "response_format": {"type": "text"}, "store": False}),
    "a large stream": ("/v1/completions", {"prompt": TEXT, "max_tokens": 4, "stream": True, "user": "x" * 40000}),
    "a prompt of ids": ("/v1/completions", {"prompt": [tokens(40, 1), tokens(40, 2)], "max_tokens": 2,
                                            "prompt_logprobs": 1}),
    "a chat": ("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."},
                                                     {"role": "user", "content": [{"type": "text", "text": TEXT}]}],
                                        "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    "retention and a session": ("/v1/completions", {
        "prompt": TEXT, "max_tokens": 4, "session": "s", "n": 2,
        "retention": {"method": "chunkkv", "ratio": 0.5, "window": 16, "report": "positions"}}),
    "tokens of a text": ("/tokenize", {"prompt": TEXT}),
    "text of tokens": ("/detokenize", {"tokens": tokens(40, 3)}),
    "a page of metrics": ("/metrics", None),
}


# Members of answers that differ between calls. A server's first answer has no cached tokens.
PASSING = {"id", "cached_tokens", "created", "requestId", "timings", "timestamp", "uptimeSeconds",
           "sequenceNumber", "scoring_ms", "lastReceiveTimestamp", "genThroughput", "cacheHitRate", "promptTokensTotal", "generatedTokensTotal",
           "prefixQueriedTokensTotal", "prefixHitTokensTotal", "system_fingerprint"}


def lasting(value):
    """An answer without the members that differ between calls."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in PASSING}
    if isinstance(value, list):
        return [lasting(v) for v in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return lasting(json.loads(value))
        except ValueError:
            return value
    return value


def has_template():
    with open(os.path.join(ROOT, POOL[1], "tokenizer_config.json"), encoding="utf-8") as f:
        return "chat_template" in json.load(f)


def ask(server, path, body):
    """(status, text); (None, …) when the connection was closed without an answer."""
    try:
        status, _, text = server.request("GET" if body is None else "POST", path, body,
                                         {"Content-Type": "application/json"})
        return status, text
    except (ConnectionError, http.client.HTTPException) as e:
        return None, repr(e)


class FailingServer(unittest.TestCase):
    """A server with one chosen allocation that fails."""

    def setUp(self):
        library = os.environ.get("FAILING_MALLOC_SO")
        if not library:
            self.skipTest("no FAILING_MALLOC_SO")
        self.file = tempfile.NamedTemporaryFile()
        self.addCleanup(self.file.close)
        self.file.write(struct.pack("qq", -1, 0))
        self.file.flush()
        self.map = mmap.mmap(self.file.fileno(), 16)
        self.addCleanup(self.map.close)
        self.env = {"LD_PRELOAD": library, "FAILING_MALLOC": self.file.name}

    def failures(self):
        return struct.unpack("q", self.map[8:16])[0]

    def arm(self, left):
        self.map[0:8] = struct.pack("q", left)

    def server(self):
        return Server("--served-model-name", "demo", env=self.env)

    @staticmethod
    def is_remade(server, text):
        """Whether the answer says that the backend had no memory for page tables. It is made again
        then, without what it had cached; waits until it is there."""
        if "page tables" not in text:
            return False
        eventually("the backend is made again", lambda: server.request("GET", "/health")[0] == 200)
        return True


class EveryAllocation(FailingServer):
    """Allocation number 0, 1, 2 … of a request fails, the others succeed."""

    @staticmethod
    def answer_of(path, text, streamed):
        """The part of an answer that all equal requests have in common."""
        return None if path == "/metrics" else lasting(sse(text) if streamed else json.loads(text))

    def judge(self, path, status, text, streamed, expected):
        """The whole answer, or one that says that memory is out."""
        if status == 200:
            if streamed and '"error"' in text:
                self.assertIn('"code":503', text.replace(" ", ""), text[-500:])
                self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-500:])
            else:
                self.assertEqual(self.answer_of(path, text, streamed), expected)
            return
        self.assertEqual(status, 503, text)
        error = json.loads(text)["error"]
        self.assertEqual((error["code"], error["type"]), (503, "ServiceUnavailableError"))
        self.assertIn("memory", error["message"])

    def sweep(self, server, path, body, expected=None):
        """Returns the number of allocations that could fail."""
        at, streamed = 0, bool(body and body.get("stream"))
        if expected is None:
            expected = self.answer_of(path, ask(server, path, body)[1], streamed)
        while True:
            before = self.failures()
            self.arm(at)
            status, text = ask(server, path, body)
            self.arm(-1)
            self.is_remade(server, text)
            self.assertIsNone(server.process.poll(), server.log())
            if self.failures() == before:
                self.assertEqual(status, 200, text)
                return at
            with self.subTest(path=path, at=at):
                self.judge(path, status, text, streamed, expected)
            at += 1

    def test_every_allocation(self):
        with self.server() as server:
            for name, (path, body) in REQUESTS.items():
                if "chat" in path and not has_template():
                    continue
                for _ in range(2): # what is made once, on first use
                    self.assertEqual(ask(server, path, body)[0], 200, name)
                n = self.sweep(server, path, body)
                self.assertGreater(n, 10, name)
                server.idle()

    def test_from_the_first_request_on(self):
        """Includes allocations that are made once, on first use. A buffer that serves all requests,
        and could not grow for one of them, serves the next one. The stop string holds the text
        back, so that it comes in one piece."""
        body = {"prompt": TEXT, "max_tokens": 60, "ignore_eos": True}
        with Server() as server:
            text = server.post("/v1/completions", body)["choices"][0]["text"]
            body["stop"] = [text[:200] + "never"]
            answer = lasting(server.post("/v1/completions", body))
        self.assertGreater(len(text), 150)
        with self.server() as server:
            answer["model"] = "demo"
            self.assertGreater(self.sweep(server, "/v1/completions", body, answer), 10)

    def log_of_growing_tables(self):
        """The log of a server in which each allocation of a request failed once. Each prompt is
        longer than those before, so the backend's copy of its page tables grows."""
        with self.server() as server:
            at, before = 0, -1
            while self.failures() != before:
                before = self.failures()
                body = {"prompt": "Romeo, " * (40 + 8 * at), "max_tokens": 2, "ignore_eos": True}
                self.arm(at)
                status, text = ask(server, "/v1/completions", body)
                self.arm(-1)
                self.is_remade(server, text)
                with self.subTest(at=at):
                    self.assertEqual(status, 503 if '"error"' in text else 200, text)
                at += 1
            self.assertGreater(at, 10)
            return server.log()

    def test_tables_that_the_backend_has_no_memory_for(self):
        """The next step counts on what the log of a step says: a backend that had no memory to
        apply one is made again. The allocations of HTTP's threads come between the backend's in an
        order that differs on a busy machine, so a server may miss those of page tables."""
        for _ in range(20):
            log = self.log_of_growing_tables()
            if re.search("step [0-9]+ failed: page tables: out of memory", log):
                break
        else:
            self.fail("in no server did a step fail for its page tables")
        self.assertTrue(re.search("the backend was restarted in [0-9]+ ms", log), "no restart")


class Microhttpd(FailingServer):
    """The same for libmicrohttpd's allocations: it closes a connection when it has no memory for
    it."""

    def test_every_allocation(self):
        self.env["FAILING_MALLOC_OF"] = "libmicrohttpd"
        path, body = REQUESTS["a stream"]
        with self.server() as server:
            expected = [lasting(sse(ask(server, path, body)[1])) for _ in range(3)][-1]
            at, before = 0, -1
            while self.failures() != before:
                before = self.failures()
                self.arm(at)
                status, text = ask(server, path, body)
                self.arm(-1)
                self.assertIsNone(server.process.poll(), server.log())
                with self.subTest(at=at):
                    self.assertIn(status, (200, 503, None), text)
                    if status == 200:
                        self.assertEqual(lasting(sse(text)), expected)
                at += 1
            self.assertGreater(at, 3)
            eventually("all requests have ended", lambda: server.metric("num_requests_live") == 0)


class AddressSpace(unittest.TestCase):
    """Large prompts, many at once, in less and less memory: the server does not start and says why,
    or keeps serving."""

    def setUp(self):
        if "FAILING_MALLOC_SO" not in os.environ or "ASAN_OPTIONS" in os.environ:
            self.skipTest("a sanitizer reserves more address space than the limits leave")

    def start(self, megabytes):
        """The process and its port; None when the process said that it has too little memory."""
        p = subprocess.Popen(
            [OCTAVO, "serve", *POOL, "--kv-memory", "16M", "--swap-memory", "0", "--http", "127.0.0.1:0", "--grpc", "none"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20)))
        text = ""
        for line in p.stderr:
            text += line
            if '"event":"start"' in line:
                break
        found = re.search(r"HTTP at http://127.0.0.1:(\d+)", text)
        if found:
            threading.Thread(target=p.stderr.read, daemon=True).start()
            return p, int(found.group(1))
        self.assertEqual(p.wait(PATIENCE), 1, text)
        self.assertTrue(text.strip().splitlines()[-1].startswith("octavo serve: "), text)
        p.stderr.close()
        return None

    def one(self, port, answers):
        body = json.dumps({"prompt": "O Romeo, Romeo! \\n\\u00e9" * 300000, "max_tokens": 1})
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            c.request("POST", "/v1/completions", body)
            r = c.getresponse()
            text = r.read().decode()
            answers.append((r.status, text if r.status == 503 or "context length" not in text else "too long"))
        except (OSError, http.client.HTTPException):
            answers.append((None, "closed")) # libmicrohttpd had no memory for the connection
        finally:
            c.close()

    def test_refused_at_the_start(self):
        """A pool beyond the limit is refused with figures before the model is loaded."""
        p = subprocess.run(
            [OCTAVO, "serve", *POOL, "--kv-memory", "500M", "--http", "127.0.0.1:0", "--grpc", "none"],
            stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, text=True, timeout=PATIENCE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20)))
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"needs 8\d\d MiB .*KV pages 500 MiB.* and RLIMIT_AS allows 400 MiB")

    def test_sweep(self):
        n_served = 0
        for megabytes in (200, 220, 240, 270, 300, 350, 420):
            begun = self.start(megabytes)
            if not begun:
                continue
            p, port = begun
            answers = []
            threads = [threading.Thread(target=self.one, args=(port, answers)) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertIsNone(p.poll(), (megabytes, p.returncode))
            for status, text in answers:
                self.assertIn(status, (400, 503, None), (megabytes, text[:200]))
                if status == 400:
                    self.assertEqual(text, "too long")
            p.terminate()
            self.assertEqual(p.wait(PATIENCE), 0, megabytes)
            p.stderr.close()
            n_served += 1
        self.assertGreater(n_served, 1)


if __name__ == "__main__":
    main()
