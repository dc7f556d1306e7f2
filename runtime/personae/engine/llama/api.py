"""The one door to llama_cpp: the library, its log, what its build contains, and the little C that ctypes needs around it.

It decides nothing about models, slots or adapters. Rules: the log callback is installed once and kept for the life of the process
(a collected callback is a crash), and the loader's reasons, which llama.cpp gives nowhere else, are kept in `last_errors`.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from pathlib import Path
from typing import Any

import llama_cpp

from personae.errors import OurBug

log = logging.getLogger("personae.llama")

lib: Any = llama_cpp  # untyped: its stubs and its decorators disagree

LIB_VERSION: str = lib.__version__
TESTED_VERSION = "0.3.36"

_GGML_LOG_WARN, _GGML_LOG_ERROR, _GGML_LOG_CONT = 3, 4, 5
last_errors: deque[str] = deque(maxlen=8)  # newest last; cleared by `forget_errors`


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _user: int | None) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    if level == _GGML_LOG_ERROR:
        last_errors.append(line)
    log.debug("%s", line)


_started = False


def start() -> None:
    """Initialise llama.cpp once for this process, quietly."""
    global _started
    if not _started:
        lib.llama_log_set(_on_log, None)
        lib.llama_backend_init()
        _started = True


def forget_errors() -> None:
    last_errors.clear()


def why(fallback: str) -> str:
    """The loader's own reason for the failure that just happened, without the C function's name."""
    reasons = [line.split(": ", 1)[-1] for line in last_errors if "failed to load model" not in line]
    return reasons[0] if reasons else fallback


def system_info() -> str:
    """What the build contains, e.g. 'CPU : AVX2 = 1 | F16C = 1 | REPACK = 1'."""
    text: bytes = lib.llama_print_system_info()
    return " ".join(text.decode("utf-8", "replace").split())


def has_amx() -> bool:
    """Whether the build holds AMX code; a native build on such a CPU dies at its first decode (llama.cpp PR #26954)."""
    return "AMX_INT8 = 1" in system_info()


def library(name: str) -> ctypes.CDLL:
    """One of the wheel's own shared libraries ("ggml-base"), already loaded by llama_cpp."""
    folder = Path(lib.__file__).parent / "lib"
    for candidate in (f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll", f"lib{name}.dll"):
        if (folder / candidate).exists():
            return ctypes.CDLL(str(folder / candidate))
    raise OurBug("internal", f"llama_cpp has no library '{name}' in {folder.name}/.")
