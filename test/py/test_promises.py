# SPDX-License-Identifier: Apache-2.0
"""The tests that doc/design/promises.md and crashes.md name are there, and every promise and every
crash has its line."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "doc/design/promises.md"
CRASHES = ROOT / "doc/design/crashes.md"
PLACES = {"host", "stand-in", "card", "not yet"}
NONE = "none yet"


def rows(text):
    """(number, promise, shown by, where) of each line of the tables."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"T?\d+", cells[0]):
            yield tuple(cells)


def cases_of(name):
    """The cases of a test's file; None: there is no such file, or more than one."""
    found = list((ROOT / "test").rglob(name))
    if len(found) != 1:
        return None
    pattern = r"^START_TEST\((\w+)\)" if name.endswith(".c") else r"^def (test_\w+)\("
    return set(re.findall(pattern, found[0].read_text(encoding="utf-8"), re.MULTILINE))


def missing(number, shown):
    """What of "FILE: CASE, CASE; FILE: CASE" is not there, a sentence each."""
    for part in shown.split("; "):
        name, _, cases = part.partition(": ")
        there = cases_of(name)
        if there is None:
            yield f"{number}: no file {name}"
            continue
        for case in cases.split(", "):
            if case not in there:
                yield f"{number}: {name} has no case {case!r}"


def crash_faults(text):
    """The same of the table of crashes, where every line has a test."""
    found = list(rows(text))
    if [row[0] for row in found] != [str(number) for number in range(1, len(found) + 1)]:
        yield f"lines are {[row[0] for row in found]}"
    for row in found:
        if len(row) != 4 or "" in row:
            yield f"{row[0]}: {len(row)} columns, or one without a word"
        else:
            yield from missing(row[0], row[3])


def faults(text):
    """What is wrong with the table of promises, a sentence each."""
    found = list(rows(text))
    wanted = [str(number) for number in range(1, 44)] + [f"T{n}" for n in range(1, 17)]
    if [row[0] for row in found] != wanted:
        yield f"lines are {[row[0] for row in found]}"
    for number, promise, shown, where in (row for row in found if len(row) == 4):
        if not promise or (shown == NONE) != (where == NONE):
            yield f"{number}: says nothing, or only half that there is no test"
        if where != NONE and not set(where.split(", ")) <= PLACES:
            yield f"{number}: where is {where!r}"
        if shown != NONE:
            yield from missing(number, shown)
    for row in found:
        if len(row) != 4:
            yield f"{row[0]}: {len(row)} columns"


def test_every_test_that_is_named_is_there():
    assert list(faults(TABLE.read_text(encoding="utf-8"))) == []


def test_what_is_missing_is_found():
    text = TABLE.read_text(encoding="utf-8")

    def said(old, new):
        assert old in text
        return list(faults(text.replace(old, new, 1)))

    assert said("two_hundred_deaths", "many_deaths") == [
        "22: kill_test.c has no case 'many_deaths'"]
    assert said("limbo_test.c: f", "nolimbo_test.c: f") == ["7: no file nolimbo_test.c"]
    assert len(said("| 43 |", "| 44 |")) == 1
    assert said("test_trimming.py: test_a_plug_that_is_not_where_it_was_expected_counts_for_"
                "nothing, test_where_torch_rounds_otherwise_nothing_is_trimmed |",
                "none yet |") == [
        "39: says nothing, or only half that there is no test"]
    assert said("| stand-in |", "| somewhere |") == ["1: where is 'somewhere'"]
    assert said("| host |\n| 16", "| host | card |\n| 16") == ["15: 5 columns"]


def test_every_crash_has_its_outcome_and_its_tests():
    text = CRASHES.read_text(encoding="utf-8")
    assert list(crash_faults(text)) == [] and len(list(rows(text))) >= 20

    def said(old, new):
        assert old in text
        return list(crash_faults(text.replace(old, new, 1)))

    assert said("two_hundred_deaths", "many_deaths") == ["1: kill_test.c has no case 'many_deaths'"]
    assert said("containers_test.c", "boxes_test.c") == ["9: no file boxes_test.c"]
    assert said("| as a death |", "| |") == ["3: 4 columns, or one without a word"]
    assert len(said("\n| 3 |", "\n| 33 |")) == 1


SET_BY_THE_DATE = re.compile(
    r"\b(CLOCK_REALTIME\w*|CLOCK_TAI|gettimeofday|time\((NULL|0|&)|sem_timedwait|"
    r"pthread_mutex_timedlock|pthread_rwlock_timed\w+|mtx_timedlock|FUTEX_CLOCK_REALTIME)")


DATED = {"refusal.c"}  # the date stands in a line that people read, and nothing waits for it


def settable_clocks(text):
    return [found.group(0) for found in SET_BY_THE_DATE.finditer(text)]


def test_the_library_reads_no_clock_that_can_be_set():
    """Nor waits by one: threads.h makes the condition variables that are waited on until a time."""
    sources = sorted([*(ROOT / "src").rglob("*.c"), *(ROOT / "src").rglob("*.h")])
    assert len(sources) > 100
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert source.name in DATED or settable_clocks(text) == [], source
        assert "pthread_cond_timedwait(" not in text or "pthread_cond_init(" not in text, source
    assert settable_clocks("clock_gettime(CLOCK_REALTIME, &now); time(NULL);") == [
        "CLOCK_REALTIME", "time(NULL"]
