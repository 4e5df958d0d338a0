#!/usr/bin/env python3
"""Every rule of tools/isa_check, on a code object that breaks it and on one that does not.

    isa_check_test.py CLANG TOOLS
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLANG = TOOLS = ""
ISA_CHECK = Path(__file__).resolve().parents[2] / "tools" / "isa_check"
FLAGS = ["-x", "hip", "-std=c++20", "-O3", "-nogpulib", "-nogpuinc", "-ffp-contract=off",
         "-mcode-object-version=5", "--cuda-device-only", "--no-gpu-bundle-output", "-c"]
HEAD = """
#define KERNEL(name) extern "C" __attribute__((global)) void name
typedef short Half4 __attribute__((vector_size(8)));
typedef float Float4 __attribute__((vector_size(16)));
__attribute__((device)) inline int thread() { return __builtin_amdgcn_workitem_id_x(); }
"""
# Quotients and roots, of floats and integers: all that looks approximate and is not.
EXACT = """
KERNEL(exact)(float* x, double* y, long* n, unsigned* m) {
  const int t = thread();
  x[t] = x[t] / x[t + 1] + __builtin_sqrtf(x[t + 2]);
  y[t] = y[t] / y[t + 1] + __builtin_sqrt(y[t + 2]);
  n[t] = n[t] / n[t + 1];
  m[t] = m[t] / m[t + 1] + m[t + 2] % m[t + 3];
  __hip_atomic_fetch_min(n, 3L, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  x[t] = __builtin_fmaf(x[t], x[t + 1], x[t + 2]);
}
"""
PRODUCTS = """
KERNEL(products)(float* d, const Half4* a, int n) {
  Float4 c = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) c = MULTIPLY;
  for (int i = 0; i < 4; ++i) d[4 * thread() + i] = c[i];
}
"""
MFMA_16 = "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a[i], a[i + n], c, 0, 0, 0)"
MFMA_4 = "__builtin_amdgcn_mfma_f32_4x4x4bf16_1k(a[i], a[i + n], c, 0, 0, 0)"
FMA = "c + static_cast<float>(a[i][0]) * static_cast<float>(a[i + n][1])"


class IsaCheck(unittest.TestCase):
    def check(self, source, *flags, target="gfx942", name="object", matrix=""):
        """(exit code, what isa_check prints) for one source."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "hip" / f"{name}.{target}.co"  # as in a build
            path.parent.mkdir(parents=True)
            text = path.with_suffix(".cu")
            text.write_text(HEAD + source, encoding="utf-8")
            subprocess.run([CLANG, *FLAGS, *flags, f"--offload-arch={target}", text, "-o", path],
                           check=True)
            return self.run_on(path, matrix)

    def run_on(self, path, matrix=""):
        table = path.parent / "matrix.txt"
        table.write_text(matrix, encoding="utf-8")
        result = subprocess.run([sys.executable, ISA_CHECK, "--tools", TOOLS, "--matrix", table,
                                 "--print", path], capture_output=True, text=True, check=False)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return result.returncode, result.stdout

    def refused(self, rule, what, source, *flags, **options):
        code, text = self.check(source, *flags, **options)
        self.assertEqual(code, 1, text)
        self.assertRegex(text, rf"\[{rule}\][^\n]*{what}")

    def test_exact_sequences_are_no_violations_on_any_target(self):
        for target in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1030"):
            code, text = self.check(EXACT, target=target)
            self.assertEqual(code, 0, text)
            self.assertIn("1 kernels", text)

    def test_approximate_instructions_are_refused(self):
        for call, instruction in [("__builtin_amdgcn_exp2f(v)", "v_exp_f32"),
                                  ("__builtin_amdgcn_logf(v)", "v_log_f32"),
                                  ("__builtin_amdgcn_rcpf(v)", "v_rcp_f32"),
                                  ("__builtin_amdgcn_rsqf(v)", "v_rsq_f32"),
                                  ("__builtin_amdgcn_sqrtf(v)", "v_sqrt_f32"),
                                  ("__builtin_amdgcn_sinf(v)", "v_sin_f32"),
                                  ("static_cast<float>(__builtin_amdgcn_rcp(double(v)))",
                                   "v_rcp_f64"),
                                  ("static_cast<float>(__builtin_amdgcn_rsq(double(v)))",
                                   "v_rsq_f64")]:
            with self.subTest(call):
                source = f"KERNEL(k)(float* x) {{ const float v = *x; x[1] = {call}; }}"
                self.refused("approximate", instruction, source)
                self.refused("approximate", instruction, source, target="gfx1100")

    def test_a_fast_division_or_root_is_refused(self):
        self.refused("approximate", "v_rcp_f32", "KERNEL(k)(float* x) { x[0] = x[1] / x[2]; }",
                     "-ffast-math")
        self.refused("approximate", "v_sqrt_f32",
                     "KERNEL(k)(float* x) { x[0] = __builtin_sqrtf(x[1]); }",
                     "-fno-hip-fp32-correctly-rounded-divide-sqrt")

    def test_subnormals_flushed_are_refused(self):
        self.refused("mode", "FLOAT_MODE", "KERNEL(k)(float* x) { x[0] = x[1] + x[2]; }",
                     "-fgpu-flush-denormals-to-zero")

    def test_a_change_of_the_mode_is_refused(self):
        self.refused("mode", "s_setreg", "KERNEL(k)(float* x) {"
                     " __builtin_amdgcn_s_setreg(1 | (4 << 6) | (1 << 11), 0); x[0] = x[1] + x[2]; }")

    def test_an_fma_that_nobody_wrote_is_refused(self):
        source = "KERNEL(k)(float* x) { x[0] = x[1] * x[2] + x[3]; }"
        self.assertEqual(self.check(source, name="two_roundings")[0], 0)
        self.refused("fma", "v_fma", source, "-ffp-contract=fast", name="two_roundings")
        self.refused("fma", "v_fma", source, "-ffp-contract=fast", name="two_roundings",
                     target="gfx1100")

    def test_a_dot_product_is_refused(self):
        self.refused("unfused", "v_dot2", """
typedef short Half2 __attribute__((vector_size(4)));
KERNEL(k)(float* x, const Half2* a) { *x = __builtin_amdgcn_fdot2_f32_bf16(a[0], a[1], *x, false); }
""", target="gfx1100")

    def test_atomics_on_floats_are_refused(self):
        add = ("KERNEL(k)(float* x) {"
               " __hip_atomic_fetch_add(x, 1.5f, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }")
        self.refused("atomic", "global_atomic_add_f32", add)
        self.refused("atomic", "cmpswap", add, target="gfx1030")
        self.refused("atomic", "ds_add_f32", """
KERNEL(k)(float* x) {
  __attribute__((shared)) static float sum;
  sum = 0;
  __hip_atomic_fetch_add(&sum, *x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __builtin_amdgcn_s_barrier();
  *x = sum;
}""")

    def test_a_matrix_loop_has_its_instruction(self):
        def cdna(multiply, matrix="products 16x16x16\n", target="gfx942", loop="int i = 0; i < n"):
            source = PRODUCTS.replace("MULTIPLY", multiply).replace("int i = 0; i < n", loop)
            return self.check(source, name="cdna/a", matrix=matrix, target=target)[1]

        for target in ("gfx90a", "gfx942"):
            self.assertIn("0 violations", cdna(MFMA_16, target=target))
        missing = "[matrix] products: no loop with 16x16x16"
        self.assertIn(missing, cdna(FMA))
        self.assertIn(missing, cdna(MFMA_16, loop="int i = n; i < n + 1"))
        self.assertRegex(cdna(MFMA_4), r"\[matrix\] products: v_mfma_f32_4x4x4")
        self.assertIn("[matrix] products is not in the list", cdna(MFMA_16, matrix="other none\n"))
        self.refused("matrix", "expected none", PRODUCTS.replace("MULTIPLY", MFMA_16))

    def test_registers_spilled_in_a_loop_are_refused(self):
        loads = "".join(f"float v{i} = x[{i} * 64 + thread()];\n" for i in range(300))
        fmas = "".join(f"v{i} = __builtin_fmaf(v{(i + 7) % 300}, v{i}, v{(i + 1) % 300});\n"
                       for i in range(300))
        stores = "".join(f"x[{i} * 64 + thread()] = v{i};\n" for i in range(300))
        self.refused("spill", "products", f"""
extern "C" __attribute__((global, launch_bounds(1024))) void k(float* x, int n) {{
{loads}
for (int i = 0; i < n; ++i) {{ {fmas} }}
{stores} }}""")

    def test_an_undefined_symbol_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.gfx942.co"
            source = path.with_suffix(".s")
            source.write_text(".amdgcn_target \"amdgcn-amd-amdhsa--gfx942\"\n.text\n"
                              ".long elsewhere\n", encoding="utf-8")
            subprocess.run([CLANG, "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-c", source, "-o",
                            path], check=True)
            code, text = self.run_on(path)
            self.assertEqual(code, 1)
            self.assertIn("[undefined] elsewhere", text)

    def test_what_kernels_occupy_is_printed(self):
        _, text = self.check("""
KERNEL(k)(float* x) {
  __attribute__((shared)) static float lane[256];
  lane[thread()] = x[thread()];
  __builtin_amdgcn_s_barrier();
  x[thread()] = lane[thread() ^ 1];
}""")
        self.assertRegex(text, r"gfx942 +\d+ / \d+ / 1024 / 0 / 8")


if __name__ == "__main__":
    CLANG, TOOLS = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
