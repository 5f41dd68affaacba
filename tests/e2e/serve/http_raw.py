#!/usr/bin/env python3
"""Hostile HTTP over bare sockets: the answer is always a clean status or a closed connection, and
other clients are served. usage: http_raw.py OCTAVO [unittest arguments]"""

import concurrent.futures
import json
import random
import re
import socket
import struct
import time

from harness import PATIENCE, ServeTest, eventually, main, need, raw, tokens

need("json")

GOOD = json.dumps({"prompt": "O Romeo", "max_tokens": 3}).encode()


def post(body=GOOD, headers=(), path="/v1/completions", version="1.1", length=True, close=True):
    lines = [f"POST {path} HTTP/{version}", "Host: x", "Content-Type: application/json", *headers]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path="/health", headers=(), version="1.1", close=True):
    lines = [f"GET {path} HTTP/{version}", "Host: x", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def statuses(answer):
    return [int(s) for s in re.findall(rb"(?:^|\n|\}|\])HTTP/1\.[01] (\d\d\d) ", answer)]


class RawTest(ServeTest):
    def talk(self, data, **options):
        """Statuses of the answers, and whether the server closed the connection."""
        answer, closed = raw(self.server.http_port, data, **options)
        # libmicrohttpd 0.9.75 sends the head of its own refusals twice.
        head, _, rest = answer.partition(b"\r\n\r\n")
        if b"<html>" in rest and rest.startswith(head):
            answer = rest
        return statuses(answer), closed, answer

    def clean(self, data, allowed=range(400, 506), closes=True, **options):
        """One refusal and no more, or the connection closed without an answer."""
        got, closed, answer = self.talk(data, **options)
        self.assertLessEqual(len(got), 1, answer[:2000])
        for status in got:
            self.assertIn(status, allowed, answer[:2000])
        if closes:
            self.assertTrue(closed, answer[:2000])
        self.assertEqual(self.server.get("/health")[0], 200)
        return got[0] if got else None

    def at_once(self, test, cases):
        """Runs test(case) for each of {name: case} at the same time: mostly they wait for the
        server's time-outs."""
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            runs = {name: pool.submit(test, case) for name, case in cases.items()}
        statuses_by_name = {}
        for name, run in runs.items():
            with self.subTest(name):
                statuses_by_name[name] = run.result()
        return statuses_by_name

    def read_answer(self, s):
        """(status, headers, body) of one answer with a length, on a connection that stays open."""
        f = s.makefile("rb")
        status = int(f.readline().split()[1])
        headers = {}
        while True:
            line = f.readline().rstrip(b"\r\n")
            if not line:
                break
            name, _, value = line.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        return status, headers, f.read(int(headers["content-length"]))


class Malformed(RawTest):
    FLAGS = ["--keepalive-timeout", "4"] # for heads and bodies that never end

    def test_request_lines(self):
        lines = (b"GET\r\n\r\n", b"GET /health\r\n\r\n", b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n",
                 b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", b"GET /health HTTP/1.1 x\r\nHost: x\r\n\r\n",
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                 b"\0\0\0\0\r\n\r\n", b"G\0T /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n" * 50000, b"A" * 200000,
                 b"BREW /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 b"GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 b"GET /health%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 b"GET ../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.at_once(self.clean, {line[:40]: line for line in lines})

    def test_headers(self):
        headers = (b"Host x", b": x", b"X\0Y: x", b"X: a\0b", b"Host : x", b"X Y: z", b"Content-Length: -1",
                   b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: 5, 5", b"Content-Length: 5 5",
                   b"Content-Length: 99999999999999999999999", b"Content-Length: abc", b"Content-Length:",
                   b"Transfer-Encoding: bananas", b"Transfer-Encoding: chunked, gzip",
                   b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity")
        self.at_once(self.clean, {
            header: b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header +
                    b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n" for header in headers})

    def test_huge(self):
        self.assertIn(self.clean(get(headers=["X: " + "y" * 100000])), (431, 413, 400, None))
        self.assertEqual(self.clean(get(headers=["X: " + "y" * 40000])), 431)
        self.assertEqual(self.clean(get(headers=[f"X{i}: y" for i in range(5000)])), 431)
        self.assertIn(self.clean(get("/" + "a" * 100000)), (414, 431))

    def test_garbage(self):
        """A valid request with bytes changed, lost and doubled."""
        r = random.Random(1)

        def spoil():
            data = bytearray(post())
            for _ in range(r.randrange(1, 6)):
                at = r.randrange(len(data))
                what = r.randrange(3)
                if what == 0:
                    data[at] = r.randrange(256)
                elif what == 1:
                    del data[at:at + r.randrange(1, 9)]
                else:
                    data[at:at] = data[at:at + r.randrange(1, 30)]
            return bytes(data)

        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            requests = [spoil() for _ in range(200)]
            for data, (answer, closed) in zip(requests, pool.map(lambda d: raw(self.server.http_port, d), requests)):
                self.assertTrue(closed, data)
                self.assertLessEqual(len(statuses(answer)), 3, data)
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_truncated(self):
        whole = post()
        for n in (*range(0, len(whole) - 1, 7), len(whole) - 1):
            with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
                s.sendall(whole[:n])
        chunked = post(b"5\r\nhel", ["Transfer-Encoding: chunked"], length=False)
        self.at_once(self.clean, {"by its length": whole[:-5], "by its chunks": chunked})
        self.server.idle()


class Smuggling(RawTest):
    """A second request, hidden where two readers might disagree, is never answered."""

    FLAGS = ["--keepalive-timeout", "4"]

    def test_shapes(self):
        hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        n = str(len(GOOD)).encode()
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
        shapes = {
            "length and chunked": b"Content-Length: " + n + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
            "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunk,
            "two lengths": b"Content-Length: " + n + b"\r\nContent-Length: 0\r\n\r\n" + GOOD,
            "two equal lengths": b"Content-Length: " + n + b"\r\nContent-Length: " + n + b"\r\n\r\n" + GOOD,
            "folded chunked": b"Content-Length: " + n + b"\r\nX: y\r\n Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n"
                              b" chunked\r\n\r\n" + chunk,
            "chunked with a space": b"Content-Length: 4\r\nTransfer-Encoding : chunked\r\n\r\n" + chunk,
            "chunked with a tab": b"Content-Length: 4\r\nTransfer-Encoding:\tchunked\r\n\r\n" + chunk,
            "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + chunk,
            "bad size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + GOOD + b"\r\n0\r\n\r\n",
            "negative size": b"Transfer-Encoding: chunked\r\n\r\n-5\r\n" + GOOD + b"\r\n0\r\n\r\n",
            "endless size": b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 70000 + b"5\r\nhello\r\n0\r\n\r\n",
            "huge size": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + GOOD + b"\r\n0\r\n\r\n",
            "wrapping size": b"Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
            "size in decimal words": b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
            "no end of chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        }
        answered = self.at_once(self.clean, {name: head + data + hidden for name, data in shapes.items()})
        self.assertLessEqual(set(answered.values()), {400, 411, 413, 431, 500, 501, None}, answered)


class Protocol(RawTest):
    def test_statuses(self):
        for data, status in ((get("/bananas"), 404), (get("/v1/completions"), 405), (get("/"), 200),
                             (post(path="/health"), 405), (post(path="/v1/models"), 405), (post(b"{"), 400),
                             (post(b"", ["Content-Length: 0"], length=False), 400),
                             (post(path="/v1/completions/"), 404), (get("/v1/models/bananas"), 404),
                             (post(path="/v1/completions?x=y"), 200), (get("/health?x=y"), 200)):
            with self.subTest(data=data[:60]):
                got, closed, answer = self.talk(data)
                self.assertEqual((got, closed), ([status], True), answer)
                if status >= 400:
                    error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
                    self.assertEqual(error["code"], status)
        allow = self.talk(get("/v1/completions"))[2].lower()
        self.assertIn(b"\r\nallow: ", allow)
        self.assertIn(b"post", allow.split(b"\r\nallow: ")[1].split(b"\r\n")[0])

    def test_alive_after_errors(self):
        with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
            for data, status in ((post(b"{", close=False), 400), (get("/bananas", close=False), 404),
                                 (get("/v1/completions", close=False), 405), (post(close=False), 200),
                                 (post(b'{"prompt":"x","bananas":1}', close=False), 400), (get(close=False), 200)):
                s.sendall(data)
                got, headers, _ = self.read_answer(s)
                self.assertEqual(got, status)
                self.assertNotEqual(headers.get("connection", "").lower(), "close")

    def test_pipelined(self):
        data = get(close=False) + post(close=False) + get("/version", close=False) + get("/bananas")
        got, _, answer = self.talk(data)
        self.assertEqual(got, [200, 200, 200, 404], answer)

    def test_body_of_a_get(self):
        """The bytes are read as the body, not as the next request."""
        hidden = get("/version")
        got, _, answer = self.talk(get(headers=[f"Content-Length: {len(hidden)}"], close=True) + hidden)
        self.assertEqual(len(got), 1, answer)

    def test_chunked_bodies_are_fine(self):
        pieces = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(p), p) for p in (GOOD[:5], GOOD[5:6], GOOD[6:])) + b"0\r\n\r\n"
        got, _, answer = self.talk(post(pieces, ["Transfer-Encoding: chunked"], length=False))
        self.assertEqual(got, [200], answer)

    def test_http_1_0(self):
        got, closed, answer = self.talk(get(version="1.0", close=False))
        self.assertEqual((got, closed), ([200], True), answer)
        body = json.dumps({"prompt": "O", "max_tokens": 4, "stream": True, "ignore_eos": True}).encode()
        got, closed, answer = self.talk(post(body, version="1.0", close=False))
        self.assertEqual((got, closed), ([200], True))
        self.assertNotIn(b"chunked", answer.lower())
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"), answer)
        self.assertEqual(answer.count(b"data: {"), 4)

    def test_whole_address(self):
        for target, status in (("http://x/health", 200), ("HTTPS://x:80/health?a=b", 200), ("http://x", 200),
                               ("http:///health", 400), ("http://", 400), ("ftp://x/health", 400)):
            got, _, answer = self.talk(get(target))
            self.assertEqual(got, [status], (target, answer))

    def test_many_arguments(self):
        for n in (100, 500, 1500):
            query = "&".join(f"a{i}=b" for i in range(n))
            for data in (get("/health?" + query), post(path="/v1/completions?" + query)):
                got, _, answer = self.talk(data)
                self.assertEqual(got, [200], (n, answer))

    def test_encoded_body(self):
        got, _, answer = self.talk(post(GOOD, ["Content-Encoding: gzip"]))
        self.assertEqual(got, [415])
        self.assertIn(b"content-encoding", answer)
        self.assertEqual(self.talk(post(GOOD, ["Content-Encoding: identity"]))[0], [200])

    def test_no_host(self):
        self.assertIn(self.talk(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[0], ([200], [400]))

    def test_expect_continue(self):
        head = post(GOOD, ["Expect: 100-continue"])[:-len(GOOD)]
        with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
            s.sendall(head)
            self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 100 "))
            s.sendall(GOOD)
            self.assertEqual(self.read_answer(s)[0], 200)

    def test_slowly(self):
        """A request sent one byte at a time is served like any other."""
        with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in post():
                s.sendall(bytes([byte]))
                time.sleep(0.001)
            self.assertEqual(self.read_answer(s)[0], 200)


class Giant(RawTest):
    FLAGS = ["--max-body", "100000"]

    def test_length(self):
        """Refused by its length alone: no byte of the body need be sent."""
        head = post(b"x", ["Content-Length: 100001"], length=False)
        got, _, answer = self.talk(head[:-1])
        self.assertEqual(got, [413], answer)
        self.assertEqual(json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"], 413)
        expect = post(b"", ["Content-Length: 100001", "Expect: 100-continue"], length=False)
        self.assertEqual(self.talk(expect)[0], [413])

    def test_sent_whole(self):
        """Even a client that reads only after it has sent everything gets the refusal."""
        body = json.dumps({"prompt": "x" * 300000}).encode()
        self.assertEqual(self.clean(post(body)), 413)

    def test_chunked(self):
        piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        self.assertEqual(self.clean(post(piece * 40 + b"0\r\n\r\n", ["Transfer-Encoding: chunked"], length=False)), 413)

    def test_at_the_limit(self):
        body = GOOD[:-1] + b" " * (100000 - len(GOOD)) + b"}"
        self.assertEqual(self.talk(post(body))[0], [200])


class Unread(RawTest):
    """A refusal for the head alone does not wait for a large body."""

    FLAGS = ["--api-key", "k", "--max-body", "16M"]
    KEY = "Authorization: Bearer k"

    def test_at_once(self):
        length = "Content-Length: 8000000"
        for status, path, headers in ((401, "/v1/completions", [length]), (404, "/bananas", [length]),
                                      (405, "/health", [length]), (413, "/tokenize", ["Content-Length: 99000000"]),
                                      (415, "/tokenize", [length, self.KEY, "Content-Encoding: gzip"]),
                                      (401, "/tokenize", ["Transfer-Encoding: chunked"])):
            with self.subTest(status=status, path=path, headers=headers):
                with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
                    s.sendall(post(b"", headers, path, length=False, close=False))
                    got, headers, body = self.read_answer(s)
                    self.assertEqual((got, json.loads(body)["error"]["code"]), (status, status))
                    self.assertEqual(headers["connection"].lower(), "close")
                    self.assertEqual(s.recv(1), b"")

    def test_sent_nevertheless(self):
        """A client that reads only after it has sent everything meets no reset."""
        body = b"x" * 8000000
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
                s.sendall(post(body))
                self.assertEqual(self.read_answer(s)[0], 401)

    def test_small_bodies_are_read(self):
        """The connection stays usable."""
        with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
            for headers, status in (([], 401), ([self.KEY], 200)):
                s.sendall(post(GOOD, headers, close=False))
                self.assertEqual(self.read_answer(s)[0], status)


class Large(RawTest):
    """Bodies that are parsed by separate threads are answered like small ones."""

    FLAGS = ["--max-body", "8M", "--max-requests", "64"]

    def ask(self, body, expected):
        got, _, answer = self.talk(post(body))
        self.assertEqual(got, [expected], answer[:500])
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])

    def test_answers(self):
        blanks = b" " * 100000
        small = self.ask(GOOD, 200)["choices"][0]["text"]
        self.assertEqual(self.ask(GOOD[:-1] + blanks + b"}", 200)["choices"][0]["text"], small)
        self.ask(GOOD[:-1] + blanks, 400)
        streamed = self.talk(post(GOOD[:-1] + b',"stream":true' + blanks + b"}"))[2]
        self.assertIn(b"data: [DONE]", streamed)
        ids = self.ask(json.dumps({"prompt": "O Romeo" * 20000}).encode(), 400)["error"]
        self.assertEqual(ids["param"], "input_tokens")
        got, _, answer = self.talk(post(b'{"prompt":"O"}' + blanks, path="/tokenize"))
        self.assertEqual(got, [200], answer[:500])

    def test_hopeless_prompts(self):
        """The number of bytes alone shows that the prompt cannot fit."""
        error = self.ask(json.dumps({"prompt": "O Romeo, Romeo! " * 400000, "max_tokens": 1}).encode(), 400)["error"]
        self.assertRegex(error["message"], r"^This model's maximum context length is \d+ tokens; prompt: 6400000 "
                         r"bytes make at least \d+ tokens$")
        self.assertEqual(error["param"], "input_tokens")

    def test_many_keys(self):
        body = b"{" + b",".join(b'"k%d":1' % i for i in range(400000)) + b"}"
        self.assertIn("keys", self.ask(body, 400)["error"]["message"])

    def test_who_leaves_meanwhile(self):
        body = post(json.dumps({"prompt": tokens(200, 1), "max_tokens": 3000, "ignore_eos": True}).encode() + b" " * 4000000)
        for _ in range(12):
            with socket.create_connection(("127.0.0.1", self.server.http_port), timeout=PATIENCE) as s:
                s.sendall(body)
        self.server.idle()


class Idle(RawTest):
    FLAGS = ["--keepalive-timeout", "1"]

    def test_who_says_nothing_is_let_go(self):
        def let_go(begin):
            answer, closed = raw(self.server.http_port, begin)
            self.assertTrue(closed)
            self.assertIn(statuses(answer), ([], [408], [400]))

        chunked = post(b"5\r\nhel", ["Transfer-Encoding: chunked"], length=False)
        self.at_once(let_go, {begin[:90]: begin for begin in (b"", b"GET /health HT", post()[:60], post()[:-5], chunked)})


class Readers(RawTest):
    """Clients that vanish, and clients that never read."""

    def start(self, body, read=True):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(PATIENCE)
        s.connect(("127.0.0.1", self.server.http_port))
        s.sendall(post(json.dumps(body).encode()))
        if read:
            self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 200"))
        return s

    def test_vanished(self):
        body = {"prompt": tokens(100, 1), "max_tokens": 3900, "ignore_eos": True, "logprobs": 5}
        for stream in (True, False):
            for reset in (True, False):
                clients = [self.start({**body, "stream": stream}, read=stream) for _ in range(6)]
                if not stream:
                    ends = self.server.metric("request_success_total")
                    eventually("they run, or have run", lambda: self.server.metric("num_requests_running") >= 1
                               or self.server.metric("request_success_total") > ends)
                for s in clients:
                    if reset:
                        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    s.close()
                self.server.idle()
        self.assertGreater(self.server.metric("request_success_total", finished_reason="abort"), 0)

    def test_never_read(self):
        heavy = {"prompt": tokens(20, 2), "max_tokens": 3900, "ignore_eos": True, "logprobs": 5, "stream": True, "n": 4}
        quick = {"prompt": "O Romeo", "max_tokens": 20, "ignore_eos": True}
        expected = self.server.post("/v1/completions", quick)["choices"][0]["text"]
        clients = [self.start(heavy, read=False) for _ in range(6)]
        for _ in range(10):
            self.assertEqual(self.server.post("/v1/completions", quick)["choices"][0]["text"], expected)
            text = "".join(e["choices"][0]["text"] for e in self.server.stream("/v1/completions", quick))
            self.assertEqual(text, expected)
        for s in clients:
            s.close()
        self.server.idle()

    def test_slow_reader_gets_everything(self):
        body = {"prompt": tokens(20, 3), "max_tokens": 1500, "ignore_eos": True, "logprobs": 5, "stream": True}
        s = self.start(body)
        answer = b""
        time.sleep(0.5)
        while True:
            part = s.recv(65536)
            if not part:
                break
            answer += part
        s.close()
        self.assertEqual(answer.count(b'data: {"'), 1500)


class Stalled(RawTest):
    FLAGS = ["--stall-timeout", "1"]

    def test_given_up(self):
        """A client that reads nothing for so long loses its pages."""
        body = {"prompt": tokens(20, 2), "max_tokens": 3900, "ignore_eos": True, "logprobs": 20, "stream": True, "n": 8}
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", self.server.http_port))
            s.sendall(post(json.dumps(body).encode()))
            eventually("it is given up",
                       lambda: self.server.metric("request_success_total", finished_reason="abort") > 0)
            self.server.idle()


if __name__ == "__main__":
    main()
