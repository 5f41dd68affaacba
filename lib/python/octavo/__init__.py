"""Octavo in this process: an LLM whose KV cache is made of pages that can be taken out.

    import octavo
    with octavo.Engine("models/demo", kv_memory="512M") as engine:
        answer = engine.generate("O Romeo, Romeo", max_tokens=40,
                                 retention="chunkkv:0.25")
        print(answer.text, answer.retention)
        for output in engine.submit(messages=[{"role": "user", "content": "Good morrow"}]):
            print(output.text, end="")
        async for output in engine.submit("O Romeo"): ...      # in a coroutine

Settings of an engine are the flags of `octavo run` with underscores; fields of a request are those
over HTTP (docs/c.md). An Engine may be used by all threads, a Request by one at a time, except for
its abort()."""

import asyncio
import ctypes
import json
import operator
import os
import threading

from octavo._library import (END, ERROR_BYTES, FINISHES, LOG, OK, PROGRESS, EngineOptions, Output as _Output,
                             Params, Stats, lib)

__version__ = lib.version().decode()

__all__ = ["Answer", "Engine", "Error", "Output", "Request"]

# A thread that waits in the library does not notice signals, so it comes back so often.
_WAIT_MS = 100


class Error(Exception):
    """The library refused something; its text says why. status: its code in octavo.h."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def _check(call, *arguments):
    text = ctypes.create_string_buffer(ERROR_BYTES)
    status = call(*arguments, text, ERROR_BYTES)
    if status != OK:
        raise Error(status, text.value.decode(errors="replace"))


def _json(value):
    return None if value is None else json.dumps(value).encode()


class Output:
    """A token of a choice, its end, or both. text: what is certain now. finish: None, "stop",
    "length" or "abort"; with it retention and retrieval are reports or None, and usage counts
    tokens."""

    def __init__(self, raw):
        self.choice = raw.choice
        self.token = raw.token if raw.has_token else None
        self.logprob = raw.logprob if raw.has_token else None
        self.top = [(raw.top_ids[i], raw.top_logprobs[i]) for i in range(raw.n_top)]
        self.text = ctypes.string_at(raw.text, raw.text_bytes).decode(errors="replace")
        self.finish = FINISHES[raw.finish]
        self.retention = json.loads(raw.retention) if raw.retention else None
        self.retrieval = json.loads(raw.retrieval) if raw.retrieval else None
        self.usage = {"prompt_tokens": raw.prompt_tokens, "completion_tokens": raw.completion_tokens,
                      "cached_tokens": raw.cached_tokens} if self.finish else None
        self.timings_us = {"queue": raw.queue_us, "ttft": raw.ttft_us,
                           "total": raw.total_us} if self.finish else None


class Answer:
    """A choice as a whole; its members are those of its last Output, with all text and tokens."""

    def __init__(self):
        self.text, self.tokens = "", []

    def _take(self, output):
        self.text += output.text
        if output.token is not None:
            self.tokens.append(output.token)
        if output.finish:
            self.finish, self.usage, self.timings_us = output.finish, output.usage, output.timings_us
            self.retention, self.retrieval = output.retention, output.retrieval


class _Owner:
    """Owns a handle of the library. The lock keeps a handle from being freed while another thread
    calls the library with it."""

    _handle = None

    def __init__(self):
        self._lock, self._process = threading.RLock(), os.getpid()

    def _take(self):
        """The handle, which the caller frees, or None: it is gone, or a parent process has it."""
        with self._lock:
            handle, self._handle = self._handle, None
        return handle if self._process == os.getpid() else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if self._handle:
            self.close()


class Request(_Owner):
    """A request that runs: iterate over it, with `for` or `async for`, for its outputs. Its end
    frees it; before that close() does, or `with`, which aborts what still runs. An error of the
    request is raised by the iteration."""

    def __init__(self, engine, handle):
        super().__init__()
        # The engine's callbacks, too, are needed until the request is released.
        self._engine, self._handle, self._raw = engine, handle, _Output()
        self._awaited = False  # whether a coroutine waits for the handle's descriptor

    def abort(self):
        """Ends every choice soon. Any thread."""
        with self._lock:
            if self._handle:
                lib.abort(self._handle)

    def close(self):
        """Aborts what still runs and frees the request. A coroutine that waits for an output gets
        those of the abort first, and their end frees it."""
        if self._awaited:
            return self.abort()
        handle = self._take()
        if handle:
            lib.request_release(handle)
            self._engine = None

    def _read(self, timeout_ms):
        """An Output, or None when nothing can be read now. Raises StopIteration at the end."""
        if not self._handle:
            raise StopIteration
        status = lib.read(self._handle, self._raw, timeout_ms)
        if status == END:
            self.close()
            raise StopIteration
        if status != OK:
            return None
        if FINISHES[self._raw.finish] == "error":
            error = Error(self._raw.error, (self._raw.error_text or b"").decode(errors="replace"))
            self.close()
            raise error
        return Output(self._raw)

    def __iter__(self):
        return self

    def __next__(self):
        output = None
        while output is None:
            output = self._read(_WAIT_MS)
        return output

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            while (output := self._read(0)) is None:
                await self._readable()
        except StopIteration:
            raise StopAsyncIteration from None
        return output

    async def _readable(self):
        loop, fd = asyncio.get_running_loop(), lib.request_fd(self._handle)
        ready = loop.create_future()
        loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
        self._awaited = True
        try:
            await ready
        finally:
            self._awaited = False
            loop.remove_reader(fd)


class Engine(_Owner):
    """A model with its KV pages and threads. log: called with lines, progress with bytes done and
    in all, from the library's threads. A Request that goes on keeps its Engine."""

    def __init__(self, model, *, log=None, progress=None, **settings):
        super().__init__()
        options, handle = EngineOptions(), ctypes.c_void_p()
        words = [_setting(name, value) for name, value in settings.items() if value is not False]
        # Callbacks live as long as the engine may call them.
        self._log = LOG((lambda _, line: log(line.decode(errors="replace"))) if log else 0)
        self._progress = PROGRESS((lambda _, done, total: progress(done, total)) if progress else 0)
        options.model = _text(str(model))
        options.settings = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        options.log, options.progress = self._log, self._progress
        _check(lib.engine_open, options, handle)
        self._handle = handle

    def submit(self, prompt=None, *, messages=None, token_ids=None, retention=None, retrieval=None, session=None,
               max_tokens=0, **fields):
        """Queues a request. Other fields are those over HTTP: temperature, stop, n, seed, …"""
        params, handle = Params(), ctypes.c_void_p()
        params.prompt = None if prompt is None else _text(prompt)
        params.session = None if session is None else _text(session)
        params.messages, params.retention, params.retrieval = map(_json, (messages, retention, retrieval))
        if token_ids is not None:
            ids = [_count("token_ids", token) for token in token_ids]
            params.token_ids = (ctypes.c_uint32 * max(len(ids), 1))(*ids)
            params.n_token_ids = len(ids)
        params.max_tokens, params.fields = _count("max_tokens", max_tokens or 0), _json(fields)
        with self._lock:
            _check(lib.submit, self._open(), params, handle)
        return Request(self, handle)

    def generate(self, prompt=None, **fields):
        """Submits a request and waits for its answer: an Answer, or a list of n with n above 1."""
        answers = [Answer() for _ in range(fields.get("n", 1))]
        with self.submit(prompt, **fields) as request:
            for output in request:
                answers[output.choice]._take(output)
        return answers[0] if len(answers) == 1 else answers

    async def agenerate(self, prompt=None, **fields):
        """generate() for coroutines; a cancelled one aborts its request."""
        answers = [Answer() for _ in range(fields.get("n", 1))]
        with self.submit(prompt, **fields) as request:
            async for output in request:
                answers[output.choice]._take(output)
        return answers[0] if len(answers) == 1 else answers

    def forget_session(self, session):
        with self._lock:
            _check(lib.forget_session, self._open(), _text(session))

    def stats(self):
        """octavo_stats as a dict."""
        raw = Stats()
        with self._lock:
            lib.get_stats(self._open(), raw)
        return {name: getattr(raw, name) for name, _ in Stats._fields_[1:]}

    def close(self):
        """Aborts what runs. Requests that are left can still be read."""
        handle = self._take()
        if handle:
            lib.engine_close(handle)

    def _open(self):
        if not self._handle:
            raise ValueError("the engine is closed")
        return self._handle


def _count(name, value):
    """The value, where ctypes would cut it to 32 bits."""
    value = operator.index(value)
    if not 0 <= value < 2**32:
        raise ValueError(f"{name}: {value} is not from 0 to {2**32 - 1}")
    return value


def _text(text):
    data = text.encode()
    if b"\0" in data:
        raise ValueError("a text must not hold NUL")
    return data


def _setting(name, value):
    name = name.replace("_", "-")
    if isinstance(value, dict):
        value = json.dumps(value)
    return _text(name if value is True else f"{name}={value}")
