"""The engine uses the cores that nobody else uses, and leaves the rest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from personae.engine.threads import Team, Usage, physical_cores, read_usage


class Machine:
    """A machine whose accounts a test writes."""

    def __init__(self) -> None:
        self.now_s = self.all_s = self.own_s = 0.0

    def read(self) -> Usage | None:
        return Usage(self.now_s, self.all_s, self.own_s)

    def run(self, team: Team, seconds: float, *, own: float, others: float) -> None:
        """`own` and `others` in cores."""
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            self.own_s += own * 0.5
            self.all_s += (own + others) * 0.5
            team.review(self.now_s)


def test_it_begins_with_all_cores_but_one() -> None:
    assert Team(0, 4, Machine().read).size == 3
    assert Team(0, 1, Machine().read).size == 1


def test_an_idle_machine_gives_all_its_cores() -> None:
    machine = Machine()
    team = Team(0, 2, machine.read)
    machine.run(team, 2, own=1.0, others=0.05)
    assert team.size == 2


def test_a_busy_game_gets_its_core_back_within_two_seconds() -> None:
    machine = Machine()
    team = Team(0, 2, machine.read)
    machine.run(team, 5, own=2.0, others=0.0)
    machine.run(team, 2, own=1.3, others=0.7)  # a fair share: three busy threads on two cores
    assert team.size == 1
    machine.run(team, 2, own=1.0, others=1.0)
    assert team.size == 1
    machine.run(team, 2, own=1.0, others=0.0)
    assert team.size == 2


def test_a_load_between_two_numbers_does_not_flutter() -> None:
    machine = Machine()
    team = Team(0, 2, machine.read)
    machine.run(team, 5, own=2.0, others=0.0)
    sizes = set()
    for i in range(40):
        machine.run(team, 0.5, own=1.5, others=0.45 + 0.1 * (i % 2))
        sizes.add(team.size)
    assert len(sizes) == 1


def test_at_least_one_thread_is_left_on_a_crowded_machine() -> None:
    machine = Machine()
    team = Team(0, 4, machine.read)
    machine.run(team, 5, own=0.5, others=3.9)
    assert team.size == 1


def test_a_fixed_number_is_never_reviewed() -> None:
    machine = Machine()
    team = Team(3, 8, machine.read)
    machine.run(team, 5, own=0.0, others=8.0)
    assert (team.size, team.follows_load) == (3, False)


def test_without_accounts_the_first_number_stays() -> None:
    team = Team(0, 4, lambda: None)
    assert not team.review(100.0)
    assert (team.size, team.follows_load) == (3, False)


def test_the_accounts_are_read_from_the_system(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3\n")
    usage = read_usage(stat)
    assert usage is not None
    assert usage.all_s == pytest.approx((100 + 20 + 30 + 6 + 7 + 8) / 100)
    assert read_usage(tmp_path / "absent") is None
    assert physical_cores() >= 1
