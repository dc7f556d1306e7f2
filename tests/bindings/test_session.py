"""The client's protocol without sockets or clocks: frames and times in, frames and endings out."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae_client import Busy, Closed, ConnectionLost, PersonaeError, UnknownNpc, UnsupportedVersion, WrongServer
from personae_client._session import FIRST_RETRY_S, GREETING_S, LAST_RETRY_S, MAX_EVENTS, Session, State

HEARTBEAT_S = 5.0
WELCOME = {"v": 1, "server": "personae 0.1.0", "session": "s1", "heartbeat_ms": 5000, "state": "ready"}


def sent(session: Session) -> list[dict[str, Any]]:
    return [msgpack.unpackb(frame) for frame in session.take_outgoing()]


def hear(session: Session, now: float, /, **message: Any) -> None:
    session.receive(msgpack.packb(message), now)


def greeted() -> tuple[Session, dict[str, Any]]:
    """A session that has shaken hands, and its hello."""
    session = Session("my game", None, patience=10.0)
    session.connecting()
    session.connected(0.0)
    [hello] = sent(session)
    return session, hello


def opened(now: float = 0.0, /, **welcome: Any) -> Session:
    session, hello = greeted()
    hear(session, now, type="done", id=hello["id"], **{**WELCOME, **welcome})
    assert session.state is State.OPEN
    return session


def reopen(session: Session, now: float, /, **welcome: Any) -> dict[str, Any]:
    """Connect again; the hello."""
    session.connecting()
    session.connected(now)
    [hello] = sent(session)
    hear(session, now, type="done", id=hello["id"], **{**WELCOME, **welcome})
    return hello


def test_hello_says_who_we_are_and_nothing_it_does_not_know() -> None:
    _, hello = greeted()
    assert hello == {"type": "hello", "id": 1, "v": 1, "client": "my game"}


def test_no_request_leaves_before_the_welcome() -> None:
    session = Session("my game", None, patience=10.0)
    session.ask("say", {"npc": "a", "text": "secret"}, 0.0)
    session.connecting()
    session.connected(0.0)
    [hello] = sent(session)
    hear(session, 0.1, type="done", id=hello["id"], **WELCOME)
    assert [message["text"] for message in sent(session)] == ["secret"]


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "done", "server": "another 1.0", "v": 1},
        {"type": "done", "v": 1},
        {"type": "hi"},
        {"type": "delta", "text": "x"},
    ],
)
def test_somebody_else_at_the_port_is_told_nothing_more(answer: dict[str, Any]) -> None:
    session, hello = greeted()
    say = session.ask("say", {"npc": "a", "text": "secret"}, 0.0)
    hear(session, 0.1, **{"id": hello["id"], **answer})
    assert sent(session) == []
    assert isinstance(say.failure, WrongServer)
    with pytest.raises(WrongServer):
        session.ask("ping", {}, 1.0)


def test_bytes_that_are_no_message_as_answer_to_hello_are_another_server() -> None:
    session, _ = greeted()
    session.receive(b"HTTP/1.1 400", 0.1)
    assert isinstance(session.failure, WrongServer)


def test_welcome_in_another_version_is_refused() -> None:
    session, hello = greeted()
    hear(session, 0.1, type="done", id=hello["id"], **{**WELCOME, "v": 2})
    assert isinstance(session.failure, UnsupportedVersion)


def test_refusal_of_the_first_hello_is_final_and_typed() -> None:
    session, hello = greeted()
    hear(session, 0.1, type="error", id=hello["id"], code="unsupported_version", message="No.", hint="", supported=[2])
    assert isinstance(session.failure, UnsupportedVersion)
    assert session.failure.details == {"supported": [2]}


def test_replies_find_their_requests_however_they_are_mixed() -> None:
    session = opened()
    a, b = (session.ask("say", {"npc": npc, "text": "hi"}, 0.0) for npc in "ab")
    hear(session, 0.1, type="delta", id=b.id, npc="b", text="B1", kind="narration")
    hear(session, 0.1, type="delta", id=a.id, npc="a", text="A1", kind="speech")
    hear(session, 0.1, type="done", id=b.id, npc="b", text="B1")
    assert [delta.text for delta in a.deltas] == ["A1"]
    assert [(delta.text, delta.kind) for delta in b.deltas] == [("B1", "narration")]
    assert b.is_over
    assert not a.is_over


def test_error_ends_one_request_with_its_type() -> None:
    session = opened()
    a, b = session.ask("history", {"npc": "a"}, 0.0), session.ask("say", {"npc": "b", "text": "x"}, 0.0)
    hear(session, 0.1, type="error", id=a.id, code="unknown_npc", message="No NPC 'a'.", hint="Spawn it.")
    hear(session, 0.1, type="error", id=b.id, code="busy", message="Full.", hint="", retry_after_ms=250)
    assert isinstance(a.failure, UnknownNpc)
    assert str(a.failure) == "No NPC 'a'. Spawn it."
    assert isinstance(b.failure, Busy)
    assert b.failure.retry_after_ms == 250


def test_nothing_after_the_end_changes_the_end() -> None:
    session = opened()
    say = session.ask("say", {"npc": "a", "text": "x"}, 0.0)
    hear(session, 0.1, type="done", id=say.id, text="one")
    hear(session, 0.1, type="delta", id=say.id, text="late")
    hear(session, 0.1, type="error", id=say.id, code="internal", message="", hint="")
    assert say.done is not None
    assert say.done["text"] == "one"
    assert say.failure is None
    assert not say.deltas


def test_forgotten_request_ignores_its_late_answer() -> None:
    session = opened()
    ping = session.ask("ping", {}, 0.0)
    session.forget(ping)
    hear(session, 0.1, type="done", id=ping.id)
    assert not ping.is_over


def test_news_is_called_for_every_change() -> None:
    session, calls = opened(), []
    say = session.ask("say", {"npc": "a", "text": "x"}, 0.0, lambda: calls.append(1))
    hear(session, 0.1, type="delta", id=say.id, text="a")
    hear(session, 0.1, type="done", id=say.id, text="a")
    assert len(calls) == 2


def test_idle_session_pings_before_a_heartbeat_is_over() -> None:
    session = opened(0.0)
    assert 0 < session.next_due(0.0) < HEARTBEAT_S
    session.tick(session.next_due(0.0))
    assert [message["type"] for message in sent(session)] == ["ping"]


def test_answered_pings_keep_a_session_for_ever() -> None:
    session, now = opened(0.0), 0.0
    for _ in range(100):
        now += session.next_due(now)
        session.tick(now)
        for ping in sent(session):
            hear(session, now + 0.01, type="done", id=ping["id"], at_ms=1.0)
    assert session.state is State.OPEN
    assert now > 100.0


def test_silence_of_three_heartbeats_ends_what_was_sent() -> None:
    session = opened(0.0)
    say = session.ask("say", {"npc": "a", "text": "x"}, 0.0)
    now = 0.0
    while session.state is State.OPEN:
        now += max(session.next_due(now), 0.001)
        session.tick(now)
    assert 2 * HEARTBEAT_S <= now <= 3 * HEARTBEAT_S
    assert isinstance(say.failure, ConnectionLost)
    assert "silent" in say.failure.message


def test_busy_sender_still_notices_that_nobody_answers() -> None:
    session, now = opened(0.0), 0.0
    while session.state is State.OPEN and now < 10 * HEARTBEAT_S:
        now += 0.5
        session.ask("say", {"npc": "a", "text": "x"}, now)
        session.tick(now)
    assert session.state is State.LOST


def test_pause_of_the_whole_program_is_not_taken_for_silence() -> None:
    session = opened(0.0)
    session.tick(3600.0)  # a breakpoint: nobody had asked the service anything
    assert session.state is State.OPEN
    assert [message["type"] for message in sent(session)] == ["ping"]


def test_lost_connection_comes_back_under_the_same_session_and_with_higher_ids() -> None:
    session = opened()
    before = session.ask("ping", {}, 0.0)
    sent(session)
    session.lost("it was closed", 1.0)
    hello = reopen(session, 1.2)
    assert hello["session"] == "s1"
    assert hello["id"] > before.id
    assert [event.name for event in session.events] == ["connection_lost", "reconnected"]


def test_what_was_asked_while_lost_goes_out_over_the_next_connection() -> None:
    session = opened()
    session.lost("it was closed", 1.0)
    say = session.ask("say", {"npc": "a", "text": "x"}, 1.1)
    assert sent(session) == []
    reopen(session, 1.2)
    assert [message["id"] for message in sent(session)] == [say.id]
    assert not say.is_over


def test_what_waits_too_long_for_a_connection_fails() -> None:
    session = opened()
    session.lost("it was closed", 1.0)
    say = session.ask("say", {"npc": "a", "text": "x"}, 2.0)
    session.tick(11.9)
    assert not say.is_over
    session.tick(12.0)
    assert isinstance(say.failure, ConnectionLost)
    reopen(session, 13.0)
    assert sent(session) == []


def test_retries_slow_down_up_to_two_seconds() -> None:
    session, pauses, now = opened(), [], 0.0
    for _ in range(8):
        session.lost("no", now)
        pauses.append(session.retry_at - now)
        assert not session.may_connect(session.retry_at - 0.01)
        now = session.retry_at
        assert session.may_connect(now)
        session.connecting()
    assert pauses[0] == pytest.approx(FIRST_RETRY_S)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_RETRY_S


def test_service_that_does_not_answer_a_second_hello_is_tried_again() -> None:
    session = opened()
    session.lost("no", 0.0)
    session.connecting()
    session.connected(1.0)
    session.tick(1.0 + GREETING_S)
    assert session.state is State.LOST


@pytest.mark.parametrize("code", ["shutting_down", "too_many_clients", "internal"])
def test_passing_refusal_of_a_second_hello_is_tried_again(code: str) -> None:
    session = opened()
    session.lost("no", 0.0)
    session.connecting()
    session.connected(1.0)
    [hello] = sent(session)
    hear(session, 1.1, type="error", id=hello["id"], code=code, message="Not now.", hint="")
    assert session.state is State.LOST


def test_session_the_service_has_forgotten_is_greeted_again() -> None:
    session = opened()
    ping = session.ask("ping", {}, 0.0)
    hear(session, 0.1, type="error", id=ping.id, code="hello_first", message="", hint="")
    assert session.state is State.LOST
    assert isinstance(ping.failure, ConnectionLost)


def test_garbage_in_an_open_session_breaks_it_rather_than_losing_an_end() -> None:
    session = opened()
    say = session.ask("say", {"npc": "a", "text": "x"}, 0.0)
    session.receive(b"\xc1garbage", 0.1)
    assert isinstance(say.failure, ConnectionLost)
    assert session.state is State.LOST


def test_npcs_are_kept_until_despawned() -> None:
    session = opened()
    spawn = session.ask("spawn", {"character": "innkeeper"}, 0.0)
    hear(session, 0.1, type="done", id=spawn.id, npc="innkeeper-2", character="innkeeper", name="Mira")
    assert session.npcs["innkeeper-2"].name == "Mira"
    session.lost("no", 1.0)
    reopen(session, 1.2)
    assert "innkeeper-2" in session.npcs
    despawn = session.ask("despawn", {"npc": "innkeeper-2"}, 2.0)
    hear(session, 2.1, type="done", id=despawn.id, npc="innkeeper-2")
    assert session.npcs == {}


def test_events_are_kept_and_bounded() -> None:
    session = opened()
    hear(session, 0.1, type="event", event="warm", ms=3.5)
    assert session.is_warm
    assert (session.events[0].name, session.events[0].details) == ("warm", {"ms": 3.5})
    for _ in range(500):
        hear(session, 0.1, type="event", event="tick")
    assert len(session.events) == MAX_EVENTS


def test_subscription_is_made_anew_in_another_session_and_only_there() -> None:
    session = opened()
    session.ask("subscribe", {"packs": True}, 0.0)
    [asked] = sent(session)
    hear(session, 0.1, type="done", id=asked["id"], packs=True)
    session.lost("a cable", 1.0)
    reopen(session, 2.0)
    assert sent(session) == []
    session.lost("a cable", 3.0)
    reopen(session, 4.0, session="s2")
    [again] = sent(session)
    assert (again["type"], again["packs"]) == ("subscribe", True)
    hear(session, 4.1, type="done", id=again["id"], packs=True)
    session.ask("subscribe", {"packs": False}, 5.0)
    hear(session, 5.1, type="done", id=sent(session)[0]["id"], packs=False)
    session.lost("a cable", 6.0)
    reopen(session, 7.0, session="s3")
    assert sent(session) == []


def test_closing_ends_everything_once() -> None:
    session = opened()
    ping = session.ask("ping", {}, 0.0)
    session.close()
    session.close()
    assert isinstance(ping.failure, Closed)
    with pytest.raises(Closed):
        session.ask("ping", {}, 1.0)


@pytest.mark.parametrize(("text", "code"), [("x" * (1 << 20), "too_large"), ("\ud800", "bad_request")])
def test_what_cannot_be_sent_fails_at_once_and_harms_no_other(text: str, code: str) -> None:
    session = opened()
    with pytest.raises(PersonaeError) as caught:
        session.ask("say", {"npc": "a", "text": text}, 0.0)
    assert caught.value.code == code
    assert session.state is State.OPEN
    assert sent(session) == []


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40)
        | st.dictionaries(st.sampled_from(["type", "id", "code", "text", "npc"]), st.none() | st.integers(0, 9) | st.text(max_size=5)),
        max_size=8,
    )
)
def test_no_frame_whatsoever_makes_the_session_raise(frames: list[Any]) -> None:
    session = opened()
    session.ask("say", {"npc": "a", "text": "x"}, 0.0)
    for frame in frames:
        session.receive(frame if isinstance(frame, bytes) else msgpack.packb(frame), 0.1)
        session.tick(0.2)


@pytest.mark.parametrize(
    "message", [{"type": kind, "id": 2, "npc": 5, "text": None, "usage": [], "timing": 3} for kind in ("delta", "done")]
)
def test_fields_of_unexpected_types_become_empty(message: dict[str, Any]) -> None:
    from personae_client import Delta, Done

    assert Delta.of(message).text == ""
    assert Done.of(message).usage.prompt == 0


def test_done_of_an_older_service_is_read() -> None:
    from personae_client import Done

    reply = Done.of({"type": "done", "id": 2, "npc": "a", "usage": {"prompt": 9}, "timing": {"total_ms": 8.0}})
    assert (reply.fallback, reply.usage.source, reply.timing.paused_ms, reply.timing.pauses) == (None, "none", 0.0, 0)


def test_restored_npcs_are_known_like_spawned_ones() -> None:
    session = opened()
    restore = session.ask("restore", {"name": "slot"}, 0.0)
    hear(session, 0.1, type="done", id=restore.id, restored=[{"npc": "old tom", "character": "innkeeper"}], problems=[])
    assert session.npcs["old tom"].character == "innkeeper"


def test_warming_is_cancelled_like_a_say_when_the_client_closes() -> None:
    session = opened()
    turns = [session.ask(kind, {"npc": "a"}, 0.0).id for kind in ("warm", "ping", "say")]
    assert session.open_turns() == [turns[0], turns[2]]
