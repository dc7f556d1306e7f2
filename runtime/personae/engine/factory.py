"""Decides which engine a model name means. The only place that knows both; the real one is imported when it is asked for."""

from __future__ import annotations

from personae.engine.backend import Backend, Vocabulary
from personae.engine.fake import FakeBackend, FakeVocabulary
from personae.engine.settings import EngineSettings
from personae.errors import WorldFailed

FAKE = "fake"


def make_backend(settings: EngineSettings) -> Backend:
    """WorldFailed `engine_failed` when llama-cpp-python is not installed, `model_missing` or `model_unreadable` from the engine itself."""
    if settings.model == FAKE:
        return FakeBackend(settings)
    try:
        from personae.engine.llama.backend import LlamaBackend
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return LlamaBackend(settings)


def make_vocabulary(model: str) -> Vocabulary:
    """The vocabulary alone, without weights. Fails as `make_backend` does."""
    if model == FAKE:
        return FakeVocabulary()
    try:
        from personae.engine.llama.vocab import LlamaVocabulary
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return LlamaVocabulary.load(model)


def _not_installed(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] != "llama_cpp":
        return error
    return WorldFailed("engine_failed", "llama-cpp-python is not installed.", "Run `pip install personae[engine]`.")
