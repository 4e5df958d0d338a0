#!/usr/bin/env python3
"""Generates the constants of rlk/numerics/f64_math.h and rlk/numerics/rope_table.cc, and checks the
polynomials that the contract prints (exp2p/1, exp2m/1, exp/1, log/1).

    python3 tools/gen_numerics_constants.py          prints all constants and their errors
    python3 tools/gen_numerics_constants.py --check  also compares them with the sources (exit 1)

Needs mpmath (Debian: python3-mpmath). The fits are Remez exchanges in 200 bits; coefficients are
rounded to nearest afterwards.
"""
import pathlib
import struct
import sys

import mpmath as mp

mp.mp.prec = 200


def f64(x):
    """The double nearest to x (mpmath rounds to nearest, even)."""
    with mp.workprec(53):
        return float(+mp.mpf(x))


def remez(f, weight, low, high, count, rounds=12):
    """`count` coefficients (constant first) of the polynomial p that minimises
    max |(p(x) - f(x)) * weight(x)| on [low, high], and that maximum."""
    n = count + 1
    points = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (n - 1 - i) / (n - 1))
              for i in range(n)]
    grid = [low + (high - low) * mp.mpf(i) / 1500 for i in range(1501)]
    for _ in range(rounds):
        rows = mp.matrix(n, n)
        right = mp.matrix(n, 1)
        for i, x in enumerate(points):
            for j in range(count):
                rows[i, j] = x**j
            rows[i, count] = (-1)**i / weight(x)
            right[i] = f(x)
        solution = mp.lu_solve(rows, right)
        coefficients = [solution[j] for j in range(count)]
        error = [(mp.polyval(coefficients[::-1], x) - f(x)) * weight(x) for x in grid]
        # The largest error of each run of one sign is the next reference point.
        runs = []
        for x, e in zip(grid, error):
            if runs and (e > 0) == (runs[-1][1] > 0):
                if abs(e) > abs(runs[-1][1]):
                    runs[-1] = (x, e)
            else:
                runs.append((x, e))
        while len(runs) > n:
            runs.pop(0 if abs(runs[0][1]) < abs(runs[-1][1]) else -1)
        if len(runs) < n:
            break
        points = [x for x, _ in runs]
    return coefficients, max(abs(e) for e in error)


def max_error(f, weight, low, high, coefficients):
    grid = [low + (high - low) * mp.mpf(i) / 4000 for i in range(4001)]
    return max(abs((mp.polyval(coefficients[::-1], x) - f(x)) * weight(x)) for x in grid)


def exp2_64():
    """(2^x - 1) / x on [-0.51, 0.51]: with the constant 1 the sequence is exact at 0."""
    f = lambda x: mp.expm1(x * mp.log(2)) / x if x else mp.log(2)
    weight = lambda x: abs(x) / mp.power(2, x) if abs(x) > mp.mpf(2)**-20 else mp.mpf(2)**-20
    low, high = mp.mpf("-0.51"), mp.mpf("0.51")
    coefficients, _ = remez(f, weight, low, high, 12)
    rounded = [f64(c) for c in coefficients]
    return rounded, max_error(f, weight, low, high, rounded)


def log1p64():
    """(log((1+s)/(1-s)) - 2s) / s^3 as a polynomial in z = s^2, for |f| with 1+f in
    [sqrt(1/2), sqrt(2)): |s| = |f/(2+f)| < 0.1716."""
    def f(z):
        if z < mp.mpf(2)**-40:
            return mp.mpf(2) / 3 + 2 * z / 5
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) - 2 * s) / (s * z)
    weight = lambda z: z / 2 + mp.mpf(2)**-20
    low, high = mp.mpf(0), mp.mpf("0.0296")
    coefficients, _ = remez(f, weight, low, high, 7)
    rounded = [f64(c) for c in coefficients]
    return rounded, max_error(f, weight, low, high, rounded)


def split(x, bits):
    """x as a double with `bits` significant bits plus the double nearest to the rest."""
    with mp.workprec(bits):
        high = +x
    return f64(high), f64(x - high)


def expansion(x, parts):
    result = []
    for _ in range(parts):
        result.append(f64(x))
        x -= mp.mpf(result[-1])
    return result


def dd_inverse_factorials(first, last):
    return [(n, expansion(1 / mp.factorial(n), 2)) for n in range(first, last + 1)]


# The f32 polynomials of the contract, highest coefficient first: their error in exact arithmetic.
CONTRACT = {
    "exp2p/1": ("0x1.409104p-7 0x1.ca9008p-5 0x1.ebf1b4p-3 0x1.62dfcap-1 1",
                lambda x: mp.power(2, x), lambda x: mp.power(2, -x), -0.5, 0.5),
    "exp2m/1": ("0x1.665fe4p-13 0x1.5fe442p-10 0x1.3afb86p-7 0x1.c6ad62p-5 0x1.ebfc18p-3 "
                "0x1.62e432p-1 1",
                lambda x: mp.power(2, x), lambda x: mp.power(2, -x), -0.501, 0.501),
    "exp/1": ("0x1.6a23dp-10 0x1.123a2p-7 0x1.5558f2p-5 0x1.555492p-3 0x1.fffffcp-2",
              lambda x: (mp.expm1(x) - x) / x**2 if x else mp.mpf(1) / 2,
              lambda x: x**2 * mp.exp(-x), -0.3466, 0.3466),
    "log/1": ("-0x1.109fep-3 0x1.1ed8f8p-3 -0x1.eeb894p-4 0x1.1ebca6p-3 -0x1.55cd1p-3 "
              "0x1.99d212p-3 -0x1.fffd6ap-3 0x1.555502p-2 -0x1p-1",
              lambda f: (mp.log1p(f) - f) / f**2 if f else mp.mpf(-1) / 2,
              lambda f: abs(f**2 / mp.log1p(f)) if f else mp.mpf(0), -1 / 3, 1 / 3),
}


def literals():
    """Every literal that must stand in the sources, by file."""
    out = {"rlk/numerics/f64_math.h": [], "rlk/numerics/rope_table.cc": []}
    coefficients, error = exp2_64()
    print(f"exp2_64: relative error of the polynomial 2^{float(mp.log(error, 2)):.2f}; "
          "highest coefficient first, then 1")
    for c in coefficients[::-1]:
        print("   ", c.hex())
        out["rlk/numerics/f64_math.h"].append(c.hex())
    coefficients, error = log1p64()
    print(f"log1p64: relative error of the polynomial 2^{float(mp.log(error, 2)):.2f}; "
          "highest coefficient first")
    for c in coefficients[::-1]:
        print("   ", c.hex())
        out["rlk/numerics/f64_math.h"].append(c.hex())
    for name, value in (("ln2 in 32 bits + rest", split(mp.log(2), 32)),):
        print(name, *[v.hex() for v in value])
        out["rlk/numerics/f64_math.h"] += [v.hex() for v in value]
    print("pi/2", *[v.hex() for v in expansion(mp.pi / 2, 3)])
    out["rlk/numerics/rope_table.cc"] += [v.hex() for v in expansion(mp.pi / 2, 3)]
    for n, (high, low) in dd_inverse_factorials(3, 16):
        print(f"1/{n}! {{{high.hex()}, {low.hex()}}}")
        out["rlk/numerics/rope_table.cc"] += [high.hex(), low.hex()]
    for n in range(17, 27):
        print(f"1/{n}! {f64(1 / mp.factorial(n)).hex()}")
        out["rlk/numerics/rope_table.cc"].append(f64(1 / mp.factorial(n)).hex())
    for name, (text, f, weight, low, high) in CONTRACT.items():
        values = [mp.mpf(float.fromhex(t)) for t in text.split()]
        for v in values:  # each is an f32
            assert struct.unpack("<f", struct.pack("<f", float(v)))[0] == float(v), (name, v)
        error = max_error(f, weight, mp.mpf(low), mp.mpf(high), values[::-1])
        print(f"{name}: relative error of the printed polynomial 2^{float(mp.log(error, 2)):.2f}")
    return out


def main():
    out = literals()
    if "--check" not in sys.argv:
        return 0
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = 0
    for path, wanted in out.items():
        text = (root / path).read_text()
        for literal in wanted:
            if literal not in text:
                print(f"{path} lacks {literal}", file=sys.stderr)
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
