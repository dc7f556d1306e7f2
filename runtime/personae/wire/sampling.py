"""Decides how a request may change the way the words of one turn are drawn. Refuses to know what the pack or the service has."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pydantic import Field

from personae.types import SamplingParams
from personae.wire.fields import Form, NotYet


class SamplingRequest(Form):
    """Overrides for one turn; what is None stays as the pack has it. Ranges are what the sampler chain takes without losing its meaning.

    `grammar` and `logit_bias` are refused by name rather than ignored: a client that sent one would believe that it held.
    Grammars need a check before the turn starts, and a bias needs the model's token numbers, which clients cannot see yet.
    """

    temperature: float | None = Field(None, ge=0, le=5)
    top_k: int | None = Field(None, ge=0, le=100_000)
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0, le=10)
    repeat_last_n: int | None = Field(None, ge=0, le=65_536)
    frequency_penalty: float | None = Field(None, ge=-5, le=5)
    presence_penalty: float | None = Field(None, ge=-5, le=5)
    dry_multiplier: float | None = Field(None, ge=0, le=10)
    dry_base: float | None = Field(None, ge=1, le=10)
    dry_allowed_length: int | None = Field(None, ge=0, le=1024)
    dry_last_n: int | None = Field(None, ge=-1, le=65_536)
    seed: int | None = Field(None, ge=0, le=2**32 - 2)  # 2^32 - 1 asks llama.cpp for a random one: not repeatable
    grammar: NotYet
    logit_bias: NotYet

    def overrides(self) -> dict[str, Any]:
        """The fields that were set, by their names in SamplingParams."""
        return {field.name: value for field in fields(SamplingParams) if (value := getattr(self, field.name)) is not None}

    def apply_to(self, params: SamplingParams) -> SamplingParams:
        return replace(params, **self.overrides())
