#!/usr/bin/env python3
"""KServe's HTTP API as any client may send it. usage: http_kserve.py OCTAVO [unittest arguments]"""

import gzip
import json
import struct

from harness import CONTEXT, ServeTest, main

ROMEO = "O Romeo, Romeo, wherefore art thou"


def texts(*values, name="text_input", shape=None):
    return {"name": name, "datatype": "BYTES", "shape": shape or [len(values)], "data": list(values)}


def packed(*values):
    return b"".join(struct.pack("<I", len(v)) + v for v in values)


class KServe(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = json.loads(cls.server.get("/v1/models")[2])["data"][0]["id"]
        cls.path = f"/v2/models/{cls.model}"

    def infer(self, body, status=200, **options):
        return self.server.post(options.pop("path", self.path) + "/infer", body, status, **options)

    def refused(self, body, *words, status=400, **options):
        error = self.infer(body, status, **options)
        self.assertEqual(list(error), ["error"])
        for word in words:
            self.assertIn(word, error["error"])

    def tensors(self, answer):
        return {t["name"]: t["data"] for t in answer["outputs"]}

    def whole(self, prompt, **fields):
        return self.server.post("/v1/completions", {"prompt": prompt, **fields})["choices"][0]["text"]


class Infer(KServe):
    def test_json(self):
        expected = [self.whole(p, max_tokens=7) for p in (ROMEO, "The king")]
        for shape, data in (([2], [ROMEO, "The king"]), ([1, 2], [[ROMEO, "The king"]]),
                            ([2, 1], [[ROMEO], ["The king"]])):
            tensor = {"name": "text_input", "datatype": "BYTES", "shape": shape, "data": data}
            answer = self.infer({"id": "mine", "inputs": [tensor], "parameters": {"max_tokens": 7}})
            self.assertEqual((answer["id"], answer["model_name"], answer["model_version"]), ("mine", self.model, "1"))
            got = self.tensors(answer)
            self.assertEqual(got["text_output"], expected)
            self.assertEqual(got["completion_tokens"], [7, 7])
            self.assertEqual(len(got["output_ids"]), 14)
            self.assertEqual(got["index"], [0, 1])

    def test_a_path_may_name_the_version(self):
        for path in (self.path + "/versions/1", self.path):
            answer = self.infer({"inputs": [texts(ROMEO)], "parameters": {"max_tokens": 1}}, path=path)
            self.assertEqual(answer["model_version"], "1")
            self.assertNotIn("id", answer)
        self.refused({"inputs": [texts(ROMEO)]}, "version", status=404, path=self.path + "/versions/2")
        self.refused({"inputs": [texts(ROMEO)]}, "bananas", status=404, path="/v2/models/bananas")

    def test_retention(self):
        prompt, retention = "Romeo and Juliet. " * 60, {"method": "chunkkv", "ratio": 0.3}
        expected = self.whole(prompt, max_tokens=8, retention=retention)
        for value in (retention, json.dumps(retention)):
            answer = self.infer({"inputs": [texts(prompt)], "parameters": {"max_tokens": 8, "retention": value}})
            self.assertEqual(self.tensors(answer)["text_output"], [expected])
            self.assertEqual(json.loads(answer["parameters"]["retention"])[0]["method"], "chunkkv")

    def raw(self, header, data, status=200, length=None, headers=None):
        head = json.dumps(header).encode()
        c = self.server.connect()
        try:
            c.request("POST", self.path + "/infer", head + data, {
                "Inference-Header-Content-Length": str(len(head) if length is None else length), **(headers or {})})
            r = c.getresponse()
            body = r.read()
            self.assertEqual(r.status, status, body[:300])
            return r.headers, body
        finally:
            c.close()

    def test_bytes(self):
        """Tensors as bytes behind the JSON, in requests and answers, and gzip around both."""
        data = packed(ROMEO.encode())
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
        body = {"inputs": [tensor, texts('{"max_tokens": 7}', name="sampling_parameters")],
                "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}, {"name": "output_ids"}]}
        expected = self.whole(ROMEO, max_tokens=7).encode()
        headers, answer = self.raw(body, data)
        n = int(headers["Inference-Header-Content-Length"])
        self.assertEqual(headers["Content-Type"], "application/octet-stream")
        described = {t["name"]: t for t in json.loads(answer[:n])["outputs"]}
        self.assertEqual(answer[n:], packed(expected))
        self.assertEqual(described["text_output"]["parameters"]["binary_data_size"], len(expected) + 4)
        self.assertEqual(len(described["output_ids"]["data"]), 7)
        body["parameters"] = {"binary_data_output": True, "n": 32, "temperature": 1}
        del body["outputs"]
        headers, answer = self.raw(body, data, headers={"Accept-Encoding": "gzip"})
        self.assertEqual(headers["Content-Encoding"], "gzip")
        answer = gzip.decompress(answer)
        sizes = [t["parameters"]["binary_data_size"] for t in
                 json.loads(answer[:int(headers["Inference-Header-Content-Length"])])["outputs"]]
        self.assertEqual(len(answer), sum(sizes) + int(headers["Inference-Header-Content-Length"]))

    def test_hostile_bytes(self):
        def tensor(size):
            return {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1],
                                "parameters": {"binary_data_size": size}}]}
        for header, data, length, word in (
                (tensor(5), b"", None, "binary_data_size"), (tensor(-1), b"1234", None, "binary_data_size"),
                (tensor(2 ** 62), b"1234", None, "binary_data_size"), (tensor("4"), b"1234", None, "binary_data_size"),
                (tensor(4), b"\x00\x00\x00\x00more", None, "belong to no tensor"),
                (tensor(4), b"\xff\xff\xff\xff", None, "contents"), (tensor(3), b"\x00\x00\x00", None, "contents"),
                (tensor(4), b"1234", 99999, "inference-header"), (tensor(4), b"1234", -1, "inference-header"),
                (tensor(4), b"1234", "9" * 30, "inference-header"), (tensor(4), b"1234", "0x9", "inference-header"),
                (tensor(4), b"1234", 3, "body"), (tensor(4), b"1234", 0, "body")):
            with self.subTest(word=word, length=length):
                _, body = self.raw(header, data, 400, length)
                self.assertIn(word, json.loads(body)["error"])

    def test_refusals(self):
        prompt = texts(ROMEO)
        for body, word in (
                ([], "body: must be a JSON object"), ({}, "text_input"), ({"inputs": {}}, "inputs"), ({"inputs": [7]}, "inputs[0]"),
                ({"inputs": [prompt] * 17}, "inputs"), ({"inputs": [prompt, prompt]}, "twice"),
                ({"inputs": [prompt], "figs": 1}, "figs"), ({"inputs": [{**prompt, "figs": 1}]}, "figs"),
                ({"inputs": [{**prompt, "data": [7]}]}, "data"), ({"inputs": [{**prompt, "data": "x"}]}, "data"),
                ({"inputs": [{**prompt, "data": [[[[["x"]]]]]}]}, "data"), ({"inputs": [{**prompt, "data": []}]}, "contents"),
                ({"inputs": [{**prompt, "shape": [2]}]}, "contents"), ({"inputs": [{**prompt, "shape": []}]}, "shape"),
                ({"inputs": [{**prompt, "shape": [1] * 9}]}, "shape"), ({"inputs": [{**prompt, "shape": ["1"]}]}, "shape"),
                ({"inputs": [{**prompt, "datatype": "FP32"}]}, "datatype"), ({"inputs": [{**prompt, "name": 7}]}, "name"),
                ({"inputs": [{**prompt, "parameters": {"shared_memory_region": "x"}}]}, "shared_memory_region"),
                ({"inputs": [prompt], "outputs": [{"name": "figs"}]}, "figs"),
                ({"inputs": [prompt], "outputs": [{"name": "index", "parameters": {"classification": 1}}]}, "classification"),
                ({"inputs": [prompt], "outputs": [{"name": "index", "parameters": {"binary_data": 1}}]}, "binary_data"),
                ({"inputs": [prompt], "parameters": {"temperature": -1}}, "temperature"),
                ({"inputs": [prompt], "parameters": {"temperature": [1]}}, "temperature"),
                ({"inputs": [prompt], "parameters": {f"p{i}": 1 for i in range(65)}}, "parameters"),
                ({"inputs": [prompt, {"name": "stream", "datatype": "BOOL", "shape": [1], "data": [True]}]}, "stream"),
                ({"inputs": [texts("Romeo " * 5000)]}, str(CONTEXT)), ({"inputs": [prompt], "id": "x" * 129}, "id"),
                ('{"inputs": ' + "[" * 5000, "body"), ("{", "body"), ('[' + '{},' * 70000 + '{}]', "objects and lists")):
            with self.subTest(word=word):
                self.refused(body, word)
        self.assertIn("such path", self.server.post(self.path + "/figs", {}, 404)["error"])


class Facts(KServe):
    def get(self, path, status=200):
        got, _, text = self.server.get(path)
        self.assertEqual(got, status, text)
        return json.loads(text)

    def test_descriptions(self):
        self.assertEqual(self.get("/v2/health/live"), {"live": True})
        self.assertEqual(self.get("/v2/health/ready"), {"ready": True})
        self.assertIn("binary_tensor_data", self.get("/v2")["extensions"])
        self.assertTrue(self.get(self.path + "/ready")["ready"])
        model = self.get(self.path + "/versions/1")
        self.assertEqual(model, self.get(self.path))
        self.assertEqual({t["name"] for t in model["inputs"]}, {"text_input", "sampling_parameters", "stream"})
        config = self.get(self.path + "/config")
        self.assertEqual((config["name"], config["input"][0]["data_type"]), (self.model, "TYPE_STRING"))
        (index,) = self.server.post("/v2/repository/index", "")
        self.assertEqual((index["name"], index["state"]), (self.model, "READY"))
        before = self.get("/v2/models/stats")["model_stats"][0]
        self.infer({"inputs": [texts(ROMEO)], "parameters": {"max_tokens": 1}})
        after = self.get(self.path + "/stats")["model_stats"][0]
        self.assertEqual(after["inference_count"], before["inference_count"] + 1)
        for path in ("/v2/models/bananas", "/v2/models/bananas/ready", self.path + "/versions/7/config"):
            self.assertEqual(list(self.get(path, 404)), ["error"])
        self.assertIn("no such path", self.get("/v2/bananas", 404)["error"])


if __name__ == "__main__":
    main()
