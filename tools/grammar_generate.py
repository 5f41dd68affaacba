#!/usr/bin/env python3
"""Answers of a server over a collection of JSON Schemas, validated by jsonschema; run by hand.

  octavo serve --model models/demo &
  grammar_generate.py FOLDER --url http://127.0.0.1:8000 --answers 10000 --out FILE

FOLDER has files of MaskBench ({"schema": ...}), each asked for --each answers at --temperature;
tokens that close strings, arrays and objects are raised by 0, 6 or 10, so that most answers end.
An answer that ended by itself has to parse and to satisfy its schema; one that ended at its bound
of tokens is counted apart. A request that the server refuses is a schema that it does not support.
--out gets a JSON line for each answer; a run goes on where the file ends. Needs jsonschema.
"""

import argparse
import collections
import http.client
import json
import pathlib
import queue
import random
import threading
import time
import urllib.parse

import jsonschema

PROMPTS = [
    "What is the special magic number for Kiwi?",
    "JSON data:",
    "Enter KING RICHARD and others. Speak, my lord:",
]


def validator_of(schema):
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def judge(schema, text):
    try:
        value = json.loads(text)  # of a name that comes twice, the last value
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        errors = sorted(validator_of(schema).iter_errors(value), key=lambda e: len(e.path))
    except RecursionError:
        return "?: the validator recurses without end"
    except Exception as error:  # a reference out of the document, an expression Python has not
        return f"?: {type(error).__name__} {str(error)[:120]}"
    if not errors:
        return "valid"
    where = "/".join(str(part) for part in errors[0].path)
    return f"invalid: /{where}: {errors[0].validator}: {errors[0].message[:200]}"


class Campaign:
    def __init__(self, args, done):
        self.args, self.done = args, done
        self.work, self.lock = queue.Queue(), threading.Lock()
        self.counts, self.answers = collections.Counter(), 0
        self.out = open(args.out, "a")

    def ask(self, connection, body):
        text = json.dumps(body).encode()
        connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def note(self, **row):
        with self.lock:
            self.out.write(json.dumps(row) + "\n")
            self.out.flush()
            self.counts[row["result"].split(":")[0]] += 1
            self.answers += "text" in row

    def one(self, connection, path, seed):
        schema = json.loads(path.read_text())["schema"]
        rng = random.Random(seed)
        form = {"json": schema, "disable_any_whitespace": rng.random() < self.args.compact}
        body = {
            "model": self.args.model,
            "prompt": rng.choice(PROMPTS),
            "max_tokens": self.args.max_tokens,
            "temperature": self.args.temperature,
            "seed": seed,
            "n": self.args.each,
            "logit_bias": {token: rng.choice([0, 6, 10]) for token in self.args.closing.split(",")},
            "structured_outputs": form,
        }
        status, answer = self.ask(connection, body)
        if status != 200:
            message = answer.get("error", {}).get("message", str(answer))
            self.note(name=path.stem, seed=seed, result=f"refused {status}: {message}")
            return
        for choice in answer["choices"]:
            finish, text = choice["finish_reason"], choice["text"]
            result = judge(schema, text) if finish == "stop" else f"unfinished {finish}"
            self.note(name=path.stem, seed=seed, result=result, text=text)

    def client(self):
        url = urllib.parse.urlparse(self.args.url)
        connection = None
        while True:
            try:
                path, seed = self.work.get_nowait()
            except queue.Empty:
                return
            with self.lock:
                if self.answers >= self.args.answers or time.monotonic() > self.stop:
                    return
            try:
                connection = connection or http.client.HTTPConnection(
                    url.hostname, url.port, timeout=1200
                )
                self.one(connection, path, seed)
            except (OSError, http.client.HTTPException) as error:
                self.note(name=path.stem, seed=seed, result=f"lost: {error}")
                connection = None

    def run(self, paths):
        for i, path in enumerate(paths):
            if path.stem not in self.done:
                self.work.put((path, self.args.seed * 1_000_000 + i))
        self.stop = time.monotonic() + self.args.seconds
        threads = [threading.Thread(target=self.client) for _ in range(self.args.clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(10)
            with self.lock:
                print(time.strftime("%H:%M:%S"), self.answers, dict(self.counts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--answers", type=int, default=10000)
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=1000)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=1e9, help="no new request after these")
    parser.add_argument("--closing", default="1,60,92", help="ids of tokens that close values")
    parser.add_argument("--compact", type=float, default=0.5, help="share without white space")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    done = set()
    campaign = Campaign(args, done)
    for line in open(args.out):
        row = json.loads(line)
        done.add(row["name"])
        campaign.answers += "text" in row
    paths = sorted(args.folder.glob("*.json"))
    random.Random(args.seed).shuffle(paths)
    campaign.run(paths)


if __name__ == "__main__":
    main()
