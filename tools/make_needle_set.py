"""Writes tests/golden/needle_200.jsonl and needle_200.answers.jsonl: 200 prompts that hide a number, and the numbers.

    python3 tools/make_needle_set.py --text tinyshakespeare.txt     # Python's own library only

Deterministic. The tasks are those of tools/demo/data.py with one question each, in the demo model's own tokens:
prompts.jsonl lines are what `octavo run --prompts` reads, the answers are kept apart, by id.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/demo"))
import data  # noqa: E402
import tokenizer as bpe  # noqa: E402

LENGTHS = (1024, 2048, 3072, 4000)
COUNTS = {"niah": 20, "passkey": 10, "kv": 20}  # for each length
LONGEST = 4080  # tokens of prompt: the model's 4,096 less room for an answer
MAX_TOKENS = 8  # five digits, <|im_end|>, and two to be wrong in


def one_question(segments):
    """The text up to the first question, and its answer."""
    prompt = ""
    for text, is_answer in segments:
        if is_answer:
            return prompt, text.split(data.IE)[0]
        prompt += text
    raise AssertionError("a document without an answer")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--text", required=True, help="the haystack")
    ap.add_argument("--tokenizer", default=ROOT / "models/demo/tokenizer.json")
    ap.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden")
    a = ap.parse_args()
    tok = bpe.Tok(*bpe.load(a.tokenizer))
    gen = data.Gen(open(a.text).read(), tok, 20250)
    with open(a.out / "needle_200.jsonl", "w") as prompts, open(a.out / "needle_200.answers.jsonl", "w") as answers:
        for length in LENGTHS:
            for task, count in COUNTS.items():
                for i in range(count):
                    prompt, answer = one_question(getattr(gen, task)(length))
                    n = len(tok.encode(prompt))
                    assert n <= LONGEST, (task, length, n)
                    name = f"{task}-{length}-{i:02d}"
                    line = {"id": name, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
                    prompts.write(json.dumps(line) + "\n")
                    answers.write(json.dumps({"id": name, "task": task, "length": length, "prompt_tokens": n,
                                              "answer": answer}) + "\n")


if __name__ == "__main__":
    main()
