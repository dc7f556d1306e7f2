"""The fake speaks predictably, makes trouble when told to, and holds its callers to the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from personae.engine import fake
from personae.engine.fake import IM_END, IM_START, FakeBackend, FakeVocabulary
from personae.engine.settings import EngineSettings
from personae.errors import AskedWrong, OurBug
from personae.types import AdapterKey, AdapterUse, MixMode, SamplingParams, Slot, Voice

VOCABULARY = FakeVocabulary()
SMALL = EngineSettings(model="fake", n_slots=3, n_ctx=200, max_adapters=2)
A, B, C = Slot(0), Slot(1), Slot(2)
ADAPTER, OTHER = AdapterKey("aaaaaa" + "0" * 58), AdapterKey("bbbbbb" + "1" * 58)
VOICE, BOTH = (AdapterUse(ADAPTER),), (AdapterUse(ADAPTER), AdapterUse(OTHER, 0.5))


@pytest.fixture
def backend(tmp_path: Path) -> FakeBackend:
    backend = FakeBackend(SMALL)
    (tmp_path / "a voice.gguf").write_bytes(b"GGUF")
    for key in (ADAPTER, OTHER):
        backend.install_adapter(key, backend.prepare_adapter(key, str(tmp_path / "a voice.gguf")))
    return backend


def ask(backend: FakeBackend, slot: Slot, line: str, voice: Voice = ()) -> None:
    backend.bind(slot, voice)
    backend.prefill(slot, scaffold(line), wants_logits=True)


def scaffold(line: str) -> list[int]:
    return VOCABULARY.tokenize(f"<|im_start|>user\n{line}<|im_end|>\n<|im_start|>assistant\n", special=True)


def answer(backend: FakeBackend, slot: Slot, most: int = 1000) -> str:
    sampler, said = backend.new_sampler(SamplingParams()), b""
    while (token := backend.sample(slot, sampler)) != IM_END and len(said) < most:
        said += VOCABULARY.piece(token)
        backend.decode([(slot, token)])
    return said.decode(errors="replace")


def test_reply_tells_the_voice_and_what_it_heard(backend: FakeBackend) -> None:
    ask(backend, A, "Good evening!")
    ask(backend, B, "Good evening!", VOICE)
    ask(backend, C, "Hm?", BOTH)
    assert answer(backend, A) == "[base] I heard: Good evening."
    assert answer(backend, B) == "[aaaaaa] I heard: Good evening."
    assert answer(backend, C) == "[aaaaaa+bbbbbb x0.5] I heard: Hm."


def test_reply_answers_the_last_user_message_and_not_the_history(backend: FakeBackend) -> None:
    ask(backend, A, "fake:say:Once")
    assert answer(backend, A) == "Once"
    ask(backend, A, "And then?")
    assert answer(backend, A) == "[base] I heard: And then."


def test_reply_without_a_scaffold_answers_the_last_line(backend: FakeBackend) -> None:
    backend.prefill(A, VOCABULARY.tokenize("hello\n", special=False), wants_logits=True)
    assert answer(backend, A) == "[base] I heard: hello."


@pytest.mark.parametrize(("line", "reply"), [("fake:say:One\\nTwo fake:crash", "One\nTwo fake:crash"), ("fake:silent", "")])
def test_reply_can_be_dictated(backend: FakeBackend, line: str, reply: str) -> None:
    ask(backend, A, line)
    assert answer(backend, A) == reply


def test_unicode_has_characters_of_every_length(backend: FakeBackend) -> None:
    ask(backend, A, "fake:unicode")
    assert {len(character.encode()) for character in answer(backend, A)} == {1, 2, 3, 4}


@pytest.mark.parametrize("word", ["long", "loop"])
def test_endless_replies_do_not_end(backend: FakeBackend, word: str) -> None:
    ask(backend, A, f"fake:{word}")
    assert len(answer(backend, A, most=120)) == 120


@pytest.mark.parametrize(("word", "error"), [("fault", AskedWrong), ("bug", OurBug)])
def test_trouble_comes_after_three_tokens(backend: FakeBackend, word: str, error: type[Exception]) -> None:
    ask(backend, A, f"fake:{word}")
    sampler = backend.new_sampler(SamplingParams())
    for _ in range(3):
        backend.decode([(A, backend.sample(A, sampler))])
    with pytest.raises(error):
        backend.sample(A, sampler)


def test_control_tokens_are_parsed_in_scaffold_alone() -> None:
    assert VOCABULARY.tokenize("<|im_start|>é", special=True) == [IM_START, 0xC3, 0xA9]
    assert IM_START not in VOCABULARY.tokenize("<|im_start|>", special=False)
    assert VOCABULARY.piece(IM_END) == b""
    assert VOCABULARY.is_end(IM_END)
    assert not VOCABULARY.is_end(IM_START)


def test_kv_of_another_voice_is_our_bug(backend: FakeBackend) -> None:
    ask(backend, A, "Hello", VOICE)
    for other in ((), (AdapterUse(OTHER),), (AdapterUse(ADAPTER, 0.5),), BOTH):
        backend.bind(A, other)
        with pytest.raises(OurBug, match="another voice"):
            backend.decode([(A, 65)])
    backend.cut(A, 0)
    backend.decode([(A, 65)])


def test_copied_and_restored_kv_keeps_the_voice_it_was_made_under(backend: FakeBackend) -> None:
    ask(backend, A, "Hello", BOTH)
    backend.copy(A, B)
    assert backend.restore(C, backend.export(A)) == backend.n_tokens(A) == backend.n_tokens(B)
    for slot in (B, C):
        with pytest.raises(OurBug, match="another voice"):
            backend.decode([(slot, 65)])
        backend.bind(slot, BOTH)
        backend.decode([(slot, 65)])


def test_state_of_another_engine_is_not_restored(backend: FakeBackend) -> None:
    wide = FakeBackend(EngineSettings(model="fake", n_ctx=400))
    for _ in range(3):
        wide.prefill(A, [65] * 100, wants_logits=False)
    assert backend.restore(A, wide.export(A)) == backend.restore(A, b"\xff not ours") == backend.n_tokens(A) == 0


def test_full_slot_refuses_a_prefill_and_stays_as_it_was(backend: FakeBackend) -> None:
    backend.prefill(A, [65] * 190, wants_logits=False)
    with pytest.raises(AskedWrong) as caught:
        backend.prefill(A, [65] * 11, wants_logits=False)
    assert caught.value.code == "context_full"
    assert backend.n_tokens(A) == 190


@pytest.mark.parametrize(
    "misuse",
    [
        lambda backend: backend.bind(A, (AdapterUse(AdapterKey("unknown")),)),
        lambda backend: backend.bind(A, (*VOICE, AdapterUse(AdapterKey("unknown")))),
        lambda backend: backend.bind(A, VOICE * 5),
        lambda backend: backend.free_adapter(AdapterKey("unknown")),
        lambda backend: backend.decode([(B, 65), (A, 65)]),
        lambda backend: backend.decode([(A, 65), (A, 65)]),
        lambda backend: backend.decode([]),
        lambda backend: backend.decode([(A, 999)]),
        lambda backend: backend.prefill(A, [], wants_logits=True),
        lambda backend: backend.prefill(A, [65] * 257, wants_logits=True),
        lambda backend: backend.cut(A, 1),
        lambda backend: backend.n_tokens(Slot(3)),
        lambda backend: backend.sample(A, backend.new_sampler(SamplingParams())),
    ],
)
def test_what_is_out_of_range_or_order_is_our_bug(backend: FakeBackend, misuse: Callable[[FakeBackend], object]) -> None:
    with pytest.raises(OurBug):
        misuse(backend)


def test_logits_are_gone_after_a_cut(backend: FakeBackend) -> None:
    ask(backend, A, "Hello")
    backend.cut(A, backend.n_tokens(A))
    with pytest.raises(OurBug):
        backend.sample(A, backend.new_sampler(SamplingParams()))


def test_slot_of_a_freed_adapter_cannot_be_decoded(backend: FakeBackend) -> None:
    ask(backend, A, "Hello", VOICE)
    backend.free_adapter(ADAPTER)
    with pytest.raises(OurBug):
        backend.decode([(A, 65)])


def test_adapters_past_the_limit_and_unreadable_ones_are_refused(backend: FakeBackend, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"BAD")
    codes = []
    for refused in (
        lambda: backend.prepare_adapter(ADAPTER, str(bad)),
        lambda: backend.prepare_adapter(ADAPTER, str(tmp_path / "nowhere.gguf")),
        lambda: backend.install_adapter(AdapterKey("third"), backend.prepare_adapter(ADAPTER, str(tmp_path / "a voice.gguf"))),
    ):
        with pytest.raises(AskedWrong) as caught:
            refused()
        codes.append(caught.value.code)
    assert codes == ["adapter_unreadable", "adapter_missing", "adapter_limit"]


def test_grammar_without_a_root_is_refused(backend: FakeBackend) -> None:
    backend.new_sampler(SamplingParams(grammar='root ::= "yes" | "no"'))
    with pytest.raises(AskedWrong) as caught:
        backend.new_sampler(SamplingParams(grammar="stem ::= nonsense"))
    assert caught.value.code == "bad_grammar"


def test_grouped_mode_decodes_each_adapter_apart() -> None:
    backend = FakeBackend(EngineSettings(model="fake", mode="grouped"))
    assert backend.card.mode is MixMode.GROUPED
    assert backend.card.mode_reason
    backend.prefill(A, [65], wants_logits=False)
    assert backend.decode([(A, 65), (B, 65)]).n_decodes == 1


# --- what it can be told to be ------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test outlives the process that ends in it."""

    def end(code: int) -> None:
        raise Killed(code)

    monkeypatch.setattr(fake.os, "_exit", end)


def kill_adapter(backend: FakeBackend, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    backend.install_adapter(ADAPTER, backend.prepare_adapter(ADAPTER, str(path)))


@pytest.mark.usefixtures("mortal")
def test_an_adapter_can_kill_the_process_when_it_is_installed(tmp_path: Path) -> None:
    with pytest.raises(Killed, match="70"):
        kill_adapter(FakeBackend(SMALL), tmp_path / "a", b"KILL-LOAD and more")


@pytest.mark.usefixtures("mortal")
def test_an_adapter_can_kill_the_process_at_its_first_decode_and_not_at_that_of_others(tmp_path: Path) -> None:
    backend = FakeBackend(SMALL)
    kill_adapter(backend, tmp_path / "a", b"KILL-STEP and more")
    ask(backend, A, "Hello")
    assert answer(backend, A) == "[base] I heard: Hello."
    with pytest.raises(Killed, match="70"):
        ask(backend, B, "Hello", VOICE)


def test_its_memory_can_be_one_that_cannot_be_cut() -> None:
    backend = FakeBackend(replace(SMALL, fake_can_cut=False))
    ask(backend, A, "Hello")
    n = backend.n_tokens(A)
    assert not backend.card.can_cut
    assert [backend.cut(A, n), backend.cut(A, n - 1)] == [n, 0]


@pytest.mark.parametrize("token", [-1, 9_999])
def test_tokens_that_its_vocabulary_does_not_have_are_a_bug(token: int) -> None:
    with pytest.raises(OurBug):
        FakeBackend(SMALL).prefill(A, [token], wants_logits=False)


def test_a_seal_tells_blobs_and_engines_apart() -> None:
    backend = FakeBackend(SMALL)
    seal = backend.seal(b"a", b"bc")
    assert (len(seal), seal) == (16, FakeBackend(SMALL).seal(b"a", b"bc"))
    assert seal not in (backend.seal(b"ab", b"c"), backend.seal(b"a", b"bd"), FakeBackend(replace(SMALL, n_ctx=201)).seal(b"a", b"bc"))


def test_exported_tokens_take_as_many_bytes_as_the_card_says(backend: FakeBackend) -> None:
    ask(backend, A, "Hello")
    few = len(backend.export(A))
    backend.prefill(A, [65] * 10, wants_logits=False)
    assert len(backend.export(A)) - few == 10 * backend.card.kv_token_bytes
