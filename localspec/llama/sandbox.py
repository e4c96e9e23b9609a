"""The Jinja environment of chat templates: what they are used to find, and limits for those that mean harm.

A chat template is a program out of a downloaded file. It runs without access to Python's objects, and it has to
come to an end: loops, macros, calls and the text it builds are counted against a budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# A long chat under a wordy template takes some ten thousand steps; a million take a second or two.
_STEPS = 1_000_000
_STEPS_PER_CALL = 32
_LONGEST = 16_000_000
_CHARS_PER_STEP = 256
_LONGEST_ARGUMENT = 100_000


class RefusalError(TemplateError):
    """The template itself called `raise_exception`; the message is its own."""


class LimitError(TemplateError):
    """The template takes too long or builds too much."""


class _Tags(Extension):
    """`{% generation %}`, which marks answers for training and means nothing here, and the counted operations."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over, counted."""
        take = cast("PromptEnvironment", self.environment).take
        for item in items:
            take(1)
            yield item

    def enter(self) -> str:
        """The first thing that a macro does; the environment counts it as a call."""
        return ""

    def concat(self, *parts: object) -> str:
        """The `~` operator."""
        return "".join(map(str, parts))


class _Meter(NodeTransformer):
    """Puts a counter into everything that can repeat, and takes over `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _call("each", [cast(nodes.Expr, node.iter)], node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        self.generic_visit(node)
        _count(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        self.generic_visit(node)
        _count(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _call("concat", node.nodes, node)


def _call(name: str, arguments: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    # An attribute of the extension, unlike a global name, cannot be replaced by the template.
    function = nodes.ExtensionAttribute(_Tags.identifier, name, lineno=at.lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=at.lineno)


def _count(node: nodes.Macro | nodes.CallBlock) -> None:
    node.body.insert(0, nodes.ExprStmt(_call("enter", [], node), lineno=node.lineno))


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as `transformers` sets it up for chat templates, sandboxed and with a budget."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        # Without the optimizer: it would evaluate constant expressions while compiling, outside of the budget.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Tags, loopcontrols], optimized=False
        )
        self.filters["tojson"] = _to_json
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = self._strftime
        self._now = datetime.now()
        self._steps = self._left = _STEPS

    def load(self, source: str) -> tuple[Template, frozenset[str], str]:
        """Compile a template.

        Args:
            source: Jinja.

        Returns:
            The template, the names it expects to be given, and all its literal text.

        Raises:
            jinja2.TemplateSyntaxError: It is no Jinja.
            RecursionError, SyntaxError: It is nested too deeply for Python.
        """
        tree = self.parse(source)
        expects = frozenset(find_undeclared_variables(tree))
        literals = [node.data for node in tree.find_all(nodes.TemplateData)]
        literals += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
        _Meter().visit(tree)
        tree.set_environment(self)
        code = self.compile(tree)
        return Template.from_code(self, code, self.make_globals(None)), expects, "\n".join(literals)

    def run(self, template: Template, variables: Mapping[str, Any], *, now: datetime, scale: int) -> str:
        """Render within the budget.

        Args:
            template: From `load`.
            variables: What the template is given.
            now: The time that it is told.
            scale: Number of messages: some templates look at all of them for each of them.

        Raises:
            LimitError: The budget is used up.
            Exception: Whatever goes wrong inside the template; `RefusalError` if it says so itself.
        """
        self._now = now
        self._steps = self._left = _STEPS + 10 * scale * scale
        parts = []
        for part in template.generate(variables):
            self.take(len(part) // _CHARS_PER_STEP)
            parts.append(part)
        return "".join(parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call of a template passes here."""
        __self.take(1)
        if any(isinstance(value, int) and value > _LONGEST_ARGUMENT for value in (*args, *kwargs.values())):
            raise LimitError(f"a call with a number above {_LONGEST_ARGUMENT}")
        result = super().call(__context, __obj, *args, **kwargs)
        return __self._weigh(result) if isinstance(result, str) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make much out of little."""
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(many, "__len__") and len(many) * times > _LONGEST:
                    raise LimitError(f"a text of more than {_LONGEST} characters")
        elif (operator == "**" and abs(right) > 64) or (
            operator == "%" and isinstance(left, str) and re.search(r"\*|\d{6}", left)
        ):
            raise LimitError("a number or a text of enormous size")
        return self._weigh(super().call_binop(context, operator, left, right))

    def _weigh(self, value: Any) -> Any:
        if hasattr(value, "__len__"):
            if len(value) > _LONGEST:
                raise LimitError(f"a text of more than {_LONGEST} characters")
            self.take(len(value) // _CHARS_PER_STEP)
        elif isinstance(value, int) and value.bit_length() > 256:
            raise LimitError("a number of enormous size")
        return value

    def take(self, steps: int) -> None:
        """Use up some of the budget.

        Raises:
            LimitError: It is used up.
        """
        self._left -= steps
        if self._left < 0:
            raise LimitError(f"no end after {self._steps} steps")

    def _strftime(self, form: str) -> str:
        return self._now.strftime(form)

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.take(len(numbers))
        return numbers


def _raise(message: object = "") -> None:
    raise RefusalError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models have never seen.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
