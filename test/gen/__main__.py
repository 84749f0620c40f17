# SPDX-License-Identifier: Apache-2.0
"""python3 test/gen VERB …: see the verbs below."""

import argparse
import os
import sys

if not __package__:  # run as a folder: make the package importable by its name
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gen import forms, hostile, plant, samples  # noqa: E402  pylint: disable=wrong-import-position


def _plant(args):
    for choice in plant.cases(args.count, args.seed):
        case = plant.make(*choice)
        case.write(os.path.join(args.out, case.name))


def _forms(args):
    os.makedirs(args.out, exist_ok=True)
    for name, data in samples.all_forms(args.seed):
        with open(os.path.join(args.out, name), "wb") as out:
            out.write(data)


def _hostile(args):
    os.makedirs(args.out, exist_ok=True)
    for bad in hostile.everything():
        with open(os.path.join(args.out, bad.name + ".pickle"), "wb") as out:
            out.write(bad.data)


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="test/gen", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("plant", help="cases with their answers, a folder each")
    one.add_argument("out")
    one.add_argument("--count", type=int, default=200)
    one.add_argument("--seed", type=int, default=2026)
    one.set_defaults(run=_plant)
    one = verbs.add_parser("forms", help="one small snapshot in every version's and writer's form")
    one.add_argument("out")
    one.add_argument("--seed", type=int, default=2026)
    one.set_defaults(run=_forms)
    one = verbs.add_parser("hostile", help="bytes that a reader must refuse")
    one.add_argument("out")
    one.set_defaults(run=_hostile)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
