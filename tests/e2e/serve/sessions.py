#!/usr/bin/env python3
"""Sessions on every surface: the second turn of a conversation continues from the pages of the
first and reports it, whichever surface either turn uses; no key reaches another key's session.
usage: sessions.py OCTAVO [unittest arguments]"""

import concurrent.futures
import json

from harness import PATIENCE, ServeTest, eventually, main, need, run_offline, stubs, tokens, trailers

grpc, openai = need("grpc", "openai")
octavo, octavo_rpc, vllm, vllm_rpc, kserve, kserve_rpc = stubs("octavo", "vllm_engine", "kserve")

RETENTION = {"method": "chunkkv", "ratio": 0.5, "window": 16}
GREEDY = {"max_tokens": 12, "ignore_eos": True}
MORE = tokens(70, 99)
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}


class Sessions(ServeTest):
    FLAGS = [flag for key in KEYS.values() for flag in ("--api-key", key)]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)
        cls.octavo = octavo_rpc.InferenceStub(cls.channel)
        cls.vllm = vllm_rpc.VllmEngineStub(cls.channel)
        cls.kserve = kserve_rpc.GRPCInferenceServiceStub(cls.channel)

    @staticmethod
    def bearer(who):
        return {"authorization": f"Bearer {KEYS[who]}"}

    def post(self, path, body, who="alice", status=200):
        return self.server.post(path, body, status, self.bearer(who))

    # Each returns the answer and the report; by_kserve, which has texts only, returns a text.

    def by_http(self, prompt, session, who="alice", retention=RETENTION, fields=GREEDY):
        choice = self.post("/v1/completions", {"prompt": prompt, "return_token_ids": True, **fields,
                                               "retention": retention, "session": session}, who)["choices"][0]
        return choice["token_ids"], choice["retention"]

    def by_octavo(self, prompt, session, who="alice", retention=RETENTION, fields=GREEDY):
        ids, report = [], None
        for m in self.octavo.Generate(octavo.GenerateRequest(
                token_ids=octavo.TokenIds(ids=prompt), session=session, retention_json=json.dumps(retention),
                sampling=octavo.SamplingParams(**fields)), metadata=list(self.bearer(who).items()), timeout=PATIENCE):
            ids += m.token_ids
            report = json.loads(m.retention_json) if m.retention_json else report
        return ids, report

    def by_vllm(self, prompt, session, who="alice", retention=RETENTION, fields=GREEDY):
        call = self.vllm.Generate(vllm.GenerateRequest(
            tokenized=vllm.TokenizedInput(input_ids=prompt), stream=True,
            sampling_params=vllm.SamplingParams(top_p=1, repetition_penalty=1, n=1, **fields)), timeout=PATIENCE,
            metadata=[*self.bearer(who).items(), ("octavo-session", session),
                      ("octavo-retention", json.dumps(retention))])
        ids = [list(m.complete.output_ids) for m in call if m.WhichOneof("response") == "complete"]
        return ids[0], json.loads(trailers(call)["octavo-report"])[0]

    def by_kserve(self, prompt, session, who="alice", retention=RETENTION, fields=GREEDY, place="parameter"):
        r = kserve.ModelInferRequest()
        sampling = {**fields, **({} if place == "parameter" else {"session": session})}
        for name, text in (("text_input", prompt), ("sampling_parameters", json.dumps(sampling))):
            r.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
        r.parameters["retention"].string_param = json.dumps(retention)
        if place == "parameter":
            r.parameters["session"].string_param = session
        answer, call = self.kserve.ModelInfer.with_call(r, timeout=PATIENCE, metadata=list(self.bearer(who).items()))
        at = [o.name for o in answer.outputs].index("text_output")
        text = answer.raw_output_contents[at][4:] if answer.raw_output_contents else \
            answer.outputs[at].contents.bytes_contents[0]
        return text.decode(), json.loads(trailers(call)["octavo-report"])[0]

    # ---- one conversation

    def two_turns(self, ask, session, prompt):
        """The answers of two turns; the second prompt is the first one, its answer, and more."""
        first, report = ask(prompt, session)
        self.assertEqual(report["session"], "stored")
        second, report = ask(prompt + first + MORE, session)
        self.assertEqual(report["session"], "continued")
        self.assertEqual(report["logical_tokens"], len(prompt) + 2 * GREEDY["max_tokens"] + len(MORE) - 1)
        return [first, second]

    def test_same_tokens_on_every_surface(self):
        for n in (5, 100, 333):
            prompt = tokens(n, n)
            expected = self.two_turns(self.by_http, f"http-{n}", prompt)
            self.assertEqual(self.two_turns(self.by_octavo, f"octavo-{n}", prompt), expected)
            self.assertEqual(self.two_turns(self.by_vllm, f"vllm-{n}", prompt), expected)
            lines = [{"id": i, "prompt_token_ids": ids, "retention": RETENTION, "session": "s", **GREEDY}
                     for i, ids in enumerate((prompt, prompt + expected[0] + MORE))]
            offline = run_offline(lines)
            self.assertEqual([offline[i, 0]["token_ids"] for i in range(2)], expected)
            self.assertEqual([offline[i, 0]["retention"]["session"] for i in range(2)], ["stored", "continued"])

    def test_a_turn_may_come_by_another_way(self):
        prompt = tokens(120, 5)
        first, report = self.by_http(prompt, "moving")
        self.assertEqual(report["session"], "stored")
        second, report = self.by_vllm(prompt + first + MORE, "moving")
        self.assertEqual(report["session"], "continued")
        third, report = self.by_octavo(prompt + first + MORE + second + MORE, "moving")
        self.assertEqual(report["session"], "continued")

    def text_that_extends(self):
        """A prompt and an answer whose joined text has the tokens of both."""
        prompt = "O Romeo, Romeo, wherefore art thou"
        ids = self.post("/tokenize", {"prompt": prompt})["tokens"]
        for n in range(8, 40):
            choice = self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "ignore_eos": True,
                                                   "return_token_ids": True, "retention": RETENTION})["choices"][0]
            whole = prompt + choice["text"] + "\nAnd then"
            expected = ids + choice["token_ids"][:-1]
            if self.post("/tokenize", {"prompt": whole})["tokens"][:len(expected)] == expected:
                return prompt, whole, {"max_tokens": n, "ignore_eos": True}
        self.fail("no answer of this model is what its tokenizer makes of it")

    def test_kserve(self):
        prompt, whole, fields = self.text_that_extends()
        for place in ("parameter", "sampling parameters"):
            session = f"kserve {place}"
            _, report = self.by_kserve(prompt, session, fields=fields, place=place)
            self.assertEqual(report["session"], "stored")
            second, report = self.by_kserve(whole, session, place=place)
            self.assertEqual(report["session"], "continued")
        ids = self.post("/tokenize", {"prompt": prompt})["tokens"]
        self.by_http(ids, "like kserve", fields=fields)
        expected, report = self.by_http(self.post("/tokenize", {"prompt": whole})["tokens"], "like kserve")
        self.assertEqual(report["session"], "continued")
        self.assertEqual(second, self.post("/detokenize", {"tokens": expected})["prompt"])

    def test_chat(self):
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key=KEYS["alice"], max_retries=0,
                               timeout=PATIENCE)
        self.addCleanup(client.close)
        messages = [{"role": "system", "content": "be brief"}]
        said = []
        for text in ("Good morrow", "And what of Juliet?", "What light through yonder window breaks?"):
            messages.append({"role": "user", "content": text})
            answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=20, extra_body={
                "session": "chat", "retention": RETENTION})
            choice = answer.choices[0]
            said.append(choice.retention["session"])
            messages.append({"role": "assistant", "content": choice.message.content})
        self.assertEqual(said, ["stored", "continued", "continued"])

    def test_streams_tell(self):
        body = {"prompt": tokens(50, 8), **GREEDY, "session": "streamed"}
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), self.bearer("alice"))
        text = c.getresponse().read().decode()
        c.close()
        (report,) = [e["choices"][0]["retention"] for e in map(json.loads, (
            line[6:] for line in text.splitlines() if line.startswith("data: {"))) if "retention" in e["choices"][0]]
        self.assertEqual((report["method"], report["session"]), ("full", "stored"))

    # ---- ownership

    def test_sessions_are_ones_own(self):
        prompt = tokens(80, 9)
        for ask in (self.by_http, self.by_octavo, self.by_vllm):
            session = f"mine {ask.__name__}"
            first, report = ask(prompt, session, "alice")
            self.assertEqual(report["session"], "stored")
            turn = prompt + first + MORE
            _, report = ask(turn, session, "bob")
            self.assertEqual(report["session"], "stored")
            _, report = ask(turn, session, "alice")
            self.assertEqual(report["session"], "continued")
        salted = {**GREEDY, "cache_salt": "pepper"}
        _, report = self.by_http(turn + MORE, "mine by_http", "alice", fields=salted)
        self.assertEqual(report["session"], "stored")

    def test_nothing_of_it_is_logged(self):
        self.by_http(tokens(20, 10), "a-secret-session")
        eventually("its line is there", lambda: any(
            e["event"] == "request" and e.get("retention", {}).get("session") == "stored" for e in self.server.events()))
        log = self.server.log()
        for word in ("a-secret-session", *KEYS.values()):
            self.assertNotIn(word, log)

    # ---- refused and ignored sessions

    def test_refusals(self):
        for session in ("", "s" * 257, 5, "a\0b"):
            error = self.post("/v1/completions", {"prompt": "x", **GREEDY, "session": session}, status=400)["error"]
            self.assertEqual(error["param"], "session")
            self.assertIn("session", error["message"])
        for ask, prompt in ((self.by_octavo, [1]), (self.by_vllm, [1]), (self.by_kserve, "x")):
            with self.assertRaises(grpc.RpcError) as caught:
                ask(prompt, "s" * 257)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("session", caught.exception.details())
        self.post("/v1/completions", {"prompt": "x", **GREEDY, "session": "s" * 256})

    def test_reasons(self):
        prompt = tokens(60, 11)
        self.by_http(prompt, "reasons")
        for body, reason in (({"prompt": tokens(90, 12)}, "the prompt does not extend the session"),
                             ({"prompt": prompt, "n": 2}, "n is above 1")):
            for choice in self.post("/v1/completions", {**GREEDY, "retention": RETENTION, "session": "reasons",
                                                        **body})["choices"]:
                self.assertEqual(choice["retention"]["session"], f"ignored: {reason}")
        self.assertGreaterEqual(self.server.metric("sessions_ignored_total"), 2)

    def test_metrics(self):
        before = {name: self.server.metric(f"sessions_{name}_total") for name in ("stored", "continued")}
        self.two_turns(self.by_http, "counted", tokens(40, 13))
        self.assertEqual(self.server.metric("sessions_stored_total") - before["stored"], 2)
        self.assertEqual(self.server.metric("sessions_continued_total") - before["continued"], 1)
        self.assertGreaterEqual(self.server.metric("sessions", state="idle"), 1)
        self.assertGreaterEqual(self.server.metric("sessions", state="swapped"), 0)
        self.assertGreaterEqual(self.server.metric("logical_tokens"), 40)


class ShortLife(ServeTest):
    FLAGS = ["--session-ttl", "1"]

    def test_time_ends_it(self):
        body = {"prompt": tokens(40, 14), **GREEDY, "session": "s"}
        self.assertEqual(self.server.post("/v1/completions", body)["choices"][0]["retention"]["session"], "stored")
        eventually("it is forgotten", lambda: self.server.metric("sessions_expired_total") == 1)
        self.server.idle()
        self.assertEqual(self.server.metric("sessions", state="idle"), 0)
        self.assertEqual(self.server.post("/v1/completions", body)["choices"][0]["retention"]["session"], "stored")


class Rules(ServeTest):
    """The server's rules of retention, by flags and by environment variables."""

    FLAGS = ["--retention", '{"method":"chunkkv","ratio":0.5}', "--retention-allow", "full,chunkkv"]
    ENV = {"OCTAVO_MAX_SESSIONS": "0", "OCTAVO_PRESSURE_RETENTION": "chunkkv:0.5"}

    def test_sessions_are_off(self):
        choice = self.server.post("/v1/completions", {"prompt": "x", **GREEDY, "session": "s"})["choices"][0]
        self.assertEqual(choice["retention"]["session"], "ignored: sessions are off")

    def test_default(self):
        choice = self.server.post("/v1/completions", {"prompt": tokens(300, 15), **GREEDY})["choices"][0]
        self.assertEqual(choice["retention"]["method"], "chunkkv")
        self.assertLess(choice["retention"]["kept_tokens"], 200)
        self.assertNotIn("session", choice["retention"])

    def test_only_some_may_be_named(self):
        body = {"prompt": "x", **GREEDY}
        choice = self.server.post("/v1/completions", {**body, "retention": {"method": "full"}})["choices"][0]
        self.assertEqual(choice["retention"]["method"], "full")
        error = self.server.refused("/v1/completions", {**body, "retention": {"method": "snapkv", "ratio": 0.5}})
        self.assertEqual(error["param"], "retention.method")
        self.assertIn("'snapkv' is not allowed here", error["message"])
        with grpc.insecure_channel(self.server.target) as channel, self.assertRaises(grpc.RpcError) as caught:
            list(octavo_rpc.InferenceStub(channel).Generate(octavo.GenerateRequest(
                prompt="x", retention_json='{"method":"snapkv","ratio":0.5}')))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("retention.method", caught.exception.details())


class Pressure(ServeTest):
    """A pool too small for all: requests that allow it give up pages before any is preempted."""

    MODEL = ["--model", "models/demo", "--kv-memory", "1500K", "--swap-memory", "0"]
    FLAGS = ["--pressure-retention", "chunkkv:0.3"]

    def ask(self, prompts, **retention):
        """All in one HTTP request, so that they meet however slow the client is: three of them are
        too many."""
        return self.server.post("/v1/completions", {
            "prompt": prompts, "max_tokens": 200, "ignore_eos": True, "return_token_ids": True,
            "retention": {"method": "full", **retention}})["choices"]

    def test_only_those_who_allow_it(self):
        allow, refuse = [tokens(150, i) for i in range(8)], [tokens(150, i) for i in range(20, 24)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            dropped, kept = pool.submit(self.ask, allow, pressure=True), pool.submit(self.ask, refuse)
        self.assertGreater(sum(c["retention"]["pages_dropped"] for c in dropped.result()), 0)
        self.assertGreater(self.server.metric("pressure_drops_total"), 0)
        for prompt, choice in zip(refuse, kept.result()):
            self.assertEqual(choice["retention"]["pages_dropped"], 0)
            (alone,) = self.ask([prompt])
            self.assertEqual(choice["token_ids"], alone["token_ids"])


if __name__ == "__main__":
    main()
