"""Character cards, which people have by the thousand: v1, v2, v3 and what follows, as JSON, PNG and CHARX.

`read_card` reads any of them, `draft_of` makes a pack of it (`packs.draft.write_pack` writes that), `card_of` and `write_card` make a card
of a pack. The card that a pack was made from stays in it as card.json, so that a card that goes in and comes out is the same card.
"""

from __future__ import annotations

from personae.packs.cards.card import Card
from personae.packs.cards.from_pack import card_of
from personae.packs.cards.reading import card_from_bytes, read_card
from personae.packs.cards.to_pack import draft_of
from personae.packs.cards.writing import write_card

__all__ = ["Card", "card_from_bytes", "card_of", "draft_of", "read_card", "write_card"]
