"""TTFT of prompts whose blocks are on disk, beside those that are computed. Two prompts take turns
in a pool that holds one of them, so that each is on disk alone when it is asked again."""

import json
import statistics
import tempfile
import time
import urllib.request

from serve_server import DEMO, Failed, PATIENCE, Server

# Bytes of a token's K and V in the 1.1B shape, in bf16.
TOKEN_BYTES = 22 * 4 * 64 * 2 * 2


def ask(server, prompt):
    """(seconds until the one token of the answer is there, the token, cached tokens)"""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0,
                       "return_token_ids": True}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text = answer.read()
    seconds = time.monotonic() - start
    answer = json.loads(text)
    return seconds, answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def settle(server):
    while server.metrics()["disk_cache_blocks_waiting"] > 0:
        time.sleep(0.01)


def disk_bench(octavo, args, shape):
    length, rounds = (512, 2) if args.quick else (4096, 3)
    prompts = [[16 + (i * 7919 + k * 104729) % 900 for k in range(length)] for i in (1, 2)]
    memory = str(TOKEN_BYTES * length * 17 // 16)
    with tempfile.TemporaryDirectory(prefix="octavo-disk-", dir=args.disk) as folder:
        flags = ["--kv-memory", memory, "--swap-memory", "0", "--disk-cache", folder + "/cache", "--disk-size", "8G"]
        model = ["--model", DEMO, *shape, "--override", "max_position_embeddings=8192"]
        with Server(octavo, *flags, model=model) as server:
            computed = [ask(server, p) for p in prompts]
            settle(server)
            loaded = []
            for _ in range(rounds):
                for want, prompt in zip(computed, prompts):
                    loaded.append(ask(server, prompt))
                    settle(server)
                    if loaded[-1][1] != want[1] or loaded[-1][2] < length - 128:
                        raise Failed(f"a hit of {loaded[-1][2]} tokens, tokens {loaded[-1][1]} and {want[1]}")
            page = server.metrics()
    alone, below = (statistics.median(t for t, _, _ in x) for x in (computed, loaded))
    share = page["disk_cache_hits_total"] / (length * len(loaded))  # the rest is in memory still
    out = {"prompt": length, "computed_s": [x[0] for x in computed], "loaded_s": [x[0] for x in loaded],
           "metrics": {k: v for k, v in page.items() if k.startswith("disk_cache")}}
    rows = [
        (f"prompt of {length} tokens, computed: median of {len(computed)}", f"{alone:.2f} s", "", None),
        (f"{share:.0%} of it from disk: median of {len(loaded)}", f"{below:.3f} s, {below / alone:.1%}", "<= 20 %", below <= alone / 5),
    ]
    return out, rows
