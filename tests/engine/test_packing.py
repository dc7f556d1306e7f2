"""Dataclasses come back as they were, whichever of several they are; what does not fit is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.engine.packing import Shapes
from personae.errors import WorldFailed
from personae.scheduler.actions import Action
from personae.scheduler.events import Event

KINDS = dict(enumerate((*get_args(Event), *get_args(Action))))
SHAPES = Shapes(KINDS)

st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))


class Mood(StrEnum):
    CALM = "calm"


@dataclass(frozen=True, slots=True)
class Cat:
    lives: int


@dataclass(frozen=True, slots=True)
class Dog:
    name: str
    mood: Mood | None = None


@dataclass(frozen=True, slots=True)
class House:
    guest: Cat | Dog | None
    pets: tuple[Cat | Dog, ...] = ()
    rooms: dict[str, float] = field(default_factory=dict)


PETS = Shapes({1: House, 2: Cat})


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(*(st.from_type(kind) for kind in KINDS.values())))
def test_all_that_the_scheduler_hears_and_says_comes_back_as_it_was(instance: object) -> None:
    restored = SHAPES.unpack(SHAPES.pack(instance))
    assert restored == instance
    assert repr(restored) == repr(instance)


@pytest.mark.parametrize(
    "instance",
    [
        Cat(9),
        House(None),
        House(Dog("Rex", Mood.CALM), (Cat(1), Dog("Bello"), Cat(2)), {"hall": 2.5}),
    ],
)
def test_several_dataclasses_in_one_place_are_told_apart(instance: object) -> None:
    assert PETS.unpack(PETS.pack(instance)) == instance
    assert PETS.unpack_all(PETS.pack_all([instance, Cat(7)])) == [instance, Cat(7)]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        [1],
        [3, [9]],
        [[2], [9]],
        [2, [9, 9]],
        [2, ["nine"]],
        [2, {"lives": 9}],
        [1, [[2, [9]], [], {}]],
        [1, [[0, ["Rex", None]], [], {}]],
        [1, [[1, ["Rex", "cross"]], [], {}]],
        [1, [[9], [], {}]],
        [1, [None, None, {}]],
        [1, [None, [[0, [9]], None], {}]],
        [1, [None, [], []]],
        [1, [None, [], {"hall": "wide"}]],
        [1, [None, [], {"hall": True}]],
    ],
)
def test_what_does_not_fit_is_refused(content: Any) -> None:
    with pytest.raises(WorldFailed) as refused:
        PETS.unpack(msgpack.packb(content))
    assert refused.value.code == "unreadable"


@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", b"\x92\x01", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x91" * 3000, b"\x92\x02\x91\x09\x00"]
)
def test_bytes_that_are_no_msgpack_are_refused(packed: bytes) -> None:
    with pytest.raises(WorldFailed):
        PETS.unpack(packed)


def test_kinds_that_could_not_be_told_apart_are_refused_at_once() -> None:
    @dataclass
    class Vague:
        value: int | str

    with pytest.raises(TypeError, match="told apart"):
        Shapes({1: Vague})
