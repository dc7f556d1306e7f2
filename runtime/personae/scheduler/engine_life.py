"""An engine's life as the scheduler sees it: it starts, its adapters come or are refused, it dies. Decides who is lost and who is to blame.

What a dead engine held is gone, and every open turn with it. An adapter that was there twice when an engine died, and has never been
through a step, is set aside: turns whose voice has it fail by its name, so that the others live. So do those whose adapter is refused; what
else their voice needed stays where it is, for others. Who has the same adapter in another file is not refused with them: that file is
tried next.
"""

from __future__ import annotations

from personae.engine.batch import AdapterLoaded
from personae.scheduler import events as ev
from personae.scheduler.actions import FailTurn, SetAside
from personae.scheduler.admission import refusal
from personae.scheduler.books import Books
from personae.scheduler.endings import Endings
from personae.scheduler.kv_files import KvFiles
from personae.scheduler.seating import Seating
from personae.scheduler.sequence import Sequence
from personae.types import AdapterKey


class EngineLife:
    def __init__(self, books: Books, endings: Endings, seating: Seating, kv_files: KvFiles) -> None:
        self._books = books
        self._endings = endings
        self._seating = seating
        self._kv_files = kv_files

    def on_started(self, event: ev.EngineStarted) -> None:
        books = self._books
        if books.n_ctx is not None:
            self._lose("another engine took its place")
        books.n_ctx, books.mode = event.n_ctx, event.mode
        self._seating.can_cut, self._seating.can_cut_moved = event.can_cut, event.can_cut and event.can_cut_moved
        books.slots.reset(event.n_slots)
        books.host.reset(event.kv_token_bytes)
        books.stirred = True
        for turn in list(books.line):
            refused = self.refusal(turn)
            if refused is not None:
                self._endings.fail(turn, refused)

    def on_gone(self, event: ev.EngineGone) -> None:
        in_use = {key for turn in self._books.slots.busy() for key in turn.keys}
        for key in self._books.adapters.note_death(in_use):
            self._books.answer.tell(SetAside(key, self._books.adapters.path(key)))
        self._lose(event.reason)

    def _lose(self, reason: str) -> None:
        books = self._books
        books.n_ctx, books.flight = None, None
        for turn in list(books.turns.values()):
            self._endings.fail(turn, self._set_aside(turn) or self.lost(turn, f"The engine was lost: {reason}."))
        for news in self._kv_files.lose(f"the engine was lost: {reason}"):
            books.answer.tell(news)
        books.slots.reset(0)
        books.host.reset(0)
        books.adapters.forget_all()

    def lost(self, turn: Sequence, message: str) -> FailTurn:
        return FailTurn(turn.turn, "engine_lost", message, "It is being started again; ask again.", self._books.config.restart_hint_ms)

    def refusal(self, turn: Sequence) -> FailTurn | None:
        """Why a turn can never be done, as far as is known now."""
        return self._set_aside(turn) or refusal(turn, self._books.n_ctx, self._books.config)

    def _set_aside(self, turn: Sequence) -> FailTurn | None:
        is_set_aside = self._books.adapters.suspects.is_set_aside
        source = next((source for source in turn.asked.sources if is_set_aside(source.key)), None)
        if source is None:
            return None
        message = f"The adapter '{source.path}' of NPC '{turn.npc}' has ended the engine twice and is set aside."
        return FailTurn(turn.turn, "adapter_set_aside", message, "Train or convert it again, and put it into the pack.")

    def on_adapter(self, event: ev.AdapterReported) -> None:
        result, adapters = event.result, self._books.adapters
        if not adapters.is_loading(result.key):
            return  # nobody asked for it: the last word of an engine that is gone
        self._books.stirred = True
        if isinstance(result, AdapterLoaded):
            adapters.note_loaded(result.key, result.bytes_resident)
            self._books.line.note_complete(result.key, adapters.resident)
            return
        path = adapters.path(result.key)
        adapters.note_refused(result.key)
        for turn in [turn for turn in self._books.line if _has_from(turn, result.key, path)]:
            self._endings.fail(turn, FailTurn(turn.turn, result.code, result.message, result.hint))

    def on_retired(self, event: ev.AdapterRetired) -> None:
        self._books.adapters.retire(event.key)
        self._books.stirred = True


def _has_from(turn: Sequence, key: AdapterKey, path: str) -> bool:
    return any(source.key == key and source.path == path for source in turn.asked.sources)
