"""octavo.h in ctypes: its structs, functions and codes, under their names without the prefix."""

import ctypes
import os
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p

OK, TIMEOUT, END = 0, 1, 2
ERROR_BYTES = 512
FINISHES = (None, "stop", "length", "abort", "error")

LOG = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
PROGRESS = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)


class Sized(Structure):
    """A struct that begins with its size."""

    def __init__(self):
        super().__init__()
        self.size = ctypes.sizeof(self)


class EngineOptions(Sized):
    _fields_ = [("size", c_size_t), ("model", c_char_p), ("settings", POINTER(c_char_p)), ("log", LOG),
                ("progress", PROGRESS), ("ctx", c_void_p)]


class Params(Sized):
    _fields_ = [("size", c_size_t), ("prompt", c_char_p), ("messages", c_char_p),
                ("token_ids", POINTER(c_uint32)), ("n_token_ids", c_size_t), ("retention", c_char_p),
                ("retrieval", c_char_p), ("session", c_char_p), ("max_tokens", c_uint32),
                ("fields", c_char_p)]


class Output(Sized):
    _fields_ = [("size", c_size_t), ("choice", c_uint32), ("has_token", c_uint32), ("token", c_uint32),
                ("rank", c_uint32), ("logprob", c_float), ("n_top", c_uint32),
                ("top_ids", POINTER(c_uint32)), ("top_logprobs", POINTER(c_float)),
                ("text", POINTER(c_char)), ("text_bytes", c_size_t), ("finish", c_int),
                ("error", c_int), ("error_text", c_char_p), ("prompt_tokens", c_uint32),
                ("completion_tokens", c_uint32), ("cached_tokens", c_uint32),
                ("queue_us", c_int64), ("ttft_us", c_int64), ("total_us", c_int64),
                ("retention", c_char_p), ("retrieval", c_char_p)]


class Stats(Sized):
    _fields_ = ([("size", c_size_t)] + [(name, c_uint32) for name in (
        "max_model_len", "page_tokens", "pages", "pages_used", "pages_cached", "live", "running", "waiting",
        "sessions", "working")] + [("logical_tokens", c_uint64), ("kept_tokens", c_double)] +
        [(name, c_uint64) for name in (
            "steps", "prompt_tokens", "generated_tokens", "cached_tokens", "pages_dropped", "preemptions",
            "requests_finished", "requests_aborted", "requests_failed")])


# Name, result, arguments.
FUNCTIONS = (
    ("version", c_char_p, ()),
    ("status_text", c_char_p, (c_int,)),
    ("engine_open", c_int, (POINTER(EngineOptions), POINTER(c_void_p), c_char_p, c_size_t)),
    ("engine_close", None, (c_void_p,)),
    ("submit", c_int, (c_void_p, POINTER(Params), POINTER(c_void_p), c_char_p, c_size_t)),
    ("read", c_int, (c_void_p, POINTER(Output), c_int)),
    ("request_fd", c_int, (c_void_p,)),
    ("abort", None, (c_void_p,)),
    ("request_release", None, (c_void_p,)),
    ("forget_session", c_int, (c_void_p, c_char_p, c_char_p, c_size_t)),
    ("get_stats", c_int, (c_void_p, POINTER(Stats))),
)


class Library:
    """The functions of liboctavo; a call gives up Python's lock while it runs."""

    def __init__(self):
        path = os.environ.get("OCTAVO_LIBRARY", "liboctavo.so.0")
        try:
            self.handle = ctypes.CDLL(path)
        except OSError as e:
            raise ImportError(f"octavo: {e}; OCTAVO_LIBRARY can hold the path of liboctavo.so.0") from None
        for name, result, arguments in FUNCTIONS:
            function = getattr(self.handle, "octavo_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


lib = Library()
