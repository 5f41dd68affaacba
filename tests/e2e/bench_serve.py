#!/usr/bin/env python3
"""`octavo bench serve` against a server that is not octavo's. usage: bench_serve.py OCTAVO
[unittest arguments]"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

OCTAVO = os.path.abspath(sys.argv[1])


class OtherServer(http.server.BaseHTTPRequestHandler):
    """Streams two tokens (one is NUL), then ends the stream with a separate event, as llama.cpp's
    server does; `extra` is one event too many. Usage comes in an event after that one, or with
    it."""

    extra = ""
    with_end = False

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        events = [{"choices": [{"text": text, "finish_reason": None}]} for text in (" a", "\0", *self.extra)]
        events.append({"choices": [{"text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": 4, "completion_tokens": 2}
        if self.with_end:
            events[-1]["usage"] = usage
        else:
            events.append({"choices": [], "usage": usage})
        body = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class BenchServe(unittest.TestCase):
    def load(self, **how):
        handler = type("Handler", (OtherServer,), how)
        with http.server.HTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as folder:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            path = os.path.join(folder, "json")
            subprocess.run([OCTAVO, "bench", "serve", "--url", f"http://127.0.0.1:{server.server_port}", "--model", "m",
                            "--input-len", "4", "--output-len", "2", "--num-prompts", "3", "--max-concurrency", "1",
                            "--json", path], capture_output=True, timeout=300, check=False)
            server.shutdown()
            with open(path, encoding="utf-8") as f:
                return json.load(f)

    def test_end_in_its_own_event(self):
        for with_end in (False, True):
            with self.subTest(with_end=with_end):
                result = self.load(with_end=with_end)
                self.assertEqual((result["completed"], result["failed"]), (3, 0), result["ends"])
                self.assertEqual(result["total_output_tokens"], 6)

    def test_event_too_many(self):
        self.assertEqual(self.load(extra=[" c"])["failed"], 3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
