"""What the memory of this model can do, found out when it starts. Decides nothing about a slot."""

from __future__ import annotations

from dataclasses import dataclass

from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Mixing
from personae.engine.llama.model import Model
from personae.engine.llama.state_form import is_one_sequence

_NUMBER_BYTES = 2  # the cache is F16
_PROBE = 3  # tokens


@dataclass(frozen=True, slots=True)
class Memory:
    can_cut: bool  # the tail of a sequence can be forgotten alone, however long it is
    can_cut_moved: bool  # also after an export and restore
    token_bytes: int  # K and V of one token over all layers; 0: not known
    knows_states: bool  # an exported state can be looked at before llama.cpp takes it


def look_at_memory(model: Model, context: Context, mixing: Mixing) -> Memory:
    """Fills stream 0 and empties it again."""
    mixing.decode([Row(0, position, 0, False) for position in range(_PROBE)], [()] * _PROBE)
    knows_states = is_one_sequence(context.exported(0), _PROBE)
    can_cut = context.cut(0, _PROBE - 1)
    context.cut(0, 0)
    # a recurrent memory may keep its last few states, and then says yes to so short a tail: the model is asked too
    can_cut = can_cut and not model.is_recurrent
    return Memory(can_cut, can_cut and not model.window, _token_bytes(model), knows_states)


def _token_bytes(model: Model) -> int:
    """0 where a layer keeps something else, or not under the usual names."""
    if model.is_recurrent:
        return 0
    names = [f"blk.{layer}.{name}.weight" for layer in range(model.n_layer) for name in ("attn_k", "attn_v")]
    widths = [model.base.matrices.get(name, (0, 0))[1] for name in names]
    return sum(widths) * _NUMBER_BYTES if all(widths) else 0
