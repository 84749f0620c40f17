# SPDX-License-Identifier: Apache-2.0
"""The tests that doc/design/promises.md names are there, and every promise has its line."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "doc/design/promises.md"
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


def faults(text):
    """What is wrong with a table, a sentence each."""
    found = list(rows(text))
    wanted = [str(number) for number in range(1, 44)] + [f"T{n}" for n in range(1, 17)]
    if [row[0] for row in found] != wanted:
        yield f"lines are {[row[0] for row in found]}"
    for number, promise, shown, where in (row for row in found if len(row) == 4):
        if not promise or (shown == NONE) != (where == NONE):
            yield f"{number}: says nothing, or only half that there is no test"
        if where != NONE and not set(where.split(", ")) <= PLACES:
            yield f"{number}: where is {where!r}"
        for part in shown.split("; ") if shown != NONE else []:
            name, _, cases = part.partition(": ")
            there = cases_of(name)
            if there is None:
                yield f"{number}: no file {name}"
                continue
            for case in cases.split(", "):
                if case not in there:
                    yield f"{number}: {name} has no case {case!r}"
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
    assert said("| none yet | none yet |", "| none yet | host |") == [
        "39: says nothing, or only half that there is no test"]
    assert said("| stand-in |", "| somewhere |") == ["1: where is 'somewhere'"]
    assert said("| host |\n| 16", "| host | card |\n| 16") == ["15: 5 columns"]
