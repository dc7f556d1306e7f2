from __future__ import annotations

import sys

import pytest

from personae.engine.batch import EngineReady, EngineWarm, RunStep, StepDone
from personae.engine.settings import EngineSettings
from personae.service import engine_host
from personae.service.engine_host import EngineDied, EngineHost, EngineProcess, EngineState, engine_environment
from personae.types import MixMode, ModelCard

READY = EngineReady(ModelCard("m", "a", "00", 0, 10, 512, 4, MixMode.MIXED))


class ScriptedEngine:
    pid = 1

    def __init__(self, post) -> None:
        self.post = post
        self.sent: list = []
        self.closed = False

    def send(self, orders) -> None:
        self.sent += orders

    def close(self, grace_s: float) -> None:
        if not self.closed:
            self.closed = True
            self.post(EngineDied("closed"))


class Stage:
    """A host with its engines, and a clock to turn."""

    def __init__(self, restarts: int = 3) -> None:
        self.engines: list[ScriptedEngine] = []
        self.wakes = 0
        self.at_ms = 0.0
        self.host = EngineHost(self._start, self._wake, backoff_ms=(200, 500), restarts=restarts, model="/models/x.gguf")
        self.host.start()

    def _start(self, post) -> ScriptedEngine:
        self.engines.append(ScriptedEngine(post))
        return self.engines[-1]

    def _wake(self) -> None:
        self.wakes += 1

    def report(self, result) -> list:
        self.engines[-1].post(result)
        return list(self.host.take(self.at_ms))

    def die(self) -> None:
        self.engines[-1].closed = True
        assert self.report(EngineDied("aborted")) == [EngineDied("aborted")]

    def live_and_die(self) -> None:
        self.report(READY)
        self.die()

    def turn_clock_to(self, at_ms: float) -> None:
        self.at_ms = at_ms
        self.host.tick(at_ms)


def test_results_are_handed_on_and_each_wakes_the_loop() -> None:
    stage = Stage()
    assert stage.report(READY) == [READY]
    assert stage.host.state is EngineState.READY
    stage.report(EngineWarm(1.0))
    assert stage.host.state is EngineState.WARM
    assert stage.wakes == 2


def test_dead_engine_rests_and_is_started_again_when_the_pause_is_over() -> None:
    stage = Stage()
    stage.report(READY)
    stage.die()
    assert stage.host.state is EngineState.RESTING
    assert stage.host.next_deadline_ms() == 200
    stage.turn_clock_to(199)
    assert len(stage.engines) == 1
    stage.turn_clock_to(200)
    assert len(stage.engines) == 2
    assert stage.host.state is EngineState.STARTING
    assert stage.host.restarts == 1


def test_pause_doubles_up_to_its_limit_while_deaths_come_quickly() -> None:
    stage = Stage(restarts=10)
    pauses = []
    for _ in range(4):
        stage.live_and_die()
        pauses.append(stage.host.next_deadline_ms() - stage.at_ms)
        stage.turn_clock_to(stage.host.next_deadline_ms())
    assert pauses == [200, 400, 500, 500]


def test_engine_that_keeps_dying_is_given_up() -> None:
    stage = Stage(restarts=2)
    for _ in range(2):
        stage.live_and_die()
        stage.turn_clock_to(stage.host.next_deadline_ms())
    stage.live_and_die()
    assert stage.host.state is EngineState.FAILED
    assert stage.host.last_reason == "aborted"
    assert stage.host.next_deadline_ms() is None
    stage.turn_clock_to(1e9)
    assert len(stage.engines) == 3


def test_death_after_a_long_life_starts_the_count_anew() -> None:
    stage = Stage(restarts=1)
    for _ in range(5):
        stage.report(READY)
        stage.turn_clock_to(stage.at_ms + engine_host.STEADY_MS)
        stage.die()
        assert stage.host.state is EngineState.RESTING
        stage.turn_clock_to(stage.host.next_deadline_ms())


def test_model_that_ends_the_engine_twice_while_it_is_loaded_is_given_up_by_name() -> None:
    stage = Stage(restarts=5)
    stage.live_and_die()
    stage.turn_clock_to(stage.host.next_deadline_ms())
    stage.die()
    assert stage.host.state is EngineState.RESTING
    stage.turn_clock_to(stage.host.next_deadline_ms())
    stage.die()
    assert stage.host.state is EngineState.FAILED
    assert stage.host.next_deadline_ms() is None
    assert stage.host.last_reason == "the model 'x.gguf' has ended the engine twice while it was being loaded; the last time aborted"


def test_engine_that_was_ready_in_between_did_not_die_of_its_model_twice() -> None:
    stage = Stage(restarts=5)
    for _ in range(2):
        stage.die()
        stage.turn_clock_to(stage.host.next_deadline_ms())
        stage.live_and_die()
        assert stage.host.state is EngineState.RESTING
        stage.turn_clock_to(stage.host.next_deadline_ms())


def test_engine_that_was_ended_by_us_while_it_loaded_did_not_die_of_its_model() -> None:
    stage = Stage(restarts=5)
    for _ in range(3):
        stage.host.restart()
        list(stage.host.take(stage.at_ms))
        assert stage.host.state is EngineState.RESTING
        stage.turn_clock_to(stage.host.next_deadline_ms())


def test_engine_that_cannot_be_spawned_says_nothing_of_its_model() -> None:
    def refuse(post):
        raise OSError("no memory")

    host = EngineHost(refuse, lambda: None, backoff_ms=(200, 500), restarts=5, model="x.gguf")
    host.start()
    for _ in range(3):
        list(host.take(0))
        assert host.state is EngineState.RESTING
        host.tick(1e9)


def test_last_words_of_a_dead_engine_are_not_taken_for_the_next_one_s() -> None:
    stage = Stage()
    first = stage.engines[0]
    stage.die()
    stage.turn_clock_to(200)
    first.post(StepDone())
    assert list(stage.host.take(200)) == []


def test_engine_that_hangs_in_a_step_is_ended() -> None:
    stage = Stage()
    stage.report(READY)
    stage.host.send([RunStep()], 0)
    assert stage.host.next_deadline_ms() == engine_host.HANG_MS
    stage.turn_clock_to(engine_host.HANG_MS - 1)
    assert not stage.engines[0].closed
    stage.turn_clock_to(engine_host.HANG_MS)
    assert stage.engines[0].closed
    assert list(stage.host.take(stage.at_ms)) == [EngineDied("closed")]


def test_answered_step_is_no_hang() -> None:
    stage = Stage()
    stage.report(READY)
    stage.host.send([RunStep()], 0)
    stage.report(StepDone())
    assert stage.host.next_deadline_ms() is None


def test_condemned_engine_s_results_are_dropped_and_its_death_is_not() -> None:
    stage = Stage()
    stage.report(READY)
    stage.engines[0].post(StepDone())
    stage.host.restart()
    assert list(stage.host.take(0)) == [EngineDied("closed")]


def test_orders_to_nobody_go_nowhere() -> None:
    stage = Stage()
    stage.die()
    stage.host.send([RunStep()], 0)
    assert stage.engines[0].sent == []


def test_engine_that_cannot_be_spawned_is_a_death() -> None:
    def refuse(post):
        raise OSError("no memory")

    host = EngineHost(refuse, lambda: None, backoff_ms=(200, 500), restarts=1)
    host.start()
    (death,) = host.take(0)
    assert "no memory" in death.reason


def test_threads_of_the_engine_spin_briefly_unless_the_user_knows_better() -> None:
    assert engine_environment(3, {})["GOMP_SPINCOUNT"] == "1000"
    assert engine_environment(3, {})["OMP_NUM_THREADS"] == "3"
    assert "GOMP_SPINCOUNT" not in engine_environment(3, {"OMP_WAIT_POLICY": "PASSIVE"})
    assert engine_environment(3, {"GOMP_SPINCOUNT": "5", "OMP_NUM_THREADS": "1"}) == {
        "GOMP_SPINCOUNT": "5",
        "OMP_NUM_THREADS": "1",
        "PYTHONUTF8": "1",
    }


class Inbox:
    def __init__(self) -> None:
        import queue

        self.queue: queue.SimpleQueue = queue.SimpleQueue()

    def next(self):
        return self.queue.get(timeout=20)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def test_child_reports_ready_and_warm_and_ends_when_it_is_told(inbox) -> None:
    engine = EngineProcess(EngineSettings(model="fake"), {}, inbox.queue.put)
    assert isinstance(inbox.next(), EngineReady)
    assert isinstance(inbox.next(), EngineWarm)
    engine.send([RunStep()])
    assert isinstance(inbox.next(), StepDone)
    engine.close(10.0)
    assert inbox.next().reason == "it ended with code 0"


def test_child_that_is_killed_says_how(inbox) -> None:
    engine = EngineProcess(EngineSettings(model="fake"), {}, inbox.queue.put)
    inbox.next()
    inbox.next()
    engine.close(0.0)
    death = inbox.next()
    assert isinstance(death, EngineDied)
    if sys.platform != "win32":
        assert "signal 9" in death.reason


def test_child_that_cannot_read_its_model_says_why(inbox, tmp_path) -> None:
    pytest.importorskip("llama_cpp")
    engine = EngineProcess(EngineSettings(model=str(tmp_path / "none.gguf")), {}, inbox.queue.put)
    death = inbox.next()
    engine.close(0.0)
    assert death.code == "model_missing"
    assert "none.gguf" in death.reason
