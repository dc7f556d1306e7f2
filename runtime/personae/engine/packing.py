"""Dataclasses <-> bytes, for whoever sends or keeps them. Knows shapes and nothing of what they mean, nor where the bytes go.

    one   := [tag, [field, ...]]      all   := [one, ...]      in msgpack

A dataclass is the array of its fields in their order, an enum its value. Where a field is one of several dataclasses, its place among
them stands before it: [place, [field, ...]]; only the outermost has a tag. The annotations are the schema, read once, and what does not
fit it exactly is refused. Both ends are of one version, or whoever kept the bytes knows which: there is nothing to negotiate here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, NewType, Union, cast, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from personae.errors import WorldFailed

_Change = Callable[[Any], Any]


class Shapes:
    """`kinds`: tag -> dataclass of all that may be packed by itself; what is inside them is found by their annotations.

    `by_hand`: what makes these types of an unpacked value, where the general way is too slow; they raise TypeError, ValueError or
    KeyError on what does not fit.
    """

    def __init__(self, kinds: Mapping[int, type], by_hand: Mapping[type, _Change] | None = None) -> None:
        self._tags = {kind: tag for tag, kind in kinds.items()}
        self._by_hand = dict(by_hand or {})
        self._fields_of: dict[type, _Change] = {}
        for kind in kinds.values():
            self._learn(kind)
        self._restorers = {tag: self._dataclass_restorer(kind) for tag, kind in kinds.items()}

    def pack(self, instance: object) -> bytes:
        return self._packed((self._tags[type(instance)], instance))

    def pack_all(self, instances: Iterable[object]) -> bytes:
        return self._packed([(self._tags[type(instance)], instance) for instance in instances])

    def unpack(self, packed: bytes) -> Any:
        """WorldFailed `unreadable` when it is not one of `kinds`, whole and exact."""
        return self._unpacked(packed, self._tagged)

    def unpack_all(self, packed: bytes) -> list[Any]:
        """Fails as `unpack` does."""
        return cast(list[Any], self._unpacked(packed, lambda value: [self._tagged(one) for one in _a_tuple(value)]))

    def _packed(self, value: object) -> bytes:
        # surrogatepass: a path may hold bytes that are not UTF-8, which Python keeps as lone surrogates
        return cast(bytes, msgpack.packb(value, default=self._members_of, unicode_errors="surrogatepass"))

    def _unpacked(self, packed: bytes, restore: _Change) -> Any:
        try:
            return restore(msgpack.unpackb(packed, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"))
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise WorldFailed("unreadable", f"These bytes are not what was packed: {error!r}.") from error

    def _tagged(self, value: Any) -> Any:
        tag, members = _a_tuple(value)
        if tag not in self._restorers:
            raise ValueError(f"tag {tag!r}")
        return self._restorers[tag](members)

    # --- dataclass -> array ---------------------------------------------------------------------------------------

    def _members_of(self, instance: object) -> Any:
        """msgpack asks here for what it does not know: our dataclasses. Everything inside them it packs, or asks again."""
        return self._fields_of[type(instance)](instance)

    def _learn(self, kind: type) -> None:
        """How to take a dataclass apart, and every dataclass inside it."""
        if kind in self._fields_of:
            return
        hints = get_type_hints(kind)
        self._fields_of[kind] = _taker_apart([(field.name, _marker(hints[field.name])) for field in fields(kind)])
        for hint in hints.values():
            for inner in _dataclasses_in(hint):
                self._learn(inner)

    # --- array -> dataclass ---------------------------------------------------------------------------------------

    def _restorer(self, hint: Any) -> _Change:
        """What turns an unpacked value into one of the annotated type, or raises TypeError, ValueError or KeyError."""
        if isinstance(hint, NewType):
            return self._restorer(hint.__supertype__)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is tuple:
            return self._tuple_restorer(arguments)
        if origin is dict:
            return _dict_restorer(*map(self._restorer, arguments))
        if origin in (Union, types.UnionType):
            return self._union_restorer(hint)
        if is_dataclass(hint):
            return self._dataclass_restorer(cast(type, hint))
        if issubclass(hint, Enum):
            return cast(_Change, hint)
        return _plain_restorer(hint)

    def _union_restorer(self, hint: Any) -> _Change:
        members = _members(hint)
        restorers = tuple(self._restorer(member) for member in members)
        restore = restorers[0] if len(members) == 1 else _placed_restorer(restorers)
        if len(members) == len(get_args(hint)):
            return restore
        return lambda value: None if value is None else restore(value)

    def _tuple_restorer(self, arguments: tuple[Any, ...]) -> _Change:
        if arguments[-1] is not ...:
            return _exact_tuple_restorer(tuple(map(self._restorer, arguments)))
        if arguments[0] is int or getattr(arguments[0], "__supertype__", None) is int:
            return _ints  # token lists: thousands of them in a prompt
        restore = self._restorer(arguments[0])
        return lambda value: tuple(map(restore, _a_tuple(value))) if value else _a_tuple(value)

    def _dataclass_restorer(self, kind: type) -> _Change:
        if kind in self._by_hand:
            return self._by_hand[kind]
        hints = get_type_hints(kind)
        members = tuple(self._restorer(hints[field.name]) for field in fields(kind))
        n_members = len(members)

        def restore(value: Any) -> Any:
            if len(_a_tuple(value)) != n_members:
                raise ValueError(f"{kind.__name__} with {len(value)} fields")
            return kind(*[member(v) for member, v in zip(members, value, strict=True)])

        return restore


def _members(union: Any) -> list[Any]:
    """Of an annotation, without None: several only where all are dataclasses, which alone can tell what they are."""
    members = [member for member in get_args(union) if member is not type(None)]
    if len(members) > 1 and not all(map(is_dataclass, members)):
        raise TypeError(f"{union} cannot be told apart when it is read")
    return members


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for argument in get_args(hint):
        yield from _dataclasses_in(argument)


# --- taking apart -------------------------------------------------------------------------------------------------


def _taker_apart(members: list[tuple[str, _Change | None]]) -> _Change:
    names = [name for name, _ in members]
    marked = [(name, mark) for name, mark in members if mark]
    if not marked and len(names) > 1:
        return attrgetter(*names)
    if not marked:
        return lambda instance: tuple(getattr(instance, name) for name in names)
    return lambda instance: [mark(getattr(instance, name)) if mark else getattr(instance, name) for name, mark in members]


def _marker(hint: Any) -> _Change | None:
    """What puts the place of the dataclass before it, where the annotation leaves several; None where nothing is to be put."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and len(members := _members(hint)) > 1:
        places = {member: place for place, member in enumerate(members)}
        return lambda value: None if value is None else (places[type(value)], value)
    if origin is tuple and arguments[-1] is ... and (mark := _marker(arguments[0])):
        return lambda value: [mark(one) for one in value]
    return None


# --- putting together ---------------------------------------------------------------------------------------------


def _placed_restorer(restorers: tuple[_Change, ...]) -> _Change:
    by_place = dict(enumerate(restorers))

    def placed(value: Any) -> Any:
        place, members = _a_tuple(value)
        return by_place[place](members)

    return placed


def _plain_restorer(kind: type) -> _Change:
    kinds = {float, int} if kind is float else {kind}

    def plain(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return plain


def _dict_restorer(key: _Change, entry: _Change) -> _Change:
    return lambda value: {key(k): entry(v) for k, v in value.items()}


def _exact_tuple_restorer(members: tuple[_Change, ...]) -> _Change:
    return lambda value: tuple(restore(v) for restore, v in zip(members, _a_tuple(value), strict=True))


def _ints(value: Any) -> Any:
    if not set(map(type, _a_tuple(value))) <= {int}:
        raise TypeError("a list of numbers holds something else")
    return value


def _a_tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise TypeError(f"{value!r} is not an array")
    return value
