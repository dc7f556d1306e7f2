"""Characters and their adapters as people hand them over: reads and checks folders and GGUF files, and knows no engine and no wire.

Import from the modules: `loader` (packs), `manifest` (character.toml), `lora`, `base` and `gguf` (files). Nothing is re-exported
here, so that the engine process, which wants `lora` alone, does not pay for pydantic.
"""
