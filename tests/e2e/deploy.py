#!/usr/bin/env python3
"""Compares deploy/ with the tree: packages, flags, settings, shell, YAML. Nothing is deployed.
usage: deploy.py OCTAVO   (from the source root)"""

import os
import re
import subprocess
import sys
import unittest

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
                 "deploy/kubernetes/group.yaml"]
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

    def test_manifests_are_yaml(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no PyYAML")
        with open("deploy/kubernetes/group.yaml", encoding="utf-8") as f:
            group, policy = yaml.safe_load_all(f)
        template = group["spec"]["leaderWorkerTemplate"]
        leader, workers = template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]
        serve = next(c for c in leader["containers"] if c["name"] == "serve")
        env = {e["name"]: e["value"] for e in serve["env"]}
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
        with open("deploy/kubernetes/router.yaml", encoding="utf-8") as f:
            router = next(d for d in yaml.safe_load_all(f) if d["kind"] == "Deployment")
        args = router["spec"]["template"]["spec"]["containers"][0]["args"]
        urls = [a for a in args if a.startswith("grpc://")]
        name = group["metadata"]["name"]
        self.assertEqual(urls, [f"grpc://{name}-{i}.{name}:50051" for i in range(group["spec"]["replicas"])])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
