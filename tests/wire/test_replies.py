"""Replies are plain messages, and an error keeps what its exception knows."""

from __future__ import annotations

from personae.errors import AskedWrong
from personae.wire import replies
from personae.wire.codec import decode, encode


def test_error_carries_code_sentence_hint_and_details() -> None:
    busy = AskedWrong("busy", "Too many turns wait.", "Ask again later.", retry_after_ms=250, problems=None)
    assert replies.error(7, busy) == {
        "type": "error", "id": 7, "code": "busy", "message": "Too many turns wait.", "hint": "Ask again later.", "retry_after_ms": 250,
    }  # fmt: skip


def test_details_cannot_change_whom_an_error_is_for() -> None:
    odd = AskedWrong("busy", "x", "", type="done", id=99)
    assert replies.error(7, odd)["id"] == 7
    assert replies.error(7, odd)["type"] == "error"


def test_every_reply_fits_the_codec() -> None:
    said = [
        replies.done(1, cancelled=True),
        replies.delta(1, "innkeeper", "🍺", "narration"),
        replies.event("warm", ms=1.5),
        replies.error(0, AskedWrong("bad_message", "x")),
    ]
    assert [decode(encode(reply)) for reply in said] == said
