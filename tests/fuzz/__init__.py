"""Whether the readers of what strangers send hold out: manifests, archives, cards, adapters in both forms.

    targets      what is fuzzed: bytes in, and nothing may come out but a result or AskedWrong
    seeds        something of each kind that is right, written anew at every start
    mutations    how bytes are spoiled, by chance from a seed: the plain engine, which `make test` uses for a minute
    corpus/      inputs that reached new code, kept: found by `python -m tests.fuzz` (coverage-guided, with atheris), replayed by every test

python -m tests.fuzz --minutes 60 [--only NAME ...]     shares the time among the targets, two at once; new finds go into the corpus
"""
