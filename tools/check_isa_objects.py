#!/usr/bin/env python3
"""Checks that object files compiled for one instruction set define no weak symbol.

An inline function or template of baseline code that such a file instantiates is a weak symbol: the
linker may keep this copy for the whole program, and a CPU without the instruction set dies in it.

    check_isa_objects.py --nm NM OBJECT...

Looks only at objects of files named *_avx2.cc and *_avx512.cc; fails if there are none.
"""
import argparse
import re
import subprocess
import sys


def weak_symbols(nm, path):
    lines = subprocess.run([nm, "-C", "--defined-only", path], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    symbols = [line.split(maxsplit=2) for line in lines]
    return [s[2] for s in symbols if len(s) == 3 and s[1] in "WwVvu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm")
    parser.add_argument("objects", nargs="+")
    args = parser.parse_args()
    objects = [o for o in args.objects if re.search(r"_(avx2|avx512)\.cc\.o", o)]
    leaks = [(path, symbol) for path in objects for symbol in weak_symbols(args.nm, path)]
    for path, symbol in leaks:
        print(f"{path}: defines weak symbol {symbol}")
    print(f"{len(objects)} objects, {len(leaks)} weak symbols")
    return 1 if leaks or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
