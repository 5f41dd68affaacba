"""Stands in for PyTorch where tests/e2e/gpu_check.py runs tools/gpu_peer.py: tensors have a shape,
and nothing is computed."""

import contextlib
import sys
import types

__version__ = "fake"
bfloat16 = float32 = object()


class Tensor:
    def __init__(self, *shape):
        self.shape = shape if len(shape) > 1 else (1, 1, 1, 1)

    def same(self, *_, **__):
        return self

    def view(self, *shape):
        return Tensor(*shape)

    def split(self, sizes, dim):
        assert sum(sizes) == self.shape[dim], (sizes, self.shape)
        return [Tensor(*self.shape) for _ in sizes]

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return Tensor(*shape)

    def chunk(self, n, _):
        return [self] * n

    def __iter__(self):
        return iter([Tensor(*self.shape[1:])] * self.shape[0])

    def __setitem__(self, at, value):
        assert isinstance(value, Tensor), at

    __add__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __rpow__ = __getitem__ = same
    float = to = reshape = argmax = normal_ = same


def of_shape(shape, **_):
    return Tensor(*shape) if isinstance(shape, tuple) else Tensor(shape)


def same(x, *_, **__):
    return x[0] if isinstance(x, tuple) else x


randn = zeros = ones = of_shape
outer = cat = cos = sin = same


def arange(*_, **__):
    return Tensor()


def randint(_, shape, **__):
    return Tensor(*shape)


def set_default_dtype(_):
    pass


def device(_):
    return contextlib.nullcontext()


def inference_mode():
    return lambda call: call


def sdpa_kernel(_):
    return contextlib.nullcontext()


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return made


nn = module("torch.nn")
nn.attention = module("torch.nn.attention", sdpa_kernel=sdpa_kernel,
                      SDPBackend=types.SimpleNamespace(FLASH_ATTENTION=0, CUDNN_ATTENTION=1, EFFICIENT_ATTENTION=2,
                                                       MATH=3))
nn.functional = module("torch.nn.functional", scaled_dot_product_attention=same, embedding=same, rms_norm=same,
                       linear=same, silu=same)
