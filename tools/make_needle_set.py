"""Writes tests/golden/needle_200.jsonl and its answers: prompts that hide a number, and the
numbers.

    python3 tools/make_needle_set.py --text tinyshakespeare.txt     # needs the standard library
    only

Deterministic: 200 prompts. The tasks are those of tools/demo/data.py with one question each, in the
demo model's own tokens. `octavo run --prompts` reads the prompts; needle_200.answers.jsonl has the
answers, by id. `--seed N --times M --out DIR` makes other prompts, 200 M of them, in the same two
files of that folder: differences of a point are beyond what 200 can tell.
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
LONGEST = 4080  # tokens of a prompt: the model's 4,096 less room for an answer
MAX_TOKENS = 8  # five digits, <|im_end|>, and two more for wrong answers


def one_question(segments):
    """Returns the text up to the end of the first question, and the question's answer."""
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
    ap.add_argument("--seed", type=int, default=20250)
    ap.add_argument("--times", type=int, default=1, help="how many times 200 prompts")
    a = ap.parse_args()
    tok = bpe.Tok(*bpe.load(a.tokenizer))
    gen = data.Gen(open(a.text).read(), tok, a.seed)
    with open(a.out / "needle_200.jsonl", "w") as prompts, open(a.out / "needle_200.answers.jsonl", "w") as answers:
        for length in LENGTHS:
            for task, count in COUNTS.items():
                for i in range(count * a.times):
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
