"""Answers that wait for the engine to have written or read the last of several files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from personae.errors import WorldFailed
from personae.scheduler.actions import KvSaved
from personae.service.errands import Became, Errands
from personae.service.sessions import Session
from personae.types import NpcId

ONE, TWO = NpcId("one"), NpcId("two")


@pytest.fixture
def session() -> Session:
    return Session("s", "test", b"r", 0.0)


@pytest.fixture
def errands(session) -> Errands:
    errands = Errands()
    errands.begin(session, 7, {"/one": ONE, "/two": TWO}, reasons)
    return errands


def reasons(became: Mapping[str, Became]) -> dict[str, Any]:
    return {"reasons": {path: action.reason for path, action in became.items()}}


def saved(npc: NpcId, path: str, reason: str = "") -> KvSaved:
    return KvSaved(npc, path, 5, 50, reason)


def test_answer_comes_with_the_last_file(errands, session) -> None:
    assert session.pending == {7}
    assert errands.note(saved(ONE, "/one")) == []
    assert errands.note(saved(TWO, "/two", "nothing is held of it")) == [
        (session, {"type": "done", "id": 7, "reasons": {"/one": "", "/two": "nothing is held of it"}})
    ]
    assert (session.pending, len(errands)) == (set(), 0)


def test_file_that_nobody_waits_for_is_passed_over(errands) -> None:
    assert errands.note(saved(TWO, "/one")) == errands.note(saved(ONE, "/three")) == []
    assert len(errands) == 1


def test_what_will_never_come_is_missing_for_a_reason(errands, session) -> None:
    errands.note(saved(ONE, "/one"))
    ((_, done),) = errands.give_up("the engine was lost")
    assert done["reasons"] == {"/one": "", "/two": "the engine was lost"}
    assert errands.give_up("again") == []


def test_work_is_ended_though_nobody_awaits_the_answer_any_more(errands, session) -> None:
    ended: list[int] = []
    errands.begin(session, 8, {"/three": ONE}, lambda became: {"n": ended.append(len(became))})
    session.pending.clear()
    assert errands.note(saved(ONE, "/three")) == []
    assert ended == [1]


def test_work_that_fails_at_its_end_is_an_error(session) -> None:
    def fail(became: Mapping[str, Became]) -> dict[str, Any]:
        raise WorldFailed("state_unusable", "The disk is full.")

    errands = Errands()
    errands.begin(session, 7, {"/one": ONE}, fail)
    ((_, error),) = errands.note(saved(ONE, "/one"))
    assert (error["type"], error["id"], error["code"]) == ("error", 7, "state_unusable")


def test_fault_of_ours_is_an_error_too(session) -> None:
    errands = Errands()
    errands.begin(session, 7, {"/one": ONE}, lambda became: {"x": 1 // 0})
    ((_, error),) = errands.note(saved(ONE, "/one"))
    assert error["code"] == "internal"


def test_request_of_a_new_connection_is_not_answered_with_what_the_old_one_had_asked(errands, session) -> None:
    errands.mute(session)
    errands.begin(session, 7, {"/three": ONE}, reasons)
    assert errands.note(saved(ONE, "/one")) == errands.note(saved(TWO, "/two")) == []
    assert errands.note(saved(ONE, "/three")) == [(session, {"type": "done", "id": 7, "reasons": {"/three": ""}})]
