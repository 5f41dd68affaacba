#!/usr/bin/env python3
"""The same tokens on every surface: HTTP, octavo.v1, VllmEngine, KServe and `octavo run`.
usage: equality.py OCTAVO [unittest arguments]"""

import json
import threading

from harness import LIGHT, PATIENCE, ServeTest, eventually, main, need, run_offline, stubs, tokens

grpc = need("grpc")
octavo, octavo_rpc, vllm, vllm_rpc, kserve, kserve_rpc = stubs("octavo", "vllm_engine", "kserve")

RETENTION = {"method": "chunkkv", "ratio": 0.3}
REFORM = {"method": "reform", "gather_tokens": 256, "query_tokens": 8, "sinks": 16, "window": 16, "tokens": 256,
          "recurrent_chunk": 128}
TEXTS = ["O Romeo, Romeo, wherefore art thou", "caf\u00e9 \U0001f600 \u4f60\u597d", " leading space\n\n", "The king",
         "Romeo and Juliet. " * 50]
IDS = [tokens(1, 1), tokens(16, 2), tokens(31, 3), tokens(500, 4), tokens(1500, 5)]
GREEDY = {"max_tokens": 40, "ignore_eos": True}
WAYS = {
    "greedy": GREEDY,
    "until the end": {"max_tokens": 60},
    "seeded": {**GREEDY, "temperature": 1.0, "seed": 11},
    "shaped": {**GREEDY, "temperature": 0.8, "seed": 3, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.1,
               "frequency_penalty": 0.2, "presence_penalty": 0.1, "min_p": 0.01},
    "stopped": {**GREEDY, "stop": ["the", "you"], "temperature": 1.0, "seed": 5},
    "three": {**GREEDY, "n": 3, "temperature": 1.0, "seed": 2},
    "biased": {**GREEDY, "logit_bias": {"40": 3.5, "41": -100.0}},
}


class Equality(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.target)
        cls.addClassCleanup(cls.channel.close)
        cls.octavo = octavo_rpc.InferenceStub(cls.channel)
        cls.vllm = vllm_rpc.VllmEngineStub(cls.channel)
        cls.kserve = kserve_rpc.GRPCInferenceServiceStub(cls.channel)

    # Each returns [token ids of choice 0, 1, …]; by_kserve, which has texts only, returns [texts].

    def by_http(self, prompt, fields, retention):
        body = {"prompt": prompt, "return_token_ids": True, **fields, **({"retention": retention} if retention else {})}
        choices = self.server.post("/v1/completions", body)["choices"]
        self.texts = [c["text"] for c in choices]
        return [c["token_ids"] for c in choices]

    def by_http_stream(self, prompt, fields, retention):
        body = {"prompt": prompt, "return_token_ids": True, **fields, **({"retention": retention} if retention else {})}
        ids = [[] for _ in range(fields.get("n", 1))]
        for event in self.server.stream("/v1/completions", body):
            (choice,) = event["choices"]
            ids[choice["index"]] += choice["token_ids"]
        return ids

    def by_octavo(self, prompt, fields, retention):
        bias = [octavo.LogitBias(token_id=int(k), bias=v) for k, v in fields.get("logit_bias", {}).items()]
        r = octavo.GenerateRequest(
            sampling=octavo.SamplingParams(**{**fields, "logit_bias": bias}),
            retention_json=json.dumps(retention) if retention else "",
            **({"prompt": prompt} if isinstance(prompt, str) else {"token_ids": octavo.TokenIds(ids=prompt)}))
        ids = [[] for _ in range(fields.get("n", 1))]
        for m in self.octavo.Generate(r, timeout=PATIENCE):
            ids[m.index] += m.token_ids
        return ids

    def by_vllm(self, prompt, fields, retention, stream=False):
        bias = {int(k): v for k, v in fields.get("logit_bias", {}).items()}
        sampling = {"top_p": 1.0, "repetition_penalty": 1.0, "skip_special_tokens": True, "n": 1, **fields}
        r = vllm.GenerateRequest(
            sampling_params=vllm.SamplingParams(**{**sampling, "logit_bias": bias}), stream=stream,
            **({"text": prompt} if isinstance(prompt, str) else {"tokenized": vllm.TokenizedInput(input_ids=prompt)}))
        ids = [[] for _ in range(fields.get("n", 1))]
        metadata = [("octavo-retention", json.dumps(retention))] if retention else None
        for m in self.vllm.Generate(r, timeout=PATIENCE, metadata=metadata):
            if m.WhichOneof("response") == "complete":
                ids[m.complete.index] = list(m.complete.output_ids)
        return ids

    def by_kserve(self, prompt, fields, retention):
        r = kserve.ModelInferRequest()
        for name, text in (("text_input", prompt), ("sampling_parameters", json.dumps(fields))):
            r.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
        if retention:
            r.parameters["retention"].string_param = json.dumps(retention)
        answer = self.kserve.ModelInfer(r, timeout=PATIENCE)
        at = [o.name for o in answer.outputs].index("text_output")
        if answer.raw_output_contents:
            data, texts = answer.raw_output_contents[at], []
            while data:
                n = int.from_bytes(data[:4], "little")
                texts.append(data[4:4 + n].decode())
                data = data[4 + n:]
            return texts
        return [b.decode() for b in answer.outputs[at].contents.bytes_contents]

    def cases(self):
        for way, fields in WAYS.items():
            for i, prompt in enumerate(TEXTS + IDS):
                for retention in (None, RETENTION):
                    if way in ("greedy", "seeded") or i in (0, len(TEXTS + IDS) - 1):
                        yield f"{way}, prompt {i}, {retention}", prompt, fields, retention

    def test_same_tokens(self):
        cases = list(self.cases())[::5 if LIGHT else 1]
        offline = run_offline([
            {"id": name, **({"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": prompt}), **fields,
             **({"retention": retention} if retention else {})} for name, prompt, fields, retention in cases])
        for name, prompt, fields, retention in cases:
            n = fields.get("n", 1)
            expected = [offline[name, i]["token_ids"] for i in range(n)]
            texts = [offline[name, i]["text"] for i in range(n)]
            with self.subTest(name):
                self.assertEqual(self.by_http(prompt, fields, retention), expected, "HTTP")
                self.assertEqual(self.texts, texts, "HTTP's texts")
                self.assertEqual(self.by_http_stream(prompt, fields, retention), expected, "HTTP streaming")
                self.assertEqual(self.by_octavo(prompt, fields, retention), expected, "octavo.v1")
                self.assertEqual(self.by_vllm(prompt, fields, retention), expected, "VllmEngine")
                if isinstance(prompt, str):
                    self.assertEqual(self.by_kserve(prompt, fields, retention), texts, "KServe")

    def test_reform(self):
        """Every surface gives the same answers to method reform, and continues its sessions."""
        text = " ".join(f"Line {i}: Romeo and Juliet." for i in range(100)) + " Where is Romeo?"
        for way in ("greedy", "three"):
            fields = WAYS[way]
            expected = self.by_http(text, fields, REFORM)
            self.assertEqual(len(expected), fields.get("n", 1))
            self.assertEqual(self.by_http_stream(text, fields, REFORM), expected, "HTTP streaming")
            self.assertEqual(self.by_octavo(text, fields, REFORM), expected, "octavo.v1")
            self.assertEqual(self.by_vllm(text, fields, REFORM), expected, "VllmEngine")
            self.assertEqual(self.by_kserve(text, fields, REFORM), self.texts, "KServe")
        with self.assertRaises(grpc.RpcError) as caught:
            self.by_octavo(text, GREEDY, {**REFORM, "query_tokens": None})
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("retention.query_tokens: must be given", caught.exception.details())

        body = {"prompt": text, **GREEDY, "retention": REFORM, "session": "s"}
        first = self.server.post("/v1/completions", body)["choices"][0]["retention"]
        self.assertEqual(first["session"], "stored")
        r = octavo.GenerateRequest(prompt=text, sampling=octavo.SamplingParams(**GREEDY),
                                   retention_json=json.dumps(REFORM), session="s")
        *_, last = self.octavo.Generate(r, timeout=PATIENCE)
        again = json.loads(last.retention_json)
        self.assertEqual((again["session"], again["reform"]["read_tokens"]), ("continued", 0))
        self.assertEqual(again["reform"]["reused_tokens"], first["reform"]["read_tokens"])
        self.assertEqual(again["reform"]["recomputed_tokens"], 256)
        eventually("the embeddings are the session's alone",
                   lambda: self.server.metric("embedding_bytes") == first["reform"]["read_tokens"] * (256 + 4))
        self.server.request("DELETE", "/v1/sessions/s")
        self.assertEqual(self.server.metric("embedding_bytes"), 0)

    def test_same_tokens_at_once(self):
        """All surfaces at once, so that requests share batches."""
        cases = [(way, prompt, WAYS[way], retention) for way in ("greedy", "seeded", "three")
                 for prompt in TEXTS[:2 if LIGHT else None] for retention in (None, RETENTION)]
        expected = [self.by_octavo(*case[1:]) for case in cases]
        failures = []

        def compare(i, ask):
            got = ask(*cases[i][1:])
            if got != expected[i]:
                failures.append((ask.__name__, cases[i], got, expected[i]))

        threads = [threading.Thread(target=compare, args=(i, ask)) for i in range(len(cases))
                   for ask in (self.by_http_stream, self.by_octavo, self.by_vllm)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures, [])
        self.server.idle()

    def test_logprobs_agree(self):
        ids = tokens(100, 6)
        fields = {"max_tokens": 10, "ignore_eos": True, "logprobs": 2}
        line = run_offline([{"id": 0, "prompt_token_ids": ids, **fields}])[0, 0]
        expected = [t["logprob"] for t in line["logprobs"]["content"]]
        http = self.server.post("/v1/completions", {"prompt": ids, **fields})["choices"][0]["logprobs"]
        v1 = [lp.logprob for m in self.octavo.Generate(octavo.GenerateRequest(
            token_ids=octavo.TokenIds(ids=ids), sampling=octavo.SamplingParams(**fields))) for lp in m.logprobs]
        (engine,) = self.vllm.Generate(vllm.GenerateRequest(
            tokenized=vllm.TokenizedInput(input_ids=ids),
            sampling_params=vllm.SamplingParams(top_p=1, repetition_penalty=1, n=1, **fields)))
        for name, got in (("HTTP", http["token_logprobs"]), ("octavo.v1", v1),
                          ("VllmEngine", engine.complete.output_logprobs.token_logprobs)):
            self.assertEqual(len(got), 10)
            for a, b in zip(got, expected):
                self.assertAlmostEqual(a, b, places=5, msg=name)

    def test_chat(self):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Good morrow, caf\u00e9"}]
        line = run_offline([{"id": 0, "messages": messages, **GREEDY}])[0, 0]
        choice = self.server.post("/v1/chat/completions", {"messages": messages, "return_token_ids": True, **GREEDY})
        self.assertEqual(choice["choices"][0]["token_ids"], line["token_ids"])
        self.assertEqual(choice["choices"][0]["message"]["content"], line["text"])
        chat = octavo.Chat(messages=[octavo.ChatMessage(**m) for m in messages])
        out = list(self.octavo.Generate(octavo.GenerateRequest(chat=chat, sampling=octavo.SamplingParams(**GREEDY))))
        self.assertEqual([i for m in out for i in m.token_ids], line["token_ids"])
        self.assertEqual("".join(m.text for m in out), line["text"])


if __name__ == "__main__":
    main()
