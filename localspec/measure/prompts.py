"""What is asked when something is measured: fixed prompts of four kinds, fixed questions, and a person's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UsageError
from localspec.models.text import shell_word
from localspec.worker.protocol import Message

SEED = 1234
"""The same text in every bench, unless somebody names another seed."""

_LARGEST = 1_000_000  # characters of a prompt file


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to ask. Prompts of one kind are reported together."""

    kind: str
    text: str
    system: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer."""
        opening = (Message("system", self.system),) if self.system else ()
        return (*opening, Message("user", self.text))

    @property
    def digest(self) -> str:
        """A short name of the exact text, so that two results can be told to be of the same prompts."""
        return hashlib.sha256(f"{self.system}\0{self.text}".encode()).hexdigest()[:12]


_CODE = """\
Write a Python module `inventory.py` for a small warehouse.

It needs:
- a dataclass `Item` with sku, name, quantity, unit price in cents, and a set of tags;
- a class `Inventory` with add, remove, move_stock, find_by_tag, low_stock(threshold), and total_value;
- errors of its own for an unknown sku and for too little stock;
- loading from and saving to a CSV file, tolerant of a missing tags column;
- type hints and a one-line docstring for every public function;
- at the end, a full set of pytest tests for all of it.

Give the whole module and the tests, without explanations in between."""

_PROSE = """\
Write a story of about 900 words for grown-up readers. An old lighthouse keeper on a northern island learns that the \
light will be automated in spring. Over one winter night, with a storm coming in, he writes a letter to the daughter \
he has not spoken to for eleven years. Tell it in the past tense and the third person, with concrete detail about the \
sea, the machinery and the house, with little dialogue, and let the ending stay open."""

_REPORT = """\
Minutes of the operations meeting, Tuesday 14 May, 09:30, room 2.14

Present: Ingrid Solberg (chair), Tomasz Wieczorek, Amara Okafor, Luis Ferreira, Hanne Vik (minutes).

The chair opened with the incident of 9 May. Between 02:10 and 03:55 the order service refused 1,184 requests \
because the connection pool of the database had been reduced from 80 to 20 in the deployment of the evening before. \
Tomasz Wieczorek explained that the new value came from a template for test systems. He restored the old value at \
03:51. Amara Okafor will add a check to the pipeline that compares pool sizes with those in production; it is due on \
24 May. Luis Ferreira asked for an alarm on refused connections, which Tomasz Wieczorek will set up by 17 May.

The supplier Nordlys Kabel AS announced a price rise of 6.5 percent from 1 July. Last year 412,000 kroner were spent \
there. Hanne Vik has asked two others for offers: Fjordnett (reply by 22 May) and Elektro Vest (replied, 4 percent \
below the present price, delivery in three weeks instead of one). The decision is postponed to 28 May; Ingrid Solberg \
will prepare it.

The move of the archive to the second data centre is 70 percent done: 3.2 of 4.6 terabytes have been copied, at about \
180 gigabytes a night. Luis Ferreira expects the end on 23 May. The old shelves are to be switched off on 31 May at \
the earliest, after a restore test that Amara Okafor plans for 29 May. The power saved is estimated at 2.1 kilowatts.

Any other business: the summer party is on 21 June; Hanne Vik collects names until 7 June. The next meeting is on 28 \
May at 09:30 in room 2.14."""

_EXTRACTION = f"""\
Read the minutes below. List every task, date, number and decision in them as JSON: an array of objects with the keys \
"topic", "person", "what", "due", and "quote", where "quote" is the exact sentence of the minutes that says so. Leave \
nothing out and invent nothing. Give the JSON only.

{_REPORT}"""

_SOURCE = """\
import csv
import sys
from datetime import datetime


def read_rows(path):
    rows = []
    with open(path) as handle:
        for row in csv.DictReader(handle):
            row["amount"] = float(row["amount"])
            row["date"] = datetime.strptime(row["date"], "%Y-%m-%d")
            rows.append(row)
    return rows


def by_month(rows):
    totals = {}
    for row in rows:
        key = row["date"].strftime("%Y-%m")
        if key not in totals:
            totals[key] = 0.0
        totals[key] += row["amount"]
    return totals


def by_customer(rows):
    totals = {}
    for row in rows:
        key = row["customer"]
        if key not in totals:
            totals[key] = 0.0
        totals[key] += row["amount"]
    return totals


def largest(totals, count):
    pairs = sorted(totals.items(), key=lambda pair: pair[1], reverse=True)
    return pairs[:count]


def print_table(title, pairs):
    print(title)
    print("-" * len(title))
    for key, amount in pairs:
        print(f"{key:<24} {amount:>12.2f}")
    print()


def main():
    if len(sys.argv) != 2:
        print("usage: report.py FILE.csv")
        return 2
    rows = read_rows(sys.argv[1])
    print_table("Sales by month", sorted(by_month(rows).items()))
    print_table("Best customers", largest(by_customer(rows), 10))
    return 0


if __name__ == "__main__":
    sys.exit(main())
"""

_EDIT = f"""\
Change this script: rename the variable `totals` to `sums` everywhere, rename `read_rows` to `load_sales`, and use \
`with open(path, newline="", encoding="utf-8")`. Change nothing else. Print the complete script again.

```python
{_SOURCE}```"""

BUILT_IN = (
    Prompt("code", _CODE),
    Prompt("prose", _PROSE),
    Prompt("extraction", _EXTRACTION),
    Prompt("edit", _EDIT),
)
"""Four kinds, from text that nobody can guess to text that stands in the prompt already."""

QUESTIONS = tuple(
    Prompt("question", text)
    for text in (
        "Why is the sky blue during the day and red at sunset? Answer in one paragraph.",
        "A train leaves at 14:35 and arrives at 18:10, with a stop of 25 minutes. How long does it move?",
        "Write a Python function that tells whether a string of (), [] and {} is balanced.",
        "List the planets of the solar system in order, each with one fact.",
        "Translate into French: The meeting was moved to Thursday because the projector did not work.",
        'Give as JSON with the keys "name", "year" and "city": The Eiffel Tower was opened in Paris in 1889.',
        "Explain to a child of ten what a database is.",
        "Write a short, polite mail that declines an invitation to a conference.",
        "What is the difference between a process and a thread?",
        "Summarise in two sentences how a bill becomes a law in a parliament of two chambers.",
        "Write a haiku about rain on a tin roof, then explain its images.",
        "Is 391 a prime number? Explain how you know.",
    )
)
"""Short questions of many kinds, for comparing answers."""


def read_prompt_files(paths: Sequence[Path]) -> tuple[Prompt, ...]:
    """A person's own prompts: one text file each, or JSON Lines with `prompt` and, if wanted, `kind` and `system`.

    The kind of a text file is its name without the ending; that of a JSON line without one is the file's.

    Raises:
        UsageError: A file that cannot be read, is empty, or has a line without a prompt.
    """
    return tuple(prompt for path in paths for prompt in _read(path))


def _read(path: Path) -> list[Prompt]:
    try:
        with path.open(encoding="utf-8-sig") as opened:
            text = opened.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "It is not UTF-8 text"
        raise UsageError(
            f"The prompt file {path} cannot be read.", why=f"{reason}.", hint=f"ls -l {shell_word(str(path))}"
        ) from error
    if len(text) > _LARGEST:
        raise UsageError(f"The prompt file {path} is larger than {_LARGEST:,} characters.")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if lines:
            return [_from_line(path, number, line) for number, line in lines]
    if not text.strip():
        raise UsageError(f"The prompt file {path} is empty.", hint=f"ls -l {shell_word(str(path))}")
    return [Prompt(path.stem, text.strip("\r\n"))]


def _from_line(path: Path, number: int, line: str) -> Prompt:
    where = f"{path}, line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON.", why=f"{error}.", hint=f"sed -n {number}p {shell_word(str(path))}"
        ) from error
    if isinstance(value, str):
        value = {"prompt": value}
    fields = value if isinstance(value, dict) else {}
    text, kind, system = fields.get("prompt"), fields.get("kind", path.stem), fields.get("system", "")
    if not (isinstance(text, str) and text.strip() and isinstance(kind, str) and isinstance(system, str)):
        raise UsageError(
            f"{where} has no prompt.",
            why='A line looks like {"prompt": "...", "kind": "code"}.',
            hint=f"sed -n {number}p {shell_word(str(path))}",
        )
    return Prompt(kind or path.stem, text, system)
