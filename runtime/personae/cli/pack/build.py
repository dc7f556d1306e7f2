"""`personae pack build FOLDER`: one .persona file of a pack. Decides what goes in and that the same pack gives the same bytes everywhere.

Sorted names, one date for all, nothing compressed: what zlib makes of a text differs from version to version, adapters hardly shrink, and
a service that starts reads headers without unpacking. What was written is read back before it stands under its name.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO

from personae.cli.pack.check import pack_path, refuse
from personae.cli.pack.screen import Line, counted, folded, line, show
from personae.errors import AskedWrong, OurBug, PersonaeError, WorldFailed
from personae.packs.archive import MAX_ENTRIES
from personae.packs.character import PackProblem
from personae.packs.lint.files import is_junk
from personae.packs.lint.pack import lint, merged
from personae.packs.loader import examine_pack, pack_id
from personae.packs.names import is_hidden, plain
from personae.packs.pack_files import SUFFIX, PackFiles, open_pack

THE_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
_MODE = 0o644 << 16
_UNIX = 3
_CHUNK = 1 << 20
MOST_NAMED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=pack_path, metavar="FOLDER", help="of the pack")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"(default: FOLDER's name with {SUFFIX}, here)")


def run(args: argparse.Namespace) -> int:
    folder = Path(os.path.abspath(args.folder))
    if not folder.is_dir():
        raise AskedWrong("bad_arguments", f"{args.folder} is no folder.", "Give the folder of a pack.")
    output = args.output or Path(folder.name + SUFFIX)
    _check_output(output, folder)
    warnings = _checked(folder)
    with open_pack(folder) as files:
        names = [name for name in files.names() if not is_junk(name)]
        left_out = sorted({*files.names(), *_hidden(folder)} - {*names})
        _write(files, names, output)
    show(_built(output, args.folder, len(names), left_out, warnings))
    return 0


def _check_output(output: Path, folder: Path) -> None:
    if output.suffix.lower() != SUFFIX:
        raise AskedWrong("bad_arguments", f"{output} does not end in {SUFFIX}.", "That ending tells a pack from other files.")
    if output.absolute().is_relative_to(folder):
        raise AskedWrong("bad_arguments", f"{output} lies in the pack itself.", "Write it elsewhere: -o FILE.")


def _checked(folder: Path) -> list[PackProblem]:
    """The warnings. Errors are shown, and then refused."""
    character, problems = examine_pack(folder)
    found = merged(problems, lint(folder, character))
    errors = [problem for problem in found if problem.is_error]
    if errors:
        refuse(errors, pack_id(folder))
    return found


def _hidden(folder: Path) -> Iterator[str]:
    return (entry.name for entry in islice(folder.iterdir(), MAX_ENTRIES) if is_hidden(entry.name))


def _built(output: Path, given: Path, n_files: int, left_out: list[str], warnings: list[PackProblem]) -> Iterator[Line]:
    yield from folded(f"Built {output}: {counted(n_files, 'file')}, {output.stat().st_size:,} bytes.", 0, "bold")
    if left_out:
        more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
        yield from folded(f"Left out, as they are no part of the character: {', '.join(left_out[:MOST_NAMED])}{more}.", 0)
    if warnings:
        yield line(f"{counted(len(warnings), 'warning')}: personae pack check {shlex.quote(str(given))}", "warning")
    folder = Path(os.path.abspath(given))
    if output.absolute().parent == folder.parent:
        problem = f"It lies beside the folder, and both are '{pack_id(folder)}': a service plays one of them. Move one away."
        yield from folded(problem, 0, "warning")


def _write(files: PackFiles, names: list[str], output: Path) -> None:
    """Beside, read back, then under its name: what stood there goes last."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(suffix=SUFFIX, prefix=".build-", dir=output.parent)
        try:
            with open(descriptor, "w+b") as stream:
                digests = _fill(stream, files, names)
            _read_back(Path(beside), digests)
            os.chmod(beside, 0o644)
            os.replace(beside, output)
        finally:
            Path(beside).unlink(missing_ok=True)
    except (OSError, zipfile.LargeZipFile) as fault:
        why = getattr(fault, "strerror", None) or str(fault)
        raise WorldFailed("pack_unwritable", f"'{output}' cannot be written ({why}).", "Check the folder and the disk.") from fault


def _fill(stream: BinaryIO, files: PackFiles, names: list[str]) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    digests = {}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name in names:
            source, n_bytes = files.open(name)
            entry = zipfile.ZipInfo(plain(name), THE_DATE)
            entry.create_system, entry.external_attr, entry.file_size = _UNIX, _MODE, n_bytes
            with source, archive.open(entry, "w") as out:
                digests[plain(name)] = _digest_of(source, out)
    return digests


def _digest_of(source: BinaryIO, out: IO[bytes] | None = None) -> str:
    """Of all that is left of a stream, which is written to `out` too."""
    digest = hashlib.sha256()
    while piece := source.read(_CHUNK):
        digest.update(piece)
        if out is not None:
            out.write(piece)
    return digest.hexdigest()


def _read_back(path: Path, digests: dict[str, str]) -> None:
    """OurBug when the archive does not say what the folder said."""
    try:
        with open_pack(path) as files:
            read = {name: _digest(files, name) for name in files.names()}
    except PersonaeError as fault:
        raise OurBug("internal", f"The archive cannot be read back: {fault.message}", "Please report this.") from fault
    if read != digests:
        raise OurBug("internal", "The archive does not hold what the folder holds.", "Please report this.")


def _digest(files: PackFiles, name: str) -> str:
    stream, _ = files.open(name)
    with stream:
        return _digest_of(stream)
