"""An adapter on its way into a pack: one GGUF file, and what the manifest says of it. Decides nothing about a character."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from personae.cli.models import find_model
from personae.cli.pack.measure import DEFAULT_MODEL, base_of
from personae.cli.pack.sources import Kind
from personae.errors import AskedWrong, WorldFailed
from personae.packs import manifest as form
from personae.packs.base import BaseShapes
from personae.packs.lora import read_lora
from personae.packs.lora_header import read_adapter_header
from personae.packs.pack_files import FolderPack
from personae.packs.peft import manifest_tables, read_peft, to_lora, write
from personae.packs.toml_text import with_values

USUAL_FILE = "adapter.gguf"
NAMES = (USUAL_FILE, *(f"adapter-{number}.gguf" for number in range(2, 1000)))  # of which the first that is free is taken


@dataclass(frozen=True, slots=True)
class Ready:
    """An adapter that can be put into a pack."""

    path: Path  # a GGUF file
    tables: Mapping[str, Any]  # of the manifest: `adapter`, with `file` as USUAL_FILE, and `base` where it is known
    said: str  # for people: rank, size, base

    def tables_for(self, file: str) -> dict[str, Any]:
        return {**self.tables, "adapter": {**self.tables["adapter"], "file": file}}


def make_ready(source: Path, kind: Kind, model: str | None, into: Path) -> Ready:
    """`model`: the base, by name or path; None: the usual one, for what needs one. `into`: a folder for what is converted.

    AskedWrong `peft_*`, `adapter_*`; WorldFailed `model_*`, `peft_unwritable`.
    """
    if kind is Kind.PEFT:
        return _converted(source, base_of(find_model(model or DEFAULT_MODEL)), into / USUAL_FILE)
    return _as_it_is(source, base_of(find_model(model)) if model else None)


def _converted(source: Path, base: BaseShapes, path: Path) -> Ready:
    converted = to_lora(read_peft(source), base)
    write(converted, path)
    read_lora(path, base)
    said = f"rank {converted.rank}, alpha {converted.alpha:g}, {len(converted.matrices)} matrices, converted for {base.file}"
    return Ready(path, manifest_tables(converted, base, USUAL_FILE), said)


def _as_it_is(source: Path, base: BaseShapes | None) -> Ready:
    """Whether it fits is found out where a base was named; any service finds it out as it loads the pack."""
    header = read_adapter_header(source)
    if base is not None:
        read_lora(source, base)
    known = {"architecture": header.text("general.architecture"), "name": header.text("general.base_model.0.name")}
    tables: dict[str, Any] = {"adapter": {"file": USUAL_FILE, "scale": 1.0}}
    if any(known.values()):
        tables["base"] = {key: value for key, value in known.items() if value}
    said = f"{len(header.tensors) // 2} matrices, {source.stat().st_size:,} bytes, for '{known['name'] or known['architecture']}'"
    return Ready(source, tables, said)


def add_to_pack(pack: Path, ready: Ready, *, replace: bool) -> str:
    """The adapter's file within the pack, a folder. First the adapter is there, then the manifest names it: each as a whole.

    AskedWrong `pack_invalid`, `pack_exists` when the pack has an adapter already; WorldFailed `pack_unwritable`.
    """
    text = _manifest_text(pack)
    if form.decode(text.encode()).get("adapter") and not replace:
        hint = "With --replace the new one takes its place; for both, write two [[adapter]] tables by hand."
        raise AskedWrong("pack_exists", f"Pack '{pack.name}' has an adapter already.", hint)
    file = _free_name(pack)
    edited = with_values(text, {**ready.tables_for(file)})
    _, problems = form.check(pack.name, form.decode(edited.encode()))
    if error := next((problem for problem in problems if problem.is_error), None):
        raise AskedWrong("pack_invalid", f"Pack '{pack.name}' cannot be used. {error}", "Run `personae pack check` on it first.")
    try:
        _put(pack / file, ready.path)
        _put(pack / form.FILE, edited.encode())
    except OSError as fault:
        raise WorldFailed("pack_unwritable", f"'{pack}' cannot be written to ({fault.strerror}).", "Check the folder.") from fault
    return file


def _manifest_text(pack: Path) -> str:
    with FolderPack(pack) as files:
        content = files.read(form.FILE, form.MAX_BYTES)
    try:
        form.decode(content)
    except ValueError as fault:
        raise AskedWrong("pack_invalid", f"{form.FILE} of pack '{pack.name}' {fault}.", "Run `personae pack check` on it first.") from None
    return content.decode("utf-8-sig")


def _free_name(pack: Path) -> str:
    """A name that no file of the pack has: what a running game reads is never written over."""
    return next(name for name in NAMES if not os.path.lexists(pack / name))


def _put(path: Path, content: Path | bytes) -> None:
    """Beside, under a hidden name, then as a whole."""
    descriptor, beside = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with open(descriptor, "wb") as out:
            if isinstance(content, bytes):
                out.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, out)
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)
