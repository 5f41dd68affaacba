"""The prefix cache against a simulation: a trace's blocks under LRU at the pool's capacity.

A trace block is one block of the server (a cell in each KV group). A prompt consists of all blocks
of its request in full and one token of its own, so that each block may be hit (the last token is
always computed). Requests go one after the other, which a simulation can follow exactly."""

import json
import tempfile
from collections import OrderedDict

from serve_server import Client, Failed, Server

PAGE_TOKENS = 16
# A block of the demo model in bf16 has a cell for each of 4 layers and 4 KV heads.
CELLS, CELL_BYTES = 16, PAGE_TOKENS * 32 * 2 * 2
SCALE = 512 // PAGE_TOKENS
CONTEXT = 4096


def read_trace(path, limit):
    with open(path, encoding="utf-8") as f:
        trace = [json.loads(line)["hash_ids"] for line in f if line.strip()]
    return trace[:limit] if limit else trace


def simulate(trace, capacity):
    """The number of blocks hit by each request, with a cache of `capacity` blocks under LRU. While
    a request runs it holds its blocks and one more for its own token. The blocks that it leaves are
    the younger the nearer they are to the root, so the deepest is evicted first. capacity None:
    without limit."""
    cached = OrderedDict()  # block -> None, in the order of eviction
    free = capacity
    hits = []
    for blocks in trace:
        n = 0
        while n < len(blocks) and blocks[n] in cached:
            n += 1
        hits.append(n)
        for block in blocks[:n]:
            del cached[block]
        if capacity is not None:
            need = len(blocks) - n + 1
            while free < need:
                if not cached:
                    raise Failed(f"a request of {len(blocks)} blocks does not fit {capacity}")
                gone, _ = cached.popitem(last=False)
                free += 1
            free -= need - 1  # the request's own block comes back
        for block in reversed(blocks):
            if block in cached:
                raise Failed("a block is cached whose parent is not")
            cached[block] = None
    return hits


class Disk:
    """Blocks on disk under LRU; those that leave memory come as the youngest."""

    def __init__(self, capacity):
        self.capacity, self.blocks = capacity, OrderedDict()

    def __contains__(self, block):
        return block in self.blocks

    def touch(self, block):
        if block in self.blocks:
            self.blocks.move_to_end(block)

    def put(self, block):
        if block in self.blocks:
            self.blocks.move_to_end(block)
            return
        if len(self.blocks) == self.capacity:
            self.blocks.popitem(last=False)
        self.blocks[block] = None


def simulate_tiers(trace, capacity, disk_capacity):
    """As simulate, with a disk of disk_capacity blocks below memory: a block that memory evicts
    goes there, and the blocks behind a hit in memory that are there are hit too. Returns the
    blocks that each request hits, and how many of all are hit on disk."""
    cached, disk = OrderedDict(), Disk(disk_capacity)
    free = capacity
    hits, from_disk = [], 0
    for blocks in trace:
        n = 0
        while n < len(blocks) and blocks[n] in cached:
            n += 1
        for block in blocks[:n]:
            del cached[block]
        below = n
        while below < len(blocks) and blocks[below] in disk:
            below += 1
        for block in reversed(blocks[n:below]):  # they are read before others take their places
            disk.touch(block)
        hits.append(below)
        from_disk += below - n
        need = len(blocks) - n + 1
        while free < need:
            if not cached:
                raise Failed(f"a request of {len(blocks)} blocks does not fit {capacity}")
            gone, _ = cached.popitem(last=False)
            disk.put(gone)
            free += 1
        free -= need - 1  # the request's own block comes back
        for block in reversed(blocks):
            cached[block] = None
    return hits, from_disk


def run_pool(octavo, args, blocks, *flags):
    """Runs the trace through a server with a pool of `blocks` blocks."""
    # The first cell is never handed out, so the others of its run make no block.
    cells = (blocks + 1) * CELLS
    with Server(octavo, "--kv-memory", str(cells * CELL_BYTES), "--max-batch", "4", *flags) as server:
        before = server.metrics()
        if before["kv_pages"] != cells - 1:
            raise Failed(f"the pool has {before['kv_pages']:.0f} pages, not {cells - 1}")
        limit = ["--num-prompts", args.trace_requests] if args.trace_requests else []
        client = Client(octavo, server.url, "--workload", "trace", "--trace", args.trace, "--scale", SCALE,
                        "--block-tokens", PAGE_TOKENS, "--whole-blocks", "--output-len", args.trace_output,
                        "--max-concurrency", 1, *limit, requests=True)
        result = client.result()
        after = server.metrics()
        result["metric_hits"] = after["prefix_cache_hits_total"] - before["prefix_cache_hits_total"]
        result["metric_loads"] = after["disk_cache_hits_total"] - before["disk_cache_hits_total"]
        result["left_out"] = after["disk_cache_blocks_left_out_total"]
        result["damaged"] = after["disk_cache_blocks_damaged_total"]
        result["metric_queries"] = after["prefix_cache_queries_total"] - before["prefix_cache_queries_total"]
    return result


def compare(trace, result, hits):
    """Sets the pool's hit rates beside the simulation's, in percent of all blocks."""
    total = sum(map(len, trace))
    done = {r["index"]: r for r in result["requests"] if r["end"] == "OK"}
    differ = sum(1 for i, n in enumerate(hits) if i in done and done[i]["cached_tokens"] != n * PAGE_TOKENS)
    rate = 100 * sum(r["cached_tokens"] for r in done.values()) / PAGE_TOKENS / total
    return {
        "completed": result["completed"], "failed": result["failed"], "ends": result["ends"],
        "hit_percent": round(rate, 3),
        "hit_percent_metrics": round(100 * result["metric_hits"] / PAGE_TOKENS / total, 3),
        "simulated_percent": round(100 * sum(hits) / total, 3),
        "requests_with_other_hits": differ,
        "duration_s": result["duration"], "median_ttft_ms": result["median_ttft_ms"],
    }


def texts(result):
    return {r["index"]: r["text_hash"] for r in result["requests"] if r["end"] == "OK"}


def trace_bench(octavo, args):
    if not args.trace:
        raise Failed("--trace FILE must be given: the conversation trace (JSONL with hash_ids)")
    trace = read_trace(args.trace, args.trace_requests)
    unique = len({b for blocks in trace for b in blocks})
    total = sum(map(len, trace))
    longest = max(map(len, trace)) * PAGE_TOKENS + 1 + args.trace_output
    too_long = sum(1 for b in trace if len(b) * PAGE_TOKENS + 1 + args.trace_output > CONTEXT)
    out = {"requests": len(trace), "blocks": total, "unique_blocks": unique, "longest_tokens": longest,
           "too_long_for_the_model": too_long, "output_len": args.trace_output, "pools": []}
    print(f"  {len(trace)} requests, {total} blocks, {unique} of them unique; the longest is {longest} tokens, "
          f"{too_long} are too long for the model")
    rows, reference = [], None
    largest = max(map(len, trace)) + 1
    for share in (None, 1.0, 0.5, 0.25, 0.1):
        blocks = unique + largest if share is None else max(int(unique * share), largest)
        result = run_pool(octavo, args, blocks)
        hits = simulate(trace, None if share is None else blocks)
        row = {"pool": "unlimited" if share is None else f"{share:.0%}", "blocks": blocks,
               **compare(trace, result, hits)}
        reference = reference or texts(result)
        row["texts_that_differ"] = sum(1 for i, t in texts(result).items() if t != reference.get(i))
        out["pools"].append(row)
        off = row["hit_percent"] - row["simulated_percent"]
        whole = row["failed"] == 0 and row["completed"] == len(trace)
        print(f"  {row['pool']}: done in {row['duration_s']:.0f} s", flush=True)
        rows.append((f"hit rate, pool {row['pool']} ({blocks} blocks)",
                     f"{row['hit_percent']:.2f} %, simulated {row['simulated_percent']:.2f} %, "
                     f"{row['requests_with_other_hits']} requests differ", "within 1 point",
                     abs(off) <= 1 and whole))
        rows.append(("", f"{row['completed']} whole, {row['texts_that_differ']} other texts", "all, 0",
                     whole and row["texts_that_differ"] == 0))
    args.trace_requests = min(args.trace_sample, len(trace))
    cold = run_pool(octavo, args, 2 * largest, "--no-prefix-cache")
    cold_texts = texts(cold)
    out["without_cache"] = {
        "requests": len(cold_texts), "cached_tokens": cold["total_cached_tokens"],
        "texts_that_differ": sum(1 for i, t in cold_texts.items() if t != reference.get(i))}
    rows.append(("the first ones without prefix cache",
                 f"{len(cold_texts)} compared, {out['without_cache']['texts_that_differ']} differ", "0",
                 cold_texts and out["without_cache"]["texts_that_differ"] == 0
                 and cold["total_cached_tokens"] == 0))
    return out, rows


# ---- memory and disk ---------------------------------------------------------------------------

# Slots of the disk's file and records of its index, for blocks of the demo model.
SLOT_BYTES = CELLS * CELL_BYTES + 40
TIERS = ((0.05, 0.1), (0.05, 0.25), (0.1, 0.5))  # shares of the unique blocks: in memory, on disk


def tiers_bench(octavo, args):
    if not args.trace:
        raise Failed("--trace FILE must be given: the conversation trace (JSONL with hash_ids)")
    trace = read_trace(args.trace, args.trace_requests)
    unique, largest = len({b for blocks in trace for b in blocks}), max(map(len, trace)) + 1
    out, rows = {"requests": len(trace), "unique_blocks": unique, "tiers": []}, []
    for in_memory, on_disk in TIERS:
        blocks, below = max(int(unique * in_memory), largest), int(unique * on_disk)
        with tempfile.TemporaryDirectory(prefix="octavo-trace-", dir=args.disk) as folder:
            result = run_pool(octavo, args, blocks, "--disk-cache", folder + "/cache",
                              "--disk-size", str(4096 + below * SLOT_BYTES))
        hits, from_disk = simulate_tiers(trace, blocks, below)
        row = {"blocks": blocks, "disk_blocks": below, **compare(trace, result, hits),
               "simulated_memory_percent": round(100 * sum(simulate(trace, blocks)) / sum(map(len, trace)), 3),
               "disk_percent": round(100 * result["metric_loads"] / PAGE_TOKENS / sum(map(len, trace)), 3),
               "simulated_disk_percent": round(100 * from_disk / sum(map(len, trace)), 3),
               "left_out": result["left_out"], "damaged": result["damaged"]}
        out["tiers"].append(row)
        off = row["hit_percent"] - row["simulated_percent"]
        whole = row["failed"] == 0 and row["completed"] == len(trace)
        print(f"  {in_memory:.0%} in memory, {on_disk:.0%} on disk: done in {row['duration_s']:.0f} s", flush=True)
        rows.append((f"hit rate, {blocks} blocks in memory, {below} on disk",
                     f"{row['hit_percent']:.2f} %, simulated {row['simulated_percent']:.2f} % "
                     f"({row['simulated_memory_percent']:.2f} % without disk), "
                     f"{row['requests_with_other_hits']} requests differ, {row['left_out']:.0f} left out",
                     "within 0.5 point", abs(off) <= 0.5 and whole and row["damaged"] == 0))
    return out, rows
