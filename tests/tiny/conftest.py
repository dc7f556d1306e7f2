from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import ARCHES, TinyModel, write_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return {arch: write_model(folder / f"{arch}.gguf", arch) for arch in ARCHES}


@pytest.fixture(params=ARCHES)
def model(request: pytest.FixtureRequest, models: dict[str, TinyModel]) -> TinyModel:
    return models[request.param]
