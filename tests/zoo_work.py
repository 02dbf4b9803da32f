"""Functions that tests hand to workers, which import them by name."""

import os
import signal
import time
from pathlib import Path

from canon.zoo.places import Place


def who(chunk: list[int]) -> list[int]:
    """Which process does it."""
    time.sleep(0.05)
    return [os.getpid() for _ in chunk]


def once(chunk: list[str]) -> list[str]:
    """Dies the first time that it sees a task, as when something else kills it."""
    for task in chunk:
        if not Path(task).exists():
            Path(task).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return chunk


def deadly(chunk: list[Place], bad: str) -> list[str]:
    """Reads names; one file kills whoever reads it, as some do to the HDF5 library."""
    if any(Path(p.path).name == bad for p in chunk):
        os.kill(os.getpid(), signal.SIGSEGV)
    return [Path(p.path).name for p in chunk]
