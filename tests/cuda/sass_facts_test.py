#!/usr/bin/env python3
"""What tools/sass_facts.py says of machine code that got worse, over a cuobjdump that prints
made-up code. cuda_sass_facts runs it over the plugin."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import sass_facts  # noqa: E402

DRAW = "_Z11draw_kernel12gpu_sampling"
FEW = "_Z10few_kernelI10plain_tileI4bf16ELi2ELi1EEv7few_job"
ATTENTION = "_Z16attention_kernelI4bf16Li128ELb1EEv13gpu_attention"
GROUPED = "_Z14grouped_kernelI11quant_stageI4bf16Li8ELb0EEEv11grouped_job"
NORM = "_Z11norm_kernelIfEvPfPKfS2_fmPT_"
PATCH = "_Z12patch_kernelPjPK9gpu_patchPKj"
# W by 16 loads of 16 bytes past the first cache in a loop of the tensor cores, after as many
# outside of it; scales, which are narrow.
FEW_CODE = [*["LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]"] * 16, "ACQBULK",
            "LDG.E R8, desc[UR4][R2.64]", "LOOP", *["@P1 LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]"] * 16,
            "HMMA.16816.F32.BF16 R4, R8, R12, R4", "@!P0 BRA LOOP", "STG.E desc[UR4][R2.64], R4"]
# K and V of 64 slots of 128 dims in bf16 are 2,048 copies of 16 bytes: 16 for each of 128 threads.
ATTENTION_CODE = ["ACQBULK", "LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64]", "LDG.E R8, desc[UR4][R2.64]",
                  "LOOP", *["LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64], !P1"] * 16,
                  "HMMA.16816.F32.BF16 R4, R8, R12, R4", "@P2 BRA LOOP"]
# 64 columns of 128 rows of x in 16 bits are 4 copies for each of 256 threads, of W in 8 bits 2, and
# one of scales.
GROUPED_CODE = ["LOOP", *["LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64], !P1"] * 7,
                "HMMA.16816.F32.BF16 R4, R8, R12, R4", "@P2 BRA LOOP"]


class Kernel:
    def __init__(self, name, code, registers, shared=0, arch="sm_90"):
        self.name, self.code, self.arch = name, code, arch
        self.registers, self.shared = registers, shared

    def sass(self):
        lines, loop = [f"\t\tFunction : {self.name}"], 0
        for i, text in enumerate(c for c in self.code if c != "LOOP"):
            text = text.replace("LOOP", f"{16 * self.code.index('LOOP'):#x}" if "LOOP" in text else "")
            lines.append(f"        /*{16 * i:04x}*/               {text} ;      /* 0x0000000000007918 */")
            lines.append(" " * 104 + "/* 0x000fe20000000800 */")
        return lines

    def usage(self):
        return [f" Function {self.name}:",
                f"  REG:{self.registers} STACK:0 SHARED:{self.shared + 1024} LOCAL:0 CONSTANT[0]:760"]


def good():
    """Kernels by name, as they should be."""
    norm = ["ACQBULK", "LDG.E.128 R4, desc[UR4][R2.64]", *["STG.E.128 desc[UR4][R2.64], R4"] * 2]
    return {k.name: k for k in (Kernel(DRAW, ["LDG.E.128 R4, desc[UR4][R2.64]", "EXIT"], 64, 16384),
                                Kernel(NORM, norm, 58, 128),
                                Kernel(FEW, FEW_CODE, 110, 8192),
                                Kernel(ATTENTION, ATTENTION_CODE, 168, 128),
                                Kernel(GROUPED, GROUPED_CODE, 122, 512),
                                Kernel(PATCH, ["LDG.E R4, desc[UR4][R2.64]", "EXIT"], 16))}


class SassFacts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        patch = mock.patch.object(sass_facts, "TABLE", self.at / "table.txt")
        patch.start()
        self.addCleanup(patch.stop)
        self.write_tool("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
        self.write_tool("nvdisasm", "exit 0")
        self.plugin = self.at / "plugin.so"
        self.plugin.write_bytes(b"\0cublasLtMatmul\0")
        self.kernels, self.arch = good(), "sm_90"
        self.main("--write")

    def write_tool(self, name, body):
        path = self.at / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def main(self, *flags):
        """(exit status, output) of the script over the kernels."""
        head = ["Fatbin elf code:", f"arch = {self.arch}"]
        sass = head + [line for k in self.kernels.values() for line in k.sass()]
        usage = head + [line for k in self.kernels.values() for line in k.usage()]
        (self.at / "sass").write_text("\n".join(sass), encoding="utf-8")
        (self.at / "usage").write_text("\n".join(usage), encoding="utf-8")
        self.write_tool("cuobjdump", f'''case $1 in
-xelf) cp {self.at}/sass plugin.1.{self.arch}.cubin ;;
-sass) echo >>{self.at}/read && cat "$2" ;;
*) cat {self.at}/usage ;;
esac''')
        arguments = ["sass_facts.py", *flags, "--nvcc", str(self.at / "nvcc"), str(self.plugin)]
        path = {"PATH": f"{self.at}{os.pathsep}{os.environ['PATH']}"}
        out, status = io.StringIO(), 0
        with mock.patch.object(sys, "argv", arguments), mock.patch.dict(os.environ, path), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                sass_facts.main()
            except SystemExit as e:
                status = e.code
        return status, out.getvalue()

    def expect(self, *says):
        """The script fails and says this; with what is worse put right, it passes."""
        status, out = self.main()
        self.assertEqual(status, 1, out)
        for text in says:
            self.assertIn(text, out)
        self.kernels = good()
        self.assertEqual(self.main()[0], 0)

    def test_facts_are_read(self):
        status, out = self.main("--table")
        self.assertEqual(status, 0, out)
        rows = {line.split()[1]: line.split()[2:] for line in out.splitlines()}
        # registers, stored, loaded, shared, blocks, tensor, wide, flight: 2 blocks of 256 threads
        # have 2 x 256 x 16 loads of 16 bytes on their way; 3 blocks 32 KB of K and V each.
        self.assertEqual(rows["few_kernel<plain_tile<bf16>,2,1>"],
                         ["110", "0", "0", "8192", "2", "mma", "100", "128"])
        self.assertEqual(rows["attention_kernel<bf16,128,true>"],
                         ["168", "0", "0", "74112", "3", "mma", "100", "96"])
        # Three stages of 25,088 bytes, rounded up to a KB.
        self.assertEqual(rows["grouped_kernel<quant_stage<bf16,8,false>>"],
                         ["122", "0", "0", "77312", "2", "mma", "100", "49"])
        self.assertEqual(rows["draw_kernel"], ["64", "0", "0", "16384", "1", "-", "100", "-"])

    def test_nothing_worse(self):
        status, out = self.main()
        self.assertEqual(status, 0, out)
        self.assertIn("6 kernels, 0 facts worse", out)

    def test_products_that_are_not_the_library(self):
        self.plugin.write_bytes(b"\0cublasLtMatmulDescInit\0")
        status, out = self.main()
        self.assertEqual(status, 1, out)
        self.assertIn("plugin.so: large products are not cublasLt's", out)

    def test_spills(self):
        self.kernels[DRAW].code = ["STL.64 [R1], R2", "LDL R4, [R1]", *self.kernels[DRAW].code]
        self.expect("sm_90 draw_kernel: 12 bytes of local memory, not 0")

    def test_spills_of_a_kernel_without_a_row(self):
        self.kernels[PATCH].code = ["STL [R1], R2", *self.kernels[PATCH].code]
        self.expect("sm_90 patch_kernel: 4 bytes of local memory, not 0")

    def test_fewer_blocks(self):
        self.kernels[ATTENTION].registers = 169  # rounded up to 176: two blocks
        self.expect("sm_90 attention_kernel<bf16,128,true>: 2 blocks on a multiprocessor, not 3; "
                    "64 KB in flight, not 96")

    def test_shared_memory_takes_blocks(self):
        self.kernels[FEW].shared = 120 * 1024
        self.expect("few_kernel<plain_tile<bf16>,2,1>: 1 blocks on a multiprocessor, not 2")

    def test_no_tensor_cores(self):
        self.kernels[FEW].code = [c.replace("HMMA.16816", "FFMA") for c in FEW_CODE]
        self.expect("few_kernel<plain_tile<bf16>,2,1>: 0 KB in flight, not 128; no tensor cores")

    def test_products_of_warps_instead_of_a_warpgroup(self):
        wide = [c.replace("HMMA.16816.F32.BF16 R4, R8", "HGMMA.64x64x16.F32.BF16 R4, gdesc[UR8]") for c in GROUPED_CODE]
        narrow = [c.replace("HGMMA", "QGMMA") for c in wide]
        for kept in (wide, narrow):
            self.kernels[GROUPED].code = kept
            self.main("--write")
            self.assertEqual(self.main()[0], 0)
            for worse in (GROUPED_CODE, [*GROUPED_CODE[:-1], *kept[-2:]]):
                self.kernels[GROUPED].code = worse
                status, out = self.main()
                self.assertEqual(status, 1, out)
                self.assertIn("grouped_kernel<quant_stage<bf16,8,false>>: mma, not wgmma", out)
        self.kernels[GROUPED].code = GROUPED_CODE
        self.main("--write")
        self.kernels[GROUPED].code = wide  # better
        self.assertEqual(self.main()[0], 0)

    def test_a_table_of_another_kind(self):
        table = self.at / "table.txt"
        table.write_text(table.read_text(encoding="utf-8").replace(" mma ", " yes "), encoding="utf-8")
        status, out = self.main()
        self.assertEqual(status, 1, out)
        self.assertIn("tensor: mma, not yes", out)

    def test_narrow_loads_in_a_loop(self):
        self.kernels[FEW].code = [c.replace("@P1 LDG.E.NA.128", "@P1 LDG.E.NA.64") if i < 23 else c
                                  for i, c in enumerate(FEW_CODE)]
        self.expect("few_kernel<plain_tile<bf16>,2,1>: 75 % of loads of 16 bytes, not 100")

    def test_narrow_loads(self):
        self.kernels[DRAW].code = ["LDG.E.64 R4, desc[UR4][R2.64]", "EXIT"]
        self.expect("draw_kernel: 0 % of loads of 16 bytes, not 100")

    def test_less_in_flight(self):
        self.kernels[FEW].code = [c for i, c in enumerate(FEW_CODE) if i not in range(20, 28)]
        self.expect("few_kernel<plain_tile<bf16>,2,1>: 64 KB in flight, not 128")

    def test_memory_ahead_of_the_wait(self):
        for ahead in ("LDG.E R4, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R4", "@P1 LD.E R4, [R2.64]",
                      "LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64]", "REDG.E.ADD.S32 [R2], R4",
                      "ATOMG.E.ADD PT, R4, desc[UR4][R2.64], R5"):
            norm = self.kernels[NORM]
            norm.code = [*norm.code[:1], ahead, *norm.code]
            self.expect("sm_90 norm_kernel<float>: touches memory 1 times before it has waited")

    def test_waits_that_are_too_early(self):
        self.kernels[FEW].code = ["ACQBULK", *(c for c in FEW_CODE if c != "ACQBULK")]
        self.expect("few_kernel<plain_tile<bf16>,2,1>: 0 loads ahead of the wait for the kernel in "
                    "front, not 8")

    def test_read_only_path_in_a_kernel_that_waits(self):
        norm = self.kernels[NORM]
        norm.code = [*norm.code, "LDG.E.CONSTANT R4, desc[UR4][R2.64]"]
        self.expect("sm_90 norm_kernel<float>: 1 loads by the read-only path")

    def test_no_wait_below_9(self):
        few = self.kernels[FEW]
        few.code = [c for c in FEW_CODE if c != "ACQBULK"]
        self.kernels = {FEW: few}
        self.arch = "sm_80"
        self.main("--write")
        status, out = self.main()
        self.assertEqual(status, 0, out)

    def test_stores_in_pieces(self):
        norm = self.kernels[NORM]
        norm.code = [*norm.code[:-1], *["STG.E desc[UR4][R2.64], R4"] * 4]
        self.expect("sm_90 norm_kernel<float>: 4 stores of less than 16 bytes")

    def test_layout_that_is_not_the_source(self):
        self.kernels[ATTENTION].code = ATTENTION_CODE[:4] + ATTENTION_CODE[6:]
        self.expect("attention_kernel<bf16,128,true>: its loop has 14 copies, the layout in "
                    "the source 16")

    def test_kernels_that_come_and_go(self):
        del self.kernels[DRAW]
        self.expect("sm_90 draw_kernel: in table.txt, but not in the code")
        self.kernels["new"] = Kernel(FEW.replace("Li1E", "Li4E"), FEW_CODE, 110, 8192)
        self.expect("few_kernel<plain_tile<bf16>,2,4>: not in table.txt")

    def test_cache(self):
        cache = self.at / "cache"
        (self.at / "read").unlink()
        for _ in range(2):
            status, out = self.main("--cache", str(cache))
            self.assertEqual(status, 0, out)
        self.assertEqual(len((self.at / "read").read_text(encoding="utf-8")), 1)
        self.kernels[DRAW].code = ["STL.64 [R1], R2", *self.kernels[DRAW].code]
        for _ in range(2):
            status, out = self.main("--cache", str(cache))
            self.assertEqual(status, 1, out)
            self.assertIn("sm_90 draw_kernel: 8 bytes of local memory, not 0", out)
        self.assertEqual(len((self.at / "read").read_text(encoding="utf-8")), 2)
        old = cache / "old"
        old.touch()
        os.utime(old, (0, 0))
        self.main("--cache", str(cache))
        self.assertFalse(old.exists())
        self.assertEqual(len(list(cache.iterdir())), 2)

    def test_better(self):
        self.kernels[FEW].registers = 80
        status, out = self.main()
        self.assertEqual(status, 0, out)
        self.assertIn("1 better", out)

    def test_another_compiler(self):
        self.write_tool("nvcc", "echo 'Cuda compilation tools, release 13.2, V13.2.51'")
        self.kernels[DRAW].code = ["STL.64 [R1], R2", *self.kernels[DRAW].code]
        status, out = self.main()
        self.assertEqual(status, 77, out)
        self.assertIn("SKIPPED: table.txt is of nvcc 13.0, this is 13.2", out)

    def test_no_disassembler(self):
        with mock.patch.object(sass_facts, "find_tool", lambda name, nvcc: None):
            status, out = self.main()
        self.assertEqual(status, 77, out)
        self.assertIn("SKIPPED: no cuobjdump", out)


if __name__ == "__main__":
    unittest.main()
