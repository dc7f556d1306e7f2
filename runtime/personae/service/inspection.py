"""What a look at one pack tells: a whole character or none, and everything there is to say about it. Knows no NPC, thread or clock.

Packs go by their id here and not by their path: a folder that becomes an archive of the same name is the same pack, changed. Where two
paths claim one id, the first counts, and the other is told of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.packs.base import BaseShapes
from personae.packs.character import Character, PackProblem
from personae.packs.loader import examine_pack, pack_id, pack_paths, passed_over, snapshot

log = logging.getLogger("personae.service")

Paths = tuple[Path, ...]  # that claim one id, in the order of their names
Print = tuple[Any, ...]  # of every file under them: another print is another version
ROOT = ""  # the id under which the folder of packs itself is spoken of


@dataclass(frozen=True, slots=True)
class PackSeen:
    """One pack as it is now. `is_there` False: it is gone."""

    pack: str  # the id
    character: Character | None
    problems: tuple[PackProblem, ...] = ()
    is_there: bool = True

    @property
    def errors(self) -> tuple[PackProblem, ...]:
        return tuple(problem for problem in self.problems if problem.is_error)


def packs_in(root: Path) -> dict[str, Paths]:
    """By id. OSError when the folder itself cannot be read; empty packs and broken ones are in it like any other."""
    found: dict[str, Paths] = {}
    for path in pack_paths(root):
        pack = pack_id(path)
        found[pack] = (*found.get(pack, ()), path)
    return found


def print_of(paths: Paths) -> Print | None:
    """Costs a stat for each file. None: nothing is there any more."""
    prints = tuple((str(path), shot) for path in paths if (shot := snapshot(path)) is not None)
    return prints or None


def prints_of(packs: Mapping[str, Paths]) -> dict[str, Print]:
    return {pack: found for pack, paths in packs.items() if (found := print_of(paths)) is not None}


def look_at(pack: str, paths: Paths, base: BaseShapes | None) -> PackSeen:
    """Never raises: whatever is in a pack, and whatever we did not think of, is a problem of that pack."""
    first, *others = paths
    try:
        character, problems = _examined(first, base)
    except Exception as fault:
        log.exception("pack %r failed in a way nobody thought of", pack)
        remedy = "Take the pack out, and report it with the log."
        character, problems = None, (PackProblem(pack, "", "", f"could not be looked at ({type(fault).__name__}).", remedy),)
    return PackSeen(pack, character, (*problems, *(_claims_too(pack, other) for other in others)))


def _examined(path: Path, base: BaseShapes | None) -> tuple[Character | None, tuple[PackProblem, ...]]:
    if passed := passed_over(path):  # pictures, say, or a copy that has only begun
        return None, (passed,)
    return examine_pack(path, base)


def root_lost(root: Path, fault: OSError) -> PackSeen:
    """The folder of packs cannot be read."""
    said = f"The folder '{root}' cannot be read ({fault.strerror or fault})."
    return PackSeen(ROOT, None, (PackProblem(ROOT, "", "", said, "Check the path of the characters."),))


def _claims_too(pack: str, path: Path) -> PackProblem:
    return PackProblem(pack, "", "", f"has the same name as another pack: {path.name!a} is not used.", "Rename one of the two.")
