"""Decides what `stats` shows, and under which names. Counts nothing itself: scheduler, engine host and books are asked."""

from __future__ import annotations

from typing import Any

from personae.service.engine_host import EngineHost
from personae.service.memory import resident_bytes
from personae.types import ModelCard


def engine_vitals(host: EngineHost) -> dict[str, Any]:
    """The engine as a process. `rss_bytes` None: the system does not tell, or there is no engine now."""
    return {
        "state": host.state.value,
        "pid": host.pid,
        "restarts": host.restarts,
        "last_death": host.last_reason,
        "rss_bytes": resident_bytes(host.pid) if host.pid else None,
    }


def model_facts(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "architecture": card.architecture,
        "hash": card.content_hash,
        "n_params": card.n_params,
        "n_vocab": card.n_vocab,
        "n_ctx": card.n_ctx,
        "details": dict(card.details),
    }


def headline(scheduler: dict[str, Any]) -> dict[str, Any]:
    """The totals that people look at first, over all engines since the service began."""
    engine = scheduler["engine"]
    return {name: engine[name] for name in ("decodes", "rows", "mixed_decodes", "prefill_tokens")} | {"tokens": scheduler["reply_tokens"]}


def plain(value: Any) -> Any:
    """The same with keys that the wire carries: counters are kept by members of enums, whose names go out as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return value
