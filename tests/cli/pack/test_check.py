"""`personae pack check`: what it looks at, how it tells it, and what it ends with."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from personae.cli.pack import measure
from tests.cli.pack.conftest import GOOD, Ended, Pack, Write
from tests.cli.processes import on_terminal
from tests.tiny import TinyModel, bad_adapters, write_adapter, write_model
from tests.tiny.models import CHATML

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
ADAPTER = '[adapter]\nfile = "a.gguf"\n'


def problems(ended: Ended, pack: str = "marta") -> dict[str, str]:
    """field (or file) -> problem"""
    (one,) = [one for one in ended.json["packs"] if one["pack"] == pack]
    return {problem["field"] or problem["file"]: problem["problem"] for problem in one["problems"]}


def test_a_good_pack_ends_with_0_and_says_so(pack: Pack, write: Write) -> None:
    ended = pack("check", write(), "--model", "fake")
    assert (ended.code, ended.error) == (0, "")
    assert ended.out.splitlines()[0] == "marta: nothing to put right"
    assert "1 pack: nothing to put right." in ended.out
    assert "Looked at with fake, 2048 tokens of context." in ended.out


def test_an_error_ends_with_4_and_names_file_field_and_remedy(pack: Pack, write: Write) -> None:
    ended = pack("check", write(head='persona = ""\n', name="nobody"), "--model", "none")
    assert ended.code == 4
    assert ended.error == "personae: Pack 'nobody' cannot be used. Put right what is marked as an error.\n"
    assert "  error    character.toml: persona\n           is empty.\n           -> Who the character is" in ended.out


def test_warnings_end_with_0_and_with_strict_with_4(pack: Pack, write: Write) -> None:
    folder = write(head=GOOD.replace("licence", "# licence"))
    assert pack("check", folder, "--model", "none").code == 0
    strict = pack("check", folder, "--model", "none", "--strict")
    assert strict.code == 4
    assert "'marta' may not be as you mean" in strict.error


def test_errors_stand_before_warnings(pack: Pack, write: Write) -> None:
    ended = pack("check", write("typo = 1\n[limits]\nmax_tokens = 0\n"), "--model", "none", "--json")
    assert [problem["severity"] for problem in ended.json["packs"][0]["problems"]] == ["error", "warning"]


def test_a_folder_of_packs_is_checked_pack_by_pack_and_so_are_archives(pack: Pack, write: Write) -> None:
    write(name="marta")
    write(head="persona = 3\n", name="nobody")
    with zipfile.ZipFile("characters/robot.persona", "w") as archive:
        archive.writestr("character.toml", GOOD)
    ended = pack("check", "characters", "--model", "none", "--json")
    assert ended.code == 4
    assert [(one["pack"], one["errors"]) for one in ended.json["packs"]] == [("marta", 0), ("nobody", 1), ("robot", 0)]
    assert ended.json["passed"] is False
    assert pack("check", "characters/marta", "characters/robot.persona", "--model", "none").code == 0


def test_a_folder_among_packs_that_is_none_is_a_warning_as_it_is_to_a_service(pack: Pack, write: Write) -> None:
    write()
    Path("characters/pictures").mkdir()
    ended = pack("check", "characters", "--model", "none")
    assert ended.code == 0
    assert "pictures: 1 warning warning has no character.toml and is passed over." in ended.words
    assert pack("check", "characters/pictures", "--model", "none").code == 4


def test_whoever_names_the_manifest_means_the_pack(pack: Pack, write: Write) -> None:
    manifest = write() / "character.toml"
    assert pack("check", manifest, "--model", "none").out.startswith("marta: nothing to put right")
    assert pack("build", manifest).code == 0
    assert pack("export", manifest, "--card").code == 0
    assert Path("marta.persona").exists()


@pytest.mark.parametrize("command", [("check",), ("show",), ("export", "--card")])
def test_a_pack_named_without_its_folder_is_asked_after(pack: Pack, write: Write, command: tuple[str, ...]) -> None:
    write()
    ended = pack(*command, "marta")
    assert (ended.code, ended.out) == (4, "")
    assert ended.error.endswith(" Did you mean characters/marta?\n")
    assert pack(*command, "nobody").error.endswith(" Give a pack's folder, or a .persona archive.\n") or command == ("check",)


def test_an_archive_that_was_cut_is_told_of_once(pack: Pack, here: Path) -> None:
    Path("marta.persona").write_bytes(b"PK\x03\x04" + b"x" * 100)
    ended = pack("check", "marta.persona", "--model", "none", "--json")
    assert (ended.json["packs"][0]["errors"], ended.json["packs"][0]["warnings"]) == (1, 0)


def test_a_folder_and_an_archive_of_one_name_cannot_both_be_played(pack: Pack, write: Write) -> None:
    write()
    with zipfile.ZipFile("characters/marta.persona", "w") as archive:
        archive.writestr("character.toml", GOOD)
    ended = pack("check", "characters", "--model", "none")
    assert ended.code == 4
    assert "has the same name as another pack" in ended.words


def test_packs_of_one_name_in_two_folders_are_two_packs(pack: Pack, write: Write, here: Path) -> None:
    folder = write()
    (here / "other").mkdir()
    (folder.rename(here / "other" / "marta"), write())
    assert pack("check", "other", "characters", "--model", "none").code == 0


@pytest.mark.parametrize("path", ["nowhere", "characters/nowhere"])
def test_a_path_to_nothing_ends_with_4(pack: Pack, write: Write, path: str) -> None:
    write()
    ended = pack("check", path)
    assert ended.code == 4
    assert f"There is nothing at {path}." in ended.error


def test_a_pack_may_be_the_folder_one_is_in(pack: Pack, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    (write() / "deeper").mkdir()
    monkeypatch.chdir("characters/marta/deeper")
    assert pack("check", "..", "--model", "none").out.startswith("marta: ")


def test_an_empty_folder_is_a_pack_without_its_file(pack: Pack, here: Path) -> None:
    (here / "empty").mkdir()
    ended = pack("check", "empty", "--model", "none")
    assert ended.code == 4
    assert "is missing" in ended.words


def test_a_line_is_never_wider_than_80_columns_and_holds_no_colour(pack: Pack, write: Write) -> None:
    more = 'a_key_that_nobody_knows_and_that_is_rather_long = 1\nstyle = "<|im_start|>{{char}}"\n'
    ended = pack("check", write(more, files={"x.txt": b""}), "--model", "fake")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "\x1b" not in ended.out


def test_on_a_terminal_it_is_in_colour_and_as_wide_as_the_terminal(write: Write) -> None:
    write("x = 1\n", files={"unknown.txt": b""})
    with on_terminal("pack", "check", "characters", "--model", "none", columns=60) as terminal:
        code, shown = terminal.wait()
    assert code == 0
    assert "\x1b[33m" in shown
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()) <= 60


def test_escape_codes_of_a_pack_never_reach_the_terminal(pack: Pack, write: Write) -> None:
    ended = pack("check", write(files={"x\u202ey.txt": b"", "é.txt": b""}), "--model", "none")
    assert "\u202e" not in ended.out


# --- with a model -----------------------------------------------------------------------------------------------------


def test_without_a_model_it_says_what_was_not_looked_at(pack: Pack, write: Write) -> None:
    ended = pack("check", write(), "--model", "none")
    assert "nothing was counted in tokens" in ended.words


def test_without_the_usual_model_packs_are_checked_nonetheless(pack: Pack, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "DEFAULT_MODEL", "/nowhere/usual.gguf")
    ended = pack("check", write())
    assert ended.code == 0
    assert "There is no model at /nowhere/usual.gguf. Nothing was counted in tokens" in ended.words


def test_a_model_that_was_asked_for_and_is_not_there_ends_with_3(pack: Pack, write: Write) -> None:
    assert pack("check", write(), "--model", "/nowhere/m.gguf").code == 3


def test_a_core_that_leaves_no_room_is_an_error(pack: Pack, write: Write) -> None:
    folder = write(head=GOOD.replace("the innkeeper", "the innkeeper" * 20))
    ended = pack("check", folder, "--model", "fake", "--ctx", "256", "--json")
    assert ended.code == 4
    assert "has room for" in problems(ended)["persona"]
    assert pack("check", folder, "--model", "fake").code == 0


def test_lore_beyond_what_a_book_may_ask_is_named(pack: Pack, write: Write) -> None:
    wide = "".join(f'[[lore]]\nname = "fact {i}"\ntext = "{i}"\nkeys = [".{{0,60}}fact{i}"]\nregex = true\n' for i in range(12))
    found = problems(pack("check", write(wide), "--model", "fake", "--ctx", "16384", "--json"))
    assert list(found) == ["lore"]
    assert "'fact 10'" in found["lore"]
    assert "not looked for: keys are too many, or regular expressions too large, together" in found["lore"]


@pytest.mark.parametrize(
    ("more", "field", "told"),
    [
        ('style = "' + "Warm. " * 100 + '"', "style", "is left out of every prompt, 599 tokens"),
        ("".join(f'[[examples]]\nplayer = "{i} {"x" * 60}"\nreply = "{"y" * 60}"\n' for i in range(4)), "examples", "too many"),
        ("".join(f'[[lore]]\nname = "fact {i}"\ntext = "{i} {"x" * 80}"\n' for i in range(4)), "lore", "'fact 3'"),
        ('[[moods]]\nname = "drunk"\nstyle = "' + "Slurs. " * 100 + '"', "moods[1].style", "is left out of every prompt"),
        (
            f'[[lore]]\nname = "saga"\ntext = "{"long " * 80}"\nkeys = ["saga"]',
            "lore[1]",
            "('saga') has 400 tokens and does not fit, even alone",
        ),
        (f'[[lore]]\nname = "saga"\ntext = "{"long " * 80}"\nkeys = ["s.ga"]\nregex = true', "lore[1]", "does not fit, even alone"),
    ],
    ids=["style", "examples", "lore", "mood", "keyed", "pattern"],
)
def test_what_is_beyond_its_share_of_the_context_is_told_in_the_models_tokens(
    pack: Pack, write: Write, more: str, field: str, told: str
) -> None:
    folder = write(more)
    small = pack("check", folder, "--model", "fake", "--ctx", "1024", "--json")
    assert small.code == 0
    assert list(problems(small)) == [field]
    assert told in problems(small)[field]
    assert problems(pack("check", folder, "--model", "fake", "--ctx", "16384", "--json")) == {}


def test_keyed_lore_that_fits_and_is_found_is_nothing_to_speak_of(pack: Pack, write: Write) -> None:
    entries = "".join(
        f'[[lore]]\nname = "fact {i}"\ntext = "{i} {"x" * 80}"\nkeys = ["fact {i}"]\nsecondary = ["tell", "say"]\n' for i in range(9)
    )
    assert problems(pack("check", write(entries), "--model", "fake", "--ctx", "1024", "--json")) == {}


def test_a_template_without_system_role_is_told_once_and_is_no_fault_of_the_pack(pack: Pack, write: Write, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    folding = write_model(tmp_path / "folding.gguf", "llama", chat_template=NO_SYSTEM)
    ended = pack("check", write(), "--model", folding.path, "--strict")
    assert ended.code == 0
    assert "open the first user message" in ended.words


def test_an_adapter_is_read_whole_and_tried_on_the_base(pack: Pack, write: Write, model: TinyModel, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a.gguf", model, alpha=8.0)
    folder = write(ADAPTER, files={"a.gguf": (tmp_path / "a.gguf").read_bytes()})
    ended = pack("check", folder, "--model", model.path)
    assert (ended.code, ended.out.splitlines()[0]) == (0, "marta: nothing to put right")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("all_of_b_zero", "changes nothing"),
        ("nan_in_a", "NaN or infinity"),
        ("other_architecture", "architecture"),
        ("wrong_n_in", "needed are"),
    ],
)
def test_an_adapter_that_would_not_speak_is_an_error(
    pack: Pack, write: Write, model: TinyModel, tmp_path: Path, kind: str, told: str
) -> None:
    (path,) = [path for path, _ in bad_adapters(tmp_path, model) if path.stem == kind]
    ended = pack("check", write(ADAPTER, files={"a.gguf": path.read_bytes()}), "--model", model.path)
    assert ended.code == 4
    assert told in ended.words


def test_another_base_than_the_one_it_was_trained_on_is_warned_of_by_hash(
    pack: Pack, write: Write, model: TinyModel, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "a.gguf", model, alpha=8.0)
    more = ADAPTER + f'[base]\narchitecture = "llama"\nhash = "{"0" * 64}"\n'
    ended = pack("check", write(more, files={"a.gguf": (tmp_path / "a.gguf").read_bytes()}), "--model", model.path, "--json")
    assert ended.code == 0
    assert list(problems(ended)) == ["base.hash"]


def test_the_packs_of_this_repository_are_without_fault(pack: Pack) -> None:
    ended = pack("check", Path(__file__).parents[3] / "characters", "--model", "none", "--strict")
    assert (ended.code, ended.error) == (0, "")
