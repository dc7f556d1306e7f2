"""Fuzzes for as long as is wanted, guided by coverage, and keeps what reached new code. Needs atheris.

Each target runs in a process of its own, since libFuzzer never returns. What ends one is left beside the corpus as `crash-*`, named in the
last lines, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
AT_ONCE = 2
MOST_KEPT = 60  # inputs of one target
MOST_BYTES = 16_384
MEMORY_MB = 1024
LONGEST_S = 10  # for one input


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="of all targets together (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS), metavar="NAME", help=", ".join(TARGETS))
    args = parser.parse_args()
    CORPUS.mkdir(exist_ok=True)
    seconds = int(args.minutes * 60 / len(args.only))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = list(pool.map(lambda name: _fuzz(name, seconds), args.only))
    for name, (is_clean, line) in zip(args.only, ends, strict=True):
        print(f"{name:<9} {'clean' if is_clean else 'BROKEN'}  {seconds} s  {line}")
    return 0 if all(is_clean for is_clean, _ in ends) else 1


def _fuzz(name: str, seconds: int) -> tuple[bool, str]:
    """(whether nothing was found, libFuzzer's last words)."""
    from tests.fuzz.seeds import seeds_of

    with tempfile.TemporaryDirectory(prefix="personae-fuzz-") as scratch:
        work = Path(scratch) / "corpus"
        work.mkdir()
        for content in [*seeds_of(name), *(path.read_bytes() for path in _kept(name))]:
            (work / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
        began = time.monotonic()
        limits = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={LONGEST_S}"]
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.fuzz.guided",
                name,
                str(work),
                *limits,
                f"-artifact_prefix={CORPUS}/crash-{name}-",
                "-print_final_stats=1",
            ],
            capture_output=True,
            text=True,
            errors="replace",
        )
        if run.returncode == 0:
            _keep(name, work)
        return run.returncode == 0, _last_words(run.stderr, time.monotonic() - began)


def _last_words(said: str, seconds: float) -> str:
    lines = said.splitlines()
    counted = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
    trouble = [line.strip() for line in lines if "ERROR" in line or "Error" in line or "Exception" in line][-3:]
    return " ".join([f"{counted} inputs in {seconds:.0f} s", *trouble])


def _kept(name: str) -> list[Path]:
    return sorted((CORPUS / name).glob("*"))


def _keep(name: str, work: Path) -> None:
    """The smallest of what libFuzzer found, as many as find room beside those kept before: a corpus for a repository."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    kept = {path.name for path in _kept(name)}
    found = [path for path in work.iterdir() if path.name[:16] not in kept]
    for path in sorted(found, key=lambda path: (path.stat().st_size, path.name))[: max(0, MOST_KEPT - len(kept))]:
        (folder / path.name[:16]).write_bytes(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
