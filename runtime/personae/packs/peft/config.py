"""Reads adapter_config.json: how strong a PEFT adapter is at each module, and whether it is a plain LoRA at all.

Knows no tensors and no base. PEFT has many variants that share the two matrices of a LoRA and compute something else with them, or
that were trained on a base whose weights they changed first. A GGUF file says none of that, so whatever is not `W + scaling * B A` over
an untouched base is refused by the name of its field. That includes fields nobody here knows, when they are set: the next variant will
be one of them.

PEFT's rules, as of 0.18
- scaling = alpha / r, with `use_rslora` alpha / sqrt(r).
- `rank_pattern` and `alpha_pattern` replace r and alpha at modules whose name matches `(.*\\.)?(key)$` from its beginning. The first key
  that matches, in the file's order, counts. The two are looked up apart from each other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from personae.errors import AskedWrong
from personae.patterns import compiled

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 1024 * 1024  # with a pattern for each of 1 000 modules it has about 70 kB
MAX_PATTERNS = 4096
# Patterns times characters of module names. A pattern for each of 900 modules makes half of it; the worst patterns take 10 s for it.
MAX_MATCHING = 50_000_000
MAX_RANK_SAID = 1_000_000  # what can be applied is less, and told apart later
MIN_ALPHA, MAX_ALPHA = 1e-6, 1e6
MAX_NAME_CHARS = 200  # of the base's name, as it is kept

# What makes an adapter something else than a plain LoRA, when set -> what it is, for people.
VARIANTS = {
    "use_dora": "DoRA, which rescales the base's own rows",
    "use_qalora": "QA-LoRA, which averages groups of inputs",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a trained bias beside B",
    "modules_to_save": "whole modules that were trained and saved",
    "trainable_token_indices": "trained embeddings of single tokens",
    "target_parameters": "parameters that are no linear layers, such as experts",
    "layer_replication": "layers of the base used more than once",
    "fan_in_fan_out": "weights that are stored transposed",
    "alora_invocation_tokens": "an activated LoRA, which works from a certain token on",
    "invocation_string": "an activated LoRA, which works from a certain token on",
    "arrow_config": "several adapters that are chosen among for each token",
}
# How training began. These left the base alone; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA took a part out of it that a GGUF cannot put back.
PLAIN_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
# Without effect on what a finished adapter computes, or read below.
HARMLESS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What counts of an adapter_config.json."""

    r: int
    alpha: float
    rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)  # regular expression -> r, the first that matches counts
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    layers: frozenset[int] | None = None  # the only ones it was trained at; None: not restricted
    base_name: str = ""  # the last part of base_model_name_or_path: what comes before may be somebody's folders


@dataclass(frozen=True, slots=True)
class Strength:
    """Of an adapter at one module: PEFT multiplies B A with `alpha / r`."""

    r: int
    alpha: float  # of rsLoRA already times sqrt(r), which makes its scaling alpha / r as well


def read_config(content: bytes, adapter: str) -> PeftConfig:
    """`adapter` is named in errors. AskedWrong `peft_unreadable`, `peft_config` (a value out of range), `peft_unsupported`."""
    table = _parsed(content, adapter)
    _refuse_variants(table, adapter)
    return PeftConfig(
        r=_rank(adapter, "r", table.get("r", 8)),
        alpha=_alpha(adapter, "lora_alpha", table.get("lora_alpha", 8)),
        rslora=_flag(adapter, "use_rslora", table.get("use_rslora")),
        rank_pattern={
            key: _rank(adapter, f"rank_pattern[{_short(key)}]", value) for key, value in _patterns(table, "rank_pattern", adapter)
        },
        alpha_pattern={
            key: _alpha(adapter, f"alpha_pattern[{_short(key)}]", value) for key, value in _patterns(table, "alpha_pattern", adapter)
        },
        layers=_layers(adapter, table.get("layers_to_transform")),
        base_name=_base_name(table.get("base_model_name_or_path")),
    )


def strengths(config: PeftConfig, modules: Sequence[str], adapter: str) -> dict[str, Strength]:
    """For each of `modules`, named as in the base model. AskedWrong `peft_unsupported` for a pattern that cannot be used here."""
    ranks = _first_matches(config.rank_pattern, modules, "rank_pattern", adapter)
    alphas = _first_matches(config.alpha_pattern, modules, "alpha_pattern", adapter)
    return {module: _strength(config, ranks.get(module, config.r), alphas.get(module, config.alpha)) for module in modules}


def _strength(config: PeftConfig, r: int, alpha: float) -> Strength:
    return Strength(r, alpha * math.sqrt(r) if config.rslora else alpha)


def _first_matches(patterns: Mapping[str, _Number], modules: Sequence[str], name: str, adapter: str) -> dict[str, _Number]:
    """Module -> value of the first pattern that matches it; without an entry where none does.

    One pattern is compiled at a time, and a module that has its value is not looked at again: patterns from strangers stay small in memory.
    """
    if len(patterns) * sum(map(len, modules)) > MAX_MATCHING:
        what = f"has {len(patterns)} keys in {name} for {len(modules)} modules, more than can be matched in good time"
        raise AskedWrong("peft_config", f"Adapter '{adapter}' {what}.", f"Write fewer keys into {name}.")
    found: dict[str, _Number] = {}
    left = list(modules)
    for key, value in patterns.items():
        try:
            pattern = compiled(rf"^(.*\.)?({key})$", case_sensitive=True)
        except ValueError as fault:
            what = f"has the key {_short(key)} in {name}, which {fault}"
            raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what}.", "Write the names of the modules instead.") from None
        matching = {module for module in left if pattern.search(module)}
        found.update(dict.fromkeys(matching, value))
        left = [module for module in left if module not in matching]
    return found


# --- the file -----------------------------------------------------------------------------------------------------


def _parsed(content: bytes, adapter: str) -> dict[str, Any]:
    if len(content) > MAX_CONFIG_BYTES:
        _unreadable(adapter, f"it has {len(content)} bytes, more than {MAX_CONFIG_BYTES}")
    try:
        table = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except RecursionError:
        _unreadable(adapter, "it is nested too deeply")
    except ValueError as fault:  # not UTF-8, no JSON, NaN, a number with thousands of digits
        _unreadable(adapter, str(fault))
    if not isinstance(table, dict):
        _unreadable(adapter, "it is JSON, but no object")
    return table


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _refuse_variants(table: Mapping[str, Any], adapter: str) -> None:
    kind = table.get("peft_type")
    if kind != "LORA":
        _unsupported(adapter, "peft_type", f"is of the kind {_short(kind)}", "Only LoRA can be imported.")
    for name, what in VARIANTS.items():
        if table.get(name):
            _unsupported(adapter, name, f"uses {what}", f"Train it without {name}, or merge it and extract a plain LoRA.")
    if table.get("bias") not in (None, "none"):
        _unsupported(adapter, "bias", "trains biases of the base", "Train it with bias = 'none'.")
    _refuse_beginning(table.get("init_lora_weights"), adapter)
    for name, value in table.items():
        if value and name not in HARMLESS:
            what = "sets a field that is not known here and may change what it computes"
            _unsupported(adapter, _short(name), what, f"If it changes nothing, take it out of {CONFIG}.")


def _refuse_beginning(beginning: object, adapter: str) -> None:
    if not any(beginning is plain or (isinstance(plain, str) and beginning == plain) for plain in PLAIN_BEGINNINGS):
        what = f"began as {_short(beginning)}, which may have changed the base's weights"
        hint = "Save it with path_initial_model_for_weight_conversion, which makes a plain LoRA of it."
        _unsupported(adapter, "init_lora_weights", what, hint)


def _patterns(table: Mapping[str, Any], name: str, adapter: str) -> Iterable[tuple[str, Any]]:
    found = table.get(name) or {}
    if not isinstance(found, dict):
        _out_of_range(adapter, name, found, "an object")
    if len(found) > MAX_PATTERNS:
        _out_of_range(adapter, name, f"{len(found)} keys", f"at most {MAX_PATTERNS} keys")
    return found.items()


def _rank(adapter: str, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK_SAID:
        _out_of_range(adapter, name, value, f"a whole number from 1 to {MAX_RANK_SAID}")
    return value


def _alpha(adapter: str, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not MIN_ALPHA <= value <= MAX_ALPHA:
        _out_of_range(adapter, name, value, f"a number from {MIN_ALPHA} to {MAX_ALPHA:.0f}")
    return float(value)


def _flag(adapter: str, name: str, value: object) -> bool:
    if value is not None and not isinstance(value, bool):
        _out_of_range(adapter, name, value, "true or false")
    return bool(value)


def _layers(adapter: str, value: object) -> frozenset[int] | None:
    if value is None:
        return None
    found = value if isinstance(value, list) else [value]
    if any(not isinstance(layer, int) or isinstance(layer, bool) for layer in found):
        _out_of_range(adapter, "layers_to_transform", value, "a whole number or a list of them")
    return frozenset(found) or None


def _base_name(value: object) -> str:
    """Without folders, on one line; "" when there is none. "meta-llama/Llama-3.2-1B" is Llama-3.2-1B."""
    parts = [part for part in re.split(r"[/\\]", value if isinstance(value, str) else "") if part.strip(" .")]
    text = "".join(char if char.isprintable() else " " for char in (parts or [""])[-1])
    return text.strip()[:MAX_NAME_CHARS]


# --- errors -------------------------------------------------------------------------------------------------------


def _unreadable(adapter: str, why: str) -> NoReturn:
    raise AskedWrong("peft_unreadable", f"{CONFIG} of adapter '{adapter}' cannot be read: {why}.", "Save the adapter again.")


def _unsupported(adapter: str, name: str, what: str, hint: str) -> NoReturn:
    raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what} ({name} in {CONFIG}): a GGUF adapter cannot express that.", hint)


def _out_of_range(adapter: str, name: str, value: object, wanted: str) -> NoReturn:
    what = f"{CONFIG} of adapter '{adapter}' states {name} = {_short(value)}, where {wanted} is needed"
    raise AskedWrong("peft_config", f"{what}.", "Save the adapter again, or put the number right that it was trained with.")


def _short(value: object) -> str:
    """Small and printable whatever it is: JSON holds halves of characters, and numbers too long to write out."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
