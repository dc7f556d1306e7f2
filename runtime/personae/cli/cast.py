"""Decides which folder of character packs `talk` and `demo` use, and whom a misspelled name may have meant. Reads no pack."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from personae.errors import AskedWrong

FOLDER = "characters"
BESIDE_THE_SOURCE = Path(__file__).resolve().parents[3] / FOLDER  # in a checkout; nowhere when installed from a wheel


def find_cast(given: Path | None) -> Path:
    """The folder of packs: the one given, else ./characters, else the samples of the checkout that we run from."""
    tried = [given] if given is not None else [Path.cwd() / FOLDER, BESIDE_THE_SOURCE]
    for folder in tried:
        if folder.is_dir():
            return folder.resolve()
    if given is not None:
        raise AskedWrong("bad_arguments", f"There is no folder {given}.", "--characters takes the folder that holds the packs.")
    places = " and ".join(str(folder) for folder in tried)
    raise AskedWrong(
        "bad_arguments",
        f"No character packs were found: looked at {places}.",
        "The sample packs come with a checkout of the repository, not with the package: run it there, or name a folder with --characters.",
    )


def meant(name: str, known: Iterable[str]) -> str:
    """A sentence that helps whoever wrote `name`: the likeliest of `known`, and all there are."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), known, n=1)
    question = f"Did you mean {close[0]}? " if close else ""
    return f"{question}There are: {', '.join(known)}." if known else "There are none."
