"""A service of one's own: it starts, says what kept it from starting, and never outlives its owner."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from personae.cli import main as cli
from personae.cli.private_service import PrivateService
from personae.errors import AskedWrong, WorldFailed
from tests.cli.processes import PATIENCE_S, family, wait_until_gone

linux_only = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells who descends from whom")


def test_ready_and_warm_are_told_and_closing_ends_it() -> None:
    with PrivateService(["--model", "fake"]) as service:
        ready = service.wait_until_ready()
        service.wait_until_warm()
        service.check()
        assert (ready["model"], ready["endpoint"]) == ("fake", service.endpoint)
    with pytest.raises(WorldFailed, match="exit code 0"):
        service.check()
    service.close()  # harmless


@linux_only
def test_closing_takes_the_engine_along_also_before_it_was_ready() -> None:
    service = PrivateService(["--model", "fake"])
    pid = service.pid
    service.close()
    wait_until_gone(pid)
    with PrivateService(["--model", "fake"]) as service:
        service.wait_until_ready()
        started = [service.pid, *family(service.pid)]
    assert len(started) == 2
    for pid in started:
        wait_until_gone(pid)


@pytest.mark.parametrize(
    ("arguments", "kind", "exit_code", "told"),
    [
        (["--model", "/no/such.gguf"], WorldFailed, 3, r"^There is no model at /no/such\.gguf\."),
        (["--model", "fake", "--slots", "many"], AskedWrong, 4, "'many' is not a whole number"),
        (["--model", "fake", "--characters", "/no/such"], AskedWrong, 4, r"^There is no folder /no/such\."),
    ],
)
def test_what_keeps_it_from_starting_is_told_in_its_words_and_with_its_exit_code(arguments, kind, exit_code, told) -> None:
    with PrivateService(arguments) as service, pytest.raises(kind, match=told) as failure:
        service.wait_until_ready()
    assert cli.exit_code(failure.value) == exit_code


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_death_between_two_looks_is_told_with_its_signal() -> None:
    with PrivateService(["--model", "fake"]) as service:
        service.wait_until_ready()
        os.kill(service.pid, signal.SIGKILL)
        with pytest.raises(WorldFailed, match="signal 9") as failure:
            service.check(PATIENCE_S)
    assert failure.value.code == "service_lost"


def test_service_that_says_nothing_in_time_is_given_up() -> None:
    with PrivateService(["--model", "fake"]) as service, pytest.raises(WorldFailed, match="not ready within 0 s"):
        service.wait_until_ready(patience_s=0.0)


@pytest.mark.skipif(os.name == "nt", reason="process groups")
def test_it_is_in_a_group_of_its_own_so_that_ctrl_c_is_ours() -> None:
    with PrivateService(["--model", "fake"]) as service:
        assert os.getpgid(service.pid) != os.getpgrp()
