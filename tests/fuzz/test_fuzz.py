"""A minute of fuzzing, the same inputs every time, after everything that was ever kept. `python -m tests.fuzz` goes on for longer."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.mutations import spoiled
from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS, run

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 10.0  # of each target
LONGEST_S = 60  # for one input: then it hangs, and the stack is shown
SEED = 20_261_201
AT_ONCE = 50


def corpus_of(name: str) -> list[bytes]:
    return [*seeds_of(name), *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """An input that takes for ever must not take the suite along without a word."""
    faulthandler.dump_traceback_later(SECONDS + LONGEST_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_read_and_all_that_was_ever_kept_is_answered(name: str) -> None:
    for content in seeds_of(name):
        TARGETS[name](content)  # right: not even AskedWrong
    for content in corpus_of(name):
        run(TARGETS[name], content)


@pytest.mark.parametrize("name", TARGETS)
def test_spoiled_input_is_refused_and_breaks_nothing(name: str) -> None:
    inputs = spoiled(corpus_of(name), SEED)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for content in islice(inputs, AT_ONCE):
            try:
                run(TARGETS[name], content)
            except BaseException as fault:
                raise AssertionError(f"{name} fails with {fault!r} on {content[:2000]!r} ({len(content)} bytes)") from fault
