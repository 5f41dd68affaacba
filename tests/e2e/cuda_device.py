"""--device as a user meets it: without a driver, and with kernels that run on the CPU (tests/simt).

cuda_device.py --compare OCTAVO [FLAGS]: on a machine with a GPU, compares greedy answers on it with
the CPU's, of the demo model unless FLAGS name another, with and without --batch-invariant."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TIE = 0.05  # nats between tokens that rounding may swap
SMALL = ["--kv-memory", "16M", "--swap-memory", "0"]  # emulated GPU memory is zeroed byte by byte
PROMPTS = ["The quick brown fox", "Once upon a time there was a", "1 2 3 4 5"]
# Prompts of different lengths, and more of them than a CUDA graph has rows, so that decode steps
# are padded.
CROWD = [f"{i}. {'The quick brown fox jumps over the lazy dog. ' * 2}"[:4 + 8 * i] for i in range(11)]


def run(*flags, driver, env=None):
    environment = dict(os.environ, **(env or {}))
    environment.pop("LD_LIBRARY_PATH", None)
    if driver:
        environment["LD_LIBRARY_PATH"] = home
    command = [here, "run", "--model", "models/demo", "--max-tokens", "4", "--temperature", "0", *SMALL, *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def refused(result, *words):
    assert result.returncode != 0, result.stdout
    for word in words:
        assert word in result.stderr, f"no '{word}' in: {result.stderr}"


def start_worker(*flags, address="127.0.0.1:0", libraries=None):
    """A process with an emulated GPU, and its address. libraries: where the loader looks."""
    environment = dict(os.environ, LD_LIBRARY_PATH=libraries or home)
    worker = subprocess.Popen([here, "worker", "--listen", address, "--model", "models/demo", *flags], env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return worker, worker.stdout.readline().removeprefix("listening at ").strip()


def with_worker(*flags, words=None):
    """One rank in a process of its own, on an emulated GPU of its own; words: the text of its
    refusal."""
    worker, address = start_worker(*flags)
    try:
        got = run("--device", "cuda", "--workers", address, *prompt(PROMPTS[0]), driver=False)
        if words:
            refused(got, *words)
            return
        alone = run("--device", "cuda", *prompt(PROMPTS[0]), driver=True)
        assert got.returncode == 0 and "rank 0 at" in got.stderr and "simt" in got.stderr, got.stderr
        assert got.stdout == alone.stdout and got.stdout, (got.stdout, alone.stdout)
        # Steps follow each other over the wire as here, and each draw is the next step's token.
        one_by_one = ["--max-batch", "1"]
        there = answers(here, "cuda", False, 8, [*one_by_one, "--workers", address], CROWD[:2])
        beside = answers(here, "cuda", True, 8, one_by_one, CROWD[:2])
        for key, answer in beside.items():
            for part in ("token_ids", "logprobs"):
                assert answer[part] == there[key][part], (key, part, answer[part], there[key][part])
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def ranks_at_workers():
    """Two ranks, each in a process of its own, whose kernels add up in each other's memory. With
    --batch-invariant every bit of an answer is that of its prompt alone."""
    workers = [start_worker(libraries=f"{home}:{nccl}") for _ in range(2)]
    addresses = ",".join(address for _, address in workers)
    prompts, invariant = CROWD[1:4], ["--workers", addresses, "--batch-invariant"]
    try:
        got = run("--device", "cuda", "--workers", addresses, *prompt(PROMPTS[0]), driver=False)
        assert got.returncode == 0, got.stderr
        for rank in range(2):
            assert f"sums of rank {rank}: by kernels, in each other's memory" in got.stderr, got.stderr
        together = answers(here, "cuda", False, 4, invariant, prompts)
        compare(answers(here, "cpu", False, 4, (), prompts), together)
        for key, alone in answers(here, "cuda", False, 4, [*invariant, "--max-batch", "1"], prompts).items():
            for part in ("token_ids", "logprobs"):
                assert alone[part] == together[key][part], (key, part, alone[part], together[key][part])
    finally:
        for worker, _ in workers:
            worker.terminate()
        assert [worker.wait(60) for worker, _ in workers] == [0, 0]


def ranks_with_a_gpu_each():
    """Ranks that are threads say who adds up, too."""
    flags = ["--model", "models/demo", "--device", "cuda", "--tp", "2", "--workers", "threads", "--batch-invariant"]
    got = octavo_with_device("run", "--max-tokens", "2", *SMALL, *flags, *prompt(PROMPTS[0]), OCTAVO_TEST_DEVICES="2",
                             LD_LIBRARY_PATH=f"{home}:{nccl}")
    assert "2 ranks" in got.stderr and "sums of ranks: by kernels, in each other's memory" in got.stderr, got.stderr


def ask(url, n_tokens, stream):
    body = {"prompt": "x", "max_tokens": n_tokens, "ignore_eos": True, "stream": stream}
    return urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(),
                                                         {"Content-Type": "application/json"}), timeout=300)


def until(what, found):
    """Waits for a true value."""
    end = time.monotonic() + 300
    while not (value := found()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return value


def answered(url):
    try:
        with ask(url, 4, False) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as e:
        assert e.code == 503, e.read()
        return False


def lost_worker():
    """A worker that is killed with two steps in flight fails its requests, and serves again when it
    is back."""
    worker, address = start_worker()
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([here, "serve", "--model", "models/demo", "--override", "max_position_embeddings=32768",
                                   "--max-model-len", "8000", "--device", "cuda", "--workers", address, "--http",
                                   "127.0.0.1:0", *SMALL], stdin=subprocess.DEVNULL, stderr=log)

        def told():
            log.seek(0)
            return log.read()

        try:
            url = until("it listens", lambda: re.search(r"HTTP at (http://\S+?:\d+),", told())).group(1)
            with ask(url, 7000, True) as stream:
                assert stream.readline()
                worker.kill()
                worker.wait(60)
                rest = stream.read().decode()
            assert '"error"' in rest and f"rank 0 ({address})" in rest, rest[-500:]
            worker, again = start_worker(address=address)
            assert again == address, again
            until("it serves again", lambda: answered(url))
        finally:
            server.terminate()
            assert server.wait(60) == 0, told()[-2000:]
            worker.terminate()
            assert worker.wait(60) == 0


def prompt(text):
    return ("--prompt", text)


def answers(program, device, driver, n_tokens, flags=(), prompts=PROMPTS):
    """The tokens of each prompt, and the most likely tokens at each place. stderr may hold a failed
    capture."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for text in prompts:
            f.write(json.dumps({"prompt": text, "max_tokens": n_tokens, "temperature": 0, "logprobs": 5}) + "\n")
        f.flush()
        environment = dict(os.environ)
        if driver:
            environment["LD_LIBRARY_PATH"] = home
        model = [] if "--model" in flags else ["--model", "models/demo"]
        command = [program, "run", *model, "--device", device, "--prompts", f.name, *SMALL, *flags]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        print(result.stderr.rstrip())
        found = {a["id"]: a for a in map(json.loads, result.stdout.splitlines())}
        assert len(found) == len(prompts), found
        return found


def compare(cpu, gpu):
    """The tokens must be the same up to a first difference, which must be a tie."""
    for key, a in cpu.items():
        b = gpu[key]
        for i, (x, y) in enumerate(zip(a["token_ids"], b["token_ids"])):
            if x == y:
                continue
            here_a, here_b = a["logprobs"]["content"][i], b["logprobs"]["content"][i]
            others = {t["token"]: t["logprob"] for t in here_a["top_logprobs"]}
            gap = here_a["logprob"] - others.get(here_b["token"], -1e9)
            print(f"prompt {key}, token {i}: {here_a['token']!r} and {here_b['token']!r} are {gap:.4f} apart")
            assert gap < TIE, "more than a tie"
            break


def compare_crowd(program, flags):
    """Compares a batch with padded steps; with --batch-invariant every bit equals that of a prompt
    alone."""
    light = "OCTAVO_TESTS_LIGHT" in os.environ

    def crowd(device, *more):
        return answers(program, device, False, 3 if light else 24, [*flags, *more], CROWD[:2] if light else CROWD)

    cpu = crowd("cpu")
    compare(cpu, crowd("cuda"))
    together = crowd("cuda", "--batch-invariant")
    compare(cpu, together)
    for key, alone in crowd("cuda", "--batch-invariant", "--max-batch", "1").items():
        for part in ("token_ids", "logprobs"):
            assert alone[part] == together[key][part], (key, part, alone[part], together[key][part])
    print(f"{len(cpu)} prompts together: as on the CPU, and invariant")


def octavo_with_device(*args, **env):
    environment = {**os.environ, "LD_LIBRARY_PATH": home, **env}
    result = subprocess.run([here, *args], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result


def drivers():
    """A driver runs plugins that were built with CUDA of its major release or an older one."""
    def of(driver, runtime, device="cuda"):
        return run("--device", device, *prompt(PROMPTS[0]), driver=True,
                   env={"OCTAVO_TEST_DRIVER": driver, "OCTAVO_TEST_RUNTIME": runtime})

    for driver, runtime in (("13000", "13010"), ("13000", "12090"), ("12020", "12090")):
        got = of(driver, runtime)
        assert got.returncode == 0, (driver, runtime, got.stderr)
    refused(of("12090", "13000"), "of CUDA 12.9", "built with CUDA 13.0", "CUDA 13 (580) or newer", "built with CUDA 12")
    refused(of("11080", "12090"), "of CUDA 11.8", "CUDA 12 (525) or newer")
    refused(of("13000", "14000"), "CUDA 14 or newer")
    auto = of("12090", "13000", "auto")
    assert auto.returncode == 0 and re.search(r"CUDA 13 \(580\) or newer.*: on the CPU instead", auto.stderr), auto.stderr


def plans():
    """octavo plan's figures equal those of the backend that is then made."""
    for flags in (["--kv-dtype", "int8"], ["--kv-dtype", "fp8", "--tp", "2", "--workers", "threads"]):
        flags = ["--model", "models/demo", "--kv-memory", "5M", "--swap-memory", "1M", "--device", "cuda", *flags]
        small = ["--memory", "8G", "--context", "64", "--concurrency", "1", "--json"]
        plan = json.loads(octavo_with_device("plan", *small, *flags).stdout)
        told = octavo_with_device("run", "--max-tokens", "1", *prompt("x"), *flags).stderr
        words = f'{plan["kv"]["pages"]} {plan["kv"]["type"]} pages, room for {plan["kv"]["tokens"]} tokens'
        assert words in told, (words, told)


def forms():
    """Answers in a form, drawn on the device and by ranks."""
    line = {"prompt": PROMPTS[0], "max_tokens": 24, "temperature": 1, "seed": 7, "n": 3,
            "structured_outputs": {"regex": "(ab|ba){4}c"}}
    for flags in ((), ("--tp", "2", "--workers", "threads")):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps(line) + "\n")
            f.flush()
            lines = octavo_with_device("run", "--model", "models/demo", "--device", "cuda", *SMALL, *flags, "--prompts",
                                       f.name).stdout.splitlines()
        texts = [json.loads(answer)["text"] for answer in lines]
        assert len(texts) == 3 and all(re.fullmatch("(ab|ba){4}c", text) for text in texts), texts


def beyond_the_device():
    """Tokens and their probabilities are those of a pool that is all on the device, and the plan is
    that of the backend that is made."""
    # Steps that are not planned ahead have other batches.
    alike = ["--prefill-chunk", "32", "--batch-invariant"]
    flags = ["--kv-memory", "600K", "--kv-host", "900K", *alike]
    here_all = answers(here, "cuda", True, 4, alike, CROWD[8:])
    there = answers(here, "cuda", True, 4, flags, CROWD[8:])
    for key, answer in here_all.items():
        for part in ("token_ids", "logprobs"):
            assert answer[part] == there[key][part], (key, part, answer[part], there[key][part])
    flags = ["--model", "models/demo", "--device", "cuda", "--swap-memory", "0", *flags]
    told = octavo_with_device("run", "--max-tokens", "1", *prompt("x"), *flags).stderr
    plan = json.loads(octavo_with_device("plan", "--memory", "8G", "--context", "96", "--output", "1", "--concurrency",
                                         "1", "--json", *flags).stdout)
    words = f'{plan["kv"]["pages"]} {plan["kv"]["type"]} pages, room for {plan["kv"]["tokens"]} tokens'
    assert words in told and " KiB in host memory: " in told, (words, told)
    far, chunk = plan["kv_host"], 32 * plan["kv"]["token_bytes"]
    share = far["host_bytes"] / (plan["kv"]["pages"] + 1) / plan["kv"]["page_bytes"]
    assert abs(far["chunk_down_bytes"] - share * chunk) < 2 and abs(far["chunk_up_bytes"] - share * chunk * 63 / 32) < 2
    assert abs(far["prompt_up_bytes"] - share * chunk * 3) < 2, far  # after 0, 32 and 64 tokens
    refused(run("--device", "cuda", "--kv-host", "1M", "--tp", "2", "--workers", "threads", *prompt("x"), driver=True),
            "--kv-host", "one rank")
    refused(run("--device", "cpu", "--kv-host", "1M", *prompt("x"), driver=True), "--kv-host", "GPU")
    refused(run("--device", "cuda", "--kv-host", "1G", *prompt("x"), driver=True), "kv-memory", "two layers")


def benches():
    """Shapes are a 64th where a device has few multiprocessors."""
    lines = octavo_with_device("bench", "kernels", "--device", "cuda", "--dtype", "int8", "--kv-dtype", "fp8", "--rows",
                               "8").stdout
    for word in ("limits: copy", "decode attention 64 x 4096, fp8, mass by slot", "mass by page of one",
                 "by 8 rows, int8", "largest of", "draw by top-k and top-p", "decode layer in a graph, 8 rows: ",
                 "of kernels that start early: "):
        assert word in lines, f"no '{word}' in: {lines}"
    lines = octavo_with_device("bench", "kernels", "--device", "cuda", "--dtype", "fp8", "--rows", "256",
                               "--part-slots", "64", "--few-rows", "4", "--few-quant-rows", "16", "--few-of-expert",
                               "1", "--staged-rows", "64", OCTAVO_TEST_COMPUTE="90").stdout
    for word in ("decode attention 8 x 32768, bf16", "by 1 rows, fp8", "by 256 rows, fp8 x fp8", "256 rows: ",
                 "experts of Mixtral 8x7B, 16 rows", "experts of Qwen3 30B, 16 rows", "products of each expert alone",
                 "ms, fp8 x fp8: "):
        assert word in lines, f"no '{word}' in: {lines}"
    model = ["--model", "models/demo", "--device", "cuda", "--max-batch", "2", "--prefill-chunk", "16", "--rounds", "1",
             "--json", *SMALL]
    rows = json.loads(octavo_with_device("bench", "engine", *model, "--batch", "2", "--context", "16", "--prefill", "32",
                                         "--prompts", "2,1").stdout)["rows"]
    measured = octavo_with_device("bench", "engine", *model, "--batch", "2", "--context", "16", "--prefill", "16",
                                  "--retention", "h2o", "--retention", "tova")
    assert [r["method"] for r in json.loads(measured.stdout)["rows"] if r["what"] == "measured"] == ["h2o", "tova"]
    prefills = [(r["batch"], r["tokens"]) for r in rows if r["what"] == "prefill"]
    assert prefills == [(2, 32), (1, 32)], rows
    launches(model)
    rows = json.loads(octavo_with_device("bench", "retention", *model, "--tokens", "48", "--context", "0", "--full", "1",
                                         "--method", 'chunkkv={"window":8,"ratio":0.3}').stdout)["rows"]
    assert rows[0]["what"] == "cost" and rows[0]["pages_dropped"] > 0, rows


def launches(model):
    """A decode step's launches by name, one by one and as a graph: their counts, and times that add
    up. The demo model has 4 layers."""
    flags = [*model, "--batch", "1,2", "--context", "16", "--prefill", "16", "--rounds", "2", "--launches"]
    rows = [r for r in json.loads(octavo_with_device("bench", "engine", *flags).stdout)["rows"] if r["what"] == "launches"]
    assert [(r["batch"], r["tokens"]) for r in rows] == [(1, 16), (2, 16)], rows
    for r in rows:
        assert {one["name"]: one["launches"] for one in r["launches"]} == {
            "copy to the device": 2, "embed": 1, "angles": 1, "norm": 9, "product of few rows": 17, "heads": 4,
            "decode attention": 4, "merge of attention": 4, "gate": 4, "draws": 1, "copy to the host": 1}, r
        assert {one["name"]: one["launches"] for one in r["graph"]} == {
            "copy to the device": 2, "graph": 1, "copy to the host": 1}, r
        for all_of, us in (("launches", r["us"]), ("graph", r["graph_us"])):
            times = [one["us"] for one in r[all_of]]
            assert times == sorted(times, reverse=True) and abs(sum(times) / us - 1) < 1e-4, r
            assert abs(sum(one["share"] for one in r[all_of]) - 1) < 1e-4, r
            assert all(abs(one["share"] - one["us"] / us) < 1e-5 for one in r[all_of]), r
        by_name = {one["name"]: one["us"] for one in r["launches"]}
        for part, name in (("products", "product of few rows"), ("attention", "decode attention")):
            assert r[f"{part}_us"] == by_name[name] and 0 < r[f"{part}_least_us"] < by_name[name], r
        assert r["products_least_us"] > 0.7 * r["products_us"], r  # by the emulated clock
    lines = octavo_with_device("bench", "engine", *[f for f in flags if f != "--json"]).stdout
    shares = re.findall(r"^ {24}[a-z ]+ +\d+ +[\d.]+ +([\d.]+) %$", lines, re.M)
    assert len(shares) == 22 and abs(sum(map(float, shares)) - 200) < 1.1, lines
    assert len(re.findall(r"^ {24}one by one +48 +[\d.]+\n {24}as a graph +4 +[\d.]+ +[-+][\d.]+ %\n"
                          r" {24}all products: [\d.]+ us, of which \d+ % at the limits\n"
                          r" {24}decode attention: [\d.]+ us, of which \d+ % at the limits$", lines, re.M)) == 2, lines
    for more in (["--tp", "2"], ["--device", "cpu"]):
        run_it = subprocess.run([here, "bench", "engine", *flags, *more], env=dict(os.environ, LD_LIBRARY_PATH=home),
                                capture_output=True, text=True, timeout=300)
        refused(run_it, "--launches: it needs one GPU of this process")
    none = subprocess.run([here, "bench", "engine", "--backend", "null", "--launches"], capture_output=True, text=True,
                          timeout=300)
    refused(none, "--backend null excludes --launches")


def main():
    shutil.copy2(octavo, here)
    # A machine may have a real driver: the following tests a machine without one.
    probe = run("--device", "cuda", *prompt(PROMPTS[0]), driver=False)
    if "driver" in probe.stderr:
        refused(probe, "--device", "no CUDA driver")
        same = run("--device", "auto", *prompt(PROMPTS[0]), driver=False)
        assert same.returncode == 0, same.stderr
    refused(run("--device", "gpu", *prompt("x"), driver=False), "--device", "cuda:N")
    refused(run("--device", "cuda", *prompt("x"), driver=True, env={"OCTAVO_TEST_DEVICES": "0"}), "shows no device")
    refused(run("--device", "cuda", *prompt("x"), driver=True, env={"OCTAVO_TEST_DRIVER_FAILS": "1"}),
            "does not start (error 100: no CUDA-capable device is detected)")
    drivers()
    refused(run("--device", "cuda:3", *prompt("x"), driver=True), "cuda:3", "ordinal")
    refused(run("--device", "cuda", "--kv-dtype", "int4", *prompt("x"), driver=True), "--kv-dtype", "int4")
    refused(run("--device", "cpu", "--kv-dtype", "fp8", *prompt("x"), driver=True), "--kv-dtype", "fp8")
    kernels = [here, "bench", "kernels", "--device"]
    for flags, word in ((["gpu"], "--device"), (["cuda:7"], "ordinal"), (["cuda", "--kv-dtype", "f32"], "--kv-dtype"),
                        (["cpu", "--part-slots", "64"], "--part-slots"), (["cuda", "--part-slots", "65"], "--part-slots"),
                        (["cpu", "--prefill-kernel", "mma"], "--prefill-kernel"),
                        (["cpu", "--few-rows", "8"], "--few-rows"), (["cuda", "--few-of-expert", "0"], "--few-of-expert"),
                        (["cuda", "--prefill-kernel", "wgmma", "--rows", "1"], "--prefill-kernel"),
                        (["cpu", "--kv-dtype", "fp8"], "--kv-dtype"), (["cpu", "--dtype", "fp8"], "--dtype")):
        refused(subprocess.run([*kernels, *flags], env=dict(os.environ, LD_LIBRARY_PATH=home), capture_output=True,
                               text=True, timeout=300), word)
    two = run("--device", "cuda", "--tp", "2", "--workers", "threads", *prompt(PROMPTS[1]), driver=True)
    assert two.returncode == 0 and "2 ranks" in two.stderr, two.stderr

    ranks_with_a_gpu_each()

    text = "--tp 2 has 1 GPU from cuda:0 on: all ranks are threads on it"
    if "--workers" in subprocess.run([here, "serve", "--help"], capture_output=True, text=True, timeout=60).stdout:
        one = run("--device", "cuda", "--tp", "2", *prompt(PROMPTS[1]), driver=True)
        assert one.returncode == 0 and text in one.stderr and one.stdout == two.stdout, one.stderr

    if "worker" in subprocess.run([here, "--help"], capture_output=True, text=True, timeout=60).stdout:
        with_worker()
        ranks_at_workers()
        with_worker("--device", "3", words=["rank 0", "cuda:3", "ordinal"])
        lost_worker()
        refused(run("--device", "cuda", "--tp", "2", "--workers", "local", *prompt("x"), driver=True), "rank ")

    compare(answers(here, "cpu", True, 6), answers(here, "cuda", True, 6))
    plans()
    forms()
    beyond_the_device()
    benches()
    print("ok")


if sys.argv[1] == "--compare":
    compare_crowd(sys.argv[2], sys.argv[3:])
else:
    octavo, home, nccl = sys.argv[1:4]
    here = os.path.join(home, "octavo")
    main()
