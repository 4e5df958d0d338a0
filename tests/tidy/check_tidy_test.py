#!/usr/bin/env python3
"""check_tidy.py finds every kind of violation, and nothing in a clean tree.

Builds a small clean tree in a temporary folder, plants one violation at a time, and expects exactly
that one to be found, with its line. Without this twin a rule that never fires would look obeyed.
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "check_tidy.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOOL.parent))
from check_tidy import Tidy  # noqa: E402

CLEAN = {
    "CMakeLists.txt": "add_compile_options(-ffp-contract=off -fno-fast-math)\n",
    "README.md": "A page, `exp(x)` in it.\n",
    "rlk/core/CMakeLists.txt": "rlk_library(core SOURCES a.cc)\n"
                               "set_source_files_properties(a.cc PROPERTIES X 1)\n",
    "rlk/core/a.h": "#pragma once\n",
    "rlk/core/a.cc": '#include "rlk/core/a.h"\n#include <nlohmann/json.hpp>\n',
    "rlk/kernels/CMakeLists.txt": "rlk_library(kernels SOURCES cpu/isa/a_avx2.cc)\n",
    "rlk/kernels/a.h": '#pragma once\n#include "rlk/core/a.h"\n',
    "rlk/kernels/kernel_table.h": "#pragma once\n",
    "rlk/kernels/reference/table.h": "#pragma once\n",
    "rlk/kernels/cpu/a_isa.h": '#pragma once\n#include "rlk/kernels/reference/table.h"\n',
    "rlk/kernels/cpu/isa/body.h": "inline F exp(F x);\nF y = exp(x);\n",
    "rlk/kernels/cpu/isa/a_avx2.cc": "#include <immintrin.h>\n#include <cstdint>\n"
                                     '#include "rlk/kernels/cpu/a_isa.h"\n'
                                     '#include "rlk/kernels/cpu/isa/body.h"\n',
    "rlk/kernels/production/a.h": "#pragma once\ninline float f(float x) { return std::exp(x); }\n",
    "rlk/ops/a.h": '#pragma once\n#include "rlk/kernels/kernel_table.h"\n',
    "rlk/model/a.h": '#pragma once\n#include "rlk/kernels/a.h"\n#include "rlk/io/a.h"\n',
    "rlk/io/a.h": "#pragma once\n",
    "rlk/rollout/a.h": '#pragma once\n#include "rlk/model/a.h"\n',
    "rlk/trainer/a.h": "#pragma once\n// std::exp(x) is what we avoid\n"
                       'inline const char* kName = "std::pow(x)";\n'
                       "inline float g(float x) { return std::sqrt(std::fma(x, x, 1.0f)); }\n"
                       "inline auto h(M& m) { return m.cos(1) + numerics::exp(2.0f) + m->log(1); }\n"
                       "inline int k = 1'000'000;\n",
    "rlk/rl/a.h": '#pragma once\n#include "rlk/rollout/a.h"\n#include "rlk/trainer/a.h"\n',
    "cli/CMakeLists.txt": "add_executable(rlk main.cc)\n",
    "cli/main.cc": "#include <CLI/CLI.hpp>\n#include \"rlk/rl/a.h\"\n",
    "tests/a_test.h": '#pragma once\n#include "rlk/kernels/kernel_table.h"\n// std::log(x)\n',
}

# rule, file, what it then holds (None: the clean text with a line added), line of the violation
PLANTED = [
    ("layer", "rlk/core/a.h", '#pragma once\n#include "rlk/contract/contract.h"\n', 2),
    ("layer", "rlk/kernels/a.h", '#pragma once\n#include "rlk/ops/a.h"\n', 2),
    ("layer", "rlk/ops/a.h", '#pragma once\n#include "rlk/io/a.h"\n', 2),
    ("layer", "rlk/io/a.h", '#pragma once\n\n#include "rlk/numerics/bits.h"\n', 3),
    ("layer", "rlk/rollout/a.h", '#pragma once\n#include "rlk/trainer/a.h"\n', 2),
    ("layer", "rlk/trainer/a.h", '#pragma once\n#include "rlk/rollout/a.h"\n', 2),
    ("layer", "rlk/rl/a.h", '#pragma once\n#include "cli/verbs.h"\n', 2),
    ("layer", "rlk/rl/a.h", '#pragma once\n#include "tests/a_test.h"\n', 2),
    ("layer", "rlk/core/CMakeLists.txt", "rlk_library(core SOURCES a.cc\n  LIBS rlk_ops)\n", 2),
    ("kernels", "rlk/ops/a.h", '#pragma once\n#include "rlk/kernels/reference/table.h"\n', 2),
    ("kernels", "rlk/model/a.h", '#pragma once\n#include "rlk/kernels/cpu/a_isa.h"\n', 2),
    ("kernels", "rlk/model/a.h", '#pragma once\n#include "rlk/kernels/kernel_table.h"\n', 2),
    ("kernels", "rlk/kernels/reference/table.h",
     '#pragma once\n#include "rlk/kernels/cpu/a_isa.h"\n', 2),
    ("isa", "rlk/kernels/cpu/isa/body.h", "#include <vector>\n", 1),
    ("isa", "rlk/kernels/cpu/isa/body.h", '#include "rlk/core/a.h"\n', 1),
    ("fast-math", "CMakeLists.txt", "\nadd_compile_options(-ffast-math)\n", 2),
    ("fast-math", "CMakeLists.txt", "add_compile_options(-Ofast)\n", 1),
    ("fast-math", "CMakeLists.txt", "add_compile_options(-ffp-contract=fast)\n", 1),
    ("fast-math", "cli/main.cc", "#pragma STDC FP_CONTRACT ON\n", 1),
    ("libm", "rlk/trainer/a.h", "#pragma once\nfloat a = std::exp(1.0f);\n", 2),
    ("libm", "rlk/trainer/a.h", "#pragma once\nfloat a = expf(1.0f);\n", 2),
    ("libm", "rlk/trainer/a.h", "#pragma once\ndouble a = log(2.0);\n", 2),
    ("libm", "rlk/trainer/a.h", "#pragma once\ndouble a = ::std::pow (2.0, 3);\n", 2),
    ("libm", "rlk/trainer/a.h", "#pragma once\n/* a\nb */ float a = __builtin_sinf(2.0f);\n", 3),
    ("libm", "rlk/kernels/cpu/isa/body.h", "F y = std::exp(x);\n", 1),
    ("libm", "cli/main.cc", "int a = 1'000; double b = std::cos(2.0);\n", 1),
    ("order", "rlk/trainer/a.h", "#pragma once\nstd::atomic<float> sum;\n", 2),
    ("order", "rlk/trainer/a.h", "#pragma once\nstd::atomic_ref<double> sum(x);\n", 2),
    ("order", "rlk/trainer/a.h", "#pragma once\nfloat s = std::reduce(a, b);\n", 2),
    ("order", "rlk/trainer/a.h", "#pragma once\n#pragma omp parallel for reduction(+ : s)\n", 2),
    ("heavy", "rlk/io/a.h", "#pragma once\n#include <nlohmann/json.hpp>\n", 2),
    ("heavy", "rlk/io/a.h", "#pragma once\n#include <CLI/CLI.hpp>\n", 2),
    ("heavy", "rlk/io/a.h", "#pragma once\n#include <spdlog/spdlog.h>\n", 2),
    ("pragma", "rlk/io/a.h", "int a;\n", 1),
    ("format", "rlk/io/a.h", "#pragma once\n\tint a;\n", 2),
    ("format", "rlk/io/a.h", "#pragma once\n// " + "x" * 98 + "\n", 2),
    ("path", "README.md", "See /home/me/rlkernel for more.\n", 1),
    ("path", "cli/main.cc", 'const char* a = "/root/x";\n', 1),
    ("path", "cli/main.cc", 'const char* a = "/tmp/build-mine/rlk";\n', 1),
    ("word", "README.md", "TODO\n", 1),
    ("word", "cli/main.cc", "\n// FIXME later\n", 2),
    ("unlisted", "cli/CMakeLists.txt", "add_executable(rlk)\n# main.cc\n", ("cli/main.cc", 1)),
    ("unlisted", "cli/CMakeLists.txt", "add_executable(rlk main.cc main.cc)\n", ("cli/main.cc", 1)),
    ("unlisted", "cli/CMakeLists.txt",
     "file(GLOB sources *.cc)\nadd_executable(rlk main.cc)\n", 1),
]


def write_tree(root, changes):
    for path, text in {**CLEAN, **changes}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


class CheckTidyTest(unittest.TestCase):
    def test_finds_nothing_in_a_clean_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            write_tree(Path(folder), {})
            self.assertEqual(Tidy(folder).run(), [])
            self.assertEqual(subprocess.run([TOOL, folder], capture_output=True).returncode, 0)

    def test_finds_each_violation_and_its_line(self):
        for rule, path, text, where in PLANTED:
            with self.subTest(rule=rule, path=path, text=text), \
                    tempfile.TemporaryDirectory() as folder:
                write_tree(Path(folder), {path: text})
                expected = where if isinstance(where, tuple) else (path, where)
                self.assertEqual([(f[:2], f[2]) for f in Tidy(folder).run()], [(expected, rule)])

    def test_exits_with_1_and_names_file_line_and_rule(self):
        with tempfile.TemporaryDirectory() as folder:
            write_tree(Path(folder), {"rlk/io/a.h": "#pragma once\n\tint a;\n"})
            run = subprocess.run([TOOL, folder], capture_output=True, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn("rlk/io/a.h:2: [format] tab", run.stdout)

    def test_refuses_an_empty_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(subprocess.run([TOOL, folder], capture_output=True).returncode, 1)


if __name__ == "__main__":
    unittest.main()
