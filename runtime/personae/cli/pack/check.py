"""`personae pack check`: every problem of one or several packs, with file, field and remedy. Decides what is looked at, and the exit code.

What is wrong say packs/loader.py, packs/lint/ and fitting.py. Exit code 0: no errors. 4: errors, or with --strict warnings.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from personae.cli.pack.fitting import budget_problems, model_problems
from personae.cli.pack.measure import Measure, add_model_arguments, take_measure
from personae.cli.pack.new import DEFAULT_INTO
from personae.cli.pack.screen import Line, counted, folded, line, show
from personae.errors import AskedWrong
from personae.packs.character import Character, PackProblem
from personae.packs.lint.adapters import lint_adapters
from personae.packs.lint.pack import lint, merged
from personae.packs.lint.places import placed
from personae.packs.loader import examine_pack, pack_id, pack_paths, passed_over
from personae.packs.manifest import FILE
from personae.packs.store import AdapterStore

INDENT = 11  # columns in front of what is said of a problem


@dataclass(frozen=True, slots=True)
class Checked:
    path: Path
    problems: list[PackProblem]  # errors first

    @property
    def pack(self) -> str:
        return pack_id(self.path)

    @property
    def n_errors(self) -> int:
        return sum(problem.is_error for problem in self.problems)

    @property
    def n_warnings(self) -> int:
        return len(self.problems) - self.n_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=pack_path, metavar="PATH", help="a pack's folder, a .persona archive, or a folder of packs"
    )
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")


def run(args: argparse.Namespace) -> int:
    paths = list(dict.fromkeys(path for given in args.paths for path in packs_at(given)))
    measure = take_measure(args.model, args.ctx)
    checked = [*check_all(paths, measure, meant=frozenset(map(absolute, args.paths)))]
    of_model = model_problems(measure)
    if args.json:
        print(json.dumps(_report(checked, of_model, measure, args.strict)))
    else:
        show(_lines(checked, of_model, measure))
    return _verdict(checked, strict=args.strict)


def pack_path(text: str) -> Path:
    """A pack on the command line: whoever names its manifest means the pack."""
    path = Path(text)
    return path.parent if path.name == FILE and path.is_file() else path


def absolute(given: Path) -> Path:
    """Links stay as they are, and ".." gets a name."""
    return Path(os.path.abspath(given))


def packs_at(given: Path) -> list[Path]:
    """The packs that a path on the command line means. AskedWrong when it means none."""
    if not given.exists():
        raise AskedWrong(
            "bad_arguments",
            f"There is nothing at {given}.",
            _meant(given) or "Give a pack's folder, a .persona archive, or a folder of packs.",
        )
    whole = absolute(given)
    if not given.is_dir() or (given / FILE).exists():
        return [whole]
    try:
        found = pack_paths(given)
    except OSError as fault:
        raise AskedWrong("bad_arguments", f"The folder {given} cannot be read ({fault.strerror}).", "Check its permissions.") from fault
    return found or [whole]


def check_all(paths: Sequence[Path], measure: Measure, *, meant: frozenset[Path]) -> Iterator[Checked]:
    """Two of one folder that have one id cannot both be played: both are errors. `meant`: paths that were given themselves."""
    ids = Counter((path.parent, pack_id(path)) for path in paths)
    store = AdapterStore()
    try:
        for path in paths:
            passed = None if path in meant else passed_over(path)
            problems = [passed] if passed else check_pack(path, measure, store)
            if ids[path.parent, pack_id(path)] > 1:
                twice = PackProblem(pack_id(path), "", "", "has the same name as another pack here.", "Rename one of them, or remove it.")
                problems.insert(0, twice)
            yield Checked(path, problems)
    finally:
        store.close()


def check_pack(path: Path, measure: Measure, store: AdapterStore) -> list[PackProblem]:
    character, problems = examine_pack(path, measure.base)
    if character is None:
        return merged(problems, lint(path, None))
    weights = [*lint_adapters(character, measure.base, store)]
    budget = [*budget_problems(character, measure.builder, measure.n_ctx)] if measure.builder else []
    return merged(problems, weights, placed(path, budget), lint(path, character))


def usable(path: Path) -> Character:
    """The character of one pack, for commands that need it to load.

    AskedWrong `pack_missing`; `pack_invalid`, after all of its errors were shown.
    """
    if not path.exists():
        raise AskedWrong("pack_missing", f"There is no pack at {path}.", _meant(path) or "Give a pack's folder, or a .persona archive.")
    character, problems = examine_pack(path)
    if character is None:
        refuse([problem for problem in problems if problem.is_error], problems[0].pack)
    return character


def _meant(given: Path) -> str:
    """A hint for who left out the folder of packs; "" where there is no such pack in it either."""
    there = DEFAULT_INTO / given
    return f"Did you mean {there}?" if there.exists() else ""


def refuse(errors: list[PackProblem], pack: str) -> NoReturn:
    show(line for problem in errors for line in problem_lines(problem))
    raise AskedWrong("pack_invalid", f"Pack '{pack}' has {counted(len(errors), 'error')}.", "Put right what is marked as an error.")


def _verdict(checked: list[Checked], *, strict: bool) -> int:
    broken = [one for one in checked if one.n_errors]
    if broken:
        raise AskedWrong("pack_invalid", f"{_packs(broken)} cannot be used.", "Put right what is marked as an error.")
    warned = [one for one in checked if one.n_warnings]
    if strict and warned:
        raise AskedWrong(
            "pack_invalid", f"{_packs(warned)} may not be as you mean.", "Put right what is warned of, or check without --strict."
        )
    return 0


def _packs(some: list[Checked]) -> str:
    packs = list(dict.fromkeys(one.pack for one in some))
    names = ", ".join(f"'{pack}'" for pack in packs[:5])
    return f"{'Pack' if len(packs) == 1 else 'Packs'} {names}{' and others' if len(packs) > 5 else ''}"


# --- the report -------------------------------------------------------------------------------------------------------


def _lines(checked: list[Checked], of_model: list[PackProblem], measure: Measure) -> Iterator[Line]:
    for one in checked:
        yield from _of_pack(one)
    for problem in of_model:
        yield from problem_lines(problem)
    yield line()
    yield from folded(_summary(checked), 0, "bold")
    yield from folded(measure.note or f"Looked at with {measure.name}, {measure.n_ctx} tokens of context.", 0, "dim")


def _of_pack(one: Checked) -> Iterator[Line]:
    yield ((one.pack, "bold"), (f": {_counts(one.n_errors, one.n_warnings)}", ""))
    for problem in one.problems:
        yield from problem_lines(problem)


def problem_lines(problem: PackProblem) -> Iterator[Line]:
    """Where, what, what to do: `  warning  character.toml: licence`, and below it the rest."""
    kind = "error" if problem.is_error else "warning"
    place = ": ".join(part for part in (problem.file, problem.field) if part)
    yield ((f"  {kind:<{INDENT - 2}}", kind), (place, "bold"))
    yield from folded(problem.problem, INDENT)
    if problem.remedy:
        yield from folded(problem.remedy, INDENT + 3, "dim", first=" " * INDENT + "-> ")


def _summary(checked: list[Checked]) -> str:
    n_errors, n_warnings = sum(one.n_errors for one in checked), sum(one.n_warnings for one in checked)
    return f"{counted(len(checked), 'pack')}: {_counts(n_errors, n_warnings)}."


def _counts(n_errors: int, n_warnings: int) -> str:
    counts = [counted(n, what) for n, what in ((n_errors, "error"), (n_warnings, "warning")) if n]
    return ", ".join(counts) or "nothing to put right"


def _report(checked: list[Checked], of_model: list[PackProblem], measure: Measure, strict: bool) -> dict[str, Any]:
    """Plain JSON types; its names are a promise."""
    packs = [
        {"pack": one.pack, "path": str(one.path), "errors": one.n_errors, "warnings": one.n_warnings, "problems": _wire(one.problems)}
        for one in checked
    ]
    passed = not any(one.n_errors or (strict and one.n_warnings) for one in checked)
    return {
        "passed": passed,
        "model": measure.name,
        "n_ctx": measure.n_ctx,
        "packs": packs,
        "of_model": _wire(of_model),
        "note": measure.note,
    }


def _wire(problems: list[PackProblem]) -> list[dict[str, str]]:
    return [problem.to_wire() for problem in problems]
