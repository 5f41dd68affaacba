"""The tables of flags as shells, man and files of flags read them: completion in a real bash, the
scripts of zsh and fish by their own parsers where they are installed, manual pages without
warnings, and --config. usage: shells.py OCTAVO [unittest arguments]   (from the source root)"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

OCTAVO = os.path.abspath(sys.argv.pop(1))

# Completes the last of its arguments as bash would, and prints what it offers.
COMPLETE = """
source "$0"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_octavo octavo "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def run(*args, stdin=""):
    return subprocess.run(args, input=stdin, capture_output=True, text=True, timeout=60)


class Completion(unittest.TestCase):
    def test_bash(self):
        with tempfile.NamedTemporaryFile("w") as script:
            script.write(run(OCTAVO, "completion", "bash").stdout)
            script.flush()
            self.complete_in_bash(script.name)

    def complete_in_bash(self, script):
        for line, *offers in (
            ["octavo se", "serve"],
            ["octavo bench en", "engine"],
            ["octavo serve --max-b", "--max-batch", "--max-body"],
            ["octavo serve --tensor", "--tensor-parallel-size"],
            ["octavo run --dtype ", "auto", "bf16", "f32"],
            ["octavo run --dtype = b", "bf16"],
            ["octavo run --dtype =", "auto", "bf16", "f32"],
            ["octavo serve --model model", "model", "models"],
            ["octavo serve -m models/d", "models/demo"],
            ["octavo serve models/d", "models/demo"],
            ["octavo serve --port ", ""],
            ["octavo bench serve --workl", "--workload"],
            ["octavo bananas --x", ""],
        ):
            with self.subTest(line=line):
                p = run("bash", "-c", COMPLETE, script, *line.split(" "))
                self.assertEqual((sorted(p.stdout.splitlines()), p.stderr), (offers, ""))

    def test_other_shells_parse_theirs(self):
        for shell in ("zsh", "fish"):
            script = run(OCTAVO, "completion", shell).stdout
            self.assertIn("max-batch", script)
            if not shutil.which(shell):
                continue
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(script)
                file.flush()
                self.assertEqual(run(shell, "-n", file.name).stderr, "")

    def test_unknown_shell(self):
        p = run(OCTAVO, "completion", "csh")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("bash, zsh or fish", p.stderr)


class Manual(unittest.TestCase):
    def test_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            p = run(OCTAVO, "man", "--out", folder)
            self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "", ""))
            pages = sorted(os.listdir(folder))
            self.assertIn("octavo.1", pages)
            self.assertIn("octavo-bench-engine.1", pages)
            with open(os.path.join(folder, "octavo-serve.1")) as file:
                serve = file.read()
            self.assertEqual(serve, run(OCTAVO, "man", "serve").stdout)
            for words in (".SH NAME\n", "\\fB\\-\\-max\\-batch\\fR, \\fB\\-\\-max\\-num\\-seqs\\fR \\fIN\\fR\n"):
                self.assertIn(words, serve)
            if shutil.which("groff"):
                p = run("groff", "-k", "-man", "-ww", "-Tutf8", *(os.path.join(folder, page) for page in pages))
                self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_refusals(self):
        for args, words in ([["bananas"], "'bananas' is no command"], [["serve", "--out", "x"], "exclude each other"]):
            p = run(OCTAVO, "man", *args)
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertIn(words, p.stderr)
        p = run(OCTAVO, "man", "--out", "no/such/folder")
        self.assertEqual(p.returncode, 1)
        self.assertIn("no/such/folder/octavo.1", p.stderr)


class Config(unittest.TestCase):
    def test_a_file_is_the_same_as_flags(self):
        start = [OCTAVO, "run", "--kv-memory", "64M", "--threads", "2", "-p", " ".join(["Romeo"] * 100)]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("max-tokens: 9\ntemp: 0\nretention: {method: chunkkv, tokens: 96}\njson: true\n")
            file.flush()
            by_file = run(*start, "models/demo", "--config", file.name, "--max-tokens", "3")
            file.write("model: models/demo\nmax-batch: lots\n")
            file.flush()
            wrong = run(*start, "--config", file.name)
        by_flags = run(*start, "-m", "models/demo", "--max-tokens", "3", "--temperature", "0", "--json",
                       "--retention", '{"method":"chunkkv","tokens":96}')
        for p in (by_file, by_flags):
            self.assertEqual(p.returncode, 0, p.stderr)
        answers = [json.loads(p.stdout) for p in (by_file, by_flags)]
        self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])
        kept = [(a["retention"]["method"], a["retention"]["kept_tokens"]) for a in answers]
        self.assertEqual(kept[0], kept[1])
        self.assertEqual(len(answers[0]["token_ids"]), 3)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn(f"octavo run: {file.name}: line 6: --max-batch: 'lots' must be", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
