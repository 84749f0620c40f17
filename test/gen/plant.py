# SPDX-License-Identifier: Apache-2.0
"""Puts programs, kinds and file layouts together: a case is some files, how to call the command on
them, and the answer that was planted."""

import dataclasses
import gzip
import json
import os
import random
import typing

from . import forms, kinds
from .allocator import MIB, Clock
from .program import Program, Shape
from .stacks import Stacks


@dataclasses.dataclass
class Case:
    """Files by relative path, arguments after the path, and the answer."""

    name: str
    kind: str
    layout: str
    verdict: str
    where: str
    rates: typing.Dict[typing.Optional[int], float]  # by rank; None: the files do not say
    sources: typing.Sequence[str]
    files: typing.Dict[str, bytes] = dataclasses.field(default_factory=dict)
    argv: typing.List[str] = dataclasses.field(default_factory=list)

    def answer(self):
        """What is written beside the files."""
        return {"kind": self.kind, "layout": self.layout, "verdict": self.verdict,
                "where": self.where, "argv": self.argv, "step_sources": list(self.sources),
                "bytes_per_step": max(self.rates.values()),
                "ranks": [{"rank": r, "bytes_per_step": b} for r, b in self.rates.items()]}

    def write(self, folder):
        """Writes the files and answer.json (beside the folder: it is no snapshot)."""
        for path, data in self.files.items():
            full = os.path.join(folder, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as out:
                out.write(data)
        with open(folder.rstrip("/") + ".answer.json", "w", encoding="utf-8") as out:
            json.dump(self.answer(), out, indent=1)


class Planter:
    """Makes one case; every choice comes from the seed."""

    def __init__(self, seed, kind, layout, short=False):
        self.rng = random.Random(f"{seed} {kind.__name__} {layout} {short}")
        self.layout = layout
        self.plan = kind(self.rng, short, 2 if layout == "period" else 0)
        self.writer = self.rng.choice(("py2", "py4", "py4", "py5", "cpp"))
        through = self.rng.choice(("linear", "linear", "own", "library"))
        self.site = (self.rng.randint(14, 90), through)
        self.shape = Shape(
            micro_batches=self.rng.choice((1, 2, 3)), layers=self.rng.choice((2, 3, 4)),
            unit=self.rng.choice((1, 2, 3)) * MIB,
            # With C++ frames a site without own code has torch's unwinder innermost: no answer.
            native=self.rng.random() < 0.25 and through != "library",
            expandable=self.rng.random() < 0.4, tiny=self.rng.choice((0, 0, 4)),
            bucket=self.rng.random() < 0.5, flush=self.rng.random() < 0.5,
            streams=self.rng.random() < 0.3)
        self.case = Case(f"{seed}-{kind.__name__}-{layout}{'-short' if short else ''}",
                         self.plan.kind, layout, self.plan.verdict, "",
                         {None: self.plan.rate}, ())

    def program(self, rank=0, leaks=True, clock=None):
        """A rank's program: the same code everywhere; what a rank keeps may differ."""
        shape = dataclasses.replace(self.shape, device=0 if self.layout == "optimizer" else rank)
        program = Program(shape, clock or Clock(1_796_105_584_000_000 + 977 * rank), Stacks())
        plan = self.plan
        if not leaks:
            plan = dataclasses.replace(plan, steps=[kinds.Step(s.size) for s in plan.steps])
        self.case.where = program.site(plan, *self.site).where
        program.build()
        return program

    def add(self, path, program, version="2.11"):
        """Writes the program's snapshot now under path."""
        data = forms.WRITERS[self.writer](forms.shape(program.snapshot(), version))
        if path.endswith(".gz"):
            data = gzip.compress(data, 1)
        self.case.files[path] = data

    def make(self):
        """Runs the program in the layout asked for."""
        getattr(self, "_" + self.layout)()
        return self.case

    # ---- one file

    def _single(self, source, around, begin_next=None):
        """begin_next: a mark tells where a step begins, so that the last one is whole only when
        the next has begun."""
        program = self.program()
        for t in range(len(self.plan.steps)):
            around(program, t)
        if begin_next is not None:
            begin_next(program, len(self.plan.steps))
        self.case.sources = source
        self.add("run.pickle", program)

    def _optimizer(self):
        """The history lost its beginning, as a ring does, in half of the cases."""
        lose = self.rng.random() < 0.5

        def around(program, t):
            if t == 0 and lose:
                program.clear()
            program.step(t)

        self._single(("optimizer",), around)

    def _profiler(self):
        def around(program, t):
            program.annotate("START", f"ProfilerStep#{t + 2}")
            program.step(t)
            program.annotate("END", f"ProfilerStep#{t + 2}")

        self._single(("profiler",), around)

    def _mark_prefix(self):
        """The metadata changes with each step: 'train step 7'."""
        def begin(program, t):
            program.alloc.metadata = f"train step {t}"
            program.load_batch()

        def around(program, t):
            begin(program, t)
            program.step(t)

        self._single(("mark",), around, begin)
        self.case.argv = ["--step-mark", "train step *"]

    def _mark_exact(self):
        """The metadata takes turns between two words, of which one begins the step."""
        def begin(program, _t):
            program.alloc.metadata = "begin"
            program.load_batch()
            program.alloc.metadata = "train"

        def around(program, t):
            begin(program, t)
            program.step(t)

        self._single(("mark",), around, begin)
        self.case.argv = ["--step-mark", "begin"]

    def _period(self):
        """No annotations at all: the steps show in the events only."""
        def around(program, t):
            program.step(t)
            program.annotations = []

        self._single(("period",), around)

    # ---- a file a step, in verl's layout

    def _path(self, step, rank, pid, name="torch_memory"):
        suffix = ".gz" if self.rng.random() < 0.1 else ""
        return f"profile/step{step}/{name}_rank{rank}_pid{pid}.pickle{suffix}"

    def _run(self, first, each, ranks=(0,), leaks=lambda rank: True):
        """Runs all ranks; each(program, t, step, rank, pid) writes what the layout writes."""
        self.case.sources = ("files",)
        self.case.rates = {r: self.plan.rate if leaks(r) else 0.0 for r in ranks}
        for rank in ranks:
            program = self.program(rank, leaks(rank))
            for t in range(len(self.plan.steps)):
                program.step(t)
                each(program, t, first + t, rank, 4000 + 13 * rank)

    def _cleared(self):
        """Today's verl: the history is cleared after each file."""
        def each(program, _t, step, rank, pid):
            self.add(self._path(step, rank, pid), program)
            program.clear()

        self._run(self.rng.randint(1, 40), each)

    def _overlap(self):
        """verl 0.7: the ring goes on, so that files overlap and lose their beginning."""
        def each(program, _t, step, rank, pid):
            program.alloc.events = program.alloc.events[-250:]
            self.add(self._path(step, rank, pid), program, self.rng.choice(("2.1", "2.6", "2.9")))

        self._run(self.rng.randint(1, 9), each)

    def _post_update(self):
        """The files of the end of each step, with the next step's number; some steps have the
        other family's file as well, from the middle of the step."""
        both = self.rng.random() < 0.5

        def each(program, _t, step, rank, pid):
            if both and step % 2:
                extra = program.alloc.alloc(40 * MIB, [program.stacks.own("eval", "main.py", 77)])
                self.add(self._path(step, rank, pid), program)
                program.alloc.free(extra, None)
            name = f"post_update_step{step + 1}"
            self.add(self._path(step + 1, rank, pid, name), program, "2.6")

        self._run(self.rng.randint(1, 9), each)

    def _oom(self):
        """The last step ends in an out-of-memory error, whose file shows the middle of a step."""
        last = len(self.plan.steps) - 1

        def each(program, t, step, rank, pid):
            self.add(self._path(step, rank, pid), program)
            program.clear()
            if t < last:
                return
            stack = program.stacks.through_module(
                [program.stacks.lib("forward", "transformers/models/qwen2_5_vl/modeling.py", 900),
                 program.stacks.own("_forward_micro_batch", self.shape.file, 14)])
            for _ in range(6):
                program.alloc.alloc(90 * MIB, stack)
            program.alloc.oom(90 * MIB, 17 * MIB, stack)
            self.add(f"profile/oom_20261106-101112-{rank:06d}/"
                     f"torch_memory_oom_rank{rank}_pid{pid}.pickle", program)

        self._run(3, each)

    def _ranks(self):
        """Several ranks, on devices of their own; one or all of them leak."""
        count = self.rng.choice((2, 3))
        only = self.rng.choice((None, count - 1))

        def each(program, _t, step, rank, pid):
            self.add(self._path(step, rank, pid), program)
            program.clear()

        self._run(1, each, range(count), lambda rank: only is None or rank == only)

    def _renamed(self):
        """Another project's names."""
        def each(program, _t, step, rank, _pid):
            self.add(f"mem/w{rank:02d}/dump-n{step:05d}.pickle", program)
            program.clear()

        self._run(95, each, range(self.rng.choice((1, 2))))
        self.case.argv = ["--step-from", "dump-n([0-9]+)", "--rank-from", "/w([0-9]+)/"]

    def _stride(self):
        """Only every second step is profiled: the rate is still per step."""
        def each(program, t, step, rank, pid):
            if t % 2 == 1:
                self.add(self._path(step, rank, pid), program)
            program.clear()

        self.plan.steps = self.plan.steps * 2
        self._run(2, each)

    def _windows(self):
        """Two steps a file; the history is cleared after each."""
        def each(program, t, step, rank, pid):
            if t % 2 == 1:
                self.add(f"profile/steps{step - 1}-{step}/"
                         f"torch_memory_rank{rank}_pid{pid}.pickle", program)
                program.clear()

        self.plan.steps = self.plan.steps * 2
        self._run(4, each)
        self.case.sources = ("optimizer",)  # both steps of each file are inside it


SINGLE = ("optimizer", "profiler", "mark_prefix", "mark_exact", "period")
FILES = ("cleared", "overlap", "post_update", "oom", "ranks", "renamed")
SPARSE = ("stride", "windows")  # only for kinds that look the same at every second step


def cases(count, seed=2026):
    """`count` cases: every kind in every layout in turn, a quarter of them short. A short case
    that is all in one file has too few steps to find a period: `period` is left out there."""
    out, turn = [], 0
    while len(out) < count:
        layouts = SINGLE + FILES
        kind = kinds.KINDS[turn % len(kinds.KINDS)]
        layout = layouts[(turn + turn // len(kinds.KINDS)) % len(layouts)]
        short = turn % 4 == 3 and kind in kinds.WITH_SHORT and layout != "period"
        if turn % 26 == 25:
            kind, layout, short = kinds.linear, SPARSE[turn // 26 % 2], False
        out.append((f"{seed}-{turn}", kind, layout, short))
        turn += 1
    return out


def make(seed, kind, layout, short):
    """The case of these choices."""
    return Planter(seed, kind, layout, short).make()
