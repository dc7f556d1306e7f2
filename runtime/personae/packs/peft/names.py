"""Which matrix of the base a PEFT module is, by its name in the Hugging Face model. Decides names alone: no shapes, no weights.

Only architectures whose matrices llama.cpp's converter carries over whole, row by row, are listed. Where it changes the order of rows
(Q and K of the LLaMA family, whose rotary embedding llama.cpp applies to neighbouring rows and Hugging Face to halves of a head) the rows
of B are put into the same order by convert.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from personae.errors import AskedWrong
from personae.packs.base import OUTPUT, BaseShapes

_DENSE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Phi-3 keeps Q, K and V, and gate and up, in one matrix each, in both worlds and in the same order.
_FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How a family's modules are called in the GGUF file."""

    modules: dict[str, str]  # of a layer: name in Hugging Face -> name in GGUF
    permuted: bool = False  # rows of Q and K


ARCHITECTURES = MappingProxyType(
    {
        "llama": Architecture(_DENSE, permuted=True),  # Mistral, SmolLM and Yi too
        "mistral3": Architecture(_DENSE, permuted=True),
        "smollm3": Architecture(_DENSE, permuted=True),
        "qwen2": Architecture(_DENSE),
        "qwen3": Architecture(_DENSE),
        "gemma": Architecture(_DENSE),
        "gemma2": Architecture(_DENSE),
        "gemma3": Architecture(_DENSE),
        "phi3": Architecture(_FUSED),
    }
)
# Before the layers, depending on which class of the model was trained: `model.`, `language_model.model.`, `model.language_model.`
_LAYER = re.compile(r"(?:(?:model|language_model|text_model)\.){0,3}layers\.([0-9]{1,5})\.([a-z_.0-9]+)")
_HEAD = re.compile(r"(?:(?:model|language_model)\.){0,2}lm_head")
_EXPERTS = re.compile(r"\.(?:experts|block_sparse_moe|shared_expert|router|gate)(?:\.|$)")


def target_of(module: str, base: BaseShapes, adapter: str) -> str:
    """The base's tensor. `module` is named as in the Hugging Face model, without PEFT's own prefix.

    AskedWrong `peft_architecture`, `peft_unknown_module`, `peft_tied_embedding`, `peft_unsupported`.
    """
    architecture = _architecture(base, adapter)
    if _HEAD.fullmatch(module):
        return _output(module, base, adapter)
    found = _LAYER.fullmatch(module)
    short = architecture.modules.get(found[2]) if found else None
    target = f"blk.{int(found[1])}.{short}.weight" if found and short else ""
    if target not in base.sites:
        _refuse(module, target, base, adapter)
    return target


def is_permuted(target: str, base: BaseShapes) -> bool:
    """Whether the rows of this matrix stand in another order than in Hugging Face's model."""
    return ARCHITECTURES[base.architecture].permuted and target.endswith((".attn_q.weight", ".attn_k.weight"))


def _architecture(base: BaseShapes, adapter: str) -> Architecture:
    found = ARCHITECTURES.get(base.architecture)
    if found is None:
        what = f"cannot be converted for the base '{base.name}': the names of architecture {base.architecture!r} are not known here"
        hint = f"Known are {', '.join(ARCHITECTURES)}. For others use llama.cpp's convert_lora_to_gguf.py."
        raise AskedWrong("peft_architecture", f"Adapter '{adapter}' {what}.", hint)
    return found


def _output(module: str, base: BaseShapes, adapter: str) -> str:
    if base.tied:
        what = f"adapts {module!r}, and the base '{base.name}' uses one matrix for embedding and output"
        raise AskedWrong("peft_tied_embedding", f"Adapter '{adapter}' {what}.", "Train without lm_head.")
    if OUTPUT not in base.sites:
        _refuse(module, OUTPUT, base, adapter)
    return OUTPUT


def _refuse(module: str, target: str, base: BaseShapes, adapter: str) -> NoReturn:
    shown = repr(module if len(module) <= 120 else module[:117] + "...")
    if _EXPERTS.search(module):
        what = f"adapts {shown}, a part of a mixture of experts"
        raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what}.", "Train attention and dense layers only.")
    if "embed_tokens" in module:
        raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' adapts the embeddings {shown}.", "Train without embed_tokens.")
    if "norm" in module:
        raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' adapts the norm {shown}.", "Train linear layers only.")
    if "vision" in module:
        raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' adapts {shown}, which sees images.", "Train the language model only.")
    named = f" ('{target}')" if target else ""
    layers = f"{base.n_layers} layers" if base.n_layers else f"{len(base.matrices)} matrices"
    what = f"adapts {shown}{named}, which the base '{base.name}' ({base.architecture}, {layers}) does not have"
    raise AskedWrong("peft_unknown_module", f"Adapter '{adapter}' {what}.", "It was trained on another base; load that.")
