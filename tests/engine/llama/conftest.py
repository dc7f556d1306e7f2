from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before libgomp is loaded: two threads that spin are slow beside whatever else this machine does.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from personae.engine.llama.backend import LlamaBackend
from tests.engine.llama.house import Adapter, settings, write_voices
from tests.tiny import ARCHES, TinyModel, write_model

Start = Callable[..., LlamaBackend]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return {arch: write_model(folder / f"{arch}.gguf", arch) for arch in ARCHES}


@pytest.fixture(scope="session")
def all_voices(models: dict[str, TinyModel], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Adapter]]:
    """arch -> name -> voice; see write_voices."""
    return {arch: write_voices(tmp_path_factory.mktemp(f"voices {arch}"), model) for arch, model in models.items()}


@pytest.fixture(params=ARCHES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(arch: str, models: dict[str, TinyModel]) -> TinyModel:
    return models[arch]


@pytest.fixture
def voices(arch: str, all_voices: dict[str, dict[str, Adapter]]) -> dict[str, Adapter]:
    return all_voices[arch]


@pytest.fixture(scope="session")
def llama(models: dict[str, TinyModel]) -> TinyModel:
    """For tests that need one architecture only."""
    return models["llama"]


@pytest.fixture(scope="session")
def llama_voices(all_voices: dict[str, dict[str, Adapter]]) -> dict[str, Adapter]:
    return all_voices["llama"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make backends that are closed when the test ends."""
    open_backends: list[LlamaBackend] = []

    def start(path: Path, **more: Any) -> LlamaBackend:
        open_backends.append(LlamaBackend(settings(path, **more)))
        return open_backends[-1]

    yield start
    for backend in open_backends:
        backend.close()
