"""`personae replay FILE`: plays a record of `personae serve --record` again and checks every rule after every event.

It decides what is shown and what counts as a failure; how a record is played stands in rerun.py. Exit code 0: all rules held. 1: one did
not, and the story of the last events says how it came to that.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from personae import __version__
from personae.cli.rerun import Broken, Played, Rerun
from personae.errors import WorldFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Play a record of `personae serve --record FILE` again, with a fake engine, and check every rule of the scheduler after"
        " every event. No model, adapter or KV file is needed or touched. A record holds what players typed and NPCs said, as tokens."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `personae serve --record` wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--as-recorded", action="store_true", help="hand over the recorded results too, and say where today's scheduler decides otherwise"
    )


def run(args: argparse.Namespace) -> int:
    rerun = Rerun(args.file)
    try:
        played = rerun.follow() if args.as_recorded else rerun.play()
    except Broken as broken:
        _show_broken(broken, args)
        raise WorldFailed("replay_failed", f"{args.file}: after event {broken.at_event}, {broken.why}.", "Please report this.") from broken
    _show(played, args)
    return 0


def _show_broken(broken: Broken, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps({"passed": False, "broken": broken.why, "at_event": broken.at_event, "story": broken.story.splitlines()}))
    else:
        print(broken.story, file=sys.stderr)


def _show(played: Played, args: argparse.Namespace) -> None:
    report = report_of(played)
    if args.json:
        print(json.dumps(report))
        return
    print(f"{report['events']} events, {report['turns']} turns, {report['steps']} steps, {report['engines']} engines: every rule held.")
    print("Turns ended: " + (", ".join(f"{how} {turns}" for how, turns in report["ended"].items()) or "none") + ".")
    if not played.is_whole:
        print("The record ends in the middle of an event, as one of a killed service does; it was played up to there.")
    if args.as_recorded:
        print(_difference(played))


def report_of(played: Played) -> dict[str, Any]:
    """Plain JSON types; its names are a promise."""
    figures = asdict(played)
    header = figures.pop("header")
    ended = dict(sorted(figures.pop("ended").items()))
    return {"passed": True, **figures, "ended": ended, "recorded_by": header["personae"]}


def _difference(played: Played) -> str:
    if played.differs_at is None:
        return "Every decision was the same as then."
    by = played.header.personae
    return f"From event {played.differs_at} on this scheduler ({__version__}) decides otherwise than the recorded one ({by}) did."
