#!/usr/bin/env python3
"""octavo.v1 by grpcio with stubs made from proto/octavo.proto: its answers and its refusals.
usage: grpc_octavo.py OCTAVO [unittest arguments]"""

import json
import math
import threading

from harness import CONTEXT, LIGHT, LONG, PAGE, PATIENCE, SLOW, VOCAB, ServeTest, eventually, main, need, stubs, tokens
from harness import trailers

grpc = need("grpc")
pb, rpc, rpc_status, _ = stubs("octavo", "google_rpc")

ROMEO = "O Romeo, Romeo, wherefore art thou"


class OctavoTest(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = rpc.InferenceStub(cls.channel)

    def request(self, prompt=ROMEO, sampling=None, **fields):
        if isinstance(prompt, str):
            fields["prompt"] = prompt
        elif prompt and isinstance(prompt[0], int):
            fields["token_ids"] = pb.TokenIds(ids=prompt)
        return pb.GenerateRequest(sampling=pb.SamplingParams(**{"max_tokens": 10, **(sampling or {})}), **fields)

    def generate(self, *args, **fields):
        """All messages of a request that succeeds."""
        return list(self.stub.Generate(self.request(*args, **fields), timeout=PATIENCE))

    def refuses(self, code, call, *words):
        with self.assertRaises(grpc.RpcError) as caught:
            r = call()
            if not hasattr(r, "DESCRIPTOR"):
                list(r)
        e = caught.exception
        self.assertEqual(e.code(), code, e.details())
        for word in words:
            self.assertIn(word, e.details())
        return e


class Generate(OctavoTest):
    def test_stream(self):
        messages = self.generate(sampling={"max_tokens": 12})
        # A message has several tokens where they came while the one before was on its way.
        self.assertEqual(sum(len(m.token_ids) for m in messages), 12)
        self.assertTrue(all(m.token_ids for m in messages))
        self.assertEqual({m.index for m in messages}, {0})
        self.assertEqual({m.request_id for m in messages}, {messages[0].request_id})
        self.assertTrue(messages[0].request_id)
        self.assertEqual([m.finish_reason for m in messages], [""] * (len(messages) - 1) + ["length"])
        last = messages[-1]
        self.assertEqual(last.usage.completion_tokens, 12)
        prompt = list(messages[0].prompt.token_ids)
        self.assertEqual(last.usage.prompt_tokens, len(prompt))
        self.assertTrue(0 <= last.timings.queue_ms <= last.timings.ttft_ms <= last.timings.total_ms)
        self.assertFalse(any(m.HasField("prompt") for m in messages[1:]))
        self.assertFalse(any(m.HasField("usage") or m.HasField("timings") for m in messages[:-1]))
        ids = [i for m in messages for i in m.token_ids]
        text = self.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=True)).text
        self.assertEqual("".join(m.text for m in messages), text)
        self.assertEqual([i for m in self.generate(prompt, {"max_tokens": 12}) for i in m.token_ids], ids)
        self.assertEqual(self.generate(request_id="mine")[0].request_id, "mine")

    def test_chat(self):
        chat = pb.Chat(messages=[pb.ChatMessage(role="system", content="be brief"),
                                 pb.ChatMessage(role="user", content="Good morrow")])
        (first, *_) = self.generate(prompt=None, chat=chat)
        self.assertEqual(list(first.prompt.token_ids),
                         list(self.stub.Tokenize(pb.TokenizeRequest(chat=chat)).token_ids))

    def test_choices(self):
        sampling = {"n": 3, "seed": 5, "temperature": 1.0, "ignore_eos": True}
        first, again = ({i: [t for m in ms if m.index == i for t in m.token_ids] for i in range(3)}
                        for ms in (self.generate(sampling=sampling), self.generate(sampling=sampling)))
        self.assertEqual(first, again)
        self.assertEqual([len(ids) for ids in first.values()], [10] * 3)
        self.assertEqual(len(set(map(tuple, first.values()))), 3)
        ends = [m for m in self.generate(sampling=sampling) if m.finish_reason]
        self.assertEqual(sorted(m.index for m in ends), [0, 1, 2])
        self.assertTrue(all(m.usage.completion_tokens == 10 for m in ends))

    def test_stops(self):
        messages = self.generate(sampling={"max_tokens": 30})
        whole, ids = "".join(m.text for m in messages), [i for m in messages for i in m.token_ids]
        stop = whole[8:12]
        cut = self.generate(sampling={"max_tokens": 30, "stop": ["\u2603", stop]})
        self.assertEqual("".join(m.text for m in cut), whole[:whole.index(stop)])
        self.assertEqual((cut[-1].finish_reason, cut[-1].stop_string), ("stop", stop))
        kept = self.generate(sampling={"max_tokens": 30, "stop": [stop], "include_stop_str_in_output": True})
        self.assertEqual("".join(m.text for m in kept), whole[:whole.index(stop)] + stop)
        at = next(i for i in ids[5:] if i not in ids[:5])
        end = self.generate(sampling={"max_tokens": 30, "stop_token_ids": [at]})[-1]
        self.assertEqual((end.finish_reason, end.WhichOneof("matched_stop"), end.stop_token_id),
                         ("stop", "stop_token_id", at))
        self.assertIsNone(messages[-1].WhichOneof("matched_stop"))

    def test_logprobs(self):
        ids = tokens(30, 1)
        messages = self.generate(ids, {"logprobs": 3, "prompt_logprobs": 2, "ignore_eos": True})
        for m in messages:
            self.assertEqual([lp.token_id for lp in m.logprobs], list(m.token_ids))
        for lp in (lp for m in messages for lp in m.logprobs):
            self.assertEqual((lp.rank, len(lp.top), lp.top[0].token_id), (1, 3, lp.token_id))
            self.assertEqual(lp.top[0].token, lp.token)
            self.assertAlmostEqual(lp.top[0].logprob, lp.logprob, places=5)
            self.assertLessEqual(sum(math.exp(t.logprob) for t in lp.top), 1.0001)
        prompt = messages[0].prompt
        self.assertEqual(list(prompt.token_ids), ids)
        self.assertEqual([lp.token_id for lp in prompt.logprobs], ids)
        self.assertEqual(prompt.logprobs[0].rank, 0)
        self.assertTrue(all(lp.rank >= 1 and lp.logprob <= 0 and len(lp.top) == 2 for lp in prompt.logprobs[1:]))
        scored = self.generate(ids, {"max_tokens": 0, "prompt_logprobs": 2})
        self.assertEqual([list(m.token_ids) for m in scored if m.token_ids], [])
        self.assertEqual([round(lp.logprob, 5) for lp in scored[0].prompt.logprobs],
                         [round(lp.logprob, 5) for lp in prompt.logprobs])
        self.assertEqual((scored[-1].finish_reason, scored[-1].usage.completion_tokens), ("length", 0))
        self.refuses(grpc.StatusCode.INVALID_ARGUMENT, lambda: self.stub.Generate(
            self.request(sampling={"max_tokens": 0})), "max_tokens")

    def test_progress(self):
        n = 1100 if LIGHT else 3000
        for seed in range(50):  # a prompt that is done before the stream is read has no progress
            ids = tokens(n, 200 + seed)
            messages = self.generate(ids, {"max_tokens": 3, "ignore_eos": True, "prompt_logprobs": 0}, progress=True)
            told = [m.progress for m in messages if m.HasField("progress")]
            if told:
                break
        self.assertTrue(all((p.phase, p.total_tokens) == ("prefill", n) for p in told))
        computed = [p.computed_tokens for p in told]
        self.assertEqual(computed, sorted(set(computed)))
        self.assertTrue(0 < computed[0] and computed[-1] < n, computed)
        self.assertTrue(all(m.HasField("progress") and not m.HasField("prompt") and not m.token_ids
                            for m in messages[:len(told)]))
        self.assertEqual([i for m in messages for i in m.prompt.token_ids], ids)
        self.assertEqual(sum(len(m.token_ids) for m in messages), 3)
        self.assertFalse(any(m.HasField("progress") for m in self.generate(tokens(n, 199))))

    def test_cached(self):
        ids = tokens(100, 2)
        for expected in (0, 96):
            self.assertEqual(self.generate(ids)[-1].usage.cached_tokens, expected)
        self.assertEqual(self.generate(ids, cache_salt="x")[-1].usage.cached_tokens, 0)
        self.stub.FlushCache(pb.FlushCacheRequest())
        self.assertEqual(self.generate(ids)[-1].usage.cached_tokens, 0)

    def test_retention(self):
        ids = tokens(500, 3)
        messages = self.generate(ids, {"ignore_eos": True}, retention_json='{"method":"chunkkv","ratio":0.25}')
        report = json.loads(messages[-1].retention_json)
        self.assertEqual((report["method"], report["logical_tokens"], report["kept_tokens"]),
                         ("chunkkv", 509, 6 * PAGE + 4 + 9))
        self.assertFalse(any(m.retention_json for m in messages[:-1]))
        self.assertEqual(self.generate(ids)[-1].retention_json, "")

    def test_forms(self):
        sampling = {"max_tokens": 60, "temperature": 1.0, "seed": 3, "n": 3}
        for form, pattern in (({"json": {"enum": [[1], "a"]}}, r'\[\s*1\s*\]|"a"'), ({"regex": "[0-9]{3}x"}, "[0-9]{3}x"),
                              ({"choice": ["yes", "not now"]}, "yes|not now"),
                              ({"grammar": 'root ::= "<" [ab]{2,9} ">"'}, "<[ab]{2,9}>")):
            with self.subTest(form=form):
                messages = self.generate(sampling=sampling, structured_outputs_json=json.dumps(form))
                for i in range(3):
                    self.assertRegex("".join(m.text for m in messages if m.index == i), f"^(?:{pattern})$")
                self.assertEqual({m.finish_reason for m in messages if m.finish_reason}, {"stop"})
        (first, *_) = self.generate(structured_outputs_json='{"json_object": true}', sampling={"max_tokens": 1})
        self.assertEqual(first.text[0], "{")

    def test_tokens_that_may_be_drawn(self):
        a, b = (self.stub.Tokenize(pb.TokenizeRequest(prompt=text)).token_ids[0] for text in "ab")
        sampling = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "allowed_token_ids": [a, b]}
        self.assertEqual(set("".join(m.text for m in self.generate(sampling=sampling))), set("ab"))
        sampling["bad_words"] = ["b"]
        self.assertEqual(set("".join(m.text for m in self.generate(sampling=sampling))), {"a"})

    def test_refusals(self):
        for word, fields in {
            "bananas": {"retention_json": '{"method":"bananas"}'}, "retention": {"retention_json": "{"},
            "structured_outputs_json: must give one form": {"structured_outputs_json": "{}"},
            "structured_outputs_json": {"structured_outputs_json": '{"regex": "("}'},
            "prompt": {"prompt": None}, "temperature": {"sampling": {"temperature": -1.0}},
            "top_p": {"sampling": {"top_p": 0}}, "n": {"sampling": {"n": 0}}, "stop": {"sampling": {"stop": ["x"] * 99}},
            "logit_bias": {"sampling": {"logit_bias": [pb.LogitBias(token_id=9999, bias=1)]}},
            "token": {"prompt": [5000]}, str(CONTEXT): {"prompt": tokens(CONTEXT + 1, 1)},
            "messages": {"prompt": None, "chat": pb.Chat()},
            "tools": {"prompt": None, "chat": pb.Chat(messages=[pb.ChatMessage(role="user")], tools_json="{")},
            "logprobs": {"sampling": {"logprobs": 100000}}, "min_p": {"sampling": {"min_p": math.nan}},
        }.items():
            with self.subTest(word=word):
                self.refuses(grpc.StatusCode.INVALID_ARGUMENT,
                             lambda fields=fields: self.stub.Generate(self.request(**fields)), word)
        self.refuses(grpc.StatusCode.NOT_FOUND, lambda: self.stub.Generate(self.request(model="bananas")), "bananas")

    def test_other_methods(self):
        r = self.stub.Tokenize(pb.TokenizeRequest(prompt="caf\u00e9 \U0001f600"))
        self.assertEqual(r.max_model_len, CONTEXT)
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(token_ids=r.token_ids)).text, "caf\u00e9 \U0001f600")
        self.refuses(grpc.StatusCode.INVALID_ARGUMENT,
                     lambda: self.stub.Detokenize(pb.DetokenizeRequest(token_ids=[VOCAB + 9])), str(VOCAB + 9))
        self.refuses(grpc.StatusCode.INVALID_ARGUMENT, lambda: self.stub.Tokenize(pb.TokenizeRequest()), "prompt")
        model = self.stub.ModelInfo(pb.ModelInfoRequest())
        self.assertEqual((model.architecture, model.vocab_size, model.max_model_len, model.has_chat_template),
                         ("LlamaForCausalLM", VOCAB, CONTEXT, True))
        self.assertEqual(sorted(model.eos_token_ids), [1021, 1023])
        self.assertIn("chunkkv", model.retention_methods)
        server = self.stub.ServerInfo(pb.ServerInfoRequest())
        self.assertEqual((server.state, server.page_tokens), ("serving", PAGE))
        self.assertTrue(server.version and server.isa and server.total_pages and server.max_batch)
        self.assertGreater(server.uptime_seconds, 0)
        loads = self.stub.Loads(pb.LoadsRequest())
        self.assertEqual(loads.total_pages, server.total_pages)
        before = loads.generated_tokens_total
        self.generate(sampling={"ignore_eos": True})
        eventually("tokens are counted",
                   lambda: self.stub.Loads(pb.LoadsRequest()).generated_tokens_total == before + 10)

    def test_text_with_nul(self):
        text = "a\0b"
        ids = list(self.stub.Tokenize(pb.TokenizeRequest(prompt=text)).token_ids)
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text, text)
        self.assertEqual(list(self.generate(text)[0].prompt.token_ids), ids)

    def test_bare_bytes(self):
        """Messages that no stub would send."""
        for path, data, code in (
            ("/octavo.v1.Inference/Generate", b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
            # The text is not UTF-8.
            ("/octavo.v1.Inference/Generate", b"\x1a\x02\xff\xfe", grpc.StatusCode.INVALID_ARGUMENT),
            ("/octavo.v1.Inference/Generate", b"\x1a\xff\xff\xff\xff\x0f", grpc.StatusCode.INVALID_ARGUMENT),
            ("/octavo.v1.Inference/Tokenize", b"\x0a\x05ab", grpc.StatusCode.INVALID_ARGUMENT),
            ("/octavo.v1.Inference/Bananas", b"", grpc.StatusCode.UNIMPLEMENTED),
            ("/bananas", b"", grpc.StatusCode.UNIMPLEMENTED),
            ("/octavo.v1.Bananas/Generate", b"", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with self.subTest(path=path, data=data):
                call = self.channel.unary_stream(path, lambda b: b, lambda b: b)
                self.refuses(code, lambda call=call, data=data: call(data, timeout=PATIENCE))
        unknown = self.channel.unary_stream("/octavo.v1.Inference/Generate", lambda b: b, lambda b: b)
        data = self.request().SerializeToString() + b"\x98\x06\x01" # field 99: from a newer client
        answer = [pb.GenerateResponse.FromString(m) for m in unknown(data)]
        self.assertEqual(sum(len(m.token_ids) for m in answer), 10)


class Giant(OctavoTest):
    FLAGS = ["--max-body", "100000"]

    def test_messages_too_large(self):
        self.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.stub.Generate(self.request("x" * 100001)))
        # gRPC now and then closes the connection of a call with too many headers behind its answer.
        with grpc.insecure_channel(self.server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = rpc.InferenceStub(channel)
            self.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED,
                         lambda: stub.Generate(self.request(), metadata=[("x-large", "y" * 100000)]))
        empty = pb.GenerateRequest(sampling=pb.SamplingParams(logit_bias=[pb.LogitBias()] * 20000))
        self.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.stub.Generate(empty))
        self.assertTrue(self.generate())

    def test_counts(self):
        """What gRPC itself refuses is counted and logged with the code that its client gets, and a
        call whose client leaves before its message as cancelled."""
        generate = "/octavo.v1.Inference/Generate"
        self.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.stub.Generate(self.request("x" * 100001)))
        self.refuses(grpc.StatusCode.UNIMPLEMENTED,
                     lambda: self.stub.Generate(self.request("x" * 1000), compression=grpc.Compression.Gzip))
        self.refuses(grpc.StatusCode.UNIMPLEMENTED, lambda: self.channel.unary_stream("/a.b/C")(b""))
        eventually("one counts as cancelled", lambda: self.leave(generate))
        for code, method in (("RESOURCE_EXHAUSTED", generate), ("UNIMPLEMENTED", generate), ("UNIMPLEMENTED", "other")):
            eventually(f"{code} of {method}", lambda c=code, m=method: self.n_counted(c, m) > 0)
        for message in ("the message is too large", "compression is not supported", "there is no such method"):
            eventually(message, lambda m=message: f'{m}"' in self.server.log())
        self.assertNotIn("the message is missing", self.server.log())

    def leave(self, method):
        """Opens a call and cancels it before its message; whether such a call has been counted."""
        left = threading.Event()
        call = self.channel.stream_stream(method)(iter(lambda: left.wait(PATIENCE), True))
        left.wait(0.05) # time for the call to reach the server
        call.cancel()
        left.set()
        return self.n_counted("CANCELLED", method) > 0

    def n_counted(self, code, method):
        return sum(value for name, value in self.server.metrics().items()
                   if "grpc_requests_total" in name and f'code="{code}"' in name and f'method="{method}"' in name)


class Ending(OctavoTest):
    """Requests that end early."""

    MODEL = SLOW

    def long(self, **fields):
        return self.request(sampling={"max_tokens": LONG, "ignore_eos": True}, **fields)

    def test_cancelled(self):
        calls = [self.stub.Generate(self.long()) for _ in range(4)]
        for call in calls:
            next(call)
        self.assertGreaterEqual(self.stub.Loads(pb.LoadsRequest()).used_pages, 4)
        for call in calls:
            call.cancel()
        eventually("all pages are back", lambda: self.stub.Loads(pb.LoadsRequest()).used_pages == 0)
        self.server.idle()

    def test_client_gone(self):
        with grpc.insecure_channel(self.server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            calls = [rpc.InferenceStub(channel).Generate(self.long()) for _ in range(4)]
            for call in calls:
                next(call)
        self.server.idle()

    def test_deadline(self):
        e = self.refuses(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: self.stub.Generate(self.long(), timeout=0.5))
        self.assertTrue(e)
        self.server.idle()

    def test_abort(self):
        call = self.stub.Generate(self.long(request_id="one"))
        next(call)
        e = self.refuses(grpc.StatusCode.INVALID_ARGUMENT, lambda: self.stub.Generate(self.request(request_id="one")))
        self.assertIn("request_id", e.details())
        self.assertEqual(self.stub.Abort(pb.AbortRequest(request_ids=["one", "two"])).aborted, 1)
        last = list(call)[-1]
        self.assertEqual(last.finish_reason, "abort")
        self.assertEqual(self.stub.Abort(pb.AbortRequest(request_ids=["one"])).aborted, 0)
        self.server.idle()

    def test_abort_of_http(self):
        """Aborts by the id that the HTTP client chose."""
        answers = []

        def ask():
            body = json.dumps({"prompt": "O", "max_tokens": LONG, "ignore_eos": True})
            answers.append(self.server.request("POST", "/v1/completions", body, {"X-Request-Id": "web"}))

        thread = threading.Thread(target=ask)
        thread.start()
        eventually("it runs", lambda: self.stub.Abort(pb.AbortRequest(request_ids=["web"])).aborted == 1)
        thread.join(PATIENCE)
        ((status, _, text),) = answers
        self.assertEqual((status, json.loads(text)["choices"][0]["finish_reason"]), (200, "abort"))

    def test_slow_reader_holds_up_no_other_client(self):
        stuck = [self.stub.Generate(self.long()) for _ in range(3)]
        self.assertEqual(self.generate(sampling={"ignore_eos": True})[-1].usage.completion_tokens, 10)
        for call in stuck:
            call.cancel()
        self.server.idle()


class Full(OctavoTest):
    FLAGS = ["--max-requests", "2"]
    MODEL = SLOW

    def test_exhausted(self):
        running = [self.stub.Generate(self.request(sampling={"max_tokens": LONG, "ignore_eos": True}))
                   for _ in range(2)]
        for call in running:
            next(call)
        e = self.refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: self.stub.Generate(self.request()))
        said = trailers(e)
        self.assertGreater(int(said["retry-after-ms"]), 0)
        details = rpc_status.Status.FromString(said["grpc-status-details-bin"])
        self.assertEqual(details.code, 8)
        self.assertEqual([d.type_url for d in details.details], ["type.googleapis.com/google.rpc.RetryInfo"])
        status, headers, text = self.server.request("POST", "/v1/completions", '{"prompt":"x"}')
        self.assertEqual(status, 503, text)
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertGreaterEqual(self.server.metric("admission_rejections_total"), 2)
        for call in running:
            call.cancel()
        self.server.idle()
        self.assertEqual(self.generate()[-1].usage.completion_tokens, 10)


if __name__ == "__main__":
    main()
