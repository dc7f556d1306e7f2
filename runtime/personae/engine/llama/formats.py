"""Decides in which number format a base model is kept in memory: as its file has it, or converted once and cached. Loads no weights itself.

Which format runs fastest depends on the machine: llama.cpp repacks Q4_0 and Q8_0 for the CPU's widest dot products and leaves others,
Q4_1 among them, as they are. `personae bench formats` measures it, and what a conversion does to the characters' voices.

Rules that always hold
- A cached file is whole: it is written under another name, read back, and renamed. Two processes that convert the same model at the same
  time both succeed; the later rename wins, and the files are equal.
- The cache is keyed by content, so a source that is replaced is converted anew.
- `resolve` converts in a child process: native code that aborts on a strange file costs that child and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from personae.engine.llama import api
from personae.engine.llama.model import file_hash
from personae.errors import AskedWrong, PersonaeError, WorldFailed
from personae.packs.gguf import read_header

AS_IS = "as-is"
FILE_TYPES = {"f32": 0, "q4_0": 2, "q8_0": 7}  # enum llama_ftype
FORMATS = (AS_IS, "q4_0", "q8_0")  # what a user chooses from; f32 is for measuring
_KEY_CHARS = 16  # of the source's SHA-256, in a cached file's name
_BYTES_PER_WEIGHT = {"f32": 4.0, "q4_0": 0.66, "q8_0": 1.07}  # generous: embeddings stay larger in q4_0


def resolve(source: Path, format: str, threads: int) -> Path:
    """The file to load for `source` in this format: itself, one from the user's cache, or a new one there.

    WorldFailed `model_unreadable` when it cannot be converted or kept; the source itself can then still be used as it is.
    """
    if format == AS_IS or _is_already(source, format):
        return source
    try:
        target = cache_folder() / f"{_plain(source.stem)}-{file_hash(source)[:_KEY_CHARS]}.{format}.gguf"
        if not _is_whole(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _convert_in_child(source, target, format, threads)
    except OSError as error:
        raise _failed(source, format, _said(error)) from error
    return target


def convert(source: Path, target: Path, format: str, threads: int) -> None:
    """Write `source` in another format. What an earlier quantization rounded away stays lost. Raises as `resolve` does."""
    if format not in FILE_TYPES:
        raise AskedWrong("bad_arguments", f"There is no format {format!r}.", f"Known are {', '.join(FILE_TYPES)}.")
    part: Path | None = None
    try:
        part = _new_part(target)
        _check_room(part, source, format)
        _quantize(source, part, format, threads)
        _check_written(part, source, format)
        _rename(part, target)
    except OSError as error:
        raise _failed(source, format, _said(error)) from error
    finally:
        if part:
            part.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where converted models are kept; it may not exist yet."""
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "personae" / "models"


def _is_already(source: Path, format: str) -> bool:
    return read_header(source).metadata.get("general.file_type") == FILE_TYPES.get(format)


def _is_whole(path: Path) -> bool:
    """read_header refuses a file that is shorter than its tensors."""
    try:
        return bool(read_header(path).tensors)
    except (PersonaeError, OSError):
        return False


def _convert_in_child(source: Path, target: Path, format: str, threads: int) -> None:
    command = [sys.executable, "-P", "-m", "personae.engine.llama.formats", str(source), str(target), format, str(threads)]
    child = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if child.returncode or not _is_whole(target):
        said = child.stderr.strip().splitlines()
        raise _failed(source, format, said[-1] if said else f"its process ended with code {child.returncode}")


def _quantize(source: Path, target: Path, format: str, threads: int) -> None:
    api.start()
    api.forget_errors()
    params = api.lib.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = threads, FILE_TYPES[format], True
    if api.lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)):
        raise _failed(source, format, api.why("llama.cpp gave no reason"))


def _check_written(part: Path, source: Path, format: str) -> None:
    """llama.cpp does not notice every write that failed."""
    if not _is_whole(part):
        raise _failed(source, format, f"the file in {part.parent} came out short; is the disk full?")


def _check_room(part: Path, source: Path, format: str) -> None:
    n_weights = sum(_product(tensor.dims) for tensor in read_header(source).tensors.values())
    needed, free = int(n_weights * _BYTES_PER_WEIGHT[format]), shutil.disk_usage(part.parent).free
    if free < needed:
        raise _failed(source, format, f"{part.parent} has {free >> 20} MB free and it needs about {needed >> 20}")


def _product(dims: tuple[int, ...]) -> int:
    product = 1
    for n in dims:
        product *= n
    return product


def _new_part(target: Path) -> Path:
    """An empty file of our own beside the target, so that the rename stays on one disk."""
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=".part", dir=target.parent)
    os.close(handle)
    return Path(name)


def _rename(part: Path, target: Path) -> None:
    """Windows does not replace a file that somebody has mapped: another process was first, and its file is as good."""
    try:
        part.replace(target)
    except PermissionError:
        if not _is_whole(target):
            raise


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:80]


def _said(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _failed(source: Path, format: str, reason: str) -> WorldFailed:
    hint = "It can be used as it is (--format as-is), or set XDG_CACHE_HOME to a folder with room."
    reason = reason.rstrip(".")
    return WorldFailed("model_unreadable", f"{source.name} could not be converted to {format}: {reason}.", hint, reason=reason)


def _main(arguments: list[str]) -> int:
    """The child of `resolve`. Its last line on standard error is the reason."""
    source, target, format, threads = arguments
    try:
        convert(Path(source), Path(target), format, int(threads))
    except PersonaeError as failure:
        print(failure.details.get("reason", failure.message), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
