"""The real backend: slots, adapters and samplers of one model on llama.cpp. Decides the mode; leaves each decision to its file.

A slot's rows go through `streams` (where is it), `mixing` (under which voice) and `context` (the decode). What a slot holds is known
here by its length alone; which tokens those are is the scheduler's business.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from personae.engine import _mixer
from personae.engine.backend import DecodeReport, PreparedAdapter, Sampler
from personae.engine.llama import abi, api
from personae.engine.llama.context import Context, Row
from personae.engine.llama.memory import look_at_memory
from personae.engine.llama.mixing import Grouped, Mixed, Mixing, Prepared, load_template
from personae.engine.llama.model import Model, file_hash
from personae.engine.llama.sampling import Candidates, LlamaSampler
from personae.engine.llama.selfcheck import SelfCheck, SelfCheckFailed, self_check
from personae.engine.llama.state_form import is_one_sequence
from personae.engine.llama.streams import Streams
from personae.engine.llama.vocab import LlamaVocabulary
from personae.engine.mixer import Sites
from personae.engine.settings import EngineSettings
from personae.engine.threads import Team, physical_cores
from personae.errors import AskedWrong, OurBug, WorldFailed
from personae.packs.lora import read_lora
from personae.types import MAX_VOICE_PARTS, AdapterKey, MixMode, ModelCard, SamplingParams, Slot, Token, Voice

_SEAL_BYTES = 16
_LENGTH_BYTES = 4  # in front of an exported state: how many tokens it holds


class LlamaBackend:
    """Satisfies engine.backend.Backend. One thread, but for `prepare_adapter`."""

    def __init__(self, settings: EngineSettings) -> None:
        """WorldFailed `model_missing`, `model_unreadable` or `engine_failed`."""
        self._settings = settings
        self._team = Team(settings.threads, physical_cores())
        self._model = Model(settings.model, n_gpu_layers=settings.n_gpu_layers)
        self._vocabulary = LlamaVocabulary(self._model)
        self._sites = _sites(self._model)
        self._template = load_template(self._model, self._sites)
        self._reason, codes, self._check = _choose_mode(self._model, self._template, self._sites, settings, self._team.size)
        self._mixer = _mixer.Mixer(self._sites.as_list(), codes.as_tuple(), self._team.size) if codes else None
        self._context = Context(
            self._model,
            n_streams=settings.n_slots,
            n_ctx=settings.n_ctx,
            n_batch=settings.prefill_chunk,
            threads=self._team.size,
            flash=settings.flash_attention,
            mixer=self._mixer,
        )
        self._mixing: Mixing = Mixed(self._context, self._template, self._sites) if self._mixer else Grouped(self._model, self._context)
        self._base = self._model.base.with_sites(self._check.sites if self._check else self._sites.shapes)
        self._installed: set[AdapterKey] = set()
        self._streams = Streams(settings.n_slots)
        self._lengths = [0] * settings.n_slots
        self._voices: list[Voice] = [()] * settings.n_slots
        self._logits: dict[Slot, npt.NDArray[np.float32]] = {}
        self._candidates = Candidates(self._model.n_vocab)
        self._n_swaps = 0
        self._memory = look_at_memory(self._model, self._context, self._mixing)
        self._card = self._describe()

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def vocabulary(self) -> LlamaVocabulary:
        return self._vocabulary

    @property
    def threads(self) -> int:
        return self._team.size

    def _follow_load(self) -> None:
        """Take the cores that others left, and leave those they took. Between decodes: costs nothing but a look at the clock."""
        if self._team.review(time.monotonic()):
            self._context.set_threads(self._team.size)
            if self._mixer:
                self._mixer.set_threads(self._team.size)

    def _describe(self) -> ModelCard:
        details = {
            "description": self._model.description,
            "build": api.system_info(),
            "llama_cpp_python": api.LIB_VERSION,
            "extra_buffers": "on" if self._model.uses_extra_buffers else "off (this build has AMX code that crashes)",
            "flash_attention": "on" if self._settings.flash_attention else "off",
            "threads": "follow the load" if self._team.follows_load else "fixed",
            "waiting": os.environ.get("OMP_WAIT_POLICY") or f"spin {os.environ.get('GOMP_SPINCOUNT', 'default')}",
        }
        if self._check:
            details["kernels"] = _mixer.use_kernels(None)
            details["self_check"] = f"error {self._check.error:.4f} of the adapters' effect, {self._check.error_all:.2f} over all layers"
        return ModelCard(
            name=self._model.path.name,
            architecture=self._model.architecture,
            content_hash=file_hash(self._model.path),
            n_params=self._model.n_params,
            n_vocab=self._model.n_vocab,
            n_ctx=self._context.n_ctx,
            n_slots=self._settings.n_slots,
            mode=MixMode.MIXED if self._mixer else MixMode.GROUPED,
            mode_reason=self._reason,
            threads=self._team.size,
            can_cut=self._memory.can_cut,
            can_cut_moved=self._memory.can_cut_moved,
            kv_token_bytes=self._memory.token_bytes,
            details=details,
        )

    def statistics(self) -> dict[str, object]:
        return {"adapters": len(self._installed), "stream_swaps": self._n_swaps, "kv_tokens": sum(self._lengths)}

    def warm_up(self) -> None:
        """A prefill and a decode of every slot, so that graphs, pages and caches are there when somebody speaks."""
        slots = [Slot(slot) for slot in range(self._settings.n_slots)]
        token = Token(0)
        for slot in slots:
            self.prefill(slot, [token] * 2, wants_logits=False)
        self.decode([(slot, token) for slot in slots])
        for slot in slots:
            self.cut(slot, 0)
        self._logits.clear()

    def close(self) -> None:
        self._context.close()
        self._model.close()

    # --- adapters -------------------------------------------------------------------------------------------------

    def prepare_adapter(self, key: AdapterKey, path: str) -> PreparedAdapter:
        lora = read_lora(Path(path), self._base)
        if lora.key != key:
            raise AskedWrong("adapter_changed", f"Adapter '{lora.path.name}' changed on disk since its pack was read.", "Ask again.")
        return self._mixing.prepare(lora)

    def install_adapter(self, key: AdapterKey, prepared: PreparedAdapter) -> None:
        if not isinstance(prepared, Prepared):
            raise OurBug("internal", "An adapter was prepared by another backend.")
        most = self._settings.max_adapters
        if key not in self._installed and len(self._installed) >= most:
            raise AskedWrong("adapter_limit", f"No more than {most} adapters fit at once.", "Raise --max-adapters.")
        self._mixing.install(key, prepared)
        self._installed.add(key)

    def free_adapter(self, key: AdapterKey) -> None:
        self._mixing.free(key)
        self._installed.discard(key)

    def bind(self, slot: Slot, voice: Voice) -> None:
        if len(voice) > MAX_VOICE_PARTS:
            raise OurBug("internal", f"Slot {slot} was bound to {len(voice)} adapters at once.")
        for use in voice:
            if use.key not in self._installed:
                raise OurBug("internal", f"Slot {slot} was bound to adapter {use.key[:12]}, which is not installed.")
        self._voices[slot] = voice

    # --- tokens ---------------------------------------------------------------------------------------------------

    def prefill(self, slot: Slot, tokens: Sequence[Token], *, wants_logits: bool) -> None:
        self.prefill_alike([(slot, tokens)], wants_logits=wants_logits)

    def prefill_alike(self, chunks: Sequence[tuple[Slot, Sequence[Token]]], *, wants_logits: bool) -> None:
        """Slots whose streams are neighbours share a decode; none is moved for it, which would cost more than it saves."""
        n = len(chunks[0][1])
        if not 0 < n * len(chunks) <= self._settings.prefill_chunk or any(len(tokens) != n for _, tokens in chunks):
            raise OurBug("internal", f"{len(chunks)} chunks of {n} tokens were to be prefilled together.")
        for slot, _ in chunks:
            if self._lengths[slot] + n > self._card.n_ctx:
                raise AskedWrong("context_full", f"{n} tokens do not fit after the {self._lengths[slot]} of slot {slot}.", "Raise --ctx.")
        logits: dict[Slot, npt.NDArray[np.float32]] = {}
        for run in self._runs(chunks):
            self._prefill_run(run, wants_logits, logits)
        self._logits = logits

    def _runs(self, chunks: Sequence[tuple[Slot, Sequence[Token]]]) -> list[list[tuple[Slot, Sequence[Token]]]]:
        """Chunks by streams without a gap; one by one in grouped mode, where each voice decodes alone."""
        runs: list[list[tuple[Slot, Sequence[Token]]]] = []
        for chunk in sorted(chunks, key=lambda chunk: self._streams.of[chunk[0]]):
            follows = bool(runs) and self._streams.of[runs[-1][-1][0]] + 1 == self._streams.of[chunk[0]]
            if follows and self._mixer is not None:
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        return runs

    def _prefill_run(
        self, run: list[tuple[Slot, Sequence[Token]]], wants_logits: bool, logits: dict[Slot, npt.NDArray[np.float32]]
    ) -> None:
        """One decode, rows sequence by sequence: the order in which llama.cpp leaves sequences of equal length."""
        rows, voices = [], []
        for slot, tokens in run:
            at, last = self._lengths[slot], len(tokens) - 1
            rows += [Row(token, at + i, self._streams.of[slot], wants_logits and i == last) for i, token in enumerate(tokens)]
            voices += [self._voices[slot]] * len(tokens)
        _, found = self._mixing.decode(rows, voices)
        for number, (slot, tokens) in enumerate(run):
            self._lengths[slot] += len(tokens)
            row = found[(number + 1) * len(tokens) - 1]
            if row is not None:
                logits[slot] = row.copy()  # the next run's decode overwrites it

    def decode(self, rows: Sequence[tuple[Slot, Token]]) -> DecodeReport:
        slots = [slot for slot, _ in rows]
        self._follow_load()
        self._gather(slots)
        of = self._streams.of
        ordered = sorted(rows, key=lambda row: of[row[0]])
        report, logits = self._mixing.decode(
            [Row(token, self._lengths[slot], of[slot], True) for slot, token in ordered], [self._voices[slot] for slot, _ in ordered]
        )
        for slot in slots:
            self._lengths[slot] += 1
        self._logits = {slot: row for (slot, _), row in zip(ordered, logits, strict=True) if row is not None}
        return report

    def _gather(self, slots: Sequence[Slot]) -> None:
        """Make the speaking slots neighbours, so that they share one pass over the weights. Grouped decodes gain nothing by it."""
        if self._mixer is None:
            return
        for a, b in self._streams.gather(slots, self._lengths):
            idle = self._streams.slot_in[b]
            self._context.swap(a, b, b_is_empty=self._lengths[idle] == 0)
            self._streams.swap(a, b)
            self._n_swaps += 1

    def new_sampler(self, params: SamplingParams) -> Sampler:
        return LlamaSampler(self._model, params, self._candidates)

    def sample(self, slot: Slot, sampler: Sampler) -> Token:
        if not isinstance(sampler, LlamaSampler):
            raise OurBug("internal", "A sampler of another backend.")
        logits = self._logits.get(slot)
        if logits is None:
            raise OurBug("internal", f"Slot {slot} has no logits: it was not in the last decode.")
        return sampler.draw(logits)

    # --- KV of a slot ---------------------------------------------------------------------------------------------

    def n_tokens(self, slot: Slot) -> int:
        return self._lengths[slot]

    def cut(self, slot: Slot, keep: int) -> int:
        if keep < self._lengths[slot]:
            stream = self._streams.of[slot]
            if not self._context.cut(stream, keep):  # then it is all or nothing
                self._context.cut(stream, 0)
                keep = 0
            self._lengths[slot] = keep
            self._logits.pop(slot, None)
        return self._lengths[slot]

    def copy(self, source: Slot, target: Slot) -> None:
        if source == target:
            return
        self._logits.pop(target, None)
        self._context.copy(self._streams.of[source], self._streams.of[target])
        self._lengths[target] = self._lengths[source]
        self._voices[target] = self._voices[source]

    def export(self, slot: Slot) -> bytes:
        return b"".join((self._lengths[slot].to_bytes(_LENGTH_BYTES, "little"), self._context.exported(self._streams.of[slot])))

    def seal(self, *parts: bytes) -> bytes:
        """llama.cpp takes states of other models of the same shapes for its own, and what a disk has spoilt too."""
        card = self._card
        home = f"{api.LIB_VERSION} {card.content_hash} {card.n_ctx} {self._settings.flash_attention}"
        seal = hashlib.blake2b(digest_size=_SEAL_BYTES, key=hashlib.sha256(home.encode()).digest())
        for part in parts:
            seal.update(len(part).to_bytes(8, "little"))
            seal.update(part)
        return seal.digest()

    def restore(self, slot: Slot, blob: bytes) -> int:
        self.cut(slot, 0)
        n_tokens = int.from_bytes(blob[:_LENGTH_BYTES], "little")
        state = memoryview(blob)[_LENGTH_BYTES:]
        if not 0 < n_tokens <= self._card.n_ctx or (self._memory.knows_states and not is_one_sequence(state, n_tokens)):
            return 0
        if self._context.restore(self._streams.of[slot], state, n_tokens):
            self._lengths[slot] = n_tokens
        return self._lengths[slot]


def _sites(model: Model) -> Sites:
    """Every matrix an adapter might touch; the self-check finds out which of them llama.cpp's graph really adapts."""
    base = model.base
    sites = Sites({name: shape for name, shape in base.matrices.items() if name in base.sites})
    if not sites.shapes or len(sites.shapes) > _mixer.MAX_SITES:
        raise WorldFailed("model_unreadable", f"Model '{model.path.name}' has {len(sites.shapes)} matrices that an adapter could touch.")
    return sites


def _choose_mode(
    model: Model, template: object, sites: Sites, settings: EngineSettings, threads: int
) -> tuple[str, abi.OpCodes | None, SelfCheck | None]:
    """(why it is grouped, operation codes when it is mixed, what the self-check found)."""
    if settings.mode == "grouped":
        return "asked for", None, None
    try:
        if settings.n_gpu_layers:
            raise SelfCheckFailed("layers are on a GPU, and the mixer works on the CPU")
        codes = abi.verify()
        return "", codes, self_check(model, template, sites, codes, threads)
    except (abi.AbiMismatch, SelfCheckFailed) as reason:
        if settings.mode == "mixed":
            raise WorldFailed("engine_failed", f"Mixed mode is not possible: {reason}.", "Start with --mode auto.") from reason
        api.log.warning("grouped mode, one decode for each adapter: %s", reason)
        return str(reason), None, None
