# SPDX-License-Identifier: Apache-2.0
"""How long an engine's wake waits: what the user says, within what its clients allow."""

import pytest

from tidegate import patience


@pytest.mark.parametrize("said, seconds", [
    (None, 20), ("", 20), ("0.5", 0.5), ("55", 55), ("60", 55), ("inf", 55), ("-1", 0),
    ("nan", 20), ("soon", 20)])
def test_a_wait_ends_before_the_client_asks_again(monkeypatch, said, seconds):
    if said is None:
        monkeypatch.delenv("TIDEGATE_WAIT_SECONDS", raising=False)
    else:
        monkeypatch.setenv("TIDEGATE_WAIT_SECONDS", said)
    assert patience.wait_seconds() == seconds
