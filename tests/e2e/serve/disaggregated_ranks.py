#!/usr/bin/env python3
"""Disaggregated prefill over tensor-parallel ranks: what a server of one rank hands over and takes
over, servers of several do, as threads, local processes and workers by address, however many each
has. A rank that is lost takes no prompt with it that was held already.
usage: disaggregated_ranks.py OCTAVO [unittest arguments]"""

import os
import signal
import unittest

import disaggregated
from disaggregated import ANSWER, CHUNKKV, PROMPT, WAYS, Pair, agreed, body, drawn, headers
from harness import PAGE, PATIENT, eventually, main, tokens
from processes import ranks_of
from workers import Worker

RANKS = 2
THREADS, LOCAL = (["--tp", str(RANKS), "--workers", where, *PATIENT] for where in ("threads", "local"))
TAKEN = "fetched from another server"


class OverThreads(disaggregated.Disaggregated):
    """All that the suite of one rank asks for."""

    @classmethod
    def setUpClass(cls):
        cls.pair = Pair(prefill=THREADS, decode=THREADS)
        cls.addClassCleanup(cls.pair.stop)


class Ranks(unittest.TestCase):
    def pair(self, **flags):
        pair = Pair(**flags)
        self.addCleanup(pair.stop)
        return pair

    def bytes_sent(self, pair, retention):
        answer = pair.ask(body(tokens(800, 21), retention))
        self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
        return answer["kv_transfer_params"]["bytes"]

    def bytes_of(self, pair, retention):
        """The bytes of a prompt whose answer is that of one server."""
        request = body(tokens(800, 21), retention)
        answer = pair.ask(request)
        self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
        self.assertEqual(drawn(answer), drawn(pair.alone(request)))
        return answer["kv_transfer_params"]["bytes"]

    def test_bytes_are_those_of_one_rank(self):
        """Where ranks divide the KV heads, and where each head is at two ranks."""
        wanted = [self.bytes_of(self.pair(), retention) for retention in WAYS.values()]
        for ranks in ("4", "8"):
            flags = ["--tp", ranks, "--workers", "threads", *PATIENT]
            pair = self.pair(prefill=flags, decode=flags)
            with self.subTest(ranks=ranks):
                self.assertEqual([self.bytes_of(pair, retention) for retention in WAYS.values()], wanted)
        page = (wanted[0] - 4 * 800) / (800 / PAGE)
        kept = 80 / PAGE + 1  # pages: chunkkv keeps a tenth
        self.assertLessEqual(wanted[1], 1.1 * kept * page + 4 * 800)

    def test_however_ranks_are_reached(self):
        """Workers by address hand over, local processes take over."""
        workers = [Worker() for _ in range(RANKS)]
        for worker in workers:
            self.addCleanup(worker.stop)
        pair = self.pair(prefill=["--workers", ",".join(w.address for w in workers), *PATIENT], decode=LOCAL)
        for seed, retention in enumerate(WAYS.values()):
            for sampling in ({}, {"temperature": 0.9, "seed": 7}):
                request = body(tokens(PROMPT, 10 + seed), retention, **sampling)
                answer = pair.ask(request)
                self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
                self.assertEqual(drawn(answer), drawn(pair.alone(request)))

    def test_another_number_of_ranks(self):
        """The heads of one group are cut for the other, also where several ranks have copies of a
        head; the bytes are those of the kept pages. K and V would differ by rounding, so no other
        prompt hits them: the decode server computes it, as it does for another key."""
        n_agreed = 0
        of = lambda ranks: ["--tp", str(ranks), "--workers", "threads", *PATIENT] if ranks > 1 else []
        for prefill, decode in ((1, 2), (2, 1), (4, 2), (2, 8), (8, 4)):
            pair = self.pair(prefill=of(prefill), decode=of(decode))
            for seed, retention in enumerate(WAYS.values()):
                request = body(tokens(PROMPT, 60 + seed), retention)
                answer, expected = pair.ask(request), pair.alone(request)
                with self.subTest(prefill=prefill, decode=decode, retention=retention):
                    self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
                    n_agreed += agreed(answer, expected)
                    again, own = (pair.decode.post("/v1/completions", request, headers=headers(who))
                                  for who in ("alice", "bob"))
                    self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                    self.assertEqual(drawn(again), drawn(own))
            full, tenth = (self.bytes_sent(pair, retention) for retention in (None, CHUNKKV))
            page = (full - 4 * 800) / (800 / PAGE)
            self.assertLessEqual(tenth, 1.1 * (80 / PAGE + 1) * page + 4 * 800)
            pair.decode.idle()
            self.assertEqual(pair.decode.metric("kv_transfer_bytes"), 0)
        self.assertGreater(n_agreed, 5 * len(WAYS) * ANSWER // 2)

    def test_a_rank_that_is_lost(self):
        """The prefill server holds the record at its coordinator; the decode server loads it into
        the ranks that it has by then."""
        pair = self.pair(prefill=LOCAL, decode=LOCAL)
        request = body(tokens(PROMPT, 1), CHUNKKV)
        expected = drawn(pair.alone(request))
        params = [pair.hand_over(request) for _ in range(2)]
        for server, held in ((pair.prefill, params[0]), (pair.decode, params[1])):
            os.kill(ranks_of(server, RANKS)[1], signal.SIGKILL)
            eventually("the rank's loss is seen", lambda: server.metric("workers_lost_total") >= 1)
            eventually("the group is there again", lambda: server.get("/ready")[0] == 200)
            answer = pair.take_over(request, held)
            self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
            self.assertEqual(drawn(answer), expected)
        for server in (pair.prefill, pair.decode):
            server.idle()
        self.assertEqual(pair.decode.metric("kv_transfer_bytes"), 0)


if __name__ == "__main__":
    main()
