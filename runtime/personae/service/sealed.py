"""Decides how one document lies on disk: sealed, replaced in one move, its previous version beside it. Knows nothing of what it says.

    x.json            the document, a checksum in front
    x.json.previous   the version before
    x.json.new        being written; left behind only by a process that was killed in the middle of it, and never read
    x.json.damaged    what could not be read any more, kept for whoever wants to know why

Killed at any instant, a process leaves behind the last version whose `write` returned, or the one it was writing: between the two moves of
a replacement x.json is missing and x.json.previous is that last version. Nothing is promised about a power cut unless `sync` is asked.

The checksum is a key of the document like any other, so that a file is a document for every tool that reads JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import from_json, to_json

PREVIOUS, NEW, DAMAGED = ".previous", ".new", ".damaged"
_HEAD = b'{"sha256":"'
_HEAD_BYTES = len(_HEAD) + 64 + len(b'",')


class Damaged(Exception):  # noqa: N818  what it says of a file
    """Neither a file nor its previous version can be read. Says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document that was read. `note`: why it is the previous version; "" when it is not."""

    document: dict[str, Any]
    note: str = ""


def write(path: str, document: dict[str, Any], *, sync: bool = False) -> None:
    """OSError leaves the version that was there. `sync`: it survives a power cut, which costs what the disk takes."""
    fresh = path + NEW
    try:
        _put(fresh, _seal(document), sync=sync)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, path + PREVIOUS)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):  # a full disk wants its room back
            os.unlink(fresh)
        raise
    if sync:
        sync_folder(os.path.dirname(path))


def read(path: str) -> Found:
    """The document, or its previous version: then a damaged file is moved out of the way of the next write.

    FileNotFoundError: there is neither. Damaged: neither can be read, and both stay where they are.
    """
    try:
        return Found(_read(path))
    except FileNotFoundError:
        return Found(_read(path + PREVIOUS), "its last replacement was broken off")
    except Damaged as damage:
        previous = _previous(path, damage)
        os.replace(path, path + DAMAGED)
        return Found(previous, f"it {damage}, and lies beside it as {os.path.basename(path + DAMAGED)}")


def remove(path: str) -> None:
    """All versions, the newest last: killed in between, a process leaves it rather than an older one that would pass for it."""
    for name in (path + NEW, path + PREVIOUS, path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def sync_file(path: str) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: str) -> None:
    """Names survive a power cut too. Windows has no such call, and needs none."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _seal(document: dict[str, Any]) -> bytes:
    body = _body(document)
    return b'%s%s",%s' % (_HEAD, sha256(body).hexdigest().encode(), body[1:])


def _body(document: dict[str, Any]) -> bytes:
    """UTF-8. pydantic takes a quarter of json's time for the same bytes, and no lone surrogate, as the name of a folder may hold."""
    try:
        return to_json(document)
    except ValueError:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _unseal(raw: bytes) -> dict[str, Any]:
    body = b"{" + raw[_HEAD_BYTES:]
    if raw[:_HEAD_BYTES] != b'%s%s",' % (_HEAD, sha256(body).hexdigest().encode()):
        raise Damaged("does not match its checksum")
    document = from_json(body)
    assert isinstance(document, dict), "what was sealed begins with a brace"
    return document


def _put(path: str, raw: bytes, *, sync: bool) -> None:
    with open(path, "wb", buffering=0) as file:
        left = memoryview(raw)
        while left:  # a disk that is nearly full takes a part
            left = left[file.write(left) :]
        if sync:
            os.fsync(file.fileno())


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return _unseal(file.read())


def _previous(path: str, damage: Damaged) -> dict[str, Any]:
    try:
        return _read(path + PREVIOUS)
    except FileNotFoundError:
        raise Damaged(f"{damage}, and there is no previous version") from None
    except Damaged as too:
        raise Damaged(f"{damage}, and its previous version {too}") from None
