"""Runs a chat template from a model file. Decides what it may use and how much; refuses to know what the rendered text means.

A template is a program from the internet. jinja2's immutable sandbox keeps it away from Python's internals, files and our objects.
What the sandbox does not bound is work, and a template runs before the service is ready, so each rendering has limits of its own:

- every loop pass and macro call costs, every character written costs, and MAX_WORK ends it (so does RENDER_SECONDS, checked there);
- `+`, `*`, `**`, `%` and `~` refuse operands and results beyond MAX_VALUE; jinja2 itself refuses ranges beyond 100,000.

Not bounded: one single call that allocates a great deal (`"x".ljust(10000000000)`). Whoever runs a model file trusts it that far:
its weights alone could take as much.

The names a template may expect are those of Hugging Face's apply_chat_template, for which they are all written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TEMPLATE = 262_144  # characters; the largest in use, with tools in five formats, have about 20,000
MAX_WORK = 2_000_000  # a real template's longest trial takes about 20,000
PASS_COST = 100  # work of one loop pass or macro call, beside the literal text in it
MAX_VALUE = 1_000_000  # characters, items, or bits of a number, that an operator may take or make
RENDER_SECONDS = 5.0  # for what is slow without looping in the template (a sum over a range, in a loop)


_SEQUENCE = (str, bytes, list, tuple)
_WIDE_FORMAT = re.compile(r"\d{4}|\*")  # a width that only an attack needs


class TemplateRefused(Exception):  # noqa: N818
    """This template cannot be used; the message says why. Never leaves the package."""


class Sandbox(ImmutableSandboxedEnvironment):
    """One template, compiled. `now` is read once: the date in a prompt may not change in mid-talk, or the KV prefix is lost."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=self._count_written,
        )
        started = now()
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_raise_exception, strftime_now=started.strftime)
        self._work_left, self._deadline = MAX_WORK, time.monotonic() + RENDER_SECONDS
        if len(source) > MAX_TEMPLATE:
            raise TemplateRefused(f"it is {len(source)} characters long, more than {MAX_TEMPLATE}")
        self._template = _guarded(lambda: self.from_string(_Fence().visit(self.parse(source))))

    def run(self, variables: Mapping[str, Any]) -> str:
        """The rendered text. TemplateRefused for everything a template can do wrong, its own raise_exception included."""
        self._work_left, self._deadline = MAX_WORK, time.monotonic() + RENDER_SECONDS
        text: str = _guarded(lambda: self._template.render(variables))
        return text

    def spend(self, work: int) -> bool:
        """Called by the fence in loops and macros; always True, so that it can stand in a condition."""
        self._work_left -= work
        if self._work_left < 0 or time.monotonic() > self._deadline:
            raise SecurityError("it loops or writes beyond all measure")
        return True

    def tilde(self, *values: Any) -> str:
        """The `~` operator."""
        return "".join(_bounded(str(value)) for value in values)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _would_explode(operator, left, right):
            raise SecurityError(f"the operator {operator} with operands of this size")
        return _bounded(super().call_binop(context, operator, _bounded(left), _bounded(right)))

    def _count_written(self, value: Any) -> str:
        text = str(value)
        self.spend(len(text))
        return text


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what is trained on; for us it is its body."""

    tags = {"generation"}  # noqa: RUF012  declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Fence(NodeTransformer):
    """Puts `spend` wherever a template can repeat itself, and `tilde` in the place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self._fence(node)
        if node.test is not None:  # a pass that the condition leaves out is a pass too
            node.test = nodes.And(_spend(PASS_COST), node.test)
        return node

    def _fence(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        literal = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_spend(PASS_COST + literal)))
        fenced: nodes.Node = node
        return fenced

    visit_Macro = visit_CallBlock = visit_Block = _fence  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("tilde", node.nodes)


def _spend(work: int) -> nodes.Call:
    return _call("spend", [nodes.Const(work)])


def _call(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


def _guarded(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as refusal:  # a template can raise whatever Python can: each means that it cannot be used
        raise TemplateRefused(_in_a_line(refusal)) from refusal


def _in_a_line(refusal: Exception) -> str:
    text = " ".join(str(refusal).split())[:200]
    return text if isinstance(refusal, TemplateError) and text else f"{type(refusal).__name__}: {text}"


def _would_explode(operator: str, left: Any, right: Any) -> bool:
    """Whether the result must be refused before it is made. What is merely large is refused afterwards."""
    if operator == "**":
        return bool(abs(right) > 64 or abs(left) > 2**32)
    if operator == "*" and isinstance(left, _SEQUENCE) != isinstance(right, _SEQUENCE):
        sequence, times = (left, right) if isinstance(left, _SEQUENCE) else (right, left)
        return bool(len(sequence) * times > MAX_VALUE)
    return operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left) is not None


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, _SEQUENCE) else 1


def _bounded(value: Any) -> Any:
    if _size(value) > MAX_VALUE:
        raise SecurityError("a value of this size")
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """As Hugging Face has it: not escaped for HTML, not confined to ASCII."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)
