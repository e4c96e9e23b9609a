"""Commands that can be pasted into the shell of the system that we run on."""

from __future__ import annotations

import pytest

from localspec.models import text


@pytest.mark.parametrize(
    ("system", "lasting", "once", "gone", "shown"),
    [
        ("posix", "export A='x y'", "A='x y' localspec pull o/r", "unset A B", "env | grep -i proxy"),
        (
            "nt",
            "$env:A = 'x y'",
            "$env:A = 'x y'; localspec pull o/r",
            "Remove-Item Env:A, Env:B",
            "Get-ChildItem Env:*proxy*",
        ),
    ],
)
def test_variables(
    monkeypatch: pytest.MonkeyPatch, system: str, lasting: str, once: str, gone: str, shown: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(text.os, "name", system)
        found = (
            text.with_variable("A", "x y"),
            text.with_variable("A", "x y", "localspec pull o/r"),
            text.without_variables("A", "B"),
            text.variables_like("proxy"),
        )
    assert found == (lasting, once, gone, shown)
