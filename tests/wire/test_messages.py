"""Requests are read strictly, and a refusal names the field in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.types import Priority, SamplingParams
from personae.wire import PROTOCOL_VERSION
from personae.wire.fields import MAX_SAY_BYTES
from personae.wire.messages import REQUESTS, Cancel, Hello, Say, Spawn, id_of, parse
from personae.wire.sampling import SamplingRequest

FIELDS = sorted({field for request in REQUESTS.values() for field in request.model_fields} - {"id"})
SAY = {"type": "say", "id": 7, "npc": "innkeeper", "text": "Good evening"}


def refusal(message: dict[str, Any]) -> AskedWrong:
    with pytest.raises(AskedWrong) as caught:
        parse(message)
    return caught.value


def test_least_say_leaves_everything_to_pack_and_service() -> None:
    assert parse(SAY) == Say(id=7, npc="innkeeper", text="Good evening")
    assert parse(SAY).type == "say"


def test_say_with_everything_is_typed() -> None:
    say = parse({**SAY, "priority": "ambient", "stop": ["END"], "max_seconds": 5, "sampling": {"temperature": 1, "seed": 3}})
    assert isinstance(say, Say)
    assert say.priority is Priority.AMBIENT
    assert say.stop == ("END",)
    assert say.sampling is not None
    assert say.sampling.overrides() == {"temperature": 1.0, "seed": 3}


def test_sampling_overrides_only_what_was_sent() -> None:
    base = SamplingParams(top_k=7, grammar="root ::= x")
    assert SamplingRequest(temperature=0).apply_to(base) == SamplingParams(temperature=0.0, top_k=7, grammar="root ::= x")


def test_every_sampling_field_but_grammar_and_bias_can_be_overridden() -> None:
    offered = set(SamplingRequest.model_fields) - {"grammar", "logit_bias"}
    assert offered == set(SamplingParams.__dataclass_fields__) - {"grammar", "logit_bias"}


def test_unknown_keys_are_ignored() -> None:
    assert parse({**SAY, "gesture": {"bow": 1}, "sampling": {"mirostat": 2}}) == parse({**SAY, "sampling": {}})


def test_null_is_absent() -> None:
    assert parse({**SAY, "stop": None, "speaker": None, "sampling": None}) == parse(SAY)


@pytest.mark.parametrize("field", ["grammar", "logit_bias"])
def test_what_would_silently_not_hold_is_refused_by_name(field: str) -> None:
    error = refusal({**SAY, "sampling": {field: "x"}})
    assert error.message == f"`sampling.{field}` of say is not part of protocol 1."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"npc": 1}, "`npc` of say must be a string."),
        ({"npc": ""}, "`npc` of say must not be empty."),
        ({"npc": "a\u2028b"}, "`npc` of say must not hold line breaks or other control characters."),
        ({"speaker": "x" * 129}, "`speaker` of say must have at most 128 characters."),
        ({"max_tokens": 0}, "`max_tokens` of say must be at least 1."),
        ({"max_tokens": 4097}, "`max_tokens` of say must be at most 4096."),
        ({"max_tokens": 1.5}, "`max_tokens` of say must be an integer."),
        ({"max_tokens": True}, "`max_tokens` of say must be an integer."),
        ({"max_seconds": "5"}, "`max_seconds` of say must be a number."),
        ({"max_seconds": float("inf")}, "`max_seconds` of say must be a finite number."),
        ({"stop": "END"}, "`stop` of say must be an array."),
        ({"stop": ["a", 2]}, "`stop[1]` of say must be a string."),
        ({"stop": ["a"] * 17}, "`stop` of say must have at most 16 entries."),
        ({"priority": "urgent"}, "`priority` of say must be one of 'player', 'scene' or 'ambient'."),
        ({"sampling": []}, "`sampling` of say must be a map."),
        ({"sampling": {"top_p": 1.5}}, "`sampling.top_p` of say must be at most 1."),
        ({"sampling": {"repeat_penalty": 0}}, "`sampling.repeat_penalty` of say must be above 0."),
        ({"npc": 1, "text": 2}, "`npc` of say must be a string, and 1 more of its fields cannot be used."),
    ],
)
def test_refusal_is_one_sentence_that_names_the_field(change: dict[str, Any], sentence: str) -> None:
    error = refusal({**SAY, **change})
    assert error.code == "bad_request"
    assert error.message == sentence
    assert error.hint


def test_text_is_counted_in_bytes() -> None:
    assert parse({**SAY, "text": "é" * (MAX_SAY_BYTES // 2)})
    error = refusal({**SAY, "text": "é" * (MAX_SAY_BYTES // 2) + "x"})
    assert error.code == "text_too_long"
    assert "16384 bytes" in error.message


def test_unknown_type_names_the_known_ones() -> None:
    error = refusal({"type": "dance", "id": 1})
    assert error.code == "bad_request"
    assert all(kind in error.hint for kind in REQUESTS)


def test_hostile_type_does_not_fill_the_answer() -> None:
    assert len(refusal({"type": "x" * 100_000, "id": 1}).message) < 200


@pytest.mark.parametrize("id", [None, 0, -1, 2**53, 1.0, True, "1"])
def test_message_without_a_usable_id_is_answered_to_nobody(id: object) -> None:
    message = {"type": "ping", "id": id}
    assert refusal(message).code == "bad_message"
    assert id_of(message) == 0


def test_id_of_a_message_that_is_wrong_elsewhere_is_still_found() -> None:
    assert id_of({"type": "dance", "id": 9}) == 9


def test_cancel_names_exactly_one_thing() -> None:
    assert parse({"type": "cancel", "id": 1, "turn": 7}) == Cancel(id=1, turn=7)
    assert parse({"type": "cancel", "id": 1, "npc": "a"}) == Cancel(id=1, npc="a")
    for wrong in ({}, {"turn": 7, "npc": "a"}):
        assert refusal({"type": "cancel", "id": 1, **wrong}).message == "A cancel must name either a turn or an npc."


def test_hello_of_a_later_protocol_is_read_so_that_the_service_can_refuse_it_kindly() -> None:
    hello = parse({"type": "hello", "id": 1, "v": PROTOCOL_VERSION + 1, "client": "new game", "features": ["x"]})
    assert isinstance(hello, Hello)
    assert hello.v == PROTOCOL_VERSION + 1


def test_token_does_not_show_in_logs() -> None:
    assert "s3cret" not in repr(parse({"type": "hello", "id": 1, "v": 1, "client": "x", "token": "s3cret"}))
    assert "s3cret" not in str(refusal({"type": "hello", "id": 1, "v": 1, "client": "x", "token": "s3cret" * 99}))


def test_requests_are_frozen() -> None:
    spawn = parse({"type": "spawn", "id": 1, "character": "a"})
    assert isinstance(spawn, Spawn)
    with pytest.raises(ValueError, match="frozen"):
        spawn.character = "b"  # type: ignore[misc]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(REQUESTS)),
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.none() | st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.floats()),
    ),
)
def test_whatever_the_fields_hold_parsing_gives_a_request_or_one_refusal(kind: str, fields: dict[str, Any]) -> None:
    try:
        outcome = parse({"type": kind, "id": 1, **fields}).type
    except AskedWrong as error:
        outcome = error.code if error.message.count("\n") == 0 else "more than a sentence"
    assert outcome in (kind, "bad_request", "text_too_long")
