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
import xml.dom.minidom

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
            path, plot = os.path.join(folder, "json"), os.path.join(folder, "svg")
            subprocess.run([OCTAVO, "bench", "serve", "--url", f"http://127.0.0.1:{server.server_port}", "--model", "m",
                            "--input-len", "4", "--output-len", "2", "--num-prompts", "3", "--max-concurrency", "1",
                            "--json", path, "--plot", plot], capture_output=True, timeout=300, check=False)
            server.shutdown()
            self.drawing = xml.dom.minidom.parse(plot)
            with open(path, encoding="utf-8") as f:
                return json.load(f)

    def texts(self):
        return [text.firstChild.data for text in self.drawing.getElementsByTagName("text")]

    def test_end_in_its_own_event(self):
        for with_end in (False, True):
            with self.subTest(with_end=with_end):
                result = self.load(with_end=with_end)
                self.assertEqual((result["completed"], result["failed"]), (3, 0), result["ends"])
                self.assertEqual(result["total_output_tokens"], 6)

    def test_event_too_many(self):
        self.assertEqual(self.load(extra=[" c"])["failed"], 3)

    def test_picture(self):
        """Requests that succeeded have lines of their latencies, but where these are too short to
        be above 0."""
        for extra, least, most in (([], 2, 4), ([" c"], 0, 0)):
            self.load(extra=extra)
            self.assertTrue(self.texts()[0].startswith("octavo bench serve: 3 requests in "), self.texts())
            self.assertIn("time to first token", self.texts())
            points = [len(p.getAttribute("points").split()) for p in self.drawing.getElementsByTagName("polyline")]
            self.assertIn(points.count(101), range(least, most + 1), points)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
