"""The scheduler's books seen as a whole: whether all of them can be true at once, and in numbers. For people and tests; decides nothing."""

from __future__ import annotations

from personae.scheduler.admission import Admission
from personae.scheduler.books import Books
from personae.scheduler.flight import Flight
from personae.scheduler.seating import Seating
from personae.scheduler.sequence import Sequence


def validate(books: Books, admission: Admission) -> None:
    """AssertionError says which rule does not hold."""
    busy = books.slots.busy()
    books.line.validate()
    books.slots.validate(books.n_ctx or 0)
    books.adapters.validate(admission.in_use() | books.slots.adapters_owed())
    books.host.validate({turn.turn: turn for turn in books.line if turn.is_paused})
    _validate_turns(books, busy)
    if books.flight is None:
        assert not busy, "turns are at work and no step is under way"
        assert not books.slots.owed(), "a slot is to be extended and nobody does it"
    else:
        _validate_flight(books.flight, busy)
    admission.validate(is_idle=books.flight is None, is_up=books.n_ctx is not None)


def _validate_turns(books: Books, busy: list[Sequence]) -> None:
    ledger, turns = books.ledger, books.turns
    assert ledger.asked == len(turns) + ledger.ended.total(), "a turn has ended twice or never"
    seated = {turn.turn for turn in busy if not turn.ended}
    waiting = {turn.turn for turn in books.line}
    assert not seated & waiting, "a turn is in line and in a slot"
    assert seated | waiting == turns.keys(), "an open turn is nowhere, or one that has ended is somewhere"
    assert books.of_npc == {turn.npc: turn for turn in turns.values()}, "an NPC has two turns, or one nobody knows of"
    for turn in turns.values():
        _validate_turn(turn, books)


def _validate_turn(turn: Sequence, books: Books) -> None:
    name = f"turn {turn.turn}"
    assert turn.asked.draws or not turn.drawn, f"{name} was only to prepare its NPC, and has spoken"
    assert 0 <= turn.reused <= turn.reached <= len(turn.asked.prompt), f"{name} reused more of its prompt than there is"
    assert not turn.is_paused or turn.n_pauses > 0, f"{name} was at work, waits and was never paused"
    assert not turn.is_paused or books.slots.of(turn.npc) is None, f"{name} is paused and its NPC holds a slot"
    assert turn.goal[: len(turn.asked.prompt)] == turn.asked.prompt, f"{name} has another prompt than it was asked with"
    if books.n_ctx is not None:
        n_held = len(turn.asked.prompt) + len(turn.drawn) - (turn.pending is not None)
        assert n_held <= turn.space_in(books.n_ctx), f"{name} holds {n_held} tokens, more than it may"
    assert not any(map(books.adapters.suspects.is_set_aside, turn.keys)), f"{name} wants an adapter that was set aside"
    assert not turn.invited or (turn.place is None and books.adapters.are_here(turn.keys)), f"{name} is invited and cannot come"


def _validate_flight(flight: Flight, busy: list[Sequence]) -> None:
    assert all(turn in busy for turn in flight.turns.values()), "a turn of the step has left its slot"
    assert all(not turn.ended or turn in flight for turn in busy), "a turn that has ended holds a slot and no step needs it"
    assert all(turn.speaks for turn in flight.decode), "a turn is decoded whose sequence is not all in its KV"
    assert all(place.turn is None for place, _ in flight.extensions), "a slot is extended under a turn"
    assert not (flight.turns and flight.extensions), "a slot is extended while turns are at work"
    assert flight.decode or flight.chunks or flight.extensions, "an empty step"


def statistics(books: Books, seating: Seating, admission: Admission) -> dict[str, object]:
    """Plain values with string keys, ready for the wire."""
    open_seats = [turn for turn in books.slots.busy() if not turn.ended]
    return {
        "engine_up": books.n_ctx is not None,
        "slots": len(books.slots),
        "waiting": books.line.n_new,
        "paused": books.line.n_paused,
        "speaking": sum(turn.speaks for turn in open_seats),
        "prefilling": sum(turn.prompt_left > 0 for turn in open_seats),
        "parked": sum(place.is_parked for place in books.slots),
        "evictions": books.slots.evictions,
        "copies": seating.copies,
        "host": books.host.statistics(),
        "adapters": books.adapters.statistics(admission.in_use(), books.line.wanted()),
        "budget": books.budget.statistics(),
        **books.ledger.statistics(),
    }
