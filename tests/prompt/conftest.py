from __future__ import annotations

import pytest

from personae.prompt import Persona, PromptBuilder
from tests.prompt.byte_tokenizer import ByteTokenizer
from tests.prompt.templates import CHATML, USABLE


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer(CHATML)


@pytest.fixture
def builder(tokenizer: ByteTokenizer) -> PromptBuilder:
    return PromptBuilder(tokenizer, n_ctx=4096)


@pytest.fixture
def greta() -> Persona:
    return Persona("Greta", "You are Greta, who keeps the inn.")


@pytest.fixture(params=USABLE.values(), ids=USABLE.keys())
def any_template(request: pytest.FixtureRequest) -> str:
    template: str = request.param
    return template
