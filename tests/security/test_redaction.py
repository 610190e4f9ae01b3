"""Redacted values do not reveal their content."""

from __future__ import annotations

import copy
import doctest
import logging
import pickle
from dataclasses import asdict, dataclass

import pytest

from skiway.security import MASK, Redacted, redaction

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("secret", [SECRET, SECRET.encode()])
def test_printing_does_not_reveal_the_secret(secret, caplog):
    hidden = Redacted(secret)
    logging.getLogger("test").warning("have %s and %r", hidden, [hidden])
    shown = [str(hidden), repr(hidden), f"{hidden}", f"{hidden!r:>30}", f"{hidden:>9}", str({"a": hidden}), caplog.text]
    assert all(MASK in each and SECRET not in each for each in shown)
    assert hidden.reveal() == secret


def test_redacted_value_can_be_compared_and_copied_but_not_hashed_or_pickled():
    hidden = Redacted(SECRET)
    assert hidden == Redacted(SECRET)
    assert hidden != Redacted("other")
    assert hidden != SECRET
    assert copy.deepcopy(hidden) is hidden
    with pytest.raises(TypeError, match="unhashable"):
        hash(hidden)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(hidden)


def test_dataclass_with_a_redacted_field_stays_usable():
    @dataclass
    class Login:
        password: Redacted[str]

    assert SECRET not in repr(asdict(Login(Redacted(SECRET))))


def test_docstring_examples_pass():
    assert doctest.testmod(redaction) == doctest.TestResults(failed=0, attempted=3)
