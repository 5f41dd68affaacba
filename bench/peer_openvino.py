"""A second peer, OpenVINO GenAI's ContinuousBatchingPipeline: its models are exported from the
folder that Octavo reads. In its venv this file is also the process that peer_pipeline.py
describes."""

import os
import shutil

import peer_models
from peer_build import call
from peer_pipeline import BATCHED_TOKENS, Installed, Sequences, serve

# 16-bit weights are stored as f16; the plugin computes in bf16 where the CPU has it.
FORMATS = {
    "bf16": ("--weight-format", "fp16"),
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0"),
}


class OpenVino(Installed):
    name, formats, script = "openvino", tuple(FORMATS), os.path.abspath(__file__)
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


if __name__ == "__main__":
    serve(OpenVinoSequences)
