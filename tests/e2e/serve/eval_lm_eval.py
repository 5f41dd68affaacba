#!/usr/bin/env python3
"""lm-eval over /v1/completions and /v1/chat/completions on tasks of its own, three questions that
the demo model answers and one that it does not: its scores are those that the server's logprobs and
answers make. usage: eval_lm_eval.py OCTAVO [unittest arguments]"""

import json
import math
import os
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

from harness import MODEL, ROOT, ServeTest, main, need  # noqa: E402

lm_eval, task_lists = need("lm_eval", "lm_eval.tasks", venv="evals")

GOLDEN = os.path.join(ROOT, "tests/golden/needle_200")
RIGHT, WRONG = ("niah-1024-00", "niah-1024-10", "kv-1024-10"), "kv-1024-11"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
PROSE = ["O Romeo, Romeo! wherefore art thou Romeo?", "Good morrow, cousin.\nIs the day so young?"]
# Tasks in the YAML, which JSON is too, that lm-eval reads from a folder.
TASKS = {
    "choices": {"output_type": "multiple_choice", "doc_to_text": "{{prompt}}", "doc_to_choice": "choices",
                "doc_to_target": 0, "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    "prose": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
              "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
    "answers": {"output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{choices[0]}}",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0},
                "metric_list": [{"metric": "exact_match"}]},
}
TASKS["chat"] = {**TASKS["answers"], "doc_to_text": "{{question}}"}


def lines(end):
    with open(GOLDEN + end, encoding="utf-8") as f:
        return {row["id"]: row for row in map(json.loads, f)}


def questions():
    """Each with the right answer and, as the other choice, what the model would say of the last."""
    prompts, answers, said = lines(".jsonl"), lines(".answers.jsonl"), lines(".oracle.jsonl")[WRONG]["text"]
    for i in (*RIGHT, WRONG):
        prompt = prompts[i]["prompt"]
        yield {"prompt": prompt, "question": prompt.removeprefix(USER).removesuffix(ASSISTANT),
               "choices": [answers[i]["answer"], said]}


class LmEval(ServeTest):
    FLAGS = ["--served-model-name", "demo"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.rows = list(questions())
        for name, task in TASKS.items():
            data = os.path.join(self.folder, f"{name}.jsonl")
            with open(data, "w", encoding="utf-8") as f:
                rows = [{"text": text} for text in PROSE] if name == "prose" else self.rows
                f.writelines(json.dumps(row) + "\n" for row in rows)
            with open(os.path.join(self.folder, f"{name}.yaml"), "w", encoding="utf-8") as f:
                json.dump({"task": f"octavo_{name}", "dataset_path": "json", "test_split": "test",
                           "dataset_kwargs": {"data_files": {"test": data}, "cache_dir": self.folder}, **task}, f)

    def evaluate(self, name, model="local-completions", path="/v1/completions", **more):
        """(metrics, samples in the order of the rows); the tokenizer is the server's unless `more`
        names one."""
        task = f"octavo_{name}"
        found = lm_eval.simple_evaluate(
            model=model, tasks=[task], log_samples=True, bootstrap_iters=0, apply_chat_template="chat" in model,
            task_manager=task_lists.TaskManager(include_path=self.folder, include_defaults=False),
            model_args={"model": "demo", "base_url": self.server.url + path, "num_concurrent": 3, "max_retries": 1,
                        "max_length": 4096, **more})
        return found["results"][task], sorted(found["samples"][task], key=lambda sample: sample["doc_id"])

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def score(self, ids, n):
        """(logprob of the tokens behind the first n, whether each of them is the likeliest)"""
        answer = self.server.post("/v1/completions", {"prompt": ids, "prompt_logprobs": 0, "max_tokens": 0})
        told = [entry[str(token)] for token, entry in zip(ids[n:], answer["choices"][0]["prompt_logprobs"][n:])]
        self.assertEqual(len(told), len(ids) - n)
        return sum(one["logprob"] for one in told), all(one["rank"] == 1 for one in told)

    def check_choices(self, **more):
        results, samples = self.evaluate("choices", **more)
        self.assertEqual(len(samples), len(self.rows))
        for row, sample in zip(self.rows, samples):
            # lm-eval scores the prompt's last line break too.
            n, sums = len(self.tokens(row["prompt"].rstrip())), []
            for choice, [told] in zip(row["choices"], sample["resps"]):
                own, likeliest = self.score(self.tokens(row["prompt"] + choice), n)
                self.assertAlmostEqual(float(told[0]), own, places=4)
                self.assertEqual(str(told[1]), str(likeliest))
                sums.append(own)
            self.assertEqual(sample["acc"], sums[0] > sums[1])
        self.assertEqual(results["acc,none"], len(RIGHT) / len(self.rows))

    def test_choices(self):
        self.check_choices()

    def test_choices_by_a_local_tokenizer(self):
        self.check_choices(tokenizer=os.path.join(ROOT, MODEL), tokenizer_backend="huggingface", batch_size=2)

    def test_prose(self):
        """Where a model has no first token, lm-eval scores a text behind the end of text."""
        results, samples = self.evaluate("prose")
        self.assertEqual(len(samples), len(PROSE))
        end = json.loads(self.server.get("/tokenizer_info")[2])["eos_token"]
        total = 0.0
        for text, sample in zip(PROSE, samples):
            own, _ = self.score(self.tokens(end) + self.tokens(text), 1)
            self.assertAlmostEqual(float(sample["resps"][0][0]), own, places=4)
            total += own
        words, size = (sum(map(n, PROSE)) for n in (lambda t: len(t.split()), lambda t: len(t.encode())))
        self.assertAlmostEqual(math.log(results["word_perplexity,none"]), -total / words, places=4)
        self.assertAlmostEqual(results["bits_per_byte,none"], -total / size / math.log(2), places=4)

    def check_answers(self, results, samples):
        self.assertEqual(len(samples), len(self.rows))
        for row, sample in zip(self.rows, samples):
            answer = self.server.post("/v1/completions", {"prompt": row["prompt"], "max_tokens": 8, "temperature": 0,
                                                          "stop": ["\n"]})
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["text"])
        self.assertEqual(results["exact_match,none"], len(RIGHT) / len(self.rows))

    def test_answers(self):
        self.check_answers(*self.evaluate("answers"))

    def test_chat(self):
        self.check_answers(*self.evaluate("chat", "local-chat-completions", "/v1/chat/completions"))


if __name__ == "__main__":
    main()
