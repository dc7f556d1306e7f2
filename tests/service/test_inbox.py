"""Who waits longest is served next, and who sends too much is served no more."""

from __future__ import annotations

import pytest

from personae.service import inbox
from personae.service.inbox import Inbox


def taken(box: Inbox) -> list[tuple[bytes, bytes | None]]:
    frames = []
    while box:
        frames.append(box.take())
    return frames


def test_routes_take_turns_and_each_keeps_its_order() -> None:
    box = Inbox()
    for frame in (b"1", b"2", b"3"):
        box.put(b"busy", frame)
    box.put(b"other", None)
    assert taken(box) == [(b"busy", b"1"), (b"other", None), (b"busy", b"2"), (b"busy", b"3")]


def test_route_is_full_by_frames_or_by_bytes_and_has_room_again_when_some_are_taken() -> None:
    box = Inbox(most_frames=2, most_bytes=10)
    box.put(b"long", b"x" * 11)
    for _ in range(2):
        box.put(b"many", b"")
    box.put(b"few", b"x")
    assert [box.is_full(route) for route in (b"long", b"many", b"few", b"new")] == [True, True, False, False]
    assert {box.take()[0] for _ in range(3)} == {b"long", b"many", b"few"}
    assert not box.is_full(b"long")
    assert not box.is_full(b"many")


def test_flooder_loses_what_waited_and_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_FLOODERS", 1)
    box = Inbox()
    for route in (b"flood", b"other"):
        box.put(route, b"frame")
    box.shut(b"flood")
    assert taken(box) == [(b"other", b"frame")]
    assert box.is_flooder(b"flood")
    box.shut(b"next")
    assert [box.is_flooder(route) for route in (b"flood", b"next", b"other")] == [False, True, False]
