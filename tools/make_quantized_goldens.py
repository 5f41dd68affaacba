"""Writes tests/golden/quantized: tiny folders whose weights the public libraries have quantised.

    python3 tools/make_quantized_goldens.py --autoawq DIR --autogptq DIR --gptqmodel DIR [NAME...]

Needs torch, transformers, safetensors and compressed-tensors (0.20; `ct_int4_order` needs 0.9, the
last version with orders, and is made in a run of its own). DIRs hold the unpacked sources of
autoawq, auto_gptq and gptqmodel: their kernels need a GPU, so that only their packing and their
dequantisation in torch run here. Deterministic.

Each folder has config.json, model.safetensors, tokens.jsonl; weights.json, the SHA-256 of every
quantised matrix as the library dequantises it, row by row in the type of its scales; and
logits.f32, which `transformers` computes in f32 from those matrices.
"""
import argparse
import ast
import hashlib
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import types

import torch
import transformers
from make_model_goldens import family_config, family_tensors
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/quantized"
N_TOKENS = 24
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}
SOURCES = argparse.Namespace()

# name: architecture, dtype, hidden, heads, kv heads, head_dim, ffn, layers, vocab, tied, more of
# config.json
LLAMA = ("LlamaForCausalLM", "bfloat16", 64, 4, 2, 16, 96, 2, 64)
EXPERTS = {"head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
QWEN_MOE = {"head_dim": 16, "num_experts": 3, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": []}
F16_LLAMA = ("LlamaForCausalLM", "float16", 64, 4, 2, 16, 96, 2, 64)


# ---- compressed-tensors --------------------------------------------------------------------------

def ct_args(**args):
    from compressed_tensors.quantization import QuantizationArgs
    return QuantizationArgs(**args)


def ct_range(weight, args):
    """Scales and zero points of a weight, computed by the library from the smallest and largest
    values that share them."""
    from compressed_tensors.quantization.utils import calculate_qparams
    rows, cols = weight.shape
    if args.strategy == "group":
        parts = weight.reshape(rows, -1, args.group_size)
        low, high = parts.amin(-1), parts.amax(-1)
    elif args.strategy == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif args.strategy == "block":
        tall, wide = args.block_structure
        padded = torch.nn.functional.pad(weight.float(), (0, -cols % wide, 0, -rows % tall))
        parts = padded.reshape(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide)
        low, high = parts.amin((1, 3)).to(weight.dtype), parts.amax((1, 3)).to(weight.dtype)
    else:
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    return calculate_qparams(low, high, args)


def ct(module, weight, scheme):
    from compressed_tensors.compressors import BaseCompressor
    args = scheme.weights
    scale, zero = ct_range(weight, args)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    packed = compressor.compress(state, scheme)
    if scheme.input_activations and not scheme.input_activations.dynamic:
        packed["input_scale"] = torch.tensor([0.5], dtype=weight.dtype)
    return packed, compressor.decompress(packed, scheme)["weight"]


def ct_old(module, weight, scheme):
    """Quantises as version 0.9 did, with columns assigned to groups by an order."""
    from compressed_tensors.compressors import PackedQuantizationCompressor
    args = scheme.weights
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(len(module)))
    g_idx = torch.empty_like(order, dtype=torch.int32)
    g_idx[order] = torch.arange(len(order), dtype=torch.int32) // args.group_size
    scale, zero = ct_range(weight[:, torch.argsort(g_idx)], args)
    compressor = PackedQuantizationCompressor()
    packed = compressor.compress_weight(weight, scale.to(weight.dtype), args, zero, g_idx)
    packed |= {"weight_scale": scale.to(weight.dtype), "weight_g_idx": g_idx}
    return packed, compressor.decompress_weight(packed, args)


def ct_config(schemes, ignore, **more):
    groups = {f"group_{i}": json.loads(s.model_dump_json()) for i, s in enumerate(schemes)}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore, "kv_cache_scheme": None,
            "quantization_status": "compressed", "format": schemes[0].format if len(schemes) == 1 else "mixed-precision",
            "global_compression_ratio": None, "sparsity_config": {}, "version": "0.20.0", **more}


def ct_scheme(weights, form, targets=("Linear",), inputs=None):
    from compressed_tensors.quantization import QuantizationScheme
    if not hasattr(QuantizationScheme, "model_fields") or "format" not in QuantizationScheme.model_fields:
        scheme = QuantizationScheme(targets=list(targets), weights=weights, input_activations=inputs)
        return types.SimpleNamespace(weights=weights, format=form, input_activations=inputs, model_dump_json=scheme.model_dump_json)
    return QuantizationScheme(targets=list(targets), weights=weights, input_activations=inputs, format=form)


def of_one(make, *args, ignore=("lm_head",), quantise=ct, **more):
    """A scheme for every module except those in `ignore`."""
    def way():
        scheme = make(*args)
        return (lambda module, weight: quantise(module, weight, scheme)), ct_config([scheme], list(ignore), **more)
    return way


def fp8(strategy, static, **args):
    inputs = ct_args(num_bits=8, type="float", strategy="tensor" if static else "token", dynamic=not static)
    return ct_scheme(ct_args(num_bits=8, type="float", strategy=strategy, **args), "float-quantized", inputs=inputs)


def ints(bits, form, **args):
    return ct_scheme(ct_args(num_bits=bits, type="int", **args), form)


def ct_mixed():
    """Floats in attention, integers of two widths elsewhere, chosen by name and pattern."""
    fp = ct_scheme(ct_args(num_bits=8, type="float", strategy="channel"), "float-quantized", ["re:.*self_attn.*"])
    int4 = ct_scheme(ct_args(num_bits=4, type="int", strategy="group", group_size=32), "pack-quantized", ["Linear"])
    int8 = ct_scheme(ct_args(num_bits=8, type="int", strategy="channel"), "int-quantized", ["model.layers.1.mlp.down_proj"])

    def quantise(module, weight):
        if module == "model.layers.0.self_attn.o_proj":
            return None
        if "self_attn" in module:
            return ct(module, weight, fp)
        return ct(module, weight, int8 if module == "model.layers.1.mlp.down_proj" else int4)
    return quantise, ct_config([fp, int4, int8], ["lm_head", "re:model\\.layers\\.0\\.self_attn\\.o_pro[j]$"])


# ---- "fp8" ---------------------------------------------------------------------------------------

def fp8_blocks(tall, wide, scale_dtype, **more):
    def way():
        from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer

        def quantise(module, weight):
            rows, cols = weight.shape
            tall_, wide_ = tall or rows, wide or cols
            padded = torch.nn.functional.pad(weight.float(), (0, -cols % wide_, 0, -rows % tall_))
            parts = padded.reshape(padded.shape[0] // tall_, tall_, padded.shape[1] // wide_, wide_)
            scale = (parts.abs().amax((1, 3)) / 448.0).to(scale_dtype)
            wide_scale = scale.float().repeat_interleave(tall_, 0).repeat_interleave(wide_, 1)[:rows, :cols]
            q = (weight.float() / wide_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            due = FP8BlockDequantizer(weight_block_size=(tall_, wide_), dtype=scale_dtype)._create_dequantized_weight(q, scale)
            name = "weight_scale_inv" if tall else "weight_scale"
            packed = {"weight": q, name: scale if tall else scale.reshape([])}
            if not tall:
                packed["input_scale"] = torch.tensor(0.25)
            return packed, due
        return quantise, {"quant_method": "fp8", "fmt": "e4m3", **more, **({"weight_block_size": [tall, wide]} if tall else {})}
    return way


# ---- AWQ and GPTQ --------------------------------------------------------------------------------

def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asymmetric(weight, bits, size):
    """Scales and zeros [rows, groups], as both libraries choose them without data."""
    parts = weight.float().reshape(weight.shape[0], -1, size)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / (2 ** bits - 1)).clamp(min=1e-5)
    zero = (-low / scale).round().clamp(1, 2 ** bits - 1)
    return scale.half(), zero


def awq(size, ignore=None):
    def way():
        if "awq" not in sys.modules:
            package = types.ModuleType("awq")
            package.__path__ = [str(SOURCES.autoawq / "awq")]
            sys.modules["awq"] = package
            for part in ("utils", "modules"):
                sub = types.ModuleType(f"awq.{part}")
                sub.__path__ = [str(SOURCES.autoawq / "awq" / part)]
                sys.modules[f"awq.{part}"] = sub
        gemm = module_of(SOURCES.autoawq / "awq/modules/linear/gemm.py", "awq_gemm")
        packing = module_of(SOURCES.autoawq / "awq/utils/packing_utils.py", "awq_packing")

        def quantise(module, weight):
            scale, zero = asymmetric(weight, 4, size)
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=F16)
            linear.weight.data = weight
            q = gemm.WQLinear_GEMM.from_linear(linear, 4, size, scales=scale.t().contiguous(), zeros=zero.half().t().contiguous())
            due = packing.dequantize_gemm(q.qweight, q.qzeros, q.scales, 4, size)
            return {"qweight": q.qweight, "qzeros": q.qzeros, "scales": q.scales}, due.t().contiguous()
        return quantise, {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm",
                          "modules_to_not_convert": ignore}
    return way


def functions_of(path, names):
    """Extracts functions, and constants of methods, from a file whose other imports are not
    available."""
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.returns, node.decorator_list = None, []
        for arg in node.args.args:
            arg.annotation = None
    space = {"t": torch, "torch": torch}
    exec(compile(ast.Module(found, []), str(path), "exec"), space)
    return space


def gptq(bits, size, order=False, second=False, symmetric=True, empty_bias=False):
    def way():
        linears = module_of(SOURCES.autogptq / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", "autogptq_linear")
        model = functions_of(SOURCES.gptqmodel / "gptqmodel/nn_modules/qlinear/__init__.py",
                             ("dequantize_weight", "_dequantize_from_codes", "_torch_right_shift"))
        model["dequantize_weight"].__globals__.update(model)

        def quantise(module, weight):
            rows, cols = weight.shape
            wide = size if size > 0 else cols
            g_idx = torch.arange(cols, dtype=torch.int32) // wide
            if order:
                g_idx = g_idx[torch.randperm(cols, generator=torch.Generator().manual_seed(len(module)))]
            scale, zero = asymmetric(weight[:, torch.argsort(g_idx, stable=True)], bits, wide)
            if symmetric:
                zero = torch.full_like(zero, 2 ** (bits - 1))
                scale = (scale * 1.4).half()
            linear = torch.nn.Linear(cols, rows, bias=False, dtype=F16)
            linear.weight.data = weight
            q = linears.QuantLinear(bits, size, cols, rows, False)
            q.pack(linear, scale.clone(), zero.clone(), g_idx)
            added = q.qzeros + (0x11111111 if bits == 4 else 0x01010101)
            shifts = torch.arange(0, 32, bits, dtype=torch.int32).unsqueeze(0)
            as_model = types.SimpleNamespace(
                planar=False, bits=bits, pack_factor=32 // bits, maxq=2 ** bits - 1, qzeros=added, qweight=q.qweight,
                scales=q.scales, g_idx=q.g_idx, in_features=cols, wf_unsqueeze_zero=shifts.unsqueeze(0),
                wf_unsqueeze_neg_one=shifts.unsqueeze(-1), dequant_dtype=torch.int16 if bits == 8 else torch.int8,
                _init_wf_unsqueeze_buffers=lambda: None)
            as_model._dequantize_from_codes = lambda *a, **k: model["_dequantize_from_codes"](as_model, *a, **k)
            due = model["dequantize_weight"](as_model).t().contiguous()
            other = q(torch.eye(cols, dtype=F16)).t().contiguous()
            assert torch.equal(due, other), module
            packed = {"qweight": q.qweight, "qzeros": added if second else q.qzeros, "scales": q.scales, "g_idx": q.g_idx}
            if empty_bias:
                packed["bias"] = torch.zeros(rows, dtype=F16)
            return packed, due
        return quantise, {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order, "sym": symmetric,
                          "checkpoint_format": "gptq_v2" if second else "gptq", "damp_percent": 0.1, "true_sequential": True}
    return way


# name: model, way of quantising
MODELS = {
    "ct_fp8_tensor": ((*LLAMA, False, {}), of_one(fp8, "tensor", True)),
    "ct_fp8_channel": (("Phi3ForCausalLM", "float16", 48, 3, 1, 16, 45, 2, 64, True, {"max_position_embeddings": 64}),
                       of_one(fp8, "channel", False)),
    "ct_fp8_block": (("Qwen3ForCausalLM", "bfloat16", 80, 4, 2, 32, 72, 2, 64, True, {"head_dim": 32, "attention_bias": False}),
                     of_one(lambda: ct_scheme(ct_args(num_bits=8, type="float", strategy="block", block_structure=[32, 48]),
                                              "float-quantized"))),
    "ct_int4_group": ((*LLAMA, False, {}), of_one(lambda: ints(4, "pack-quantized", strategy="group", group_size=32))),
    "ct_int4_zeros": (("Qwen2ForCausalLM", "float16", 64, 4, 2, 16, 96, 2, 64, False, {}),
                      of_one(lambda: ints(4, "pack-quantized", strategy="group", group_size=16, symmetric=False))),
    "ct_int4_channel": (("LlamaForCausalLM", "bfloat16", 48, 3, 3, 16, 45, 2, 64, True, {}),
                        of_one(lambda: ints(4, "pack-quantized", strategy="channel", symmetric=False))),
    "ct_int4_order": ((*LLAMA, False, {}),
                      of_one(lambda: ints(4, "pack-quantized", strategy="group", group_size=32,
                                          actorder="group"), quantise=ct_old)),
    "ct_int8_channel": ((*LLAMA, True, {}), of_one(lambda: ct_scheme(
        ct_args(num_bits=8, type="int", strategy="channel"), "int-quantized",
        inputs=ct_args(num_bits=8, type="int", strategy="token", dynamic=True)))),
    "ct_int8_packed": (("MixtralForCausalLM", "bfloat16", 64, 4, 2, 16, 32, 1, 64, False, EXPERTS),
                       of_one(lambda: ints(8, "pack-quantized", strategy="group", group_size=32, symmetric=False),
                              ignore=["lm_head", "re:.*block_sparse_moe.gate$"])),
    "ct_mixed": ((*LLAMA, False, {}), ct_mixed),
    "fp8_block": (("Qwen3MoeForCausalLM", "bfloat16", 64, 4, 2, 16, 32, 2, 64, False, QWEN_MOE),
                  fp8_blocks(48, 32, F32, activation_scheme="dynamic", modules_to_not_convert=["lm_head"])),
    "fp8_block_bf16": ((*LLAMA, True, {}), fp8_blocks(32, 32, BF16, activation_scheme="dynamic")),
    "fp8_tensor": ((*LLAMA, False, {}), fp8_blocks(0, 0, F32, activation_scheme="static", ignored_layers=["lm_head"])),
    "awq": ((*F16_LLAMA, False, {}), awq(32)),
    "awq_experts": (("MixtralForCausalLM", "float16", 64, 4, 2, 16, 32, 1, 64, True, EXPERTS), awq(16, ["gate"])),
    "gptq4": (("Qwen2ForCausalLM", "float16", 64, 4, 2, 16, 96, 2, 64, False, {}), gptq(4, 32)),
    "gptq4_order": ((*F16_LLAMA, False, {}), gptq(4, 32, order=True, second=True, symmetric=False)),
    "gptq4_rows": ((*F16_LLAMA, True, {}), gptq(4, -1, symmetric=False, empty_bias=True)),
    "gptq8_order": (("Qwen3MoeForCausalLM", "float16", 64, 4, 2, 16, 32, 1, 64, False, QWEN_MOE),
                    gptq(8, 16, order=True, symmetric=False)),
}


def is_left(name, weight):
    outer = any(part in name for part in ("embed_tokens", "lm_head"))
    return outer or weight.dim() < 2 or name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight"))


def logits_of(config, state, ids):
    """Logits that transformers computes in f32 from a folder of the dequantised weights."""
    with tempfile.TemporaryDirectory() as place:
        (pathlib.Path(place) / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
        save_file({k: v.float().contiguous() for k, v in state.items()}, f"{place}/model.safetensors", metadata={"format": "pt"})
        model, info = getattr(transformers, config["architectures"][0]).from_pretrained(
            place, dtype=F32, attn_implementation="eager", output_loading_info=True, experts_implementation="eager")
        assert not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        with torch.no_grad():
            return model(ids).logits[0].float().numpy()


def make(name, spec, way):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    g = torch.Generator().manual_seed(seed)
    config = family_config(*spec)
    tensors = family_tensors(g, config, spec[5], spec[1])
    quantise, section = way()
    files, state, hashes = {}, {}, {}
    for key, value in tensors.items():
        module = key.removesuffix(".weight")
        made = None if is_left(key, value) or key.endswith(".bias") else quantise(module, value)
        if made is None:
            files[key] = state[key] = value
            continue
        packed, due = made
        files |= {f"{module}.{k}": v.contiguous() for k, v in packed.items()}
        state[key] = due
        bits = due.contiguous().view(torch.uint8).numpy().tobytes()
        hashes[key] = {"dtype": NAMES[due.dtype], "sha256": hashlib.sha256(bits).hexdigest()}
    ids = torch.randint(0, config["vocab_size"], (1, N_TOKENS), generator=g)
    save_file(files, folder / "model.safetensors", metadata={"format": "pt"})
    logits_of(config, state, ids).astype("<f4").tofile(folder / "logits.f32")
    config["quantization_config"] = section
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "weights.json").write_text(json.dumps(hashes, indent=0) + "\n")
    (folder / "tokens.jsonl").write_text(json.dumps({"token_ids": ids[0].tolist()}) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{name}: {len(hashes)} matrices, {sum(f.stat().st_size for f in folder.iterdir()) >> 10} KiB", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for source in ("autoawq", "autogptq", "gptqmodel"):
        p.add_argument(f"--{source}", type=pathlib.Path)
    p.add_argument("names", nargs="*")
    p.parse_args(namespace=SOURCES)
    for name, (spec, way) in MODELS.items():
        if name in SOURCES.names or (not SOURCES.names and name != "ct_int4_order"):
            make(name, spec, way)


if __name__ == "__main__":
    main()
