#!/usr/bin/env python3
"""tritonclient[http] against the routes of /v2. usage: triton_http.py OCTAVO
[unittest arguments]"""

import json

from harness import PATIENCE, ServeTest, main, need

numpy, triton, utils = need("numpy", "tritonclient.http", "tritonclient.utils")

ROMEO = "O Romeo, Romeo, wherefore art thou"


class TritonHttp(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = triton.InferenceServerClient(f"127.0.0.1:{cls.server.http_port}", network_timeout=PATIENCE,
                                                  connection_timeout=PATIENCE)
        cls.addClassCleanup(cls.client.close)
        cls.model = json.loads(cls.server.get("/v1/models")[2])["data"][0]["id"]

    @staticmethod
    def inputs(prompts, sampling, binary):
        out = []
        for name, values in (("text_input", prompts), ("sampling_parameters", [json.dumps(sampling)])):
            array = numpy.array([v.encode() for v in values], dtype=numpy.object_)
            out.append(triton.InferInput(name, list(array.shape), "BYTES"))
            out[-1].set_data_from_numpy(array, binary_data=binary)
        return out

    def whole(self, prompt, **fields):
        return self.server.post("/v1/completions", {"prompt": prompt, **fields})["choices"][0]["text"]

    def test_states_and_facts(self):
        self.assertTrue(self.client.is_server_live() and self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(self.model) and self.client.is_model_ready(self.model, "1"))
        self.assertFalse(self.client.is_model_ready("bananas"))
        self.assertEqual(self.client.get_server_metadata()["name"], "octavo")
        self.assertEqual(self.client.get_model_metadata(self.model)["platform"], "octavo")
        self.assertEqual(self.client.get_model_config(self.model)["backend"], "octavo")
        self.assertEqual(self.client.get_model_repository_index()[0]["state"], "READY")
        for stats in (self.client.get_inference_statistics(), self.client.get_inference_statistics(self.model, "1")):
            self.assertEqual(stats["model_stats"][0]["name"], self.model)
        with self.assertRaises(utils.InferenceServerException) as caught:
            self.client.get_model_metadata("bananas")
        self.assertIn("bananas", caught.exception.message())

    def test_infer(self):
        expected = [self.whole(p, max_tokens=12) for p in (ROMEO, "The king")]
        for binary_in in (True, False):
            for outputs in (None, [triton.InferRequestedOutput("text_output", binary_data=False)],
                            [triton.InferRequestedOutput("text_output"), triton.InferRequestedOutput("output_ids")]):
                for compression in (None, "gzip"):
                    result = self.client.infer(self.model, self.inputs([ROMEO, "The king"], {"max_tokens": 12}, binary_in),
                                               outputs=outputs, request_id="mine",
                                               response_compression_algorithm=compression)
                    got = [t if isinstance(t, str) else t.decode() for t in result.as_numpy("text_output")]
                    self.assertEqual(got, expected)
                    self.assertEqual(result.get_response()["id"], "mine")
        self.assertEqual(list(self.client.infer(self.model, self.inputs([ROMEO], {"max_tokens": 12}, True))
                              .as_numpy("completion_tokens")), [12])

    def test_parameters_and_async(self):
        request = self.client.async_infer(self.model, self.inputs([ROMEO], {}, True),
                                          parameters={"max_tokens": 12, "seed": 7, "temperature": 1.0})
        got = request.get_result(timeout=PATIENCE).as_numpy("text_output")[0].decode()
        self.assertEqual(got, self.whole(ROMEO, max_tokens=12, seed=7, temperature=1.0))

    def test_refusals(self):
        for word, call in (("bananas", lambda: self.client.infer("bananas", self.inputs([ROMEO], {}, True))),
                           ("figs", lambda: self.client.infer(self.model, self.inputs([ROMEO], {"figs": 1}, True))),
                           ("text_input", lambda: self.client.infer(self.model, self.inputs([ROMEO], {}, True)[1:]))):
            with self.assertRaises(utils.InferenceServerException) as caught:
                call()
            self.assertIn(word, caught.exception.message())


if __name__ == "__main__":
    main()
