"""--device as a user meets it: without a driver, and with kernels that run on the CPU (tests/simt)."""

import os
import shutil
import subprocess
import sys

octavo, home = sys.argv[1], sys.argv[2]
here = os.path.join(home, "octavo")
shutil.copy2(octavo, here)

PROMPTS = ["The quick brown fox", "Once upon a time there was a", "1 2 3 4 5"]


def run(*flags, driver, env=None):
    environment = dict(os.environ, **(env or {}))
    environment.pop("LD_LIBRARY_PATH", None)
    if driver:
        environment["LD_LIBRARY_PATH"] = home
    command = [here, "run", "--model", "models/demo", "--max-tokens", "12", "--temperature", "0", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def refused(result, *words):
    assert result.returncode != 0, result.stdout
    for word in words:
        assert word in result.stderr, f"no '{word}' in: {result.stderr}"


def prompt(text):
    return ("--prompt", text)


def main():
    # A machine may have a real driver: what follows is of one that has none.
    probe = run("--device", "cuda", *prompt(PROMPTS[0]), driver=False)
    if "driver" in probe.stderr:
        refused(probe, "--device", "no CUDA driver")
        same = run("--device", "auto", *prompt(PROMPTS[0]), driver=False)
        assert same.returncode == 0, same.stderr
    refused(run("--device", "gpu", *prompt("x"), driver=False), "--device", "cuda:N")
    refused(run("--device", "cuda", *prompt("x"), driver=True, env={"OCTAVO_TEST_DEVICES": "0"}), "shows no device")
    refused(run("--device", "cuda", *prompt("x"), driver=True, env={"OCTAVO_TEST_DRIVER_FAILS": "1"}), "does not start")
    refused(run("--device", "cuda:3", *prompt("x"), driver=True), "cuda:3", "ordinal")
    refused(run("--device", "cuda", "--kv-dtype", "int8", *prompt("x"), driver=True), "--kv-dtype", "int8")
    refused(run("--device", "cpu", "--kv-dtype", "fp8", *prompt("x"), driver=True), "--kv-dtype", "fp8")
    refused(run("--device", "cuda", "--tp", "2", *prompt("x"), driver=True), "--tp")

    for text in PROMPTS:
        cpu = run("--device", "cpu", *prompt(text), driver=True)
        gpu = run("--device", "cuda", *prompt(text), driver=True)
        assert cpu.returncode == 0 and gpu.returncode == 0, cpu.stderr + gpu.stderr
        assert "simt" in gpu.stderr, gpu.stderr
        assert cpu.stdout == gpu.stdout, f"{text}: cpu {cpu.stdout!r}, cuda {gpu.stdout!r}"
    print("ok")


main()
