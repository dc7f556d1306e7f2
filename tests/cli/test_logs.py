from __future__ import annotations

import logging
import os
import threading

import pytest

from personae.cli import logs


@pytest.fixture
def log():
    handler = logs.PatientHandler()
    logger = logging.Logger("test")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_lines_arrive_in_order_before_the_end(log, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(100):
        log.warning("line %d", number)
    log.handlers[0].close()
    assert capsys.readouterr().err.splitlines() == [f"line {number}" for number in range(100)]


def test_reader_that_sleeps_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        handler = logs.PatientHandler()
        logger = logging.Logger("test")
        logger.addHandler(handler)
        for _ in range(logs.QUEUE_LINES * 3):
            logger.warning("x" * 1000)
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: reader.read1(65536), b"")])
        drain.start()
        handler.close()
        handler._writer.join(10)
        stderr.close()
        drain.join(10)
        assert not drain.is_alive()
