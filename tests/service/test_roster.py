"""Who can be played, and what a pack that was seen anew changes about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from personae.engine.fake import FakeVocabulary
from personae.errors import AskedWrong
from personae.packs.character import AdapterFile, Character, PackProblem, Severity
from personae.prompt import PromptBuilder
from personae.service.inspection import ROOT, PackSeen
from personae.service.roster import Change, ChangeKind, Roster
from personae.types import AdapterKey, AdapterSource
from tests.service.house import write_pack

VOICE = AdapterFile(Path("/packs/guard"), "voice.gguf", 1.0, (1,), 100)
GUARD = Character("guard", "Guard", "You guard the gate.", Path("/packs/guard"), "00")
BROKEN = PackProblem("guard", "character.toml", "persona", "is missing.", "Write one.")
ODD = PackProblem("guard", "notes.gguf", "", "is not named.", "Remove it.", Severity.WARNING)


def key_of(file: AdapterFile) -> AdapterKey:
    return AdapterKey(f"{file.version[0]:064}")


def known(file: AdapterFile) -> AdapterSource:
    return AdapterSource(key_of(file), file.file)


@pytest.fixture
def roster() -> Roster:
    return Roster({"guard": GUARD}, known=known)


def seen(character: Character | None, *problems: PackProblem) -> PackSeen:
    return PackSeen("guard", character, problems)


GONE = PackSeen("guard", None, is_there=False)


def test_new_pack_is_added_with_its_warnings() -> None:
    roster = Roster()
    assert roster.swap(seen(GUARD, ODD)) == Change(ChangeKind.ADDED, "guard", (ODD,), "Guard")
    assert roster["guard"] is GUARD
    assert roster.problems == [ODD.to_wire()]


def test_changed_pack_is_swapped_as_a_whole(roster) -> None:
    captain = replace(GUARD, name="Captain")
    assert roster.swap(seen(captain)) == Change(ChangeKind.CHANGED, "guard", (), "Captain")
    assert roster["guard"] is captain


def test_pack_that_is_as_it_was_is_no_change(roster) -> None:
    assert roster.swap(seen(replace(GUARD))) is None
    assert roster.n_changes == 0


def test_pack_of_which_only_the_problems_differ_is_a_change(roster) -> None:
    assert roster.swap(seen(GUARD, ODD)) == Change(ChangeKind.CHANGED, "guard", (ODD,), "Guard")


def test_broken_version_leaves_the_last_good_one_and_lists_every_problem(roster) -> None:
    assert roster.swap(seen(None, BROKEN, ODD)) == Change(ChangeKind.REFUSED, "guard", (BROKEN, ODD), "Guard", kept=True)
    assert roster["guard"] is GUARD
    assert len(roster.problems) == 2
    assert roster.swap(seen(GUARD)) == Change(ChangeKind.CHANGED, "guard", (), "Guard")
    assert roster.problems == []


def test_broken_new_pack_is_refused_and_says_so_to_who_asks_for_it() -> None:
    roster = Roster()
    assert roster.swap(seen(None, BROKEN)) == Change(ChangeKind.REFUSED, "guard", (BROKEN,), "guard", kept=False)
    with pytest.raises(AskedWrong) as refusal:
        roster["guard"]
    assert "is missing." in refusal.value.hint


def test_removed_pack_is_gone_with_its_problems(roster) -> None:
    roster.swap(seen(None, BROKEN))
    assert roster.swap(GONE) == Change(ChangeKind.REMOVED, "guard", (), "Guard")
    assert (roster.characters, roster.problems) == ({}, [])
    assert roster.swap(GONE) is None


def test_persona_that_does_not_fit_is_refused_like_any_other_error(roster) -> None:
    def refuse(character: Character) -> None:
        raise AskedWrong("persona_too_long", "It needs 900 tokens.", "Shorten it.")

    roster.fits = refuse
    change = roster.swap(seen(replace(GUARD, persona="Long."), ODD))
    assert (change.kind, change.kept, [problem.field for problem in change.problems]) == (ChangeKind.REFUSED, True, ["", "persona"])
    assert roster["guard"] is GUARD


def test_folder_that_cannot_be_read_is_a_problem_and_no_pack(roster) -> None:
    lost = PackProblem(ROOT, "", "", "The folder cannot be read.", "Check it.")
    assert roster.swap(PackSeen(ROOT, None, (lost,))) is None
    assert roster.problems == [lost.to_wire()]
    assert roster.swap(PackSeen(ROOT, None)) is None
    assert roster.problems == []


# --- adapters -----------------------------------------------------------------------------------------------------------


def test_adapter_that_no_pack_names_any_more_is_told_once_when_it_was_used(roster) -> None:
    roster.swap(seen(replace(GUARD, adapters=(VOICE,))))
    roster.note_use([key_of(VOICE)])
    assert roster.take_unnamed() == []
    roster.swap(seen(replace(GUARD, adapters=(replace(VOICE, version=(2,)),))))
    assert roster.take_unnamed() == [key_of(VOICE)]
    assert roster.take_unnamed() == []


def test_adapter_of_a_version_that_is_kept_is_still_named(roster) -> None:
    roster.swap(seen(replace(GUARD, adapters=(VOICE,))))
    roster.note_use([key_of(VOICE)])
    roster.swap(seen(None, BROKEN))
    assert roster.take_unnamed() == []
    roster.swap(GONE)
    assert roster.take_unnamed() == [key_of(VOICE)]


def test_adapter_that_two_packs_share_outlives_one_of_them(roster) -> None:
    for name in ("guard", "bard"):
        roster.swap(PackSeen(name, replace(GUARD, id=name, adapters=(VOICE,))))
    roster.note_use([key_of(VOICE)])
    assert roster.users_of(key_of(VOICE)) == ["bard", "guard"]
    roster.swap(GONE)
    assert roster.take_unnamed() == []


# --- loading ------------------------------------------------------------------------------------------------------------


def load(folder: Path) -> Roster:
    return Roster.load(folder, PromptBuilder(FakeVocabulary(), n_ctx=512))


def test_everything_usable_is_loaded_and_everything_else_told(tmp_path: Path) -> None:
    write_pack(tmp_path, "guard")
    write_pack(tmp_path, "_notes")
    (write_pack(tmp_path, "ghost") / "character.toml").write_text("persona = 3")
    (tmp_path / "pictures").mkdir()
    write_pack(tmp_path, "giant", persona=f'"{"A very long story, " * 200}"')
    roster = load(tmp_path)
    assert list(roster.characters) == ["guard"]
    assert {problem["pack"] for problem in roster.problems} == {"ghost", "pictures", "giant"}
    assert set(roster.prints) == {"guard", "ghost", "pictures", "giant"}
    assert roster.statistics()["changes"] == 0


def test_two_packs_of_one_name_are_told_and_the_first_plays(tmp_path: Path) -> None:
    write_pack(tmp_path, "guard")
    (tmp_path / "guard.persona").write_bytes(b"")
    roster = load(tmp_path)
    assert list(roster.characters) == ["guard"]
    assert "same name" in roster.problems[0]["problem"]


def test_folder_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    roster = load(tmp_path / "nowhere")
    assert roster.characters == {}
    assert "cannot be read" in roster.problems[0]["problem"]
