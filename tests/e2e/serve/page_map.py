#!/usr/bin/env python3
"""Where attention goes, on page maps of a live server: what masses and reads add up to, who sees
them, and that nobody's answer changes because of who looks.
usage: page_map.py OCTAVO [unittest arguments]"""

import json
import threading

from harness import FEW_SLOW_LAYERS, PAGE, PATIENT, ServeTest, eventually, main, slow_model, tokens

LEVELS = ".!" + "".join(chr(c) for c in range(ord("#"), ord("~") + 1) if chr(c) not in ".\\")
N = 400
SLOW = slow_model(FEW_SLOW_LAYERS, "--kv-memory", "128M")
FEW = {"block_size": PAGE, "local_windows_len": PAGE, "second_select_num": 2, "dense_layer_num": 0}
READS = {"shared": {"method": "ktransformers", **FEW}, "each head": {"method": "quest", **FEW},
         "held": {"method": "quest", "token_step": 4, **FEW}}
METHODS = [None, {"method": "chunkkv", "ratio": 0.3}, {"method": "h2o", "tokens": 150}, {"method": "tova", "tokens": 150},
           {"method": "streaming", "tokens": 150}, {"method": "snapkv-decode", "tokens": 100}]


def masses(row):
    """Tokens read, and the mass of each column; None where it is not read."""
    return row[0], [10 ** ((LEVELS.index(c) - 91) / 20) if c != "." else None for c in row[1]]


class Answer:
    """A streamed completion of seeded draws with logprobs, read on a thread of its own."""

    def __init__(self, server, name, ids, n=3000, key=None, **fields):
        self.server, self.asked, self.headers = server, name, {"Authorization": f"Bearer {key}"} if key else {}
        self.body = {"prompt": ids, "max_tokens": n, "ignore_eos": True, "temperature": 1.0, "seed": 5, "logprobs": 0,
                     "return_token_ids": True, **fields}
        self.start()

    def start(self):
        self.c = self.server.connect()
        self.c.request("POST", "/v1/completions", json.dumps({**self.body, "stream": True}),
                       {"Content-Type": "application/json", "X-Request-Id": self.asked, **self.headers})
        self.r = self.c.getresponse()
        if self.r.status != 200:
            raise AssertionError(self.r.read().decode())
        # Another id than was asked for while a given-up answer of that name is being ended.
        self.name = self.r.getheader("X-Request-Id")
        self.ids, self.logprobs, self.report, self.stops = [], [], None, False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while not self.stops and (line := self.r.readline()):
            if not line.startswith(b"data: {"):
                continue
            (choice,) = json.loads(line[6:])["choices"]
            self.ids += choice["token_ids"]
            self.logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            self.report = choice.get("retrieval", self.report)

    def map(self):
        status, _, text = self.server.get(f"/octavo/pages/{self.name}", self.headers)
        return json.loads(text)["map"] if status == 200 else None

    def again(self):
        """Asks again for an answer that ended before it was seen: this process may have waited for
        a core."""
        if not self.thread.is_alive():
            self.end()
            self.start()

    def attention(self, after=-1):
        """The map, once it has the attention of a token behind `after`."""
        def seen():
            self.again()
            got = self.map()
            return got if got and (got.get("attention") or {"token": -1})["token"] > after else None

        return eventually(f"the attention of {self.name}", seen)

    def some(self):
        """Waits until some of its tokens have come."""
        def come():
            if min(len(self.ids), len(self.logprobs)) > 20:
                return True
            self.again()
            return False

        eventually(f"some tokens of {self.asked}", come)

    def end(self):
        self.stops = True
        self.thread.join()
        self.r.close()
        self.c.close()

    def check_unwatched(self, test):
        """Nobody looks at the same request, and it has the same answer, to the last bit."""
        n = min(len(self.ids), len(self.logprobs))
        test.assertGreater(n, 20)

        status, _, text = self.server.request("POST", "/v1/completions", {**self.body, "max_tokens": n}, {
            "Content-Type": "application/json", **self.headers})
        test.assertEqual(200, status, text)
        (choice,) = json.loads(text)["choices"]
        test.assertEqual((choice["token_ids"], choice["logprobs"]["token_logprobs"]), (self.ids[:n], self.logprobs[:n]))


class PageMap(ServeTest):
    MODEL = SLOW

    def check_masses(self, got):
        """The masses of each measured layer add up to 1."""
        rows = [row for row in got["attention"]["rows"] if row]
        self.assertEqual(got["attention"]["layers"], len(rows))
        for row in rows:
            read, mass = masses(row)
            self.assertEqual(got["attention"]["columns"], len(mass))
            self.assertAlmostEqual(1, sum(m or 0 for m in mass), delta=0.1)
            self.assertLessEqual(read, got["attention"]["token"] + 1)
        return [masses(row) for row in rows]

    def test_masses_add_up(self):
        for retention in METHODS:
            with self.subTest(retention):
                a = Answer(self.server, "a", tokens(N, 1), retention=retention)
                got = a.attention(N + 2)
                a.end()
                rows = self.check_masses(got)
                self.assertEqual(sum(n for n, _ in got["rows"]), len(rows))
                for read, mass in rows:
                    if retention is None:
                        self.assertEqual((got["attention"]["token"] + 1, 0), (read, mass.count(None)))
                    else:
                        self.assertLess(read, N)

    def test_reads_are_those_of_the_report(self):
        """The first block, two that are selected, the last full one, and what is behind it: a
        report says so of all rows together, and each map of one row."""
        def due(slots):
            return 4 * PAGE + slots % PAGE

        for name, retrieval in READS.items():
            with self.subTest(name):
                n = 40
                done = Answer(self.server, "done", tokens(N, 2), n, retrieval=retrieval)
                done.thread.join()
                done.end()
                if "token_step" not in retrieval:
                    mean = sum(due(N + i) for i in range(1, n)) / (n - 1)
                    self.assertAlmostEqual(mean, done.report["read_tokens"], delta=0.01)
                a = Answer(self.server, "a", tokens(N, 2), retrieval=retrieval)
                got = a.attention(N + 2)
                a.end()
                slots = got["attention"]["token"] + 1
                for read, mass in self.check_masses(got):
                    # A row that follows another reads what was begun since, too.
                    self.assertAlmostEqual(due(slots), read, delta=PAGE if "token_step" in retrieval else 0)
                    cells = len(mass) - mass.count(None)
                    if name == "shared":
                        self.assertEqual(-(-read // PAGE), cells)
                    else:
                        self.assertGreaterEqual(cells * PAGE, read)
                self.assertNotIn("attention_lacks", got)
                self.assertTrue(set("".join(row for _, row in got["rows"])) <= set("0123456789abcdefghABCDEFGH"))


class Same(ServeTest):
    """Answers beside each other in a pool that holds few of them, all of them looked at."""

    MODEL = slow_model(FEW_SLOW_LAYERS, "--kv-memory", f"{FEW_SLOW_LAYERS * 5 // 2}M",
                       "--swap-memory", f"{FEW_SLOW_LAYERS}M")
    ROUNDS = [METHODS[:3], METHODS[3:], [{"retrieval": r} for r in READS.values()]]

    def test_nobody_changes_an_answer_by_looking(self):
        for names in self.ROUNDS:
            with self.subTest(names):
                answers = [Answer(self.server, f"a{i}", tokens(N, 10 + i), **(f if f and "retrieval" in f else
                                                                             {"retention": f}))
                           for i, f in enumerate(names)]
                last = [-1] * len(answers)
                for _ in range(3):
                    for i, a in enumerate(answers):
                        last[i] = a.attention(last[i])["attention"]["token"]
                for a in answers:
                    a.some()
                for a in answers:
                    a.end()
                for a in answers:
                    a.check_unwatched(self)


class SameOverRanks(Same):
    FLAGS = ["--tp", "2", "--workers", "local", *PATIENT]
    ROUNDS = [[METHODS[2], METHODS[3], {"retrieval": READS["each head"]}]]


class Keys(ServeTest):
    FLAGS = ["--api-key", "alice", "--api-key", "bob"]
    MODEL = SLOW

    def test_a_key_sees_its_own_attention(self):
        a = Answer(self.server, "alices", tokens(N, 3), key="alice")
        a.attention()
        for key in ("bob", "nobody", None):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            status, _, text = self.server.get("/octavo/pages/alices", headers)
            self.assertEqual(404 if key == "bob" else 401, status)
            self.assertNotIn("attention", text)
        b = Answer(self.server, "bobs", tokens(N, 4), key="bob")
        self.assertGreaterEqual(b.attention()["attention"]["token"], N - 1)
        self.assertEqual(404, self.server.get("/octavo/pages/bobs", a.headers)[0])
        a.end()
        b.end()


if __name__ == "__main__":
    main()
