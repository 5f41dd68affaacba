#!/usr/bin/env python3
"""VllmEngine, as a router speaks it: by stubs, and by messages made by hand from the contract's
field numbers, which tests our .proto instead of only using it.
usage: grpc_vllm.py OCTAVO [unittest arguments]"""

import hashlib
import io
import json
import re
import struct
import zipfile

from harness import CONTEXT, LONG, MODEL, PAGE, PATIENCE, SLOW, VOCAB, ServeTest, main, need, stubs, tokens, trailers

grpc = need("grpc")
common, _, pb, rpc = stubs("smg_common", "vllm_engine")

IDS = tokens(50, 1)


# ---- a wire format of our own --------------------------------------------------------------------


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """int: varint; float: fixed 32; bytes and str: length-delimited; list of ints: packed."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, list):
        value = b"".join(map(varint, value))
    elif isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields):
    return b"".join(field(number, value) for number, value in fields)


def decode(data):
    """{number: [values]}: ints, floats (fixed) and bytes."""
    def take_varint(at):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128:
                return n, at

    out, at = {}, 0
    while at < len(data):
        key, at = take_varint(at)
        kind = key & 7
        if kind == 0:
            value, at = take_varint(at)
        elif kind == 1:
            (value,), at = struct.unpack_from("<d", data, at), at + 8
        elif kind == 5:
            (value,), at = struct.unpack_from("<f", data, at), at + 4
        else:
            n, at = take_varint(at)
            value, at = data[at:at + n], at + n
        out.setdefault(key >> 3, []).append(value)
    return out


def packed(data):
    out, at = [], 0
    while at < len(data):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 128:
                break
        out.append(n)
    return out


class VllmTest(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = rpc.VllmEngineStub(cls.channel)

    def request(self, ids=None, stream=True, sampling=None, **fields):
        # As a router fills the message: fields without presence have their neutral values.
        values = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "n": 1, "max_tokens": 10,
                  "ignore_eos": True, "skip_special_tokens": True, **(sampling or {})}
        if "text" not in fields:
            fields["tokenized"] = pb.TokenizedInput(input_ids=ids or IDS)
        return pb.GenerateRequest(stream=stream, sampling_params=pb.SamplingParams(**values), **fields)

    def generate(self, *args, metadata=None, **fields):
        return list(self.stub.Generate(self.request(*args, **fields), timeout=PATIENCE, metadata=metadata))

    def refuses(self, code, data, *words, method="Generate"):
        call = self.channel.unary_stream(f"/vllm.grpc.engine.VllmEngine/{method}", lambda b: b, lambda b: b)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(data if isinstance(data, bytes) else data.SerializeToString(), timeout=PATIENCE))
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for word in words:
            self.assertIn(word, caught.exception.details())


class Generate(VllmTest):
    def test_stream_and_whole(self):
        *chunks, last = self.generate()
        self.assertEqual([m.WhichOneof("response") for m in chunks], ["chunk"] * len(chunks))
        ids = []
        for m in chunks: # one token each, or those that came while the chunk before was on its way
            self.assertTrue(m.chunk.token_ids)
            ids += m.chunk.token_ids
            self.assertEqual(m.chunk.completion_tokens, len(ids))
        self.assertEqual(len(ids), 10)
        self.assertEqual({m.chunk.prompt_tokens for m in chunks}, {50})
        (whole,) = self.generate(stream=False)
        for complete in (last.complete, whole.complete):
            self.assertEqual(list(complete.output_ids), ids)
            self.assertEqual((complete.finish_reason, complete.prompt_tokens, complete.completion_tokens),
                             ("length", 50, 10))
            self.assertIsNone(complete.WhichOneof("matched_stop"))
        self.assertEqual(whole.complete.cached_tokens, 48)

    def test_text(self):
        """The server tokenizes the text."""
        (whole,) = self.generate(text="O Romeo", stream=False)
        self.assertEqual(whole.complete.completion_tokens, 10)

    def test_choices(self):
        sampling = {"n": 3, "seed": 5, "temperature": 1.0}
        ids = {m.complete.index: list(m.complete.output_ids) for m in self.generate(stream=False, sampling=sampling)}
        self.assertEqual((sorted(ids), len(set(map(tuple, ids.values())))), ([0, 1, 2], 3))
        streamed = {0: [], 1: [], 2: []}
        for m in self.generate(sampling=sampling):
            streamed[m.chunk.index] += m.chunk.token_ids
        self.assertEqual(streamed, ids)

    def test_stops(self):
        (whole,) = self.generate(stream=False, sampling={"max_tokens": 30})
        ids = list(whole.complete.output_ids)
        stop = next(i for i in ids[5:] if i not in ids[:5])
        (end,) = self.generate(stream=False, sampling={"max_tokens": 30, "stop_token_ids": [stop]})
        self.assertEqual((end.complete.finish_reason, end.complete.matched_token_id), ("stop", stop))
        (end,) = self.generate(stream=False, sampling={"max_tokens": 30, "stop": ["e"]})
        if end.complete.finish_reason == "stop":
            self.assertEqual(end.complete.matched_stop_str, "e")
        (never,) = self.generate(stream=False, sampling={"max_tokens": 30, "logit_bias": {stop: -100.0}})
        self.assertNotIn(stop, never.complete.output_ids)

    def test_logprobs(self):
        sampling = {"logprobs": 3, "prompt_logprobs": 2}
        (whole,) = self.generate(stream=False, sampling=sampling)
        out, prompt = whole.complete.output_logprobs, whole.complete.input_logprobs
        self.assertEqual(list(out.token_ids), list(whole.complete.output_ids))
        self.assertEqual([len(out.token_logprobs), len(out.top_logprobs)], [10, 10])
        for i, top in enumerate(out.top_logprobs):
            self.assertEqual((len(top.values), top.token_ids[0]), (3, out.token_ids[i]))
            self.assertAlmostEqual(top.values[0], out.token_logprobs[i], places=5)
        self.assertEqual(list(prompt.token_ids), IDS)
        self.assertFalse(prompt.token_logprobs[0].HasField("value"))
        self.assertTrue(all(lp.value <= 0 and lp.HasField("value") for lp in prompt.token_logprobs[1:]))
        *chunks, _ = self.generate(sampling=sampling)
        self.assertEqual([v for m in chunks for v in m.chunk.output_logprobs.token_logprobs], list(out.token_logprobs))
        self.assertEqual(chunks[0].chunk.input_logprobs, prompt)
        self.assertFalse(any(m.chunk.HasField("input_logprobs") for m in chunks[1:]))

    def test_retention(self):
        ids = tokens(500, 2)
        call = self.stub.Generate(self.request(ids, stream=False), timeout=PATIENCE, metadata=[
            ("octavo-retention", '{"method":"chunkkv","ratio":0.25}')])
        list(call)
        (report,) = json.loads(trailers(call)["octavo-report"])
        self.assertEqual((report["method"], report["kept_tokens"]), ("chunkkv", 6 * PAGE + 4 + 9))
        call = self.stub.Generate(self.request(ids), timeout=PATIENCE)
        list(call)
        self.assertNotIn("octavo-report", trailers(call))
        for value in ("{", '{"method":"bananas"}', "[]"):
            with self.assertRaises(grpc.RpcError) as caught:
                self.generate(metadata=[("octavo-retention", value)])
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_retrieval(self):
        few = '{"method":"quest","block_size":%d,"local_windows_len":%d,"second_select_num":%d}'
        answers = []
        for metadata in (None, (PAGE, PAGE, 1), (PAGE, PAGE, 999)):
            call = self.stub.Generate(self.request(tokens(400, 2), stream=False, sampling={"max_tokens": 40}),
                                      timeout=PATIENCE, metadata=metadata and [("octavo-retrieval", few % metadata)])
            (m,) = list(call)
            answers.append(list(m.complete.output_ids))
            self.assertNotIn("octavo-report", trailers(call))
            self.assertEqual("octavo-retrieval-report" in trailers(call), metadata is not None)
        (report,) = json.loads(trailers(call)["octavo-retrieval-report"])
        self.assertEqual((report["rows"], report["read_tokens"]), (39, report["context_tokens"]))
        self.assertEqual(answers[0], answers[2])  # every block
        self.assertNotEqual(answers[0], answers[1])
        call = self.stub.Generate(self.request(tokens(400, 2), stream=False, sampling={"max_tokens": 40}),
                                  timeout=PATIENCE, metadata=[("octavo-retrieval", "quest:4096")])
        self.assertEqual([list(m.complete.output_ids) for m in call], [answers[0]])
        for value in ("{", '{"method":"bananas"}', "[]", few % (PAGE, 0, 1), "bananas", "quest:0"):
            with self.assertRaises(grpc.RpcError) as caught:
                self.generate(metadata=[("octavo-retrieval", value)])
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_embed(self):
        answer = self.stub.Embed(pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=IDS)), timeout=PATIENCE)
        http = self.server.post("/v1/embeddings", {"input": IDS})
        self.assertEqual(list(answer.embedding), [struct.unpack("<f", struct.pack("<f", x))[0]
                                                  for x in http["data"][0]["embedding"]])
        self.assertEqual((answer.prompt_tokens, answer.embedding_dim), (len(IDS), len(answer.embedding)))
        self.assertAlmostEqual(sum(x * x for x in answer.embedding), 1, places=5)

    def test_abort(self):
        self.assertTrue(self.stub.Abort(pb.AbortRequest(request_ids=["nobody"])) is not None)

    def test_refusals(self):
        bad, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
        for sampling, word in (({"temperature": -1.0}, "temperature"), ({"min_p": 3.0}, "min_p"),
                               ({"top_p": 2.0}, "top_p"), ({"logit_bias": {9999: 1.0}}, "logit_bias"),
                               ({"stop": ["x"] * 99}, "stop"), ({"max_tokens": CONTEXT}, str(CONTEXT))):
            self.refuses(bad, self.request(sampling=sampling), word)
        self.refuses(bad, self.request([VOCAB + 1]), "token")
        self.refuses(bad, pb.GenerateRequest(), "input")
        base = message((2, message((2, IDS))))
        self.refuses(missing, base + field(4, message((19, "x"))), "structural_tag")
        self.refuses(bad, self.request(sampling={"truncate_prompt_tokens": -2}), "truncate_prompt_tokens")
        for number, value, word in ((7, b"", "mm_inputs"), (10, b"x", "media_refs"),
                                    (11, b"x", "extra_mm_inputs"), (6, b"", "kv_transfer_params")):
            with self.subTest(word=word):
                self.refuses(missing, base + field(number, value), word)
        self.refuses(bad, base + field(8, "{"), "kv_transfer_params_json")
        for number, value, word in ((16, "{", "json_schema"), (17, "(", "regex"), (18, "x", "grammar"), (21, b"", "choice")):
            with self.subTest(word=word):
                self.refuses(bad, base + field(4, message((number, value))), word)
        for embed, word in ((b"", "tokenized"), (message((2, b"")), "prompt"), (message((2, message((2, [VOCAB])))), "token"),
                            (message((1, "x" * 200), (2, message((2, IDS)))), "request_id"),
                            (message((2, message((2, [1] * (CONTEXT + 1))))), str(CONTEXT))):
            self.refuses(bad, embed, word, method="Embed")
        self.refuses(bad, base + field(9, 3), "data_parallel_rank")


class ByHand(VllmTest):
    """The field numbers of vLLM's protocol, independent of our .proto."""

    def call(self, method, data):
        call = self.channel.unary_stream(f"/vllm.grpc.engine.VllmEngine/{method}", lambda b: b, lambda b: b)
        return [decode(m) for m in call(data, timeout=PATIENCE)]

    def generate(self, *sampling, stream=0):
        base = [(1, 0.0), (2, 1.0), (7, 1.0), (8, 6), (14, 1), (15, 1)]
        values = message(*[f for f in base if f[0] not in dict(sampling)], *sampling)
        return self.call("Generate", message((1, ""), (2, message((2, IDS))), (4, values), (5, stream)))

    def complete(self, *sampling):
        (m,) = self.generate(*sampling)
        return decode(m[2][0])

    def test_complete(self):
        c = self.complete()
        self.assertEqual((len(packed(c[1][0])), c[2], c[3], c[4]), (6, [b"length"], [50], [6]))
        self.assertNotIn(10, c)
        ids = packed(c[1][0])
        chunks = self.generate(stream=1)
        sent = []
        for m in chunks[:-1]:
            sent += packed(decode(m[1][0])[1][0])
            self.assertEqual(decode(m[1][0])[3], [len(sent)])
        self.assertEqual(sent, ids)
        self.assertEqual({decode(m[1][0])[2][0] for m in chunks[:-1]}, {50})
        self.assertEqual(packed(decode(chunks[-1][2][0])[1][0]), ids)

    def test_each_number(self):
        plain = packed(self.complete()[1][0])
        seeded = packed(self.complete((1, 1.5), (24, 7))[1][0])
        self.assertEqual(packed(self.complete((1, 1.5), (24, 7))[1][0]), seeded)
        self.assertNotEqual(seeded, plain)
        self.assertEqual(packed(self.complete((1, 1.5), (24, 7), (2, 0.0001))[1][0]), plain) # top_p
        self.assertEqual(packed(self.complete((1, 1.5), (24, 7), (3, 1))[1][0]), plain) # top_k
        self.assertEqual(packed(self.complete((1, 1.5), (24, 7), (4, 1.0))[1][0]), plain) # min_p
        self.assertEqual(len(packed(self.complete((8, 3))[1][0])), 3) # max_tokens
        bias = message((1, 40), (2, 100.0))
        self.assertEqual(packed(self.complete((26, bias))[1][0]), [40] * 6)
        # Field 5 is frequency_penalty.
        again = packed(self.complete((26, message((1, 40), (2, 50.0))), (5, 2.0))[1][0])
        self.assertEqual(again[0], 40)
        ended = self.complete((11, [plain[0]])) # stop_token_ids
        self.assertEqual((ended[2], ended[10]), ([b"stop"], [plain[0]]))
        eos = message((1, 1023), (2, 100.0))
        self.assertEqual(self.complete((26, eos), (14, 0))[2], [b"stop"]) # not ignore_eos
        self.assertEqual(self.complete((26, eos), (14, 1))[2], [b"length"])
        self.assertGreaterEqual(self.complete((26, eos), (14, 0), (9, 4))[4][0], 4) # min_tokens
        self.assertEqual(len(self.generate((15, 2))), 2) # n

    def test_forms(self):
        for number, value, pattern in ((16, '{"enum": [[1], "a"]}', r'\[\s*1\s*\]|"a"'), (17, "[0-9]{3}x", "[0-9]{3}x"),
                                       (18, 'root ::= "<" [ab]{2,9} ">"', "<[ab]{2,9}>"),
                                       (21, message((1, "yes"), (1, "not now")), "yes|not now")):
            with self.subTest(number=number):
                c = self.complete((1, 1.0), (8, 60), (14, 0), (24, 3), (number, value))
                text = self.server.post("/detokenize", {"tokens": packed(c[1][0])})["prompt"]
                self.assertRegex(text, f"^(?:{pattern})(?:<.*>)?$")
                self.assertEqual(c[2], [b"stop"])
        ids = packed(self.complete((8, 1), (20, 1))[1][0])
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids})["prompt"][0], "{")
        self.assertEqual(self.complete((20, 0)), self.complete())

    def test_logprobs(self):
        c = self.complete((22, 2), (23, 1))
        out = decode(c[6][0])
        self.assertEqual((len(out[1][0]) // 4, packed(out[2][0]), len(out[3])), (6, packed(c[1][0]), 6))
        top = decode(out[3][0])
        self.assertEqual((len(top[1][0]) // 4, packed(top[2][0])[0]), (2, packed(c[1][0])[0]))
        given = decode(c[7][0])
        self.assertEqual((len(given[1]), given[1][0], packed(given[2][0])), (50, b"", IDS))
        self.assertLessEqual(decode(given[1][1])[1][0], 0)

    def test_facts(self):
        (info,) = self.call("GetModelInfo", b"")
        self.assertEqual((info[2], info[3], info[4], info[9]), ([1], [CONTEXT], [VOCAB], [b"LlamaForCausalLM"]))
        self.assertEqual((info[8], info[12]), ([b"llama"], [1021]))
        self.assertEqual(sorted(packed(info[10][0])), [1021, 1023])
        self.assertTrue(info[1] and info[6])
        json.loads(info[14][0])
        (server,) = self.call("GetServerInfo", b"")
        self.assertEqual(server[12], [PAGE])
        self.assertGreater(server[4][0], 0)
        self.assertEqual(server.get(9, [1]), [1])
        (health,) = self.call("HealthCheck", b"")
        self.assertEqual(health[1], [1])
        (loads,) = self.call("GetLoads", b"")
        self.assertEqual(loads[3], [1])
        load = decode(loads[4][0])
        self.assertTrue(load[6][0] > 0 and load[11][0] > 0)
        self.assertEqual(load[11], server[20])
        self.assertFalse({6, 7, 8} & set(server)) # without --kv-transfer-listen and -peers
        self.assertEqual((load.get(2, [0]), load.get(3, [0])), ([0], [0]))
        (flushed,) = self.call("FlushCache", b"")
        self.assertEqual(flushed[1], [1])

    def test_tokenizer(self):
        chunks = self.call("GetTokenizer", b"")
        data = b"".join(c[1][0] for c in chunks if 1 in c)
        self.assertEqual(chunks[-1][2][0].decode().lower(), hashlib.sha256(data).hexdigest())
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            self.assertIsNone(z.testzip())
            with open(f"{MODEL}/tokenizer.json", "rb") as f:
                self.assertEqual(z.read("tokenizer.json"), f.read())

    def test_events(self):
        subscribe = self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", lambda b: b, decode)
        call = subscribe(message((1, 1)), timeout=PATIENCE) # from the first event on
        ids = tokens(2 * PAGE + 1, 77)
        list(self.stub.Generate(self.request(ids)))
        blocks, batches = [], []
        while [b[2] for b in blocks[-2:]] != [ids[:PAGE], ids[PAGE:2 * PAGE]]:
            batch = next(call)
            batches.append(batch)
            for event in map(decode, batch.get(3, [])):
                stored = decode(event[2][0]) if 2 in event else {}
                for block in map(decode, stored.get(1, [])):
                    blocks.append((block[1][0], stored.get(2), packed(block[2][0]), block[3]))
        self.assertEqual([b[3] for b in blocks[-2:]], [[PAGE]] * 2)
        self.assertIsNone(blocks[-2][1]) # the first has no parent
        self.assertIn(blocks[-1][1], (None, [blocks[-2][0]])) # in the first's event, or in its own
        numbers = [b[1][0] for b in batches]
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))
        call.cancel()


class Ending(VllmTest):
    MODEL = SLOW

    def test_abort_and_cancel(self):
        for by_id in (True, False):
            call = self.stub.Generate(self.request(sampling={"max_tokens": LONG}, request_id="r"))
            next(call)
            self.assertGreaterEqual(self.stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests, 1)
            load = self.stub.GetLoads(pb.GetLoadsRequest()).loads[0]
            page = self.server.metrics()
            labels = dict(re.findall(r'(\w+)="(\d+)"', next(k for k in page if "cache_config_info" in k)))
            self.assertEqual(load.max_total_num_tokens, int(labels["block_size"]) * int(labels["num_gpu_blocks"]))
            self.assertTrue(0 < load.num_used_tokens <= self.server.metric("logical_tokens", page) + PAGE, load)
            self.assertAlmostEqual(load.token_usage, load.num_used_tokens / load.max_total_num_tokens, places=2)
            if by_id:
                self.stub.Abort(pb.AbortRequest(request_ids=["r"]))
                self.assertEqual(list(call)[-1].complete.finish_reason, "abort")
            else:
                call.cancel()
            self.server.idle()


if __name__ == "__main__":
    main()
