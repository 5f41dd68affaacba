#!/usr/bin/env python3
"""liboctavo as it is installed: the example of lib/example built against the installed tree by
pkg-config and by CMake's find_package, shared and static, and the Python package, installed by pip,
synchronous and with asyncio. usage: library.py OCTAVO   (from the root; OCTAVO lies in the build
folder). With OCTAVO_INSTALLED in the environment the tests of class Package take the Python package
and the library that are installed on this machine, as tools/check_packages.sh asks for."""

import asyncio
import gc
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

OCTAVO = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.dirname(OCTAVO)
TEXT = "O Romeo, Romeo! wherefore art thou Romeo?"
with open("tools/needle_4000.txt", encoding="utf-8") as f:
    LONG = f.read(2000)
RETENTION = {"method": "chunkkv", "ratio": 0.25}
where = tempfile.TemporaryDirectory()
PREFIX = os.path.join(where.name, "prefix")
INSTALLED = "OCTAVO_INSTALLED" in os.environ


def run(*command, **environment):
    """The output of a command, which must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"[-4000:])
    return done.stdout


def library_folder():
    for folder, _, files in os.walk(PREFIX):
        if "liboctavo.so.0" in files:
            return folder
    raise AssertionError("no liboctavo.so.0 was installed")


def setUpModule():
    for component in () if INSTALLED else ("library", "development"):
        run("cmake", "--install", BUILD, "--prefix", PREFIX, "--component", component)


class Example(unittest.TestCase):
    def check(self, program, **environment):
        """The program answers as `octavo run` does."""
        text, report = run(program, "models/demo", LONG, **environment).rsplit("\n", 2)[:2]
        flags = ["--max-tokens", "24", "--temperature", "0.7", "--seed", "1", "--kv-memory", "64M"]
        line = json.loads(run(OCTAVO, "run", "--model", "models/demo", "--json", "--prompt", LONG, *flags,
                              "--retention", json.dumps(RETENTION)))
        self.assertEqual(text, line["text"])
        self.assertGreater(json.loads(report)["pages_dropped"], 0)
        for field in "method", "kept_tokens", "pages_dropped":
            self.assertEqual(json.loads(report)[field], line["retention"][field])

    def test_by_pkg_config(self):
        pc = os.path.join(library_folder(), "pkgconfig")
        flags = run("pkg-config", "--cflags", "--libs", "octavo", PKG_CONFIG_PATH=pc).split()
        program = os.path.join(where.name, "by_pkg_config")
        run("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "lib/example/example.c", *flags, "-o", program)
        self.check(program, LD_LIBRARY_PATH=library_folder())

    def test_by_find_package(self):
        folder = os.path.join(where.name, "by_cmake")
        run("cmake", "-S", "lib/example", "-B", folder, f"-DCMAKE_PREFIX_PATH={PREFIX}")
        run("cmake", "--build", folder)
        self.check(os.path.join(folder, "example"))
        self.check(os.path.join(folder, "example_static"))

    def test_the_header_is_cpp_too(self):
        source = os.path.join(where.name, "header.cc")
        with open(source, "w") as f:
            f.write("#include <octavo.h>\nint main() { return (int)octavo_params_init().n_token_ids; }\n")
        if not shutil.which("c++"):
            self.skipTest("no C++ compiler")
        run("c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{PREFIX}/include", source)


class Package(unittest.TestCase):
    @staticmethod
    def install():
        if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
            raise unittest.SkipTest("no pip")
        packages, source = os.path.join(where.name, "packages"), os.path.join(where.name, "source")
        shutil.copytree("lib/python", source, ignore=shutil.ignore_patterns("__pycache__"))
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
            "--disable-pip-version-check", "--target", packages, source)
        os.environ["OCTAVO_LIBRARY"] = os.path.join(library_folder(), "liboctavo.so.0")
        sys.path.insert(0, packages)

    @classmethod
    def setUpClass(cls):
        if not INSTALLED:
            cls.install()
        import octavo
        cls.octavo = octavo
        cls.engine = octavo.Engine("models/demo", kv_memory="24M", threads=1, max_batch=4)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_its_version_is_the_library_s(self):
        self.assertEqual(importlib.metadata.version("octavo"), self.octavo.__version__)

    def test_an_answer(self):
        answer = self.engine.generate(TEXT, max_tokens=8, retention=RETENTION, temperature=0)
        self.assertEqual(answer.finish, "length")
        self.assertEqual(len(answer.tokens), 8)
        self.assertEqual(answer.retention["method"], "chunkkv")
        self.assertEqual(answer.usage["completion_tokens"], 8)
        self.assertGreater(answer.timings_us["total"], 0)
        outputs = list(self.engine.submit(TEXT, max_tokens=8, retention=RETENTION, temperature=0, logprobs=1))
        self.assertEqual([o.token for o in outputs if o.token is not None], answer.tokens)
        self.assertEqual("".join(o.text for o in outputs), answer.text)
        self.assertEqual(outputs[0].top[0][0], outputs[0].token)
        few = self.engine.generate(token_ids=list(range(24, 1024)), max_tokens=3, ignore_eos=True, retrieval="quest:384")
        self.assertEqual((few.retrieval["rows"], few.retrieval["read_blocks"]), (2, 4))
        both = self.engine.generate(token_ids=[40, 41, 42], n=2, max_tokens=2, temperature=1, seed=3)
        self.assertEqual([len(a.tokens) for a in both], [2, 2])

    def test_a_session(self):
        prompt, ids = list(range(40, 200)), []
        first = self.engine.generate(token_ids=prompt, session="a", max_tokens=3, ignore_eos=True)
        self.assertEqual(first.retention["session"], "stored")
        ids = prompt + first.tokens + [50, 51]
        again = self.engine.generate(token_ids=ids, session="a", max_tokens=3, ignore_eos=True)
        self.assertEqual(again.retention["session"], "continued")
        self.assertEqual(self.engine.stats()["sessions"], 1)
        self.engine.forget_session("a")

    def test_errors(self):
        error = self.octavo.Error
        with self.assertRaisesRegex(error, "models/none"):
            self.octavo.Engine("models/none")
        with self.assertRaisesRegex(error, "unknown setting 'colour'"):
            self.octavo.Engine("models/demo", colour="red")
        with self.assertRaisesRegex(error, "best"):
            self.engine.submit("O", retention={"method": "best"})
        with self.assertRaisesRegex(error, "'best' is unknown .have: ktransformers, quest, dynamic"):
            self.engine.submit("O", retrieval="best:4096")
        with self.assertRaises(error) as caught:
            self.engine.generate(token_ids=[40] * 9000)
        self.assertEqual(caught.exception.status, 20)  # OCTAVO_LIMIT
        closed = self.octavo.Engine("models/demo", kv_memory="24M", threads=1, no_prefix_cache=True)
        request = closed.submit("O", ignore_eos=True)
        next(request)
        closed.close()
        self.assertEqual(list(request)[-1].finish, "abort")
        with self.assertRaises(ValueError):
            closed.stats()

    def test_numbers_and_texts_are_not_cut(self):
        for fields in ({"max_tokens": -1}, {"max_tokens": 2**32 + 3}, {"token_ids": [2**32 + 40]},
                       {"token_ids": [-1]}, {"prompt": "O\0Romeo"}):
            with self.assertRaises(ValueError):
                self.engine.submit(**{"prompt": None if "token_ids" in fields else "O", **fields})
        with self.assertRaises(ValueError):
            self.octavo.Engine("models/demo\0x")

    def test_a_request_keeps_its_engine(self):
        request = self.octavo.Engine("models/demo", kv_memory="24M", threads=1).submit("O", max_tokens=3,
                                                                                      ignore_eos=True)
        gc.collect()
        self.assertEqual(list(request)[-1].finish, "length")

    def test_a_forked_child_leaves_handles_alone(self):
        """Freed there, they would wait for threads that the child does not have."""
        engine = self.octavo.Engine("models/demo", kv_memory="24M", threads=1)
        request = engine.submit("O", ignore_eos=True)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            request.close()
            engine.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIsNotNone(next(request).text)
        engine.close()

    def test_a_request_is_not_freed_while_a_thread_aborts_it(self):
        request, abort = self.engine.submit("O Romeo", ignore_eos=True), self.octavo.lib.abort
        closer = threading.Thread(target=request.close)

        def slow_abort(handle):
            closer.start()
            closer.join(0.05)
            self.assertTrue(closer.is_alive())
            abort(handle)

        with unittest.mock.patch.object(self.octavo.lib, "abort", slow_abort):
            request.abort()
        closer.join()
        self.assertEqual(list(request), [])

    def test_coroutines(self):
        async def first_five():
            tokens = []
            with self.engine.submit("O Romeo", ignore_eos=True) as request:
                async for output in request:
                    tokens.append(output.token)
                    if len(tokens) == 5:
                        return tokens

        async def all_at_once():
            texts = [f"{name}:" for name in ("ROMEO", "JULIET", "Nurse", "TYBALT", "First Citizen")]
            answers = await asyncio.gather(*(self.engine.agenerate(t, max_tokens=6) for t in texts), first_five())
            return texts, answers

        texts, answers = asyncio.run(all_at_once())
        self.assertEqual(len(answers.pop()), 5)
        for text, answer in zip(texts, answers):
            self.assertEqual(answer.tokens, self.engine.generate(text, max_tokens=6).tokens)

    def test_closing_under_a_coroutine_that_waits(self):
        async def last():
            request = self.engine.submit("O Romeo", ignore_eos=True)

            async def read():
                async for output in request:
                    started.set()
                return output.finish

            started = asyncio.Event()
            task = asyncio.create_task(read())
            await started.wait()
            while not request._awaited:
                await asyncio.sleep(0)
            request.close()
            return await task

        self.assertEqual(asyncio.run(last()), "abort")

    def test_a_cancelled_task_aborts_its_request(self):
        async def cancel():
            task = asyncio.create_task(self.engine.agenerate("O Romeo", ignore_eos=True))
            while self.engine.stats()["live"] == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())
        while self.engine.stats()["live"]:
            pass


if __name__ == "__main__":
    unittest.main()
