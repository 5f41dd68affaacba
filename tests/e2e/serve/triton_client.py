#!/usr/bin/env python3
"""tritonclient[grpc] against the KServe v2 service. usage: triton_client.py OCTAVO
[unittest arguments]"""

import json
import queue
import threading

from harness import CONTEXT, LONG, PATIENCE, SLOW, ServeTest, eventually, main, need, stubs

grpc, numpy, triton, utils = need("grpc", "numpy", "tritonclient.grpc", "tritonclient.utils")
pb, rpc = stubs("octavo")

ROMEO = "O Romeo, Romeo, wherefore art thou"


class TritonTest(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = triton.InferenceServerClient(cls.server.target)
        cls.addClassCleanup(cls.client.close)
        cls.model = json.loads(cls.server.get("/v1/models")[2])["data"][0]["id"]

    @staticmethod
    def inputs(prompts, sampling=None, stream=None, shape=None):
        def tensor(name, values, kind, shape=None):
            array = numpy.array(values, dtype=numpy.object_ if kind == "BYTES" else bool)
            array = array.reshape(shape or array.shape)
            t = triton.InferInput(name, list(array.shape), kind)
            t.set_data_from_numpy(array)
            return t

        out = [tensor("text_input", [p.encode() for p in prompts], "BYTES", shape)]
        if sampling is not None:
            out.append(tensor("sampling_parameters", [json.dumps(sampling).encode()], "BYTES"))
        if stream is not None:
            out.append(tensor("stream", [stream], "BOOL"))
        return out

    def infer(self, prompts, sampling=None, shape=None, parameters=None, **options):
        return self.client.infer(options.pop("model", self.model), self.inputs(prompts, sampling, shape=shape),
                                 parameters=parameters, client_timeout=PATIENCE, **options)

    @staticmethod
    def texts(result, name="text_output"):
        return [b.decode() for b in result.as_numpy(name).reshape(-1)]

    def whole(self, prompt, **fields):
        """The answer over HTTP."""
        return self.server.post("/v1/completions", {"prompt": prompt, **fields})["choices"][0]["text"]


class Facts(TritonTest):
    def test_states(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(self.model))
        try:
            self.assertFalse(self.client.is_model_ready("bananas"))
        except utils.InferenceServerException as e:
            self.assertIn("NOT_FOUND", e.status())

    def test_metadata(self):
        server = self.client.get_server_metadata()
        self.assertTrue(server.name and server.version)
        model = self.client.get_model_metadata(self.model)
        self.assertEqual(model.name, self.model)
        inputs = {t.name: t.datatype for t in model.inputs}
        self.assertEqual(inputs, {"text_input": "BYTES", "sampling_parameters": "BYTES", "stream": "BOOL"})
        self.assertIn("text_output", {t.name for t in model.outputs})
        with self.assertRaises(utils.InferenceServerException):
            self.client.get_model_metadata("bananas")

    def test_config(self):
        config = self.client.get_model_config(self.model).config
        self.assertEqual((config.name, config.backend, config.max_batch_size), (self.model, "octavo", 0))
        self.assertTrue(config.model_transaction_policy.decoupled)
        self.assertEqual({i.name: (i.data_type, list(i.dims), i.optional) for i in config.input}, {
            "text_input": (13, [-1], False), "sampling_parameters": (13, [1], True), "stream": (1, [1], True)})
        outputs = {o.name: (o.data_type, list(o.dims)) for o in config.output}
        self.assertEqual(outputs["text_output"], (13, [-1]))
        self.assertEqual(outputs["output_ids"], (8, [-1]))
        with self.assertRaises(utils.InferenceServerException):
            self.client.get_model_config("bananas")

    def test_index(self):
        (row,) = self.client.get_model_repository_index().models
        self.assertEqual((row.name, row.version, row.state, row.reason), (self.model, "1", "READY", ""))

    def test_statistics(self):
        def count():
            (row,) = self.client.get_inference_statistics().model_stats
            self.assertEqual(row, self.client.get_inference_statistics(self.model, "1").model_stats[0])
            return row
        before = count()
        self.infer([ROMEO], {"max_tokens": 5})
        with self.assertRaises(utils.InferenceServerException):
            self.infer(["Romeo " * 5000], {"max_tokens": 1})
        after, parts = count(), count().inference_stats
        self.assertEqual((after.name, after.version), (self.model, "1"))
        self.assertEqual(after.inference_count, before.inference_count + 1)
        self.assertGreaterEqual(after.execution_count, before.execution_count + 5)
        self.assertEqual(parts.success.count, before.inference_stats.success.count + 1)
        self.assertEqual(parts.fail.count, before.inference_stats.fail.count + 1)
        self.assertGreater(parts.compute_input.ns, before.inference_stats.compute_input.ns)
        with self.assertRaises(utils.InferenceServerException):
            self.client.get_inference_statistics("bananas")


class Infer(TritonTest):
    def test_texts(self):
        expected = self.whole(ROMEO, max_tokens=12)
        r = self.infer([ROMEO], {"max_tokens": 12}, request_id="mine")
        self.assertEqual(self.texts(r), [expected])
        self.assertEqual(r.get_response().id, "mine")
        self.assertEqual(r.get_response().model_name, self.model)
        self.assertEqual(self.texts(self.infer([ROMEO], parameters={"max_tokens": 12})), [expected])
        other = self.whole("The king", max_tokens=12)
        for shape in ((2,), (1, 2), (2, 1)):
            r = self.infer([ROMEO, "The king"], {"max_tokens": 12}, shape=shape)
            self.assertEqual(self.texts(r), [expected, other])

    def test_seeded(self):
        fields = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
        self.assertEqual(self.texts(self.infer([ROMEO], fields)), [self.whole(ROMEO, **fields)])

    def test_retention(self):
        prompt = "Romeo and Juliet. " * 30
        r = self.infer([prompt], {"max_tokens": 8}, parameters={"retention": '{"method":"chunkkv","ratio":0.3}'})
        expected = self.whole(prompt, max_tokens=8, retention={"method": "chunkkv", "ratio": 0.3})
        self.assertEqual(self.texts(r), [expected])

    def test_refusals(self):
        for word, call in {
            "bananas": lambda: self.infer([ROMEO], {"bananas": 1}),
            "temperature": lambda: self.infer([ROMEO], {"temperature": -1}),
            "cherries": lambda: self.infer([ROMEO], parameters={"cherries": 1}),
            "dates": lambda: self.infer([ROMEO], model="dates"),
            "retention": lambda: self.infer([ROMEO], parameters={"retention": "{"}),
            str(CONTEXT): lambda: self.infer(["Romeo " * 5000], {"max_tokens": 1}),
            "text_input": lambda: self.client.infer(self.model, self.inputs([ROMEO], {"max_tokens": 1})[1:]),
            "figs": lambda: self.infer([ROMEO], {"max_tokens": 1}, outputs=[triton.InferRequestedOutput("figs")]),
        }.items():
            with self.subTest(word=word), self.assertRaises(utils.InferenceServerException) as caught:
                call()
            self.assertIn(word, caught.exception.message())

    def test_chosen_output(self):
        r = self.infer([ROMEO], {"max_tokens": 3}, outputs=[triton.InferRequestedOutput("text_output")])
        self.assertEqual([o.name for o in r.get_response().outputs], ["text_output"])


class Stream(TritonTest):
    def stream(self, *requests, settle=None):
        """Results of requests on one stream, until each has had its final response."""
        results = queue.Queue()
        with triton.InferenceServerClient(self.server.target) as client:
            client.start_stream(lambda result, error: results.put((result, error)), stream_timeout=PATIENCE)
            for i, inputs in enumerate(requests):
                client.async_stream_infer(self.model, inputs, request_id=str(i), enable_empty_final_response=True)
            finals, out = 0, []
            while finals < (len(requests) if settle is None else settle):
                result, error = results.get(timeout=PATIENCE)
                out.append((result, error))
                if error or result.get_response().parameters["triton_final_response"].bool_param:
                    finals += 1
            client.stop_stream(cancel_requests=settle is not None)
        return out

    def test_tokens(self):
        expected = self.whole(ROMEO, max_tokens=12, ignore_eos=True)
        out = self.stream(self.inputs([ROMEO], {"max_tokens": 12, "ignore_eos": True}, stream=True))
        self.assertEqual([e for _, e in out], [None] * len(out))
        texts = [t for r, _ in out if r.get_response().outputs for t in self.texts(r)]
        self.assertEqual("".join(texts), expected)
        # A response for each token, or for those that came while the one before was on its way, and
        # perhaps an empty final one.
        self.assertIn(len(out), range(1, 14))
        self.assertEqual({r.get_response().id for r, _ in out}, {"0"})

    def test_whole(self):
        out = self.stream(self.inputs([ROMEO], {"max_tokens": 12}, stream=False))
        texts = [t for r, _ in out if r.get_response().outputs for t in self.texts(r)]
        self.assertEqual(texts, [self.whole(ROMEO, max_tokens=12)])

    def test_one_after_the_other(self):
        requests = [self.inputs([p], {"max_tokens": 6, "ignore_eos": True}, stream=True)
                    for p in (ROMEO, "The king", "Good morrow")]
        out = self.stream(*requests)
        ids = [r.get_response().id for r, _ in out]
        self.assertEqual(ids, sorted(ids))
        self.assertEqual(sorted(set(ids)), ["0", "1", "2"])

    def test_error_in_the_middle(self):
        """A bad request is answered in its place; the stream continues."""
        out = self.stream(self.inputs([ROMEO], {"bananas": 1}), self.inputs([ROMEO], {"max_tokens": 3}, stream=False))
        errors = [e for _, e in out if e]
        self.assertEqual(len(errors), 1)
        self.assertIn("bananas", errors[0].message())
        self.assertTrue(any(r and r.get_response().outputs for r, _ in out))


class Vanished(TritonTest):
    MODEL = SLOW

    def test_abort_by_id(self):
        """A request's id is the one that Abort ends and the log shows. Triton's clients count their
        requests, so two of them may have the same id: both run, and both are ended."""
        finishes = queue.Queue()
        threads = [threading.Thread(target=self.run_long, args=("7", finishes), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually("both run", lambda: self.server.metric("num_requests_running") == 2)
        with grpc.insecure_channel(self.server.target) as channel:
            abort = rpc.InferenceStub(channel).Abort
            self.assertEqual(abort(pb.AbortRequest(request_ids=["7"])).aborted, 2)
            self.assertEqual([finishes.get(timeout=PATIENCE) for _ in range(2)], [["abort"], ["abort"]])
            self.assertEqual(abort(pb.AbortRequest(request_ids=["7"])).aborted, 0)
        eventually("the log shows the id", lambda: self.server.log().count('"id":"7"') == 2)

    def run_long(self, name, finishes):
        with triton.InferenceServerClient(self.server.target) as client:
            result = client.infer(self.model, self.inputs(["O"], {"max_tokens": LONG, "ignore_eos": True}),
                                  request_id=name, client_timeout=PATIENCE)
            finishes.put(self.texts(result, "finish_reason"))

    def test_pages_come_back(self):
        results = queue.Queue()
        client = triton.InferenceServerClient(self.server.target)
        client.start_stream(lambda result, error: results.put(error))
        client.async_stream_infer(self.model, self.inputs(["O"], {"max_tokens": LONG, "ignore_eos": True}, stream=True))
        self.assertIsNone(results.get(timeout=PATIENCE))
        self.assertGreater(self.server.metric("kv_pages_used"), 0)
        client.stop_stream(cancel_requests=True)
        client.close()
        self.server.idle()


if __name__ == "__main__":
    main()
