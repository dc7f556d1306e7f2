"""Puts the service together and runs its one loop. The only place that builds concrete objects; decides how things begin and end.

    wait -> engine results -> frames -> time -> wait ...

Results come before frames: the engine idles until it has its next orders. The loop waits until the next thing is due and no longer, and
never for the engine or a client.

    begin    the port is taken first, then the state folder (a second instance learns it at once), then the engine loads the model
    ready    it has, and vocabulary, packs and kept NPCs are read: only now are frames; what clients sent before was kept for them
    warm     the first decode is paid for
    closing  asked to stop: nothing new begins, what is open may end, up to a few seconds; then it is cancelled
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from personae import __version__
from personae.config import ServiceConfig
from personae.engine.backend import Vocabulary
from personae.engine.batch import EngineReady, EngineWarm, Result
from personae.engine.factory import make_vocabulary
from personae.errors import AskedWrong, WorldFailed
from personae.prompt import PromptBuilder
from personae.scheduler.core import Scheduler
from personae.scheduler.settings import SchedulerConfig
from personae.service.archive import Archive
from personae.service.casting import Casting
from personae.service.conductor import Conductor
from personae.service.engine_host import EngineDied, EngineHost, EngineProcess, EngineState, Post, StartEngine
from personae.service.errands import Errands
from personae.service.keeping import Keeping
from personae.service.memory import resident_bytes
from personae.service.npcs import Npcs
from personae.service.outbox import Outbox
from personae.service.parent import POLL_MS, watch_parent
from personae.service.recall import Recall
from personae.service.reception import Reception
from personae.service.recorder import Recorder
from personae.service.sessions import Sessions
from personae.service.state import NoKeeper, StateFolder
from personae.service.statistics import engine_vitals, headline, model_facts, plain
from personae.service.summaries import Summaries
from personae.service.transport import Transport
from personae.service.turns import Turns
from personae.service.watch import Pace
from personae.service.witness import NobodyWatches, Several, Witness
from personae.types import ModelCard
from personae.wire import PROTOCOL_VERSION, replies
from personae.wire.codec import REQUEST_LIMITS, encode
from personae.wire.messages import LIMITS

log = logging.getLogger("personae.service")

FRAMES_A_ROUND = 64  # then the engine is looked after again, whoever floods the socket
ROUND_MS = 10.0  # or after so long, however much there is in a frame

Announce = Callable[[dict[str, Any]], None]


def now_ms() -> float:
    """The service's one steady clock."""
    return time.monotonic() * 1000.0


class Service:
    """One service, from taking its port to giving it back. `stop` may be called from any thread, and from a signal handler."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        announce: Announce = lambda line: None,
        start_engine: StartEngine | None = None,
        witness: Witness | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`announce` is given the ready line and the warm line; `witness` sees what the scheduler sees; `pace`: how packs are watched.

        What can be had by one service only is taken here: WorldFailed `endpoint_taken`, AskedWrong `state_in_use`.
        """
        self._config = config
        self._announce = announce
        self._pace = pace or Pace()
        self._is_gone = watch_parent(config.parent) if config.parent is not None else None
        with contextlib.ExitStack() as taken:
            self._transport = Transport(
                config.host, config.port, token=config.token, max_frame=REQUEST_LIMITS.frame_bytes, flood_notice=_flood_notice()
            )
            taken.callback(self._transport.close)
            self._state = StateFolder(config.state) if config.state is not None else None
            if self._state is not None:
                taken.callback(self._state.close)
            self._witness = self._watched(witness, taken)
            self._taken = taken.pop_all()
        self._host = EngineHost(
            start_engine or self._start_process,
            self._transport.wake,
            backoff_ms=config.restart_backoff_ms,
            restarts=config.engine_restarts,
            model=config.engine.model,
        )
        self._sessions = Sessions(token=config.token, heartbeat_ms=config.heartbeat_ms, max_clients=config.max_clients)
        self._outbox = Outbox(self._transport, self._sessions)
        self._npcs = Npcs(most=config.max_npcs, most_lines=config.max_history_lines, seed=config.seed)
        self._errands = Errands()
        self._began_ms = now_ms()
        self._card: ModelCard | None = None  # None: no engine was ever ready
        self._stops = 0  # how often it was asked to stop; written by signal handlers, so only counted up
        self._stops_seen = 0
        self._drained_ms: float | None = None  # None: not closing
        self._parent_due_ms = self._began_ms

    @property
    def endpoint(self) -> str:
        return self._transport.endpoint

    def stop(self) -> None:
        """Drain and end; asked twice, end at once."""
        self._stops += 1
        self._transport.wake()

    def run(self) -> None:
        """Serve until stopped. Raises PersonaeError when the service cannot begin."""
        try:
            card = self._first_card()
            if card is not None:
                self._begin(card)
                while not self._is_over():
                    self._round()
        finally:
            self._host.close()
            self._taken.close()

    # --- beginning ------------------------------------------------------------------------------------------------------

    def _first_card(self) -> ModelCard | None:
        """Start the engine and wait until it has the model. None: asked to stop before that. If it dies here, so do we."""
        self._host.start()
        while not self._stops:
            self._transport.wait(POLL_MS)
            for result in self._host.take(now_ms()):
                if isinstance(result, EngineReady):
                    return result.card
                if isinstance(result, EngineDied):
                    raise _stillborn(self._config.engine.model, result)
            self._mind_parent(now_ms())
        return None

    def _begin(self, card: ModelCard) -> None:
        """The child has shown that the file can be loaded: only now is native code let loose on it in this process."""
        self._card = card
        vocabulary = make_vocabulary(self._config.engine.model)
        prompts = PromptBuilder(vocabulary, n_ctx=card.n_ctx)
        self._casting = Casting(self._config, card, prompts, self._transport.wake, self._pace)
        self._taken.callback(self._casting.close)
        roster = self._casting.roster
        self._turns = Turns(vocabulary, prompts, roster, n_ctx=card.n_ctx, adapters=self._casting.adapters)
        recall = Recall(self._state, self._npcs, roster, card, vocabulary) if self._state is not None else None
        self._staff(card, vocabulary, prompts)
        self._conductor.report(EngineReady(card), now_ms())
        self._casting.begin(self._npcs, self._turns, self._conductor, self._outbox, recall)
        self._transport.open()
        self._announce(self._ready_line())
        self._hear_engine()  # what it reported meanwhile has had its wake-up

    def _staff(self, card: ModelCard, vocabulary: Vocabulary, prompts: PromptBuilder) -> None:
        """Who answers requests, each with those it asks."""
        roster, keeping = self._casting.roster, Keeping(self._state or NoKeeper(), self._outbox)
        self._conductor = Conductor(
            self._new_scheduler,
            self._host,
            self._turns,
            self._outbox,
            roster=roster,
            keeping=keeping,
            errands=self._errands,
            summaries=Summaries(prompts, self._npcs, self._turns, keeping) if self._config.summarise else None,
            witness=self._witness,
        )
        archive = Archive(self._npcs, roster, self._conductor, self._errands, keeping, card=card, vocabulary=vocabulary, state=self._state)
        self._reception = Reception(
            self,
            self._sessions,
            roster,
            self._npcs,
            self._turns,
            self._conductor,
            self._outbox,
            keeping,
            archive,
            self._casting.adapters,
        )

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self._scheduler_config())

    def _scheduler_config(self) -> SchedulerConfig:
        config, engine = self._config, self._config.engine
        return SchedulerConfig(
            step_ms=config.step_ms,
            prefill_chunk=engine.prefill_chunk,
            max_adapters=engine.max_adapters,
            max_waiting=config.max_queue,
            kv_ram=config.kv_ram,
            adapter_ram=config.adapter_ram,
            restart_hint_ms=config.restart_backoff_ms[1],
        )

    def _watched(self, witness: Witness | None, taken: contextlib.ExitStack) -> Witness:
        """Whoever looks on, and the record where one is wanted."""
        if self._config.record is None:
            return witness or NobodyWatches()
        recorder = Recorder(self._config.record, self._scheduler_config())
        taken.callback(recorder.close)
        return recorder if witness is None else Several(recorder, witness)

    def _start_process(self, post: Post) -> EngineProcess:
        return EngineProcess(self._config.engine, self._config.environment, post)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._transport.wait(self._patience_ms())
        self._hear_engine()
        self._casting.hear(now_ms())
        drained = self._hear_clients()
        self._mind_time(now_ms(), drained)

    def _hear_engine(self) -> None:
        for result in self._host.take(now_ms()):
            self._note(result)
            self._conductor.report(result, now_ms())

    def _hear_clients(self) -> bool:
        """Whether all that was there has been read."""
        until_ms = now_ms() + ROUND_MS
        for route in self._transport.take_floods():
            self._reception.forget_flooder(route, now_ms())
        for route, frame in self._transport.receive(FRAMES_A_ROUND):
            self._reception.take(route, frame, now_ms())
            if now_ms() >= until_ms:
                break
        self._reception.forget_lost(now_ms())
        return self._transport.is_drained

    def _mind_time(self, at_ms: float, drained: bool) -> None:
        self._host.tick(at_ms)
        self._conductor.tick(at_ms)
        if drained:  # after a pause of the whole machine everybody looks silent until the socket has been read
            self._reception.forget_silent(at_ms)
        self._mind_parent(at_ms)
        if self._stops > self._stops_seen:
            self._close_doors(at_ms)

    def _patience_ms(self) -> float | None:
        """How long there is nothing to do unless somebody speaks. None at all when a stop is still to be seen to: while the service began,
        its wake-up may have been taken for another's."""
        if self._stops > self._stops_seen or self._casting.has_news:
            return 0.0
        due = [self._host.next_deadline_ms(), self._conductor.next_deadline_ms(), self._sessions.next_deadline_ms(), self._drained_ms]
        if self._is_gone is not None:
            due.append(self._parent_due_ms)
        soonest = min((ms for ms in due if ms is not None), default=None)
        return None if soonest is None else max(0.0, soonest - now_ms())

    def _note(self, result: Result | EngineDied) -> None:
        """What people are told of the engine's life."""
        match result:
            case EngineReady(card):
                self._card = card
                self._outbox.broadcast(replies.event("engine_ready"))
            case EngineWarm(ms):
                if self._host.restarts == 0:
                    self._announce({"event": "warm", "ms": round(ms, 1)})
                self._outbox.broadcast(replies.event("warm", ms=ms))
            case EngineDied(reason):
                given_up = self._host.state is EngineState.FAILED
                self._outbox.broadcast(replies.event("engine_lost", reason=reason, given_up=given_up))
                if given_up:
                    failure = self._given_up()
                    self._conductor.fail_open_turns(failure.code, failure.message, failure.hint)

    def _ready_line(self) -> dict[str, Any]:
        """`npcs`: how many are there again; only where somebody asked that they be kept."""
        card = self._known_card()
        line: dict[str, Any] = {
            "event": "ready",
            "endpoint": self.endpoint,
            "pid": os.getpid(),
            "protocol": PROTOCOL_VERSION,
            "model": card.name,
            "mode": card.mode.value,
        }
        return line if self._state is None else {**line, "npcs": len(self._npcs)}

    # --- ending ---------------------------------------------------------------------------------------------------------

    def _mind_parent(self, at_ms: float) -> None:
        if self._is_gone is None or at_ms < self._parent_due_ms:
            return
        self._parent_due_ms = at_ms + POLL_MS
        if not self._stops and self._is_gone():
            log.warning("process %s is gone: so are we", self._config.parent)
            self._stops += 2  # nobody is left to listen

    def _close_doors(self, at_ms: float) -> None:
        is_first = self._drained_ms is None
        is_urgent = self._stops >= 2
        self._stops_seen = self._stops
        if is_first:
            log.info("closing")
            self._outbox.broadcast(replies.event("closing", drain_ms=self._config.drain_ms))
        if is_first or is_urgent:
            self._drained_ms = at_ms + (0 if is_urgent else self._config.drain_ms)

    def _is_over(self) -> bool:
        if self._drained_ms is None:
            return False
        if not len(self._turns) and not len(self._errands):
            return True
        if now_ms() < self._drained_ms:
            return False
        for turn in self._turns:
            self._conductor.cancel(turn.turn, now_ms())
        self._conductor.fail_open_turns("shutting_down", "The service is closing.", "Start it again.")
        for session, message in self._errands.give_up("the service is closing"):
            self._outbox.send(session, message)
        return True

    # --- what the reception asks ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self._drained_ms is not None or self._stops:
            raise AskedWrong("shutting_down", "The service is closing.", "Start it again.")
        if self._host.state is EngineState.FAILED:
            raise self._given_up()

    def _given_up(self) -> WorldFailed:
        reason = self._host.last_reason
        return WorldFailed("engine_failed", f"The engine does not stay alive: {reason}.", "Start the service again; its log says more.")

    def introduction(self) -> dict[str, Any]:
        card = self._known_card()
        return {
            "v": PROTOCOL_VERSION,
            "server": f"personae {__version__}",
            "model": {"name": card.name, "architecture": card.architecture, "hash": card.content_hash, "n_ctx": card.n_ctx},
            "mode": card.mode.value,
            "mode_reason": card.mode_reason,
            "slots": card.n_slots,
            "state": "warm" if self._host.state is EngineState.WARM else "ready",
            "heartbeat_ms": self._config.heartbeat_ms,
            "limits": LIMITS,
        }

    def statistics(self) -> dict[str, Any]:
        card, scheduler = self._known_card(), plain(self._conductor.statistics())
        return {
            "uptime_ms": now_ms() - self._began_ms,
            "rss_bytes": resident_bytes(),
            "model": model_facts(card),
            "mode": card.mode.value,
            "mode_reason": card.mode_reason,
            "threads": scheduler["engine"]["threads"] or card.threads,  # now: it may follow what the game leaves free
            "slots": card.n_slots,
            "engine": engine_vitals(self._host),
            "sessions": [{"client": session.client, "open": len(session.open)} for session in self._sessions],
            "characters": len(self._casting.roster.characters),
            "packs": self._casting.statistics(),
            "npcs": len(self._npcs),
            "state": None if self._state is None else self._state.statistics(),
            "turns": len(self._turns),
            "totals": headline(scheduler),
            "scheduler": scheduler,
        }

    def _known_card(self) -> ModelCard:
        assert self._card is not None, "no frame is read before the engine was ready"
        return self._card


def _flood_notice() -> bytes:
    refusal = AskedWrong("busy", "More requests came than are kept for one client.", "Wait for answers before asking on.")
    return encode(replies.error(0, refusal))


def _stillborn(model: str, death: EngineDied) -> WorldFailed:
    """The first engine never was ready: starting it again would change nothing."""
    hint = death.hint or "`personae doctor` looks for the cause."
    if death.code.startswith("model_"):
        return WorldFailed(death.code, f"{model}: {death.reason}.", hint)
    return WorldFailed("engine_failed", f"The engine cannot start with {model}: {death.reason}.", hint)
