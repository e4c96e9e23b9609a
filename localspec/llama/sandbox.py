"""The Jinja environment of chat templates: what they are used to find, and limits for those that mean harm.

A chat template is a program out of a downloaded file. It runs without access to Python's objects, and it has to
come to an end: loops, macros, calls, filters and the text it builds are counted against a budget.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_SECONDS = 10.0  # of CPU, for what looks cheap and is not: comparing and slicing long texts
_STEPS_PER_LOOK = 16
_WIDTHS = {"%": re.compile(r"%[^a-zA-Z%]*(\*|\d{6})"), "format": re.compile(r"\{[^{}]*:[^{}]*\d{6}")}
_WIDTHS["format_map"] = _WIDTHS["format"]
_SIZED = ("center", "indent", "tojson", "truncate")  # a number given to them makes a text so long
# They make much out of little, or take long for it, and no chat template needs them.
_LEFT_OUT = ("batch", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr")


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
        self.filters = {
            name: self._metered(name, function)
            for name, function in self.filters.items()
            if name not in _LEFT_OUT
        }
        del self.globals["lipsum"]
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = self._strftime
        self._now = datetime.now()
        self._steps = self._left = _STEPS
        self._takes = 0
        self._until = time.thread_time() + _SECONDS

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
        self._until = time.thread_time() + _SECONDS
        parts = []
        for part in template.generate(variables):
            self.take(len(part) // _CHARS_PER_STEP)
            parts.append(part)
        return "".join(parts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call of a template passes here."""
        __self.take(1)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # Jinja wraps `format`
        if isinstance(owner, str):
            _check_numbers((*args, *kwargs.values()))
            _check_growth(__obj.__name__, owner, args)
        result = super().call(__context, __obj, *args, **kwargs)
        return __self._weigh(result) if isinstance(result, str) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that can make much out of little."""
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(many, "__len__") and len(many) * times > _LONGEST:
                    raise LimitError(f"a text of more than {_LONGEST} characters")
        elif operator == "**" and abs(right) > 64:
            raise LimitError("a number of enormous size")
        elif operator == "%" and isinstance(left, str):
            _check_growth("%", left, ())
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
        self._takes += 1
        if self._takes % _STEPS_PER_LOOK == 0 and time.thread_time() > self._until:
            raise LimitError(f"no end after {_SECONDS:.0f} seconds")

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose work is counted by the size of what goes in and what comes out."""
        value = 1 if hasattr(function, "jinja_pass_arg") else 0  # before it comes the environment or the like

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[value], Iterator):  # of which a filter may take any number
                args = (*args[:value], self._weigh(list(args[value])), *args[value + 1 :])
            self._weigh(args[value])
            given = (*args[value + 1 :], *kwargs.values())
            if name in _SIZED:
                _check_numbers(given)
            _check_growth("%" if name == "format" else name, args[value], given)
            return self._weigh(function(*args, **kwargs))

        return metered

    def _strftime(self, form: str) -> str:
        return self._now.strftime(form)

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.take(len(numbers))
        return numbers


def _check_numbers(values: Iterable[Any]) -> None:
    inside = [each for value in values for each in (value.values() if isinstance(value, dict) else (value,))]
    if any(isinstance(value, int) and value > _LONGEST_ARGUMENT for value in inside):
        raise LimitError(f"a call with a number above {_LONGEST_ARGUMENT}")


def _check_growth(name: str, value: Any, given: tuple[Any, ...]) -> None:
    """Refuse what would become too long before it takes the memory.

    Args:
        name: Of a filter, or of a method of a string; `%` = the operator.
        value: What it works on.
        given: What else it is given.
    """
    texts = [each for each in given if isinstance(each, str)]
    size = 0
    if name in _WIDTHS and isinstance(value, str) and _WIDTHS[name].search(value):
        size = _LONGEST + 1  # a width that somebody chose to be enormous
    elif name == "replace" and isinstance(value, str) and len(texts) > 1:
        size = len(value) + value.count(texts[0]) * len(texts[1])
    elif name == "join" and isinstance(value, str):  # the method: between the texts of a list
        items = given[0] if given and hasattr(given[0], "__len__") else ()
        size = sum(len(each) + len(value) for each in items if isinstance(each, str))
    elif name == "join" and hasattr(value, "__len__"):
        between = len(texts[0]) if texts else 0
        size = sum((len(each) if hasattr(each, "__len__") else 1) + between for each in value)
    if size > _LONGEST:
        raise LimitError(f"a text of more than {_LONGEST} characters")


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
