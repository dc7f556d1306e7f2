"""An adapter that kills the engine twice is set aside by name, and everybody hears of it."""

from __future__ import annotations

from pathlib import Path

from tests.service.house import write_pack
from tests.tiny import write_adapter, write_model


def test_adapter_that_kills_the_engine_twice_is_set_aside_and_the_others_play_on(serve, connect, characters, tmp_path: Path) -> None:
    pack = write_pack(characters, "ghost", adapter='{ file = "voice.gguf" }')
    write_adapter(pack / "voice.gguf", write_model(tmp_path / "tiny.gguf"))
    running = serve(in_child=True, restart_backoff_ms=(10, 20))
    peer, witness = connect(running), connect(running)
    (pack / "voice.gguf").write_bytes(b"KILL-LOAD")  # the key is that of the file the pack was read with
    adapter = peer.ask("spawn", character="ghost")["adapter"]
    peer.ask("spawn", character="guard")
    codes = [peer.ask("say", npc="ghost", text="Boo?")["code"] for _ in range(3)]
    assert codes == ["engine_lost", "adapter_set_aside", "adapter_set_aside"]
    event = witness.until(lambda message: message.get("event") == "adapter_set_aside")
    assert (event["adapter"], event["characters"]) == (adapter, ["ghost"])
    assert "voice.gguf" in event["message"]
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."
