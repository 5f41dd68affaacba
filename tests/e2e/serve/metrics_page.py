#!/usr/bin/env python3
"""/metrics as Prometheus reads it: strict in form, complete in names, with numbers that change as
they should. usage: metrics_page.py OCTAVO [unittest arguments]"""

import json
import math
import pathlib
import re

from harness import ROOT, ServeTest, main, need, tokens

parser = need("prometheus_client.parser")

GAUGES = ["num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
          "cache_config_info", "logical_tokens", "kept_tokens", "kv_pages", "kv_pages_used", "kv_pages_cached", "sessions",
          "workers", "workers_up"]
COUNTERS = ["prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "generation_tokens",
            "prompt_tokens_by_source", "prompt_tokens_cached_by_source", "request_success", "admission_rejections", "pages_dropped", "retention_seconds", "sessions_stored",
            "sessions_continued", "sessions_ignored", "sessions_expired", "pressure_drops", "retrieval_audits", "workers_lost",
            "http_requests", "grpc_requests"]
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
              "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
              "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
              "request_generation_tokens", "request_prefill_kv_computed_tokens", "request_max_num_generation_tokens",
              "request_params_n", "request_params_max_tokens", "iteration_tokens_total"]
# Samples that vLLM's boards select by their labels, beside model_name and engine.
SELECTED = ['http_requests_total{handler="/v1/completions",status="2xx"}',
            'http_request_duration_seconds_count{handler="/v1/completions"}',
            'time_to_first_token_seconds_bucket{le="1.0"}', 'request_time_per_output_token_seconds_bucket{le="0.05"}',
            'request_prompt_tokens_bucket{le="1e+06"}', 'num_requests_waiting_by_reason{reason="capacity"}',
            'prompt_tokens_by_source_total{source="local_compute"}',
            'prompt_tokens_by_source_total{source="local_cache_hit"}',
            'prompt_tokens_by_source_total{source="external_kv_transfer"}',
            'prompt_tokens_cached_by_source_total{source="device"}',
            'prompt_tokens_cached_by_source_total{source="disk"}', 'request_success_total{finished_reason="error"}']


class Metrics(ServeTest):
    maxDiff = None

    def families(self):
        status, headers, text = self.server.get("/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"), headers["content-type"])
        self.assertTrue(text.endswith("\n"))
        families = {}
        for family in parser.text_string_to_metric_families(text):
            self.assertNotIn(family.name, families, "a family comes twice")
            families[family.name] = family
        return families, text

    def work(self):
        body = {"prompt": tokens(200, 1), "max_tokens": 10, "ignore_eos": True}
        self.server.post("/v1/completions", body)
        self.server.post("/v1/completions", body)
        self.server.post("/v1/completions", {**body, "retention": {"method": "chunkkv", "ratio": 0.3}})
        self.server.idle()

    def test_form(self):
        self.work()
        families, text = self.families()
        seen = set()
        for family in families.values():
            self.assertTrue(family.documentation, family.name)
            self.assertIn(family.type, ("gauge", "counter", "histogram", "summary"), family.name)
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                self.assertNotIn(key, seen)
                seen.add(key)
                self.assertFalse(math.isnan(sample.value), sample)
                if sample.name.startswith("octavo:"):
                    self.assertTrue({"model_name", "engine"} <= set(sample.labels), sample)
                if family.type == "counter":
                    self.assertTrue(sample.name.endswith("_total"), sample)
                    self.assertGreaterEqual(sample.value, 0)
            if family.type == "histogram":
                self.histogram(family)
        for line in text.splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) |[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^}]*\})? [-+0-9.eEInf]+$)")

    def histogram(self, family):
        by_labels = {}
        for s in family.samples:
            labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            by_labels.setdefault(labels, []).append(s)
        for samples in by_labels.values():
            buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual([v for _, v in buckets], sorted(v for _, v in buckets), family.name)
            (count,) = [s.value for s in samples if s.name.endswith("_count")]
            (total,) = [s.value for s in samples if s.name.endswith("_sum")]
            self.assertEqual(buckets[-1], (math.inf, count), family.name)
            self.assertGreaterEqual(total, 0)

    def test_names(self):
        self.work()
        families, _ = self.families()
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
            for name in names:
                with self.subTest(name):
                    self.assertIn(f"octavo:{name}", families)
                    self.assertEqual(families[f"octavo:{name}"].type, kind)
        reasons = {s.labels["reason"] for s in families["octavo:num_requests_waiting_by_reason"].samples}
        self.assertEqual(reasons, {"capacity", "deferred"})
        self.assertIn("length", {s.labels["finished_reason"] for s in families["octavo:request_success"].samples})
        self.assertIn("chunkkv", {s.labels["method"] for s in families["octavo:pages_dropped"].samples})

    def test_selected(self):
        self.work()
        families, _ = self.families()
        found = {(s.name.removeprefix("octavo:"), item) for family in families.values() for s in family.samples
                 for item in s.labels.items()}
        for text in SELECTED:
            name, labels = re.fullmatch(r"(\w+)\{(.*)\}", text).groups()
            for key, value in re.findall(r'(\w+)="([^"]*)"', labels):
                self.assertIn((name, (key, value)), found, text)

    def test_kinds(self):
        """What ends as a counter is one, but for vLLM's histogram of that name."""
        families, text = self.families()
        ends = {name for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M)
                if name.endswith("_total") != (kind == "counter")}
        self.assertEqual(ends, {"octavo:iteration_tokens_total"})
        (build,) = families["octavo_build_info"].samples
        self.assertEqual((build.value, build.labels["dtype"], build.labels["cache_dtype"]), (1, "bf16", "bf16"))
        self.assertEqual(build.labels["version"], json.loads(self.server.get("/version")[2])["version"])
        self.assertRegex(build.labels["commit"], r"^([0-9a-f]{12,40})?$")

    def test_board(self):
        """deploy/grafana.json names metrics and labels that are on the page, and no others."""
        self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        families, _ = self.families()
        samples = {s.name: set(s.labels) for family in families.values() for s in family.samples}
        # None before a call.
        samples["octavo:grpc_requests_total"] = {"model_name", "engine", "code", "method"}
        board = json.loads(pathlib.Path(ROOT, "deploy/grafana.json").read_text(encoding="utf-8"))
        exprs = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
        self.assertGreater(len(exprs), 60)
        for expr in exprs:
            names = re.findall(r"\b((?:octavo|http|process)[\w:]+)\{(.*?)\}", expr)
            self.assertTrue(names, expr)
            grouped = {label for group in re.findall(r"by \((.*?)\)", expr) for label in group.split(", ")}
            for name, selector in names:
                self.assertIn(name, samples, expr)
                labels = set(re.findall(r'(\w+)=~?"', selector)) | grouped
                self.assertLessEqual(labels - {"job", "instance"}, samples[name], expr)

    def test_sources(self):
        """The second of two equal prompts is found in memory but for its last block, or a part."""
        def read():
            return {source: self.server.metric("prompt_tokens_by_source_total", source=source)
                    for source in ("local_compute", "local_cache_hit", "external_kv_transfer")}
        body = {"prompt": tokens(200, 2), "max_tokens": 2, "ignore_eos": True}
        self.server.post("/v1/completions", body)
        before, computed = read(), self.server.metric("request_prefill_kv_computed_tokens_sum")
        answer = self.server.post("/v1/completions", body)
        after = read()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 100)
        self.assertEqual({k: after[k] - before[k] for k in after},
                         {"local_compute": 200 - cached, "local_cache_hit": cached, "external_kv_transfer": 0})
        self.assertEqual(self.server.metric("request_prefill_kv_computed_tokens_sum") - computed, 200 - cached)
        self.assertEqual(sum(after.values()), self.server.metric("prompt_tokens_total"))

    def test_documented(self):
        """docs/api.md names each metric of the page with its kind and labels, and no other."""
        page = pathlib.Path(__file__).parents[3] / "docs/api.md"
        rows = re.findall(r"^\| `([\w:]+)` \| (gauge|counter|histogram|summary) \| (.*?) ?\| ", page.read_text(), re.M)
        documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
        self.work()
        families, _ = self.families()
        found = {}
        for stem, family in families.items():
            name = stem + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels}
            if stem.startswith("octavo:"):
                labels -= {"model_name", "engine"}
            # A counter of answers has no sample until there is an answer.
            found[name] = (family.type, labels if family.samples else documented[name][1])
        self.assertEqual(found, documented)

    def test_numbers(self):
        names = {"prompt_tokens_total": 600, "generation_tokens_total": 30, "request_success_total": 3,
                 "time_to_first_token_seconds_count": 3, "request_prompt_tokens_count": 3,
                 "request_prompt_tokens_sum": 600, "request_generation_tokens_sum": 30,
                 "e2e_request_latency_seconds_count": 3, "inter_token_latency_seconds_count": 27,
                 "request_time_per_output_token_seconds_count": 3, "request_params_n_sum": 3,
                 "request_params_max_tokens_sum": 30, "request_max_num_generation_tokens_sum": 30}
        # A prompt's last token is always computed, and so are the rows that measure for retention.
        queried = self.server.metric("prefix_cache_queries_total")
        before = {name: self.server.metric(name) for name in names}
        self.work()
        after = {name: self.server.metric(name) for name in names}
        self.assertEqual({name: after[name] - before[name] for name in names}, names)
        self.assertIn(self.server.metric("prefix_cache_queries_total") - queried, range(500, 601))
        self.assertGreater(self.server.metric("prefix_cache_hits_total"), 0)
        self.assertGreater(self.server.metric("kv_pages_cached"), 0)
        self.assertEqual(self.server.metric("kv_cache_usage_perc"), 0)
        self.assertEqual(self.server.metric("kept_tokens"), 0)


if __name__ == "__main__":
    main()
