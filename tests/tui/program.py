"""The chat as a program of its own, with the scripted engine. Run by the terminal tests."""

from __future__ import annotations

import sys
from pathlib import Path

from localspec.chat.session import Session
from localspec.chat.store import ConversationStore
from localspec.tui.app import run_app
from localspec.worker.process import Worker
from localspec.worker.protocol import Load
from tests.tui.driver import DRAFT, TARGET, Pair


def main(folder: Path) -> int:
    worker = Worker(host="tests.fake_host:serve", log_file=folder / "engine.log")
    session = Session(worker, seed=1, store=ConversationStore(folder / "kept"))
    code = run_app(session, worker, Pair(Load(target=TARGET, draft=DRAFT)))
    (folder / "messages").write_text("\n".join(repr(turn.content) for turn in session.messages))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
