#!/usr/bin/env python3
"""/metrics and deploy/grafana.json with a real Prometheus: promtool has nothing to say against the
page, Prometheus scrapes the server, and answers each query of the board. Skipped without Debian's
package prometheus. usage: metrics_prometheus.py OCTAVO [unittest arguments]"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from harness import ROOT, SKIP, HeldPort, ServeTest, eventually, main, tokens

if not shutil.which("prometheus") or not shutil.which("promtool"):
    print("SKIPPED metrics_prometheus.py: no prometheus and promtool (apt-get install prometheus)")
    sys.exit(SKIP)

# promtool keeps the colon for recording rules; vLLM has it in all its names, and a histogram's name
# that ends as a counter's.
KNOWN = ["metric names should not contain ':'",
         'octavo:iteration_tokens_total non-counter metrics should not have "_total" suffix']
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: octavo
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def queries():
    """(panel's title, expression) of the board, with its variables as Grafana sets them."""
    board = json.loads(pathlib.Path(ROOT, "deploy/grafana.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "5s")
            yield panel["title"], text.replace("$model", ".*").replace("$job", ".*")


class Prometheus(ServeTest):
    def work(self):
        body = {"prompt": tokens(200, 1), "max_tokens": 10, "ignore_eos": True}
        for more in ({}, {}, {"retention": {"method": "chunkkv", "ratio": 0.3}}, {"session": "a"},
                     {"session": "a"}, {"retrieval": {"method": "quest", "audit": 1}}):
            self.server.post("/v1/completions", {**body, **more})

    def test_promtool(self):
        self.work()
        page = self.server.get("/metrics")[2]
        out = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
        # 3: the page could be read, and promtool has something to say.
        self.assertIn(out.returncode, (0, 3), out.stderr)
        said = [line for line in (out.stdout + out.stderr).splitlines() if not any(k in line for k in KNOWN)]
        self.assertEqual(said, [])

    def ask(self, port, path, **arguments):
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            text = e.read()  # plain until Prometheus is ready
            return json.loads(text) if text.startswith(b"{") else {"status": "down"}
        except OSError:
            return {"status": "down"}

    def test_board(self):
        held = HeldPort()
        self.addCleanup(held.close)
        port = held.number
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "prometheus.yml")
            config.write_text(CONFIG.format(port=self.server.http_port), encoding="utf-8")
            subprocess.run(["promtool", "check", "config", str(config)], check=True, capture_output=True)
            p = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                  f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
            try:
                self.check_board(port)
            finally:
                p.terminate()
                p.wait()

    def scrapes(self, port):
        """How often Prometheus has read the server."""
        answer = self.ask(port, "query", query='count_over_time(up{job="octavo"}[1m])')
        found = answer.get("data", {}).get("result", [])
        return int(found[0]["value"][1]) if found else 0

    def result(self, port, query):
        answer = self.ask(port, "query", query=query)
        self.assertEqual(answer["status"], "success", f"{query}: {answer.get('error')}")
        return answer["data"]["result"]

    def check_board(self, port):
        eventually("Prometheus reads the server", lambda: self.scrapes(port) >= 2)
        self.work()
        before = self.scrapes(port)
        eventually("Prometheus reads it again", lambda: self.scrapes(port) >= before + 2)
        for title, query in queries():
            # A quotient has no value while its counters stand still, and no call came over gRPC.
            lacks = "/ (" in query or "grpc_requests_total" in query
            # After a page that came late, every series is gone until the next page.
            eventually(f"{title}: {query}", lambda q=query, may=lacks: self.result(port, q) or may)


if __name__ == "__main__":
    main()
