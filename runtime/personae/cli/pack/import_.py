"""`personae pack import SOURCE...`: makes packs of what people already have. Decides what several sources mean together.

A card is a pack; a PEFT or GGUF adapter beside it is that pack's voice. An adapter alone goes into a pack that is there (`--pack`), or is a
new one with a persona that is given. A .persona archive is unpacked, to be edited. Several cards are several packs.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from personae.cli.pack.adapters import NAMES, Ready, add_to_pack, make_ready
from personae.cli.pack.check import usable
from personae.cli.pack.imported import report, report_added
from personae.cli.pack.new import DEFAULT_INTO
from personae.cli.pack.questions import is_terminal
from personae.cli.pack.screen import show
from personae.cli.pack.sources import Kind, kind_of
from personae.cli.pack.starter import display_name
from personae.errors import AskedWrong, WorldFailed
from personae.packs.cards import draft_of, read_card
from personae.packs.draft import PackDraft, folder_name, write_pack
from personae.packs.lint.files import is_junk
from personae.packs.loader import pack_id
from personae.packs.manifest import FILE, MAX_BYTES
from personae.packs.pack_files import PackFiles, open_pack
from personae.packs.toml_text import with_values

_CHUNK = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        type=Path,
        metavar="SOURCE",
        help="a card (JSON, PNG, CHARX), a PEFT folder, a .persona archive, a GGUF adapter",
    )
    parser.add_argument("--into", type=Path, default=DEFAULT_INTO, metavar="DIR", help="folder of packs (default: %(default)s)")
    parser.add_argument("--name", metavar="ID", help="of the pack's folder (default: from the source)")
    parser.add_argument("--pack", type=Path, metavar="PACK", help="a pack that the adapter is added to: its folder, or its name in --into")
    parser.add_argument("--persona", metavar="TEXT", help="who the character is, for a new pack of an adapter alone")
    parser.add_argument("--base", metavar="MODEL", help="the model that the adapter is for: smollm2 or a GGUF file (default: smollm2)")
    parser.add_argument("--replace", action="store_true", help="of a pack, or an adapter, that is there already")
    parser.add_argument("--yes", action="store_true", help="ask nothing")


def run(args: argparse.Namespace) -> int:
    kinds = {source: kind_of(source) for source in args.sources}
    adapters = [source for source, kind in kinds.items() if kind.is_adapter]
    others = [source for source in kinds if source not in adapters]
    _check(args, adapters, others)
    with tempfile.TemporaryDirectory(prefix="personae-import-") as passing:
        ready = make_ready(adapters[0], kinds[adapters[0]], args.base, Path(passing)) if adapters else None
        if args.pack is not None:
            assert ready is not None
            _add(args, ready, adapters[0])
        elif others:
            for source in others:
                _import(args, source, kinds[source], ready, Path(passing))
        else:
            assert ready is not None
            _new_of_adapter(args, ready, adapters[0])
    return 0


def _check(args: argparse.Namespace, adapters: list[Path], others: list[Path]) -> None:
    """What cannot be meant. Nothing has been written yet."""
    refused: tuple[str, str] | None = None
    if len(adapters) > 1:
        refused = f"{len(adapters)} adapters at once", "Import them one by one, with --pack."
    elif len(others) > 1 and (adapters or args.name):
        refused = f"{len(others)} characters and one {'adapter' if adapters else 'name'}", "Import them one by one."
    elif args.pack is not None and (others or not adapters):
        refused = "--pack without an adapter alone", "It takes one PEFT folder or GGUF adapter and nothing else."
    elif args.pack is not None and (args.name or args.persona):
        refused = "--pack with --name or --persona", "The pack that is there has both."
    elif others and args.persona:
        refused = "--persona with a character", "Import it, and edit its character.toml."
    elif not others and args.pack is None and not (args.persona or "").strip():
        refused = (
            "an adapter without a character",
            'Add it to a pack with --pack PACK, begin one with --persona "You are ...", or name a card.',
        )
    if refused:
        raise AskedWrong("bad_arguments", f"This cannot be imported: {refused[0]}.", refused[1])


# --- packs ------------------------------------------------------------------------------------------------------------


def _import(args: argparse.Namespace, source: Path, kind: Kind, ready: Ready | None, passing: Path) -> None:
    if kind is Kind.ARCHIVE:
        draft, about = _unpacked(source, passing), str(kind)
    else:
        card = read_card(source)
        draft, about = draft_of(card), f"{kind}, version {card.version:g}"
    if args.name:
        draft = replace(draft, name=args.name)
    folder = _written(args, draft, ready)
    show(report(folder, source, about, draft, ready))


def _new_of_adapter(args: argparse.Namespace, ready: Ready, source: Path) -> None:
    name = args.name or folder_name(source.resolve().stem if source.is_file() else source.resolve().name)
    draft = PackDraft(name, {"manifest": 1, "name": display_name(name), "persona": args.persona})
    folder = _written(args, draft, ready)
    show(report(folder, source, "adapter", draft, ready))


def _written(args: argparse.Namespace, draft: PackDraft, ready: Ready | None) -> Path:
    """`ready` takes the place of what the draft has for a voice: it was named, and that was not."""
    if ready is not None:
        file = next(name for name in NAMES if name not in draft.files)
        tables = ready.tables_for(file)
        text = with_values(draft.text.decode("utf-8-sig"), tables).encode() if draft.text else b""
        draft = replace(draft, manifest={**draft.manifest, **tables}, files={**draft.files, file: ready.path}, text=text)
    try:
        return write_pack(draft, args.into, replace=args.replace or _may_replace(args, draft.name))
    except AskedWrong as fault:
        if fault.code != "pack_exists":
            raise
        raise AskedWrong(fault.code, fault.message, "Name another with --name, or write over it with --replace.") from fault


def _may_replace(args: argparse.Namespace, name: str) -> bool:
    if args.yes or not is_terminal() or not (args.into / name).exists():
        return False
    try:
        return input(f"There is a pack '{name}' in {args.into}. Replace it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _unpacked(source: Path, passing: Path) -> PackDraft:
    """AskedWrong as `usable`: what cannot be used is not unpacked."""
    usable(source)
    files: dict[str, bytes | Path] = {}
    with open_pack(source) as pack:
        text = pack.read(FILE, MAX_BYTES)
        for number, name in enumerate(pack.names()):
            if name == FILE or is_junk(name):
                continue
            files[name] = passing / f"{number}"
            _unpack(pack, name, passing / f"{number}")
    return PackDraft(pack_id(source), {}, files, text=text)


def _unpack(pack: PackFiles, name: str, to: Path) -> None:
    stream, _ = pack.open(name)
    try:
        with stream, to.open("wb") as out:
            while piece := stream.read(_CHUNK):
                out.write(piece)
    except OSError as fault:
        raise WorldFailed("pack_unwritable", f"'{name}' cannot be unpacked ({fault.strerror}).", "Is there room on the disk?") from fault


def _add(args: argparse.Namespace, ready: Ready, source: Path) -> None:
    folder: Path = args.pack if (args.pack / FILE).exists() else args.into / args.pack
    if not (folder / FILE).exists():
        hint = "Give a pack's folder; `personae pack import` unpacks an archive."
        raise AskedWrong("bad_arguments", f"There is no pack at {args.pack}, nor in {args.into}.", hint)
    file = add_to_pack(folder, ready, replace=args.replace)
    show(report_added(folder, source, file, ready))
