# SPDX-License-Identifier: Apache-2.0
"""The scripts of bench/card as modules, for tests that have no card."""

import importlib
import sys
from pathlib import Path

import pytest

CARD = Path(__file__).resolve().parent.parent.parent / "bench" / "card"


@pytest.fixture(autouse=True)
def card_on_path(monkeypatch):
    """In the modules that import it."""
    monkeypatch.syspath_prepend(str(CARD))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def load(name):
    return importlib.import_module(name)


def by_name(rows):
    return {row["name"]: row for row in rows}
