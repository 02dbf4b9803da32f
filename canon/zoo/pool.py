"""Who does the work: this process, a pool of processes that outlives its dead, or a Dask cluster.

A function takes a chunk of tasks and returns a result for each. A file can kill the process that reads it (the HDF5 library
crashes on some damaged ones), and a process can be killed for no fault of its file. Chunks that were under way when one died
are done again, each in a process of its own, and from there task by task: a task that kills its process three times in a row
is given up, with the result that `lost` makes for it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import wait as wait_for
from typing import Any, Protocol, TypeVar

from canon.errors import CanonError, MissingExtra

T = TypeVar("T")
R = TypeVar("R")
TRIES = 3
PATIENCE = 10.0
"""Seconds to wait for a scheduler to answer."""
_AHEAD = 2
"""Chunks handed out beyond those being worked on, for each process."""


class Pool(Protocol):
    """Runs a function on chunks, in any order; results come as they are ready, each with its chunk."""

    def run(
        self, function: Callable[[list[T]], list[R]], chunks: Iterator[list[T]], lost: Callable[[T], R]
    ) -> Iterator[tuple[list[T], list[R]]]:
        """(chunk, results) for each chunk."""


class Here:
    """This process: nothing is started, and nothing survives a crash."""

    def run(
        self, function: Callable[[list[T]], list[R]], chunks: Iterator[list[T]], lost: Callable[[T], R]
    ) -> Iterator[tuple[list[T], list[R]]]:
        """(chunk, results), one after the other."""
        for chunk in chunks:
            yield chunk, function(chunk)


def _context() -> Any:
    """A server that forks clean children where there is one: it has no threads, and has imported what they need."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["canon.zoo.reading", "h5py"])
    return context


def _begin() -> None:
    """End with the parent, however it ends: an executor's process would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Processes:
    """A pool of processes on this machine."""

    def __init__(self, jobs: int) -> None:
        self.jobs = max(1, jobs)

    def _executor(self, jobs: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(jobs, _context(), _begin)

    def run(
        self, function: Callable[[list[T]], list[R]], chunks: Iterator[list[T]], lost: Callable[[T], R]
    ) -> Iterator[tuple[list[T], list[R]]]:
        """(chunk, results), as they come."""
        executor = self._executor(self.jobs)
        pending: dict[Future[list[R]], list[T]] = {}
        more = True
        try:
            while more or pending:
                broken: list[list[T]] = []
                while more and len(pending) < _AHEAD * self.jobs:
                    chunk = next(chunks, None)
                    if chunk is None:
                        more = False
                    else:
                        try:
                            pending[executor.submit(function, chunk)] = chunk
                        except BrokenExecutor:
                            broken.append(chunk)
                            break
                for future in wait(pending, return_when=FIRST_COMPLETED).done if pending else ():
                    chunk = pending.pop(future)
                    try:
                        yield chunk, future.result()
                    except BrokenExecutor:
                        broken.append(chunk)
                if broken:
                    for future, chunk in list(pending.items()):
                        try:
                            yield chunk, future.result()
                        except BrokenExecutor:
                            broken.append(chunk)
                    pending.clear()
                    executor.shutdown(wait=False, cancel_futures=True)
                    for chunk in broken:
                        yield from self._alone(function, chunk, lost)
                    executor = self._executor(self.jobs)
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def _alone(
        self, function: Callable[[list[T]], list[R]], chunk: list[T], lost: Callable[[T], R]
    ) -> Iterator[tuple[list[T], list[R]]]:
        """A chunk in a process of its own, then its tasks one by one."""
        for _ in range(TRIES if len(chunk) == 1 else 1):
            with suppress(BrokenExecutor), self._executor(1) as executor:
                yield chunk, executor.submit(function, chunk).result()
                return
        if len(chunk) == 1:
            yield chunk, [lost(chunk[0])]
            return
        for task in chunk:
            yield from self._alone(function, [task], lost)


class Cluster:
    """An existing Dask cluster. address: of its scheduler. canon has to be installed where its workers run."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtra("--scheduler", "needs dask", "Install it with: pip install 'canonform[dask]'") from None
        try:
            self._client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as e:
            raise CanonError(
                address, f"no Dask scheduler answers there ({' '.join(str(e).split()) or type(e).__name__})"
            ) from None

    def close(self) -> None:
        """Let go of the cluster, which goes on."""
        self._client.close()

    def run(
        self, function: Callable[[list[T]], list[R]], chunks: Iterator[list[T]], lost: Callable[[T], R]
    ) -> Iterator[tuple[list[T], list[R]]]:
        """(chunk, results), as they come."""
        from distributed import as_completed

        pending: dict[Any, list[T]] = {}
        done = as_completed([], loop=self._client.loop)

        def hand_out(chunk: list[T]) -> None:
            future = self._client.submit(function, chunk, pure=False)
            pending[future] = chunk
            done.add(future)

        def room() -> int:
            threads = int(sum(self._client.nthreads().values()))
            return max(2, _AHEAD * threads) - len(pending)

        more = True
        while more or pending:
            for _ in range(room() if more else 0):
                chunk = next(chunks, None)
                if chunk is None:
                    more = False
                    break
                hand_out(chunk)
            if not pending:
                continue
            future = next(done)
            chunk = pending.pop(future)
            results = self._results(future, chunk, lost, hand_out)
            if results is not None:
                yield chunk, results

    def _results(self, future: Any, chunk: list[T], lost: Callable[[T], R], again: Callable[[list[T]], None]) -> list[R] | None:
        """What a future gave; where its workers died over it, its tasks are handed out one by one."""
        from distributed import KilledWorker

        try:
            found: list[R] = future.result()
            return found
        except KilledWorker:
            if len(chunk) == 1:
                return [lost(chunk[0])]
            for task in chunk:
                again([task])
            return None


def chunked(tasks: Iterator[T], most: int, weight: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Chunks of at most `most` tasks, and of at most about `limit` of their weights together."""
    chunk: list[T] = []
    total = 0
    for task in tasks:
        chunk.append(task)
        total += weight(task)
        if len(chunk) >= most or total >= limit:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["Cluster", "Here", "Pool", "Processes", "chunked", "processors"]
