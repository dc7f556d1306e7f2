"""A scripted service for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bindings.scripted import ScriptedService


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    service = ScriptedService()
    yield service
    service.close()


@pytest.fixture
def guarded_service() -> Iterator[ScriptedService]:
    service = ScriptedService(token="s3cret")
    yield service
    service.close()
