"""`personae talk` with lines from a pipe and from a terminal, with a service of its own and with somebody else's."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("personae_client")

from rich.console import Console

from personae.cli import main as cli
from personae.cli import talk
from personae.cli.private_service import PrivateService
from personae.cli.talk_display import Display
from personae.cli.talk_room import Room
from personae.errors import AskedWrong
from personae_client import Client
from tests.cli.processes import PATIENCE_S, command, family, on_terminal, run, wait_until_gone
from tests.service.house import write_manifest, write_pack

linux_only = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells who descends from whom")


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talk") / "characters"
    for name in ("guard", "cook"):
        write_pack(folder, name, greeting=f'"I am the {name}."')
    write_pack(folder, "hermit", moods='[{ name = "drunk", style = "Slurred." }]')
    return folder


@pytest.fixture(scope="module")
def service(cast) -> Iterator[PrivateService]:
    """One that speaks slowly enough to be interrupted: a token in 5 ms."""
    with PrivateService(["--model", "fake", "--characters", str(cast), "--fake-step-ms", "5"]) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def client(service) -> Iterator[Client]:
    with Client(service.endpoint, name="test") as client:
        yield client


def said(service: PrivateService, *lines: str, to: tuple[str, ...] = ("guard", "cook")) -> list[str]:
    """What is printed after the greetings."""
    ended = run("talk", *to, "--connect", service.endpoint, stdin="\n".join(lines))
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()[len(to) :]


# --- from a pipe ------------------------------------------------------------------------------------------------------


def test_piped_lines_are_answered_by_all_and_the_end_of_the_pipe_ends_it(cast) -> None:
    ended = run("talk", "guard", "cook", "--model", "fake", "--characters", str(cast), stdin="Good evening\n\nAny news?")
    assert (ended.returncode, ended.stderr) == (0, "")
    greetings, first, second = ended.stdout.splitlines()[:2], ended.stdout.splitlines()[2:4], ended.stdout.splitlines()[4:]
    assert greetings == ["Guard: I am the guard.", "Cook: I am the cook."]
    assert sorted(first) == ["Cook: [base] I heard: Good evening.", "Guard: [base] I heard: Good evening."]
    assert sorted(second) == ["Cook: [base] I heard: Any news.", "Guard: [base] I heard: Any news."]


@pytest.mark.parametrize("line", ["cook: hello", "@cook hello", "@Cook: hello", "COOK: hello"])
def test_line_to_one_is_answered_by_one(service, line) -> None:
    assert said(service, line) == ["Cook: [base] I heard: hello."]


def test_colon_behind_a_word_that_is_no_name_is_part_of_what_is_said(service) -> None:
    assert sorted(said(service, "Listen: a dragon")) == [
        "Cook: [base] I heard: Listen: a dragon.",
        "Guard: [base] I heard: Listen: a dragon.",
    ]


def test_commands_bring_send_away_and_tell(service) -> None:
    lines = said(service, "/leave guard", "/add hermit", "/who", "hi", "/history cook", "/stats", "/quit", "never said")
    assert lines[:5] == [
        "Guard has left",
        "Hermit: is here",
        "cook: Cook, cook",
        "hermit: Hermit, hermit",
        "You could /add: cook, guard, hermit",
    ]
    assert sorted(lines[5:7]) == ["Cook: [base] I heard: hi.", "Hermit: [base] I heard: hi."]
    assert lines[7:11] == ["What cook remembers:", "Cook: I am the cook.", "Player: hi", "Cook: [base] I heard: hi."]
    assert [line.partition(" ")[0] for line in lines[11:]] == ["cook:", "hermit:", "fake,"]


def test_mood_is_of_those_who_have_it_until_it_is_taken_back(service) -> None:
    lines = said(service, "/mood", "/mood drunk", "hi", "/mood sober", "/mood", to=("hermit", "cook"))
    assert lines[:4] == ["Hermit is as always", "Cook is as always", "Moods of hermit: drunk", "Hermit is drunk"]
    assert lines[-4:] == [
        "Nobody here has a mood 'sober'. There are: drunk.",
        "Hermit is as always",
        "Cook is as always",
        "Moods of hermit: drunk",
    ]


def test_pack_that_changes_while_we_talk_is_told_of_before_the_next_line(service, cast) -> None:
    with Client(service.endpoint, name="talk") as ours:
        room = Room(ours)
        voice = room.add("hermit")
        assert list(room.news()) == []
        write_manifest(cast / "hermit", moods='[{ name = "glad" }, { name = "glad" }]', stile='"Slurred."')
        told = next_news(room)
        assert told[0] == "pack hermit: its new version cannot be used; the last good one plays on"
        assert any("stile" in line and "style" in line for line in told[1:])
        write_manifest(cast / "hermit", moods='[{ name = "drunk" }]')
        assert next_news(room)[0] == "pack hermit: changed, from the next line on"
        assert room.set_mood("drunk") == [voice]
        room.close()


def next_news(room: Room) -> list[str]:
    until = time.monotonic() + PATIENCE_S
    while not (news := list(room.news())):
        assert time.monotonic() < until, "nothing was told of any pack"
        time.sleep(0.02)
    return news


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("@cok hello", "Nobody here is called 'cok'. Did you mean cook? There are: cook, guard."),
        ("@cook", "There is nothing to say in that line."),
        ("/add hermet", "There is no character 'hermet'. Did you mean hermit?"),
        ("/leave hermit", "Nobody here is called 'hermit'."),
        ("/dance", "There is no command /dance."),
        ("/", "There is no command /."),
        ("guard: fake:fault", "The fake sampler was told to fault."),
        ("x" * 20_000, "16384"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_the_talk_goes_on(service, line, told) -> None:
    *complaints, last = said(service, line, "cook: still here?")
    assert told in "\n".join(complaints)
    assert "Traceback" not in "\n".join(complaints)
    assert last == "Cook: [base] I heard: still here?".replace("?", ".")


def test_two_of_one_character_are_told_apart(service) -> None:
    lines = said(service, "guard-2: you", to=("guard", "guard"))
    assert lines == ["Guard (guard-2): [base] I heard: you."]


def test_line_to_an_empty_room_says_whom_to_add(service) -> None:
    assert "/add somebody" in said(service, "/leave guard", "hello?", to=("guard",))[-1]


def test_everybody_we_brought_leaves_with_us(service, client) -> None:
    before = client.stats()["npcs"]
    said(service, "/add hermit", "hello")
    assert client.stats()["npcs"] == before


def test_characters_are_unknown_by_name_with_the_likeliest(service) -> None:
    ended = run("talk", "gaurd", "--connect", service.endpoint)
    assert ended.returncode == 4
    assert ended.stderr == "personae: There is no character 'gaurd'. Did you mean guard? There are: cook, guard, hermit.\n"


def test_without_a_name_the_first_there_is_answers(service) -> None:
    ended = run("talk", "--connect", service.endpoint, stdin="hi")
    assert ended.stdout.splitlines() == ["Cook: I am the cook.", "Cook: [base] I heard: hi."]


# --- interrupting -----------------------------------------------------------------------------------------------------


def wait_until_speaking(client: Client, n_npcs: int) -> None:
    while client.stats()["scheduler"]["speaking"] < n_npcs:
        pass  # each is a round trip to a service that is at work


@pytest.mark.skipif(os.name == "nt", reason="no signal to one process")
def test_interrupt_while_they_speak_cancels_the_replies_and_not_the_talk(service, client) -> None:
    arguments = command("talk", "guard", "cook", "--connect", service.endpoint)
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin
        process.stdin.write("fake:long\n")
        process.stdin.flush()
        wait_until_speaking(client, 2)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate("cook: and now?\n/quit\n", timeout=PATIENCE_S)
    assert (process.returncode, told) == (0, "")
    lines = out.splitlines()[2:]
    assert len(lines) == 3
    assert all(line.endswith("(interrupted)") for line in lines[:2])
    assert lines[2] == "Cook: [base] I heard: and now."


@linux_only
def test_terminal_shows_replies_grow_and_an_interrupt_returns_to_the_prompt(service) -> None:
    with on_terminal("talk", "guard", "cook", "--connect", service.endpoint) as terminal:
        terminal.read_until(talk.PROMPT)
        terminal.type("fake:long\r")
        terminal.read_until("[base] 1 2 3")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read_until(talk.PROMPT)
        assert shown.count("(interrupted)") >= 2
        terminal.type("\x04")  # Ctrl-D
        code, rest = terminal.wait()
    assert code == 0
    assert "Traceback" not in rest


@linux_only
def test_long_reply_never_outgrows_the_window(service) -> None:
    """The growing region scrolls inside itself: more would leave half-drawn lines behind in the scrollback."""
    with on_terminal("talk", "guard", "cook", "--connect", service.endpoint, columns=40, lines=8) as terminal:
        terminal.read_until(talk.PROMPT)
        terminal.type("fake:long\r")
        growing = terminal.read_until(talk.PROMPT)
        terminal.type("/quit\r")
        assert terminal.wait()[0] == 0
    moves = [int(move or 1) for move in re.findall(r"\x1b\[(\d*)A", growing)]
    assert max(moves, default=0) <= 8


def test_interrupt_at_the_prompt_drops_the_line_and_a_second_one_ends(client, monkeypatch) -> None:
    answers = iter(["hello", KeyboardInterrupt, "/who", KeyboardInterrupt, KeyboardInterrupt, "never read"])

    def typed(_prompt: str) -> str:
        answer = next(answers)
        if answer is KeyboardInterrupt:
            raise answer
        return str(answer)

    monkeypatch.setattr("builtins.input", typed)
    conversation = talk.Conversation(Room(client), Display(Console(file=io.StringIO()), is_live=True), None)
    assert list(conversation._typed_lines()) == ["hello", "/who"]


# --- services ---------------------------------------------------------------------------------------------------------


def test_no_service_there_is_said_with_the_endpoint(monkeypatch, capsys) -> None:
    monkeypatch.setattr(talk, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert cli.main(["talk", "--connect", str(port)]) == 4
    assert f"No Personae service answered at tcp://127.0.0.1:{port}" in capsys.readouterr().err


def test_wrong_token_is_said(cast, capsys) -> None:
    with PrivateService(["--model", "fake", "--characters", str(cast), "--token", "sesame"]) as guarded:
        guarded.wait_until_ready()
        assert cli.main(["talk", "--connect", guarded.endpoint, "--token", "barley"]) == 4
    assert "token" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--model", "fake"), ("--characters", "."), ("--threads", "1")])
def test_option_that_a_running_service_has_decided_is_refused(option, capsys) -> None:
    assert cli.main(["talk", "--connect", "7777", *option]) == 4
    assert option[0] in capsys.readouterr().err


def test_token_without_a_service_is_refused(capsys) -> None:
    assert cli.main(["talk", "--token", "sesame"]) == 4
    assert "--connect" in capsys.readouterr().err


def test_missing_model_ends_with_the_code_of_serve() -> None:
    ended = run("talk", "--model", "/no/such/model.gguf")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("personae: There is no model at /no/such/model.gguf.")


@linux_only
def test_own_service_that_dies_ends_the_talk_with_a_sentence_and_no_orphan(cast) -> None:
    arguments = command("talk", "guard", "--model", "fake", "--characters", str(cast))
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()  # the greeting
        running, engine = family(process.pid)
        os.kill(running, signal.SIGKILL)
        _out, told = process.communicate("hello\n", timeout=PATIENCE_S)
    assert process.returncode == 1
    assert told.startswith("personae: The service ended unasked (signal 9).")
    assert "Traceback" not in told
    wait_until_gone(engine)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("7777", "tcp://127.0.0.1:7777"),
        ("box:7777", "tcp://box:7777"),
        ("tcp://10.0.0.1:1", "tcp://10.0.0.1:1"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_endpoint_may_be_short(given, meant) -> None:
    assert talk.endpoint_of(given) == meant


def test_word_of_a_name_means_its_owner_unless_several_have_it(client) -> None:
    room = Room(client)
    try:
        first, second = room.add("Guard"), room.add("guard")
        first.npc.card = dataclasses.replace(first.npc.card, name="Old Tom")
        second.npc.card = dataclasses.replace(second.npc.card, name="Young Tom")
        assert room.find("young") is second
        assert room.find("OLD TOM") is first
        assert room.find("tom") is None
        with pytest.raises(AskedWrong, match="tom"):
            room["tom"]
    finally:
        room.close()


def test_what_is_wrong_with_a_pack_is_told_with_its_place(tmp_path) -> None:
    write_pack(tmp_path, "guard", greetng='"Halt!"')
    ended = run("talk", "--model", "fake", "--characters", str(tmp_path))
    assert "personae: pack guard: character.toml greetng: is not known here" in ended.stderr
