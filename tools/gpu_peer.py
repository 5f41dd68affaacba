#!/usr/bin/env python3
"""PyTorch's speed on the same GPU, taken in turn with octavo's: the attention of a decode step (K
and V in one piece, where octavo has a page table), and a Llama-3-8B by `transformers` and by
PyTorch alone, whose decode steps are CUDA graphs. Each part is skipped, and named, where Python has
no torch or torch sees no GPU.

usage: gpu_peer.py OUT.json OCTAVO bench engine FLAGS...

Octavo's run comes between two rounds of the models. On a machine without a GPU, GPU_PEER_CPU=1 runs
everything with a tiny model, to try this program; its figures mean nothing then."""

import gc
import json
import os
import subprocess
import sys
import time

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    import torch.nn.functional as F
except ImportError as e:
    sys.exit(print(f"SKIPPED: {e}"))

TINY = "GPU_PEER_CPU" in os.environ
if not TINY and not torch.cuda.is_available():
    sys.exit(print("SKIPPED: torch sees no GPU"))
DEVICE = "cpu" if TINY else "cuda"
DTYPE = torch.bfloat16
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM, VOCAB = (64, 128, 2, 4, 2, 16, 256) if TINY else \
    (4096, 14336, 32, 32, 8, 128, 128256)
CONTEXT, PROMPT = (32, 64) if TINY else (1024, 2048)
CROWDS = ((64, 4096), (8, 32768))
BACKENDS = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION],
            "efficient": [SDPBackend.EFFICIENT_ATTENTION], "as it chooses": [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION,
                                                                            SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]}

results = []


def note(what, name, figure):
    """Notes a figure of one round. The file is rewritten after each figure, so that it is always
    whole."""
    mine = next((r for r in results if (r["what"], r["name"]) == (what, name)), None)
    if not mine:
        mine = {"what": what, "name": name, "rounds": []}
        results.append(mine)
    mine["rounds"].append(figure)
    print(f"{what}, {name}: {figure:.1f}")
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(results, f)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(call, n):
    """Seconds of one of n calls; each call receives its number."""
    call(0), call(1)
    wait()
    start = time.perf_counter()
    for i in range(n):
        call(i + 2)
    wait()
    return (time.perf_counter() - start) / n


def attempt(what, call, *args):
    """Runs a part; a failure is printed and does not stop the other parts."""
    try:
        call(*args)
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as e:
        print(f"{what}: not here: {str(e).splitlines()[0] if str(e) else type(e).__name__}")


# ---- attention -----------------------------------------------------------------------------------


def bench_attention(name, batch, context):
    """Times SDPA over rows that no cache holds."""
    kv_heads, heads, dim = (2, 4, 16) if TINY else (8, 32, 128)
    slots = context // 64 if TINY else context
    shape = (batch, kv_heads, slots, dim)
    sets = 2 if TINY else (1 << 29) // (2 * 2 * batch * kv_heads * slots * dim) + 2
    kv = [[torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in "kv"] for _ in range(sets)]
    q = torch.randn((batch, heads, 1, dim), device=DEVICE, dtype=DTYPE)
    with sdpa_kernel(BACKENDS[name]):
        s = seconds(lambda i: F.scaled_dot_product_attention(q, *kv[i % sets], enable_gqa=True), 20)
    note(f"attention {batch} x {context}", f"SDPA {name}", s * 1e6)


# ---- PyTorch alone -------------------------------------------------------------------------------


class Plain:
    """Llama-3-8B's shape, written out with the library's products, norms and attention."""

    def __init__(self):
        def matrix(n, k):
            return torch.randn((n, k), device=DEVICE, dtype=DTYPE) * k ** -0.5

        self.embed, self.head = matrix(VOCAB, HIDDEN), matrix(VOCAB, HIDDEN)
        self.one = torch.ones(HIDDEN, device=DEVICE, dtype=DTYPE)
        self.layers = [(matrix((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), matrix(HIDDEN, HEADS * DIM),
                        matrix(2 * FFN, HIDDEN), matrix(HIDDEN, FFN)) for _ in range(LAYERS)]
        angles = torch.outer(torch.arange(2 * PROMPT, device=DEVICE).float(),
                             500000.0 ** (-torch.arange(0, DIM, 2, device=DEVICE).float() / DIM))
        self.cos, self.sin = (f(torch.cat((angles, angles), -1)).to(DTYPE) for f in (torch.cos, torch.sin))

    def cache(self, batch, slots):
        return torch.zeros((LAYERS, 2, batch, KV_HEADS, slots, DIM), device=DEVICE, dtype=DTYPE)

    def turn(self, x, start):
        n = x.shape[2]
        half = torch.cat((-x[..., DIM // 2:], x[..., :DIM // 2]), -1)
        return x * self.cos[start:start + n] + half * self.sin[start:start + n]

    def step(self, ids, cache, start):
        """Computes the next token of each sequence."""
        x = F.embedding(ids, self.embed)
        batch, n = ids.shape
        for (qkv, o, gate_up, down), kv in zip(self.layers, cache):
            rows = F.linear(F.rms_norm(x, (HIDDEN,), self.one, 1e-5), qkv)
            heads = rows.view(batch, n, HEADS + 2 * KV_HEADS, DIM).transpose(1, 2)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
            kv[0][:, :, start:start + n], kv[1][:, :, start:start + n] = self.turn(k, start), v
            y = F.scaled_dot_product_attention(self.turn(q, start), kv[0][:, :, :start + n], kv[1][:, :, :start + n],
                                               is_causal=n > 1, enable_gqa=True)
            x = x + F.linear(y.transpose(1, 2).reshape(batch, n, HEADS * DIM), o)
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.one, 1e-5), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x[:, -1], (HIDDEN,), self.one, 1e-5), self.head).argmax(-1)


def as_graph(call):
    """Captures the call as a CUDA graph; on a CPU returns the call itself."""
    if DEVICE == "cpu":
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(), call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def words(batch, n):
    return torch.randint(VOCAB, (batch, n), device=DEVICE)


def bench_plain():
    model = Plain()
    for batch in (1, 32):
        cache, ids = model.cache(batch, CONTEXT + 1), words(batch, 1)
        step = as_graph(lambda: model.step(ids, cache, CONTEXT))
        note(f"decode {batch}", "torch, graphs", batch / seconds(lambda i: step(), 30))
        del cache, step
    for batch in (8, 1):
        cache, ids = model.cache(batch, PROMPT), words(batch, PROMPT)
        s = seconds(lambda i: model.step(ids, cache, 0), 4)
        note(f"prefill {batch}", "torch", batch * PROMPT / s)
        del cache


# ---- transformers --------------------------------------------------------------------------------


def make_transformers():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=VOCAB,
                         max_position_embeddings=8192, rms_norm_eps=1e-5, attn_implementation="sdpa")
    torch.set_default_dtype(DTYPE)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.to_empty(device=DEVICE).eval()
    for p in model.parameters():
        p.normal_(0.0, 0.02)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(DEVICE)
    return model


def bench_transformers():
    model = make_transformers()

    def run(ids, past=None):
        return model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)

    for batch in (1, 32):
        state = run(words(batch, CONTEXT))

        def step(i):
            nonlocal state
            state = run(state.logits[:, -1].argmax(-1, keepdim=True), state.past_key_values)

        note(f"decode {batch}", "transformers", batch / seconds(step, 20))
        del state
    for batch in (8, 1):
        ids = words(batch, PROMPT)
        note(f"prefill {batch}", "transformers", batch * PROMPT / seconds(lambda i: run(ids), 3))


def model_round():
    for name, bench in (("torch", bench_plain), ("transformers", bench_transformers)):
        attempt(name, bench)
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


@torch.inference_mode()
def main():
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'no GPU'}")
    for batch, context in CROWDS:
        for name in BACKENDS:
            attempt(f"SDPA {name}", bench_attention, name, batch, context)
    gc.collect()
    model_round()
    ran = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    print(f"octavo in between: {'done' if ran.returncode == 0 else ran.stderr.strip()[-300:]}")
    model_round()


main()
