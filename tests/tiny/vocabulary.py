"""The vocabulary all tiny models share: a byte-level BPE of 300 tokens. Decides ids and texts; knows no weights.

Every byte is a token, so any text can be written and read back; a few merges make tokens longer than a byte, so that a cut inside a word
or a character can be tested. Control tokens are typed CONTROL: text that spells them is only parsed where the caller asks for it.
"""

from __future__ import annotations

from gguf import GGUFWriter, TokenType

BOS, IM_START, IM_END = 0, 1, 2
CONTROL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE = len(CONTROL_TOKENS)  # the token of byte b is FIRST_BYTE + b

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# "Ġ" is how byte-level BPE spells a space.
MERGES = (
    *("t h", "h e", "i n", "e r", "a n", "o n", "r e", "o u", "n d", "s t", "e n", "o r", "i s", "a r", "l l", "e a", "i t", "a t"),
    *("h i", "o w", "l d", "in g", "an d", "y ou", "v er", "Ġ t", "Ġ a", "Ġ s", "Ġ w", "Ġ th", "Ġth e", "Ġ and", "Ġ you", "Ġ i"),
    *("Ġ o", "Ġo f", "Ġ m", "Ġ b", "Ġ he", "Ġ f", "Ġ c"),
)


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte: itself where it is printable Latin-1, otherwise the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


TOKENS = (*CONTROL_TOKENS, *byte_symbols(), *(merge.replace(" ", "") for merge in MERGES))
N_VOCAB = len(TOKENS)


def speakable(token: int) -> float:
    """How loud a token may be, 0..1: plain text most, control tokens least, so that random weights write something to read."""
    if token < FIRST_BYTE:
        return 0.3
    byte = token - FIRST_BYTE
    return 1.0 if byte >= 256 or byte in (0x0A, *range(0x20, 0x7F)) else 0.7


def add_vocabulary(writer: GGUFWriter, *, chat_template: str | None, adds_bos: bool) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([TokenType.CONTROL if token < FIRST_BYTE else TokenType.NORMAL for token in range(N_VOCAB)])
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(IM_END)
    writer.add_eot_token_id(IM_END)
    writer.add_add_bos_token(adds_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
