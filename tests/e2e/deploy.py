#!/usr/bin/env python3
"""Compares deploy/ with the tree: packages, flags, settings, shell, YAML. Nothing is deployed.
usage: deploy.py OCTAVO   (from the source root)"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve"))
from harness import Server, eventually, tokens  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None

OCTAVO = os.path.abspath(sys.argv[1])
TIMEOUT = 600


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def flags_of(command):
    out = subprocess.run([OCTAVO, command, "--help"], capture_output=True, timeout=TIMEOUT, text=True).stdout
    return set(re.findall(r"^  --([a-z-]+)", out, re.M))


def setting(prefix, flag):
    return prefix + flag.upper().replace("-", "_")


def documents_of(path):
    with open(path, encoding="utf-8") as f:
        return list(yaml.safe_load_all(f))


def settings_of(container):
    """Variables of a container, with a stand-in for what Kubernetes knows."""
    env = {}
    for e in container["env"]:
        env[e["name"]] = re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], e.get("value", "10.0.0.7"))
    return env


def packages_of(dockerfile, stage):
    """Packages of the stage's apt-get install."""
    part = text_of(dockerfile).split("\nFROM ")[stage]
    names = re.search(r"--no-install-recommends((?:[^&]|\n)*?)&&", part).group(1)
    return set(names.replace("\\", " ").split())


class Images(unittest.TestCase):
    def test_build_with_what_dev_installs(self):
        wanted = set(re.search(r"build_packages=\(([^)]*)\)", text_of("dev")).group(1).split())
        self.assertEqual(packages_of("deploy/Dockerfile", 1), wanted)
        # It stands on Ubuntu, where one of them has another name.
        ubuntu = {"libmsgpack-dev": "libmsgpack-c-dev"}
        self.assertEqual(packages_of("deploy/Dockerfile.cuda", 1), {ubuntu.get(p, p) for p in wanted} | {"g++"})

    def test_run_with_what_the_executable_needs(self):
        """Each library that the executable is linked with, and UCX, which it opens at run time."""
        linked = subprocess.run(["ldd", OCTAVO], capture_output=True, text=True).stdout
        needs = {"libjansson": "libjansson4", "libpcre2": "libpcre2-8-0", "libutf8proc": "libutf8proc2",
                 "libjemalloc": "libjemalloc2", "libmicrohttpd": "libmicrohttpd12", "libgrpc.": "libgrpc29",
                 "libprotobuf-c": "libprotobuf-c1", "libyaml": "libyaml-0-2", "libedit": "libedit2",
                 "libzmq": "libzmq5", "libz.": "zlib1g", "libcurl-gnutls": "libcurl3-gnutls"}
        has = packages_of("deploy/Dockerfile", 2)
        self.assertIn("libucx0", has)
        for library, package in needs.items():
            if library in linked:
                self.assertIn(package, has)


class Settings(unittest.TestCase):
    def test_are_flags(self):
        known = {setting("OCTAVO_", f) for f in flags_of("serve")}
        known |= {setting("OCTAVO_WORKER_", f) for f in flags_of("worker")}
        files = ["deploy/Dockerfile", "deploy/Dockerfile.cuda", "deploy/octavo.env", "deploy/octavo.service",
                 "deploy/kubernetes/group.yaml", "deploy/kubernetes/endpoint-picker.yaml"]
        for path in files:
            for name in re.findall(r"\bOCTAVO_[A-Z_]*[A-Z]\b", text_of(path)):
                if name != "OCTAVO_CUDA":
                    self.assertIn(name, known, path)

    def test_flags_are_there(self):
        every = set()
        for command in ("serve", "worker", "plan", "run"):
            every |= flags_of(command)
        foreign = {"worker-urls", "model-path", "policy", "block-size", "host", "port", "tenant-api-key",
                   "health-check-interval-secs", "cb-timeout-duration-secs", "pd-disaggregation", "prefill",
                   "decode",                                                                # smg
                   "nodes", "ntasks-per-node", "exclusive", "time", "signal", "job-name", "kill-on-bad-exit",
                   "from-file", "help"}
        for path in ("docs/cluster.md", "deploy/octavo.sbatch", "deploy/kubernetes/group.yaml"):
            for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text_of(path)):
                self.assertIn(flag, every | foreign, path)


class Scripts(unittest.TestCase):
    def test_are_shell(self):
        subprocess.run(["bash", "-n", "deploy/octavo.sbatch"], check=True)

    @unittest.skipUnless(yaml, "no PyYAML")
    def test_manifests_are_yaml(self):
        group, policy = documents_of("deploy/kubernetes/group.yaml")
        template = group["spec"]["leaderWorkerTemplate"]
        leader, workers = template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]
        serve = next(c for c in leader["containers"] if c["name"] == "serve")
        env = settings_of(serve)
        self.assertEqual(int(env["RANKS"]), template["size"])
        subprocess.run(["bash", "-n"], input=serve["command"][2], text=True, check=True)
        # The leader finds the other ranks: runs what its shell would run.
        script = serve["command"][2].replace("exec /usr/bin/octavo", "echo")
        out = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True,
                             env={"PATH": os.environ["PATH"], "RANKS": "3",
                                  "LWS_LEADER_ADDRESS": "octavo-0.octavo.default"}).stdout
        self.assertEqual(out.split()[-1], "octavo-0.octavo.default:7000,octavo-0-1.octavo.default:7000,"
                                          "octavo-0-2.octavo.default:7000")
        volumes = {v["name"] for v in leader["volumes"]}
        for container in leader["containers"] + workers["containers"]:
            self.assertLessEqual({m["name"] for m in container["volumeMounts"]}, volumes)
        label = policy["spec"]["podSelector"]["matchLabels"]["app"]
        for part in ("leaderTemplate", "workerTemplate"):
            self.assertEqual(template[part]["metadata"]["labels"]["app"], label)
        router = next(d for d in documents_of("deploy/kubernetes/router.yaml") if d["kind"] == "Deployment")
        args = router["spec"]["template"]["spec"]["containers"][0]["args"]
        urls = [a for a in args if a.startswith("grpc://")]
        name = group["metadata"]["name"]
        self.assertEqual(urls, [f"grpc://{name}-{i}.{name}:50051" for i in range(group["spec"]["replicas"])])


@unittest.skipUnless(yaml, "no PyYAML")
class EndpointPicker(unittest.TestCase):
    """The inference gateway's manifest, beside the group that it routes to and a live server."""

    @classmethod
    def setUpClass(cls):
        group = documents_of("deploy/kubernetes/group.yaml")[0]
        cls.leader = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        cls.serve = next(c for c in cls.leader["spec"]["containers"] if c["name"] == "serve")
        cls.env, cls.ports = settings_of(cls.serve), {p["name"]: p["containerPort"] for p in cls.serve["ports"]}
        documents = documents_of("deploy/kubernetes/endpoint-picker.yaml")
        cls.named = {(d["kind"], d["metadata"]["name"]): d for d in documents}
        assert len(cls.named) == len(documents)
        cls.pool = cls.named["InferencePool", "octavo"]["spec"]
        cls.deployment = cls.named["Deployment", "octavo-epp"]["spec"]
        cls.config = yaml.safe_load(cls.named["ConfigMap", "octavo-epp"]["data"]["picker.yaml"])
        cls.plugins = {p["type"]: p.get("parameters", {}) for p in cls.config["plugins"]}

    def test_the_pool_is_the_leaders(self):
        labels = self.leader["metadata"]["labels"]
        self.assertLessEqual(self.pool["selector"]["matchLabels"].items(), labels.items())
        self.assertEqual(self.pool["targetPorts"], [{"number": self.ports["http"]}])
        self.assertEqual(self.env["OCTAVO_HTTP"].rsplit(":", 1)[1], str(self.ports["http"]))
        render = self.named["Service", "octavo-http"]["spec"]
        self.assertEqual(render["selector"], self.pool["selector"]["matchLabels"])
        self.assertEqual(self.plugins["token-producer"]["vllm"]["url"],
                         f"http://octavo-http:{render['ports'][0]['port']}")
        self.assertIn(render["ports"][0]["targetPort"], self.ports)

    def test_names_lead_somewhere(self):
        for rule in self.named["HTTPRoute", "octavo"]["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                self.assertIn((backend["kind"], backend["name"]), self.named)
        picker = self.pool["endpointPickerRef"]
        service = self.named["Service", picker["name"]]["spec"]
        pod = self.deployment["template"]
        container = pod["spec"]["containers"][0]
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        flags = dict(a.removeprefix("--").split("=") for a in container["args"])
        self.assertEqual(service["selector"], pod["metadata"]["labels"])
        self.assertEqual(self.deployment["selector"]["matchLabels"], pod["metadata"]["labels"])
        self.assertEqual({p["port"]: ports[p["targetPort"]] for p in service["ports"]},
                         {p["port"]: p["port"] for p in service["ports"]})
        self.assertIn(picker["port"]["number"], [p["port"] for p in service["ports"]])
        self.assertEqual(flags["grpc-port"], str(picker["port"]["number"]))
        self.assertEqual({flags["grpc-health-port"]},
                         {str(container[p]["grpc"]["port"]) for p in ("readinessProbe", "livenessProbe")})
        self.assertIn(("InferencePool", flags["pool-name"]), self.named)
        folder, name = os.path.split(flags["config-file"])
        self.assertEqual([m["mountPath"] for m in container["volumeMounts"]], [folder])
        self.assertEqual([v["name"] for v in pod["spec"]["volumes"]], [container["volumeMounts"][0]["name"]])
        self.assertIn(name, self.named["ConfigMap", pod["spec"]["volumes"][0]["configMap"]["name"]]["data"])
        account = pod["spec"]["serviceAccountName"]
        binding = self.named["RoleBinding", "octavo-epp"]
        self.assertIn(("ServiceAccount", account), self.named)
        self.assertIn(account, [s["name"] for s in binding["subjects"]])
        self.assertIn(("Role", binding["roleRef"]["name"]), self.named)

    def test_plugins_are_declared(self):
        used = [p["pluginRef"] for profile in self.config["schedulingProfiles"] for p in profile["plugins"]]
        for source in self.config["dataLayer"]["sources"]:
            used += [source["pluginRef"], *(e["pluginRef"] for e in source["extractors"])]
        self.assertLessEqual(set(used), set(self.plugins))
        self.assertIn(self.plugins["prefix-cache-scorer"]["prefixMatchInfoProducerName"], used)

    def test_events_come_from_where_it_reads(self):
        events = json.loads(self.env["OCTAVO_KV_EVENTS_CONFIG"])
        reads = self.plugins["precise-prefix-cache-producer"]["kvEventsConfig"]
        sockets = reads["podDiscoveryConfig"]
        self.assertEqual(events["endpoint"], f"tcp://*:{sockets['socketPort']}")
        self.assertEqual(events["replay_endpoint"], f"tcp://*:{sockets['replaySocketPort']}")
        self.assertEqual([sockets["socketPort"], sockets["replaySocketPort"]],
                         [self.ports["kv-events"], self.ports["kv-replay"]])
        name = self.env["OCTAVO_SERVED_MODEL_NAME"]
        self.assertTrue(events["topic"].startswith(reads["topicFilter"]))
        self.assertEqual(events["topic"], f"kv@10.0.0.7:{self.ports['http']}@{name}")
        self.assertEqual(self.plugins["token-producer"]["modelName"], name)
        rule = self.named["NetworkPolicy", "octavo-kv-events"]["spec"]["ingress"][0]
        self.assertEqual([p["port"] for p in rule["ports"]], [self.ports["kv-events"], self.ports["kv-replay"]])
        self.assertEqual([f["podSelector"]["matchLabels"] for f in rule["from"]],
                         [self.deployment["template"]["metadata"]["labels"]])

    def test_a_server_answers_what_it_asks(self):
        """Metrics by their names and labels, tokens of prompts, events by the setting's words."""
        with tempfile.TemporaryDirectory() as folder:
            events = json.loads(self.env["OCTAVO_KV_EVENTS_CONFIG"])
            events |= {key: f"ipc://{folder}/{key}" for key in ("endpoint", "replay_endpoint")}
            env = {"OCTAVO_KV_EVENTS_CONFIG": json.dumps(events),
                   "OCTAVO_SERVED_MODEL_NAME": self.env["OCTAVO_SERVED_MODEL_NAME"]}
            with Server(env=env) as server:
                page = server.metrics()
                extractor = self.plugins["core-metrics-extractor"]
                engine = next(e for e in extractor["engineConfigs"] if e["name"] == extractor["defaultEngine"])
                for spec in ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec", "cacheInfoSpec"):
                    found = [sample for sample in page if sample.split("{")[0] == engine[spec]]
                    self.assertEqual(len(found), 1, engine[spec])
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[0]))
                blocks = self.plugins["precise-prefix-cache-producer"]["tokenProcessorConfig"]
                self.assertEqual(labels["block_size"], str(blocks["blockSizeTokens"]))
                self.assertGreater(int(labels["num_gpu_blocks"]), 0)
                prompt = {"model": self.plugins["token-producer"]["modelName"], "prompt": tokens(40, 1)}
                self.assertEqual(server.post("/v1/completions/render", prompt), [{"token_ids": prompt["prompt"]}])
                eventually("its sockets are there", lambda: len(os.listdir(folder)) == 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
