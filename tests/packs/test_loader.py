"""From folders to characters: what loads, what is told, and that one broken pack is nobody else's trouble."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import msgpack
import pytest

from personae.errors import AskedWrong
from personae.packs.base import BaseShapes
from personae.packs.character import Exchange, Lore, LoreRules, PackProblem, TrainedOn
from personae.packs.loader import examine_pack, load_cast, load_character
from personae.packs.named_files import INCOMPLETE
from tests.packs.conftest import WritePack, zipped
from tests.packs.gguf_writer import gguf, lora_pairs, pair_of, text_pair

SMALL = 'name = "Marta"\npersona = "You are Marta."\n'
VOICED = SMALL + '[adapter]\nfile = "voice.gguf"\nscale = 0.5\n'


def problems_of(folder: Path) -> list[PackProblem]:
    return list(examine_pack(folder)[1])


def only_error(folder: Path) -> PackProblem:
    character, problems = examine_pack(folder)
    assert character is None
    (problem,) = [found for found in problems if found.is_error]
    return problem


def test_whole_pack_becomes_a_character(write_pack: WritePack, adapter_bytes: bytes) -> None:
    text = """
        name = "Marta"
        persona = "You are Marta."
        style = "Warm."
        greeting = "Come in!"
        stop = ["Player:"]
        author = "me"
        licence = "MIT"
        tags = ["inn"]
        fallback = ["One moment, love.", "Hush, let me think."]
        temper = "good"
        greetings = ["Wipe your feet!", "Oh, you."]
        portrait = "marta.png"
        lore_files = ["world/town.toml"]
        [[examples]]
        player = "A room?"
        reply = "Always."
        [[lore]]
        text = "The cellar is locked."
        [[lore]]
        name = "flood"
        text = "The flood came in spring."
        priority = 5
        keys = ["flood", "river"]
        secondary = ["spring"]
        order = -2
        case_sensitive = true
        [lore_rules]
        tokens = 200
        recursion = 0
        [[adapter]]
        file = "voice.gguf"
        scale = 0.5
        [[adapter]]
        file = "accent.gguf"
        [[moods]]
        name = "drunk"
        style = "Slurred."
        adapter = { file = "voice.gguf", scale = 2 }
        sampling = { temperature = 1.5 }
        [[moods]]
        name = "plain"
        adapter = []
        [base]
        architecture = "llama"
        n_layers = 1
        [sampling]
        temperature = 1
        top_k = 20
        [limits]
        max_tokens = 40
    """
    folder = write_pack(text, voice=adapter_bytes, accent=adapter_bytes)
    (folder / "marta.png").write_bytes(b"\x89PNG\r\n\x1a\n and the rest")
    (folder / "world").mkdir()
    (folder / "world" / "town.toml").write_text('[[lore]]\ntext = "The mayor is a fool."\nregex = true\nkeys = ["mayors?"]\n')
    marta = load_character(folder)
    assert (marta.id, marta.name, marta.persona, marta.style) == ("innkeeper", "Marta", "You are Marta.", "Warm.")
    assert (marta.greeting, marta.greetings) == ("Come in!", ("Wipe your feet!", "Oh, you."))
    assert marta.examples == (Exchange("A room?", "Always."),)
    assert marta.fallback == ("One moment, love.", "Hush, let me think.")
    assert marta.lore == (
        Lore("The cellar is locked."),
        Lore("The flood came in spring.", "flood", 5, ("flood", "river"), ("spring",), order=-2, case_sensitive=True),
        Lore("The mayor is a fool.", keys=("mayors?",), regex=True),
    )
    assert marta.lore_rules == LoreRules(tokens=200, scan_lines=4, recursion=0)
    assert [(part.pack, part.file, part.scale) for part in marta.adapters] == [(folder, "voice.gguf", 0.5), (folder, "accent.gguf", 1.0)]
    assert list(marta.moods) == ["drunk", "plain"]
    drunk, plain = marta.moods.values()
    assert (drunk.style, drunk.sampling, [part.scale for part in drunk.adapters or ()]) == ("Slurred.", {"temperature": 1.5}, [2.0])
    assert (plain.style, plain.adapters, plain.sampling) == (None, (), {})
    assert marta.base == TrainedOn("llama", n_layers=1)
    assert (marta.sampling, marta.limits, marta.stop) == ({"temperature": 1.0, "top_k": 20}, {"max_tokens": 40}, ("Player:",))
    assert (marta.author, marta.licence, marta.tags, marta.extra) == ("me", "MIT", ("inn",), {"temper": "good"})
    assert (marta.pack, marta.portrait) == (folder, "marta.png")
    assert [part.file for part in marta.all_adapters()] == ["voice.gguf", "accent.gguf"]


def test_adapter_is_known_by_its_weights_and_its_version(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(VOICED, voice=adapter_bytes)
    (adapter,) = load_character(folder).adapters
    assert adapter.n_bytes == 2 * (4 * 32 + 32 * 4 + 4 * 32 + 16 * 4)
    assert load_character(folder).adapters == (adapter,)
    (folder / "new.gguf").write_bytes(adapter_bytes)
    os.replace(folder / "new.gguf", folder / "voice.gguf")
    assert load_character(folder).adapters[0].version != adapter.version


def test_character_without_a_name_is_called_after_its_folder(write_pack: WritePack) -> None:
    folder = write_pack('persona = "You are."')
    assert load_character(folder).name == "innkeeper"
    assert [problem.field for problem in problems_of(folder)] == ["name"]


def test_unknown_key_in_a_table_does_not_reach_the_sampling(write_pack: WritePack) -> None:
    assert load_character(write_pack(SMALL + "[sampling]\ntop_k = 5\nmirostat = 2")).sampling == {"top_k": 5}


def test_broken_pack_is_refused_with_all_its_problems(write_pack: WritePack) -> None:
    folder = write_pack('nmae = "Marta"\n[adapter]\nfile = "gone.gguf"\n[sampling]\ntop_p = 2')
    with pytest.raises(AskedWrong) as caught:
        load_character(folder)
    fault = caught.value
    assert fault.code == "pack_invalid"
    assert "'innkeeper'" in fault.message
    assert {problem["field"] for problem in fault.details["problems"]} == {"persona", "sampling.top_p", "nmae", "name", "adapter.file"}
    assert {"pack", "file", "field", "problem", "remedy", "severity"} == fault.details["problems"][0].keys()
    msgpack.packb(fault.details)


@pytest.mark.parametrize(
    "name", ["../voice.gguf", "a/../../voice.gguf", "/etc/passwd", "C:/voice.gguf", "\\\\host\\voice.gguf", "a\\b.gguf"]
)
def test_adapter_path_may_not_leave_the_pack(name: str, write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(f"{SMALL}[adapter]\nfile = '{name}'")
    (folder.parent / "voice.gguf").write_bytes(adapter_bytes)
    problem = only_error(folder)
    assert problem.field == "adapter.file"
    assert problem.file == "character.toml"


def test_links_may_not_lead_out_of_the_pack(write_pack: WritePack, adapter_bytes: bytes, tmp_path: Path) -> None:
    (tmp_path / "outside.gguf").write_bytes(adapter_bytes)
    folder = write_pack(VOICED)
    (folder / "voice.gguf").symlink_to(tmp_path / "outside.gguf")
    assert "link" in only_error(folder).problem
    (tmp_path / "outside.toml").write_text(SMALL)
    (folder / "character.toml").unlink()
    (folder / "character.toml").symlink_to(tmp_path / "outside.toml")
    assert "link" in only_error(folder).problem


def test_link_within_the_pack_is_followed(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(VOICED, best=adapter_bytes)
    (folder / "voice.gguf").symlink_to("best.gguf")
    assert load_character(folder).adapters


def test_link_to_itself_is_a_problem_and_no_hang(write_pack: WritePack) -> None:
    folder = write_pack(VOICED)
    (folder / "voice.gguf").symlink_to("voice.gguf")
    assert only_error(folder).field == "adapter.file"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PK", "too early"), (b"<html></html>", "another kind"), (gguf([]), "no LoRA adapter"), (gguf(lora_pairs()), "no tensors")],
)
def test_adapter_that_is_none_is_told_with_its_file(content: bytes, said: str, write_pack: WritePack) -> None:
    problem = only_error(write_pack(VOICED, voice=content))
    assert (problem.file, problem.field) == ("voice.gguf", "adapter.file")
    assert said in problem.problem
    assert problem.remedy


def test_adapter_nobody_names_is_warned_of(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(SMALL, voice=adapter_bytes)
    assert load_character(folder).adapters == ()
    assert [(problem.file, problem.is_error) for problem in problems_of(folder)] == [("voice.gguf", False)]


def test_content_hash_knows_no_folder(write_pack: WritePack) -> None:
    one, same, other = (write_pack(text, name=name) for text, name in ((SMALL, "a"), (SMALL, "b"), (SMALL + "\n", "c")))
    assert load_character(one).content_hash == load_character(same).content_hash != load_character(other).content_hash


def test_content_hash_knows_lore_files_and_sizes_of_adapters(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack('lore_files = ["more.toml"]\n' + VOICED, voice=adapter_bytes)
    hashes = set()
    for lore, adapter in (("a", adapter_bytes), ("b", adapter_bytes), ("b", gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 32, 32)))):
        (folder / "more.toml").write_text(f'[[lore]]\ntext = "{lore}"')
        (folder / "voice.gguf").write_bytes(adapter)
        hashes.add(load_character(folder).content_hash)
    assert len(hashes) == 3


@pytest.mark.parametrize(("where", "said"), [(".", r"character\.toml: is missing"), ("nowhere", "no pack at"), ("x.persona", "no pack at")])
def test_folder_without_manifest_and_no_pack_at_all_are_refused(where: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AskedWrong, match=said) as caught:
        load_character(tmp_path / where)
    assert caught.value.code == "pack_invalid"


def test_manifest_that_is_no_plain_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "character.toml").mkdir()
    assert only_error(tmp_path).file == "character.toml"
    (tmp_path / "character.toml").rmdir()
    os.mkfifo(tmp_path / "character.toml")
    assert only_error(tmp_path).file == "character.toml"


def test_manifest_too_large_is_refused_unread(write_pack: WritePack) -> None:
    assert "more than" in only_error(write_pack("#" * 2_000_000)).problem


def test_spaces_and_other_scripts_in_names_load(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(SMALL + '[adapter]\nfile = "Stimmen der Küche/die Stimme ñ.gguf"', name="宿屋 Wirtin")
    (folder / "Stimmen der Küche").mkdir()
    (folder / "Stimmen der Küche" / "die Stimme ñ.gguf").write_bytes(adapter_bytes)
    assert load_character(folder).id == "宿屋 Wirtin"


# --- the cast -----------------------------------------------------------------------------------------------------


def test_broken_pack_leaves_the_others_alone(write_pack: WritePack) -> None:
    write_pack(SMALL, name="smith")
    write_pack("persona = ", name="broken")
    cast = load_cast(write_pack(SMALL, name="baker").parent)
    assert list(cast.characters) == ["baker", "smith"]
    assert [(problem.pack, problem.is_error) for problem in cast.problems] == [("broken", True)]


def test_folder_without_manifest_is_warned_of_unless_hidden(write_pack: WritePack) -> None:
    root = write_pack(SMALL).parent
    for name in ("empty", ".git", "_notes"):
        (root / name).mkdir()
    (root / "README.md").write_text("hello")
    cast = load_cast(root)
    assert list(cast.characters) == ["innkeeper"]
    assert [(problem.pack, problem.is_error) for problem in cast.problems] == [("empty", False)]


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("character.toml.txt", "There is 'character.toml.txt': rename it."),
        ("Character.toml", "There is 'Character.toml': rename it."),
        ("marta/character.toml", "There is 'marta/character.toml': move 'marta' up."),
    ],
)
def test_manifest_under_another_name_or_a_folder_too_deep_is_pointed_at(write_pack: WritePack, file: str, remedy: str) -> None:
    folder = write_pack("")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / "character.toml").rename(folder / file)
    assert only_error(folder).remedy == remedy
    assert [problem.remedy for problem in load_cast(folder.parent).problems] == [remedy]


def test_warnings_of_good_packs_are_in_the_cast(write_pack: WritePack) -> None:
    cast = load_cast(write_pack(SMALL + 'stile = "x"').parent)
    assert list(cast.characters) == ["innkeeper"]
    assert [problem.field for problem in cast.problems] == ["stile"]


def test_missing_cast_folder_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    cast = load_cast(tmp_path / "nowhere")
    assert cast.characters == {}
    assert cast.problems[0].is_error


def test_two_spellings_of_one_name_do_not_shadow_each_other(write_pack: WritePack) -> None:
    composed = unicodedata.normalize("NFC", "café")
    write_pack(SMALL, name=composed)
    cast = load_cast(write_pack(SMALL, name=unicodedata.normalize("NFD", "café")).parent)
    assert list(cast.characters) == [composed]
    assert "same name" in cast.problems[0].problem


def test_folder_name_that_cannot_be_typed_is_refused_in_plain_text(write_pack: WritePack) -> None:
    root = write_pack(SMALL).parent
    for raw in (b"caf\xe9", b"line\nbreak", b"x" * 65):
        folder = Path(os.fsdecode(os.fsencode(root) + b"/" + raw))
        folder.mkdir()
        (folder / "character.toml").write_text(SMALL)
    cast = load_cast(root)
    assert list(cast.characters) == ["innkeeper"]
    assert len(cast.problems) == 3
    msgpack.packb([problem.to_wire() for problem in cast.problems])


def test_archives_and_folders_are_one_cast(write_pack: WritePack, adapter_bytes: bytes) -> None:
    smith = write_pack(VOICED, name="smith", voice=adapter_bytes)
    root = write_pack(SMALL).parent
    (root / "baker.persona").write_bytes(zipped({"character.toml": VOICED, "voice.gguf": adapter_bytes}))
    cast = load_cast(root)
    assert cast.problems == ()
    assert list(cast.characters) == ["baker", "innkeeper", "smith"]
    baker, folder = cast.characters["baker"], cast.characters["smith"]
    assert (baker.pack, baker.adapters[0].file, baker.adapters[0].scale) == (root / "baker.persona", "voice.gguf", 0.5)
    assert baker.content_hash == folder.content_hash == load_character(smith).content_hash


def test_same_name_as_folder_and_as_archive_is_an_error_of_the_second(write_pack: WritePack) -> None:
    root = write_pack(SMALL).parent
    (root / "innkeeper.persona").write_bytes(zipped({"character.toml": SMALL.replace("Marta", "Bert")}))
    cast = load_cast(root)
    assert [character.name for character in cast.characters.values()] == ["Marta"]
    (problem,) = cast.problems
    assert problem.is_error
    assert "innkeeper.persona" in problem.problem


# --- half-copied --------------------------------------------------------------------------------------------------


def is_incomplete(problems: tuple[PackProblem, ...]) -> bool:
    return any(problem.problem.startswith(INCOMPLETE) for problem in problems)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_archive_that_is_being_copied_is_incomplete(share: float, tmp_path: Path, adapter_bytes: bytes) -> None:
    whole = zipped({"character.toml": VOICED, "voice.gguf": adapter_bytes})
    path = tmp_path / "a.persona"
    path.write_bytes(whole[: int(share * len(whole))])
    assert is_incomplete(examine_pack(path)[1])
    path.write_bytes(whole[: int(share * len(whole))].ljust(len(whole), b"\0"))  # room made beforehand
    assert is_incomplete(examine_pack(path)[1])
    path.write_bytes(whole)
    assert examine_pack(path)[0] is not None


def test_adapter_that_is_being_copied_is_incomplete(write_pack: WritePack, adapter_bytes: bytes) -> None:
    folder = write_pack(VOICED, voice=adapter_bytes[:-100])
    assert is_incomplete(examine_pack(folder)[1])
    (folder / "voice.gguf").write_bytes(b"<html>not found</html>")
    assert not is_incomplete(examine_pack(folder)[1])


# --- the base -----------------------------------------------------------------------------------------------------


def test_adapter_that_does_not_fit_the_base_is_refused_by_its_header(write_pack: WritePack, base: BaseShapes) -> None:
    other = gguf(lora_pairs(), pair_of("blk.0.attn_q.weight", 64, 64))
    folder = write_pack(VOICED, voice=other)
    assert examine_pack(folder)[0] is not None
    character, (problem,) = examine_pack(folder, base)
    assert character is None
    assert (problem.file, problem.field) == ("voice.gguf", "adapter.file")
    assert "(64, 4)" in problem.problem
    assert "(32, 32) in the base 'Tiny Base'" in problem.problem


def test_fitting_adapter_is_a_character_with_its_base(write_pack: WritePack, adapter_bytes: bytes, base: BaseShapes) -> None:
    assert load_character(write_pack(VOICED, voice=adapter_bytes), base).adapters


def test_doubts_about_an_adapter_are_warned_of_with_a_base(write_pack: WritePack, base: BaseShapes) -> None:
    doubtful = gguf([*lora_pairs(alpha=None), text_pair("general.base_model.0.name", "Other 7B")], pair_of("blk.0.attn_q.weight", 32, 32))
    character, problems = examine_pack(write_pack(VOICED, voice=doubtful), base)
    assert character is not None
    assert [(problem.file, problem.is_error) for problem in problems] == [("voice.gguf", False)] * 2
    assert "Other 7B" in problems[1].problem
