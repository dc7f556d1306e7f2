"""An adapter that kills the engine twice is set aside by name, everybody hears of it, and another file in its place is tried again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from personae.packs import named_files
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile
from personae.packs.pack_files import PackFiles
from tests.service.house import write_pack
from tests.tiny import write_adapter, write_model


def unchecked(files: PackFiles, name: str, base: BaseShapes | None) -> tuple[AdapterFile, tuple[str, ...], int]:
    """As if the header were sound: what kills an engine looks like any other adapter."""
    return AdapterFile(files.path, name, 1.0, files.version(name), 9), (), 0


def test_adapter_that_kills_the_engine_twice_is_set_aside_and_the_others_play_on(
    serve, connect, characters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_files, "_adapter", unchecked)
    pack = write_pack(characters, "ghost", adapter='{ file = "voice.gguf" }')
    (pack / "voice.gguf").write_bytes(b"KILL-LOAD")
    running = serve(in_child=True, restart_backoff_ms=(10, 20))
    peer, witness = connect(running), connect(running)
    adapter = peer.ask("spawn", character="ghost")["adapter"]
    peer.ask("spawn", character="guard")
    codes = [peer.ask("say", npc="ghost", text="Boo?")["code"] for _ in range(3)]
    assert codes == ["engine_lost", "adapter_set_aside", "adapter_set_aside"]
    event = witness.until(lambda message: message.get("event") == "adapter_set_aside")
    assert (event["adapter"], event["characters"]) == (adapter, ["ghost"])
    assert "voice.gguf" in event["message"]
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."

    peer.ask("subscribe", packs=True)
    write_adapter(tmp_path / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    os.replace(tmp_path / "voice.gguf", pack / "voice.gguf")
    peer.until(lambda message: message.get("event") == "pack")
    repaired = peer.ask("say", npc="ghost", text="fake:say:Boo.")
    assert repaired["text"] == "Boo."
    assert repaired["adapter"] not in (None, adapter)
    assert peer.ask("stats")["scheduler"]["adapters"]["set_aside"] == []
