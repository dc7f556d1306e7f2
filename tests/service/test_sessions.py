from __future__ import annotations

import pytest

from personae.errors import AskedWrong, BrokeProtocol
from personae.service.sessions import Sessions
from personae.wire.messages import Hello

HEARTBEAT_MS = 1000


def hello(**fields: object) -> Hello:
    return Hello.model_validate({"id": 1, "v": 1, "client": "game", **fields})


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(token="secret", heartbeat_ms=HEARTBEAT_MS, max_clients=2)


def test_session_is_found_by_the_route_of_its_hello(sessions) -> None:
    session, is_moved = sessions.greet(hello(), b"a", 0)
    assert not is_moved
    assert sessions.by_route(b"a", 1) is session
    assert sessions.by_route(b"b", 1) is None


def test_sessions_cannot_be_guessed_from_one_another(sessions) -> None:
    one, _ = sessions.greet(hello(), b"a", 0)
    two, _ = sessions.greet(hello(), b"b", 0)
    assert one.id != two.id
    assert len(one.id) >= 16


def test_second_hello_of_a_connection_is_the_same_session(sessions) -> None:
    one, _ = sessions.greet(hello(), b"a", 0)
    again, is_moved = sessions.greet(hello(session=one.id), b"a", 0)
    assert again is one
    assert not is_moved


def test_client_that_comes_back_takes_its_session_over_and_the_old_route_is_forgotten(sessions) -> None:
    session, _ = sessions.greet(hello(), b"old", 0)
    again, is_moved = sessions.greet(hello(session=session.id), b"new", 1)
    assert again is session
    assert is_moved
    assert sessions.by_route(b"old", 2) is None
    assert sessions.by_route(b"new", 2) is session


def test_unknown_session_gives_a_new_one(sessions) -> None:
    session, is_moved = sessions.greet(hello(session="of another life"), b"a", 0)
    assert session.id != "of another life"
    assert not is_moved


def test_connection_with_a_session_cannot_take_another(sessions) -> None:
    one, _ = sessions.greet(hello(), b"a", 0)
    sessions.greet(hello(), b"b", 0)
    with pytest.raises(AskedWrong, match="session already"):
        sessions.greet(hello(session=one.id), b"b", 0)
    assert sessions.by_route(b"a", 1) is one


def test_other_protocol_is_told_which_one_is_spoken(sessions) -> None:
    with pytest.raises(BrokeProtocol) as refusal:
        sessions.greet(hello(v=2), b"a", 0)
    assert refusal.value.code == "unsupported_version"
    assert refusal.value.details["supported"] == [1]
    assert len(sessions) == 0


def test_wrong_token_in_hello_is_unauthorized(sessions) -> None:
    with pytest.raises(BrokeProtocol) as refusal:
        sessions.greet(hello(token="sécret"), b"a", 0)
    assert refusal.value.code == "unauthorized"
    sessions.greet(hello(token="secret"), b"a", 0)


def test_clients_are_bounded_and_one_that_leaves_makes_room(sessions) -> None:
    one, _ = sessions.greet(hello(), b"a", 0)
    sessions.greet(hello(), b"b", 0)
    with pytest.raises(AskedWrong) as refusal:
        sessions.greet(hello(), b"c", 0)
    assert refusal.value.code == "too_many_clients"
    sessions.forget(one)
    sessions.greet(hello(), b"c", 0)


def test_three_heartbeats_of_silence_and_any_frame_ends_it(sessions) -> None:
    session, _ = sessions.greet(hello(), b"a", 0)
    assert sessions.next_deadline_ms() == 3 * HEARTBEAT_MS
    assert sessions.silent(3 * HEARTBEAT_MS - 1) == []
    assert sessions.silent(3 * HEARTBEAT_MS) == [session]
    sessions.by_route(b"a", 2000)
    assert sessions.silent(3 * HEARTBEAT_MS) == []
    assert sessions.next_deadline_ms() == 2000 + 3 * HEARTBEAT_MS
