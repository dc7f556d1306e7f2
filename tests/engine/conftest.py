from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.stage import Stage, WatchedBackend


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(WatchedBackend())
    yield stage
    stage.loop.close()
