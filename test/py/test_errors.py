# SPDX-License-Identifier: Apache-2.0
"""What is raised can be caught as what a program already catches."""

import pickle

import pytest

import tidegate
from tidegate import errors

KINDS = [kind for kind in vars(errors).values()
         if isinstance(kind, type) and issubclass(kind, errors.TidegateError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_a_runtime_error_as_torch_s_are(kind):
    problem = kind(-4107, "a sentence", 2)
    assert isinstance(problem, RuntimeError) and str(problem) == "a sentence"
    again = pickle.loads(pickle.dumps(problem))
    assert (type(again), again.status, again.text, again.native) == (kind, -4107, "a sentence", 2)


def test_what_is_wrong_with_an_argument_is_a_value_error_too():
    assert issubclass(tidegate.BadValue, ValueError) and issubclass(tidegate.UnknownTag, KeyError)
