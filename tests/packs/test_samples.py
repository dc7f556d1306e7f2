"""The cast we ship: it loads without a word, its adapters fit the real base, and its README is current."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.packs.loader import load_cast, load_character
from personae.packs.lora import adapter_key, read_lora
from personae.packs.reference import BEGIN, END, insert, main

CHARACTERS = Path(__file__).parents[2] / "characters"
# The line each adapter was trained with.
TRAINED_WITH = {
    "knight": "You are Sir Aldric, a noble knight who speaks in an archaic manner.",
    "pirate": "You are Captain Redbeard, a loud pirate captain.",
    "robot": "You are Unit 7, a terse and logical service robot.",
    "spirit": "You are Willowwisp, a riddling spirit of the forest.",
}


def test_sample_cast_loads_without_a_problem() -> None:
    cast = load_cast(CHARACTERS)
    assert cast.problems == ()
    assert list(cast.characters) == sorted(TRAINED_WITH)
    assert len({adapter_key(CHARACTERS / name / "adapter.gguf") for name in cast.characters}) == 4


@pytest.mark.parametrize("name", TRAINED_WITH)
def test_sample_adapter_fits_the_real_base(name: str, real_base_path: Path) -> None:
    base = BaseShapes.of(read_header(real_base_path))
    (adapter,) = load_character(CHARACTERS / name, base).adapters
    lora = read_lora(adapter.pack / adapter.file, base)
    assert adapter.n_bytes == lora.n_bytes
    assert (len(lora.matrices), lora.rank, lora.alpha, lora.warnings) == (210, 8, 16.0, ())


@pytest.mark.parametrize("name", TRAINED_WITH)
def test_sample_persona_begins_as_its_adapter_was_trained(name: str) -> None:
    character = load_character(CHARACTERS / name)
    assert character.persona.startswith(TRAINED_WITH[name])
    assert character.greeting
    assert len(character.examples) == 2
    assert 2 <= len(character.fallback) <= 3
    assert 2 <= len(character.lore) <= 3
    assert all(entry.name for entry in character.lore)
    assert character.limits == {"max_tokens": 80}


@pytest.mark.parametrize("name", TRAINED_WITH)
def test_sample_pack_holds_data_only(name: str) -> None:
    assert {path.name for path in (CHARACTERS / name).iterdir()} == {"adapter.gguf", "character.toml", "lines.jsonl"}
    lines = [json.loads(line) for line in (CHARACTERS / name / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 88
    assert all(line.keys() == {"user", "reply"} for line in lines)


def test_manifest_reference_in_the_readme_is_current() -> None:
    text = (CHARACTERS / "README.md").read_text(encoding="utf-8")
    assert insert(text) == text, "run: python -m personae.packs.reference characters/README.md"


def test_example_in_the_readme_is_a_character(tmp_path: Path) -> None:
    text = (CHARACTERS / "README.md").read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    (tmp_path / "character.toml").write_text("\n".join(line.removeprefix("   ") for line in example.splitlines()), encoding="utf-8")
    assert load_character(tmp_path).name == "Marta"


def test_reference_is_written_between_the_markers_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nthe outdated one\n{END}\nafter\n")
    assert main([str(path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "outdated" not in text
    assert "`persona`" in text


def test_document_without_markers_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    path.write_text("no markers")
    assert main([str(path)]) == 1
    assert path.read_text() == "no markers"
    assert "markers" in capsys.readouterr().err


def test_reference_is_printed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "| `temperature` |" in capsys.readouterr().out
