"""What a writer would want to be told of a pack that loads: probably a mistake, or not yet as good as it could be.

Decides nothing about whether a pack can be used (packs/loader.py does) and knows no model: what needs a vocabulary stands in cli/pack. Each
part looks at one kind of thing; all that they find are warnings, but for an adapter whose weights cannot be applied.

    pack        all of it that needs no weights, in one list
    texts       what is written: placeholders, control tokens, examples that speak for somebody else, stop texts
    lore        lore that cannot come to mind, or need not be asked for
    lines       lines.jsonl, which a voice is trained on
    files       the files beside the manifest
    places      in which file each of those is written
    adapters    the weights themselves; reads all of them
"""
