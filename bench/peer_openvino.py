"""A second peer, OpenVINO GenAI's ContinuousBatchingPipeline: its models are exported from the
folder that Octavo reads. In its venv this file is also the process that peer_pipeline.py
describes; with a third word, "filled", the model decodes behind a cache that no prefill
computed."""

import os
import shutil
import sys
import time

import peer_models
from peer_build import call
from peer_pipeline import BATCHED_TOKENS, Installed, Pipeline, Sequences, serve

# 16-bit weights are stored as f16; the plugin computes in bf16 where the CPU has it.
FORMATS = {
    "bf16": ("--weight-format", "fp16"),
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0"),
}


class OpenVino(Installed):
    name, formats, script, fills = "openvino", tuple(FORMATS), os.path.abspath(__file__), True
    packages = ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0")

    def weights(self, kind):
        path = os.path.join(self.folder, f"1.1b-{kind}")
        if not os.path.exists(path):
            print(f"peer: exporting {path} (minutes; {self.log})", flush=True)
            shutil.rmtree(path + ".part", ignore_errors=True)
            call(self.log, self.tool("optimum-cli"), "export", "openvino", "--model", peer_models.folder(self.work),
                 "--task", "text-generation-with-past", *FORMATS[kind], path + ".part")
            os.rename(path + ".part", path)
        return path

    def run_deep(self, kind, threads):
        return Pipeline(self, [*self.command(kind, threads), "filled"], os.environ)

    def describe(self):
        """Names the peer for the results."""
        return f"OpenVINO GenAI ({', '.join(self.packages)}), its own 8-bit cache"


class OpenVinoSequences(Sequences):
    """The pipeline drops a request whose handle is not kept."""

    def __init__(self, folder, threads):
        super().__init__()
        import openvino_genai as genai
        config = genai.SchedulerConfig()
        config.max_num_batched_tokens, config.max_num_seqs = BATCHED_TOKENS, 64
        config.enable_prefix_caching = False
        config.cache_size = 1  # GB
        self.pipeline = genai.ContinuousBatchingPipeline(folder, config, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.generation = genai.GenerationConfig()
        self.generation.max_new_tokens = 1 << 20
        self.generation.ignore_eos = True

    def add(self, number, tokens):
        import numpy
        import openvino
        prompt = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
        return self.pipeline.add_request(number, prompt, self.generation)

    def step(self):
        self.pipeline.step()

    def begun(self):
        return all(handle.can_read() for handle in self.handles)

    def end(self):
        for handle in self.handles:
            handle.cancel()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()


class OpenVinoFilled(Sequences):
    """One sequence of any length: the model that the pipeline runs, made from the same file by the
    same transformation, with blocks of K and V that repeat those of a short prompt, because the
    pipeline's prefill of 131,072 tokens takes more than 40 minutes."""

    def __init__(self, folder, threads):
        super().__init__()
        import openvino
        from openvino._offline_transformations import paged_attention_transformation
        core = openvino.Core()
        model = core.read_model(os.path.join(folder, "openvino_model.xml"))
        paged_attention_transformation(model)
        self.compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.request = self.compiled.create_infer_request()
        self.length = 0

    def start(self, n, length):
        """Returns tokens/s of the short prefill."""
        import openvino
        assert n == 1, "one sequence alone has a filled cache"
        inputs = {i.any_name: i for i in self.compiled.inputs}
        self.block_tokens = inputs["value_cache.0"].partial_shape[2].get_length()
        prompt = BATCHED_TOKENS // self.block_tokens  # blocks
        blocks = length // self.block_tokens + prompt
        caches = []
        for name, cache in inputs.items():
            if "_cache." in name:
                shape = [blocks, *(d.get_length() for d in list(cache.partial_shape)[1:])]
                caches.append(openvino.Tensor(cache.element_type, openvino.Shape(shape)))
                self.request.set_tensor(name, caches[-1])
        self.length = 0
        begin = time.perf_counter()
        self.infer([peer_models.FIRST_WORD + i for i in range(BATCHED_TOKENS)])
        seconds = time.perf_counter() - begin
        for cache in caches:
            for at in range(prompt, blocks, prompt):
                cache.data[at:at + prompt] = cache.data[:min(prompt, blocks - at)]
        self.length, self.handles = length, [None]
        return BATCHED_TOKENS / seconds

    def step(self):
        self.infer([peer_models.FIRST_WORD])

    def infer(self, tokens):
        """Runs the tokens behind those that the cache has."""
        import numpy
        import openvino
        end = self.length + len(tokens)
        blocks = -(-end // self.block_tokens)
        for name, kind, values in (
                ("input_ids", "int64", tokens), ("position_ids", "int64", range(self.length, end)),
                ("past_lens", "int32", [self.length]), ("subsequence_begins", "int32", [0, len(tokens)]),
                ("block_indices", "int32", range(blocks)), ("block_indices_begins", "int32", [0, blocks]),
                ("max_context_len", "int32", end)):
            self.request.set_tensor(name, openvino.Tensor(numpy.array(values, dtype=kind)))
        self.request.infer()
        self.length = end

    def end(self):
        """The next start takes other tensors."""


if __name__ == "__main__":
    serve(OpenVinoFilled if sys.argv[3:] == ["filled"] else OpenVinoSequences)
