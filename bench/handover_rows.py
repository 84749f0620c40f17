# SPDX-License-Identifier: Apache-2.0
"""Rows of the ledger, of reclaim, and of sleep and wake on the host device.

Ledger times are wall-clock times of this machine, compared with a bound in the target's own unit;
wake-ups need a core for each of two processes, so those rows wait for an idle machine and count the
best of a few rounds. Sleep and wake are compared with memcpy between memory of the same kind, in
turns in the same process.
"""
import json
import os
import tempfile

from measure import MIB, Rows, ratio_row, spawn, wait_idle

SLEEP_BYTES = 512 * MIB


class HandoverRows(Rows):
    """Between processes on one ledger; within one on the host device."""

    programs = ("bench/ledger", "bench/reclaim_idle", "bench/sleep")

    def parts(self):
        return (self.ledger_alone, self.ledger_wake, self.ledger_contend, self.reclaim_idle,
                self.sleep)

    def program(self, name, *words):
        """One run in a ledger folder of its own; the program's JSON."""
        with tempfile.TemporaryDirectory(prefix="tidegate-", dir="/dev/shm") as folder:
            os.environ["TIDEGATE_DIR"] = folder
            return json.loads(spawn([self.build / "bench" / name, *words])[0])

    def ledger_rounds(self, *words):
        turns = []
        for _ in range(self.args.rounds):
            wait_idle(self.args.wait)
            turns.append(self.program("ledger", *words))
        return turns

    def ledger_alone(self):
        turns = self.ledger_rounds("alone", "200")
        self.add(ratio_row("ledger alone", "reserve and cancel with nobody else there, by 1 µs",
                           [(t["median_ns"], 1000) for t in turns], "<=", 1, turns))

    def ledger_wake(self):
        turns = self.ledger_rounds("wake", "300")
        self.add(ratio_row("ledger wake median", "from a give until a waiter runs, by 100 µs",
                           [(t["median_ns"], 100_000) for t in turns], "<=", 1, turns))
        self.add(ratio_row("ledger wake p99", "the 99th of a hundred, by 1 ms",
                           [(t["p99_ns"], 1_000_000) for t in turns], "<=", 1, None))

    def ledger_contend(self):
        turns = self.ledger_rounds("contend", "8")
        self.add(ratio_row("ledger contend 8", "worst wait of 8 tenants, by a fair share",
                           [(t["worst_wait_ns"], t["fair_wait_ns"]) for t in turns], "<=", 3,
                           turns))

    def reclaim_idle(self):
        turns = [self.program("reclaim_idle", "host:capacity=64MiB", "1000")
                 for _ in range(self.args.rounds)]
        self.add(ratio_row("reclaim idle", "a reclaim with nothing to give, by 50 µs",
                           [(t["median_ns"], 50_000) for t in turns], "<=", 1, turns))

    def sleep(self):
        turns = []
        for _ in range(self.args.rounds):
            wait_idle(self.args.wait)
            turns.append(self.program("sleep", str(SLEEP_BYTES // MIB)))
        for name, what, target, ratio in (
                ("first sleep", "copying of first sleeps, by memcpy into fresh memory", 0.8,
                 lambda t: (t["first_memcpy_ns"], t["first_sleep_copy_ns"])),
                ("later sleep", "copying into a kept host copy, by memcpy between touched", 0.9,
                 lambda t: (t["later_memcpy_ns"], t["later_sleep_copy_ns"])),
                ("wake", "whole wakes, by memcpy into a fresh memfd", 0.8,
                 lambda t: (t["wake_memcpy_ns"], t["wake_ns"])),
                ("whole first sleep", "all of it, by memcpy and giving a memfd back", None,
                 lambda t: (t["first_memcpy_ns"] + t["free_ns"], t["first_sleep_ns"])),
                ("whole later sleep", "all of it, by memcpy and giving a memfd back", None,
                 lambda t: (t["later_memcpy_ns"] + t["free_ns"], t["later_sleep_ns"]))):
            self.add(ratio_row(name, what, [ratio(t) for t in turns], ">=", target,
                               turns if name == "first sleep" else None))
        self.add(ratio_row("host memory", "host bytes held asleep, by the bytes backed up",
                           [(t["host_bytes"], t["saved_bytes"]) for t in turns], "<=", 1.02, None))
