"""`personae demo` as whoever runs it sees it, and the picture it draws."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("personae_client")

from rich.console import Console
from rich.text import Text

from personae.cli import demo
from personae.cli import main as cli
from personae.cli.cast import find_cast, meant
from personae.cli.demo_report import mode_text
from personae.cli.demo_stage import Grid, Stage, can_show
from personae.cli.terminal import printable
from personae.cli.voices import Voice
from personae.errors import AskedWrong
from personae_client import Model, NpcCard, Welcome
from tests.cli.processes import PATIENCE_S, command, family, on_terminal, run, wait_until_gone
from tests.packs.gguf_writer import gguf, lora_pairs, pair_of
from tests.service.house import write_pack

linux_only = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells who descends from whom")

TERSE = 4  # tokens that the bard speaks: when it has ended the others are in the middle of theirs
CHARACTERS = ("bard", "cook", "guard", "witch")


@pytest.fixture
def cast(tmp_path: Path) -> Path:
    folder = tmp_path / "characters"
    for number, name in enumerate(CHARACTERS):
        pack = write_pack(folder, name, greeting=f'"I am the {name}."')
        # Padding behind the tensors makes four different files of one adapter; the fake engine takes any.
        (pack / "adapter.gguf").write_bytes(gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 32, 32)) + bytes(number))
        with (pack / "character.toml").open("a", encoding="utf-8") as manifest:
            manifest.write(f'[adapter]\nfile = "adapter.gguf"\n[limits]\nmax_tokens = {TERSE if name == "bard" else 80}\n')
    return folder


# --- from the outside -------------------------------------------------------------------------------------------------


def test_demo_on_no_terminal_prints_every_reply_and_the_figures() -> None:
    ended = run("demo", "--model", "fake")
    assert (ended.returncode, ended.stderr) == (0, "")
    for line in demo.LINES:
        assert f"You: {line}" in ended.stdout
    assert len(re.findall(r": \[[0-9a-f]{6}\] I heard: ", ended.stdout)) == 3 * 6
    assert "Captain Redbeard (pirate-2): " in ended.stdout
    assert re.search(r"\d+% of the decodes held more than one adapter; later \d+%", ended.stdout)
    assert "\x1b" not in ended.stdout
    assert max(map(len, ended.stdout[ended.stdout.index("NPC  ") :].splitlines())) <= 80


def test_demo_as_json_is_one_document_with_all_that_was_measured() -> None:
    ended = run("demo", "--model", "fake", "--json", "--npcs", "7")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert (report["mode"], len(report["npcs"]), len(report["rounds"])) == ("mixed", 7, 3)
    assert len({npc["adapter"] for npc in report["npcs"]}) == report["whole"]["adapters"] == 4
    assert all(npc["reused"] > npc["prefilled"] / 2 for npc in report["npcs"])  # the second and third round found their KV
    assert report["whole"]["mixed_share"] > 0.5
    assert report["whole"]["rows_per_decode"] > 4
    assert report["whole"]["later_mixed_share"] > 0.5


def test_demo_says_plainly_that_it_is_grouped() -> None:
    ended = run("demo", "--model", "fake", "--mode", "grouped")
    assert ended.returncode == 0
    assert " ".join(ended.stdout.split()).count("grouped: one decode for each adapter, because grouped mode was asked for") == 2
    assert " 0% of the decodes held more than one adapter; later 0%" in ended.stdout


def test_tokens_bounds_every_reply() -> None:
    report = json.loads(run("demo", "--model", "fake", "--json", "--tokens", "9").stdout)
    assert all(reply["finish"] == "length" for one in report["rounds"] for reply in one["replies"])
    assert report["whole"]["tokens"] == 3 * 6 * 9


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--npcs", "5"), "--npcs takes 6 to 24, not 5."),
        (("--tokens", "0"), "--tokens takes 1 or more"),
        (("--characters", "/no/such/folder"), "There is no folder /no/such/folder."),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_started(arguments, told, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--model", "fake", *arguments]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"personae: {told}")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [(("--threads", "0"), 4, "0 is not between 1 and"), (("--model", "/no/such.gguf"), 3, "There is no model at /no/such.gguf.")],
)
def test_what_the_service_refuses_is_told_in_its_words_and_with_its_code(arguments, code, told) -> None:
    ended = run("demo", "--model", "fake", *arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert told in ended.stderr
    assert ended.stderr.count("personae: ") == 1
    assert "Traceback" not in ended.stderr


def test_folder_without_packs_is_refused(tmp_path) -> None:
    ended = run("demo", "--model", "fake", "--characters", str(tmp_path))
    assert ended.returncode == 4
    assert "no usable character pack" in ended.stderr


def test_broken_pack_is_named_and_the_others_play(cast) -> None:
    (cast / "bard" / "character.toml").write_text("name = ", "utf-8")
    ended = run("demo", "--model", "fake", "--json", "--characters", str(cast))
    assert ended.returncode == 0
    assert "personae: pack bard: " in ended.stderr
    assert {npc["character"] for npc in json.loads(ended.stdout)["npcs"]} == {"cook", "guard", "witch"}


@pytest.fixture
def slow_demo(cast) -> Iterator[subprocess.Popen[str]]:
    """In the middle of its second round: one has ended, the others speak."""
    process = subprocess.Popen(
        command("demo", "--model", "fake", "--plain", "--fake-step-ms", "10", "--characters", str(cast)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert process.stdout
        assert any(demo.LINES[1] in line for line in process.stdout)
        assert process.stdout.readline().startswith("Bard")
        yield process
        process.kill()


@linux_only
def test_service_that_dies_ends_the_demo_with_a_sentence_and_no_orphan(slow_demo) -> None:
    service, engine = family(slow_demo.pid)
    os.kill(service, signal.SIGKILL)
    _out, told = slow_demo.communicate(timeout=PATIENCE_S)
    assert slow_demo.returncode == 1
    assert told.startswith("personae: The service ended unasked (signal 9).")
    assert "Traceback" not in told
    wait_until_gone(engine)


@linux_only
def test_engine_that_dies_ends_the_demo_with_a_sentence_and_no_orphan(slow_demo) -> None:
    service, engine = family(slow_demo.pid)
    os.kill(engine, signal.SIGKILL)
    _out, told = slow_demo.communicate(timeout=PATIENCE_S)
    assert slow_demo.returncode == 5
    assert told.startswith("personae: ")
    assert "engine" in told
    wait_until_gone(service)


@linux_only
def test_interrupted_demo_ends_quietly_and_takes_everything_along(slow_demo) -> None:
    started = family(slow_demo.pid)
    assert len(started) == 2
    slow_demo.send_signal(signal.SIGINT)
    _out, told = slow_demo.communicate(timeout=PATIENCE_S)
    assert (slow_demo.returncode, told) == (0, "")
    for pid in started:
        wait_until_gone(pid)


@linux_only
def test_killed_demo_leaves_nothing_behind(slow_demo) -> None:
    started = family(slow_demo.pid)
    slow_demo.kill()
    for pid in started:
        wait_until_gone(pid)


@linux_only
def test_demo_on_a_terminal_plays_on_the_other_screen_and_gives_it_back() -> None:
    with on_terminal("demo", "--model", "fake") as terminal:
        code, shown = terminal.wait()
    assert code == 0
    play, _leave, stays = shown.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in play
    assert "knight-2" in play
    assert "of the decodes held more than one adapter" in stays
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back


# --- the picture ------------------------------------------------------------------------------------------------------


def welcome(mode: str = "mixed", reason: str = "") -> Welcome:
    return Welcome(1, "personae", "s", Model("tiny.gguf", "llama", "", 2048), mode, reason, 8, "warm", 5000)


def voice(npc_id: str, said: str, *, greeting: str = "") -> Voice:
    npc: Any = SimpleNamespace(id=npc_id, name=npc_id.title(), greeting=greeting, card=NpcCard(npc_id, adapter="ab" * 32))
    return Voice(npc, "red", Text(said))


def rendered(stage: Stage) -> list[str]:
    with stage.console.capture() as captured:
        stage.console.print(stage.picture(), end="")
    return captured.get().splitlines()


def stage(columns: int, lines: int, voices: list[Voice]) -> Stage:
    console = Console(file=io.StringIO(), width=columns, height=lines, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    return Stage(console, welcome(), voices, line="A long question? " * 20, counters="many counters " * 20)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (81, 25), (120, 40), (200, 60), (50, 40)])
@pytest.mark.parametrize("n_npcs", [6, 7, 8])
def test_picture_fills_the_window_and_never_outgrows_it(columns, lines, n_npcs) -> None:
    wordy = [voice(f"npc-{number}", "旅人 and many more words. " * 60, greeting="Hello.") for number in range(n_npcs)]
    picture = rendered(stage(columns, lines, wordy))
    assert len(picture) <= lines
    assert all(Text(line).cell_len <= columns for line in picture)
    assert sum(line.count("╰") for line in picture) == n_npcs


def test_long_reply_keeps_its_newest_words_visible() -> None:
    said = " ".join(f"word{number}" for number in range(500))
    picture = "\n".join(rendered(stage(80, 24, [voice(f"npc-{number}", said) for number in range(6)])))
    assert "word499" in picture
    assert "word0 " not in picture


def test_what_was_said_before_stays_above_what_is_said_now() -> None:
    speaker = voice("pirate", "Arr.", greeting="Ahoy.")
    one = stage(80, 24, [speaker])
    one.begin_round("And now?")
    speaker.reply = Text("Aye.")
    picture = "\n".join(rendered(one))
    assert picture.index("Ahoy.") < picture.index("Arr.") < picture.index("Aye.")


def test_window_too_small_for_panels_gets_plain_lines() -> None:
    assert Grid.fit(6, 80, 21) is not None
    assert Grid.fit(6, 20, 21) is None
    assert Grid.fit(24, 80, 21) is None
    assert not can_show(Console(file=io.StringIO()), 6)


def test_window_made_small_while_playing_says_so() -> None:
    assert "Too small" in rendered(stage(20, 5, [voice("pirate", "Arr.")] * 6))[0]


def test_grouped_mode_and_its_reason_stand_at_the_foot() -> None:
    sentence, style = mode_text(welcome("grouped", "the self-check failed"))
    assert "because the self-check failed" in sentence
    assert style


def test_escape_codes_of_a_model_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\u202e\tc\nd") == "a[31mb c\nd"


# --- where the packs are ----------------------------------------------------------------------------------------------


def test_packs_are_found_here_and_then_beside_the_source(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (find_cast(None) / "pirate" / "character.toml").is_file()
    (tmp_path / "characters").mkdir()
    assert find_cast(None) == (tmp_path / "characters").resolve()


def test_missing_samples_name_the_places_that_were_tried(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("personae.cli.cast.BESIDE_THE_SOURCE", tmp_path / "elsewhere")
    with pytest.raises(AskedWrong, match=r"characters and .*elsewhere") as failure:
        find_cast(None)
    assert "checkout" in failure.value.hint


def test_misspelled_name_is_answered_with_the_likeliest() -> None:
    assert meant("Priate", ["robot", "pirate"]) == "Did you mean pirate? There are: pirate, robot."
    assert meant("zzz", ["robot"]) == "There are: robot."
    assert meant("zzz", []) == "There are none."


@pytest.mark.parametrize("module", ["rich", "personae_client"])
def test_missing_extra_says_what_to_install(module, monkeypatch, capsys) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr("importlib.import_module", absent)
    assert cli.main(["demo"]) == 4
    assert "pip install 'personae[demo]'" in capsys.readouterr().err
