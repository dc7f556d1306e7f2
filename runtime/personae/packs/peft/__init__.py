"""PEFT adapters, as people train and share them, made into the GGUF adapters that packs hold. Imports no torch and runs nothing of theirs.

    read_peft(folder)         the two files -> PeftAdapter     adapter.py, with config.py and tensors.py
    to_lora(adapter, base)    for one base -> ConvertedLora    convert.py, with names.py
    write(converted, path)    a GGUF file

Everything a GGUF adapter cannot express exactly is refused with a `peft_*` code that names it.
"""

from personae.packs.peft.adapter import PeftAdapter, peft_from_bytes, read_peft
from personae.packs.peft.convert import ConvertedLora, manifest_tables, to_lora, write

__all__ = ["ConvertedLora", "PeftAdapter", "manifest_tables", "peft_from_bytes", "read_peft", "to_lora", "write"]
