"""The fence may end a template, but never change what it writes: the oracle is jinja2's own sandbox."""

from __future__ import annotations

from datetime import datetime

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from personae.prompt.sandbox import Sandbox, TemplateRefused

VARIABLES = {"messages": [{"role": "user", "content": "a<b"}, {"role": "assistant", "content": "c"}], "n": 3, "nothing": None}


def rendered(template: str) -> str:
    return Sandbox(template, lambda: datetime(2031, 5, 4)).run(VARIABLES)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ loop.index }}{{ m.role ~ n ~ nothing ~ missing }}{% else %}none{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ loop.last }}{{ m.content }}{% else %}none{% endfor %}",
        "{% for m in [] %}x{% else %}none{% endfor %}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for m in [1, [2, [3]]] recursive %}{{ loop(m) if m is iterable else m }}{% endfor %}",
        "{% macro f(x, y=2) %}{{ x + y }}{{ caller() if caller else '' }}{% endmacro %}{{ f(1) }}{% call f(2, y=3) %}in{% endcall %}",
        "{% set ns = namespace(k=0) %}{% for m in messages %}{% set ns.k = ns.k + 1 %}{% endfor %}{{ ns.k }}",
        "{{ 7 % 4 }}{{ 2 ** 5 }}{{ '%s!' % n }}{{ ('x' ~ 1) + 'y' }}",
        "{% block b %}in {{ n }}{% endblock %}{% set t %}set {{ n }}{% endset %}{{ t | trim }}{{ 'ab' * 3 }}{{ [1] + [2] }}",
        "  {% if n %}\n  yes\n  {% endif %}\n{{ none }}{{ 1.5 }}{{ true }}{{ messages[0].content.split('<')[-1] }}",
    ],
)
def test_fence_changes_nothing_a_template_writes(template: str) -> None:
    oracle = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert rendered(template) == oracle.from_string(template).render(VARIABLES)


def test_template_finds_the_names_that_hugging_face_gives_it() -> None:
    assert rendered("{{ strftime_now('%Y-%m-%d') }} {{ messages[0] | tojson }} {{ {'k': 'é'} | tojson(indent=1) }}") == (
        '2031-05-04 {"role": "user", "content": "a<b"} {\n "k": "é"\n}'
    )
    assert (
        rendered(
            "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}"
        )
        == "user"
    )


def test_what_a_template_raises_is_told_in_one_line() -> None:
    with pytest.raises(TemplateRefused, match=r"^No system here$"):
        rendered("{{ raise_exception('No system\n here') }}")
    with pytest.raises(TemplateRefused, match=r"^ZeroDivisionError: "):
        rendered("{{ n // (n - 3) }}")


def test_each_rendering_has_limits_of_its_own() -> None:
    sandbox = Sandbox("{% for i in range(15000) %}x{% endfor %}", datetime.now)
    assert len(sandbox.run({})) == len(sandbox.run({})) == 15_000


def test_slow_template_is_ended_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox("{% for i in range(3) %}{% endfor %}", datetime.now)
    monkeypatch.setattr("personae.prompt.sandbox.RENDER_SECONDS", -1.0)
    with pytest.raises(TemplateRefused, match="beyond all measure"):
        sandbox.run({})
