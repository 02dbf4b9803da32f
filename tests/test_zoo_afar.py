"""Beyond one machine: a real Dask scheduler with two workers, and a real server that speaks S3, all processes of their own."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from keras_files import mlp
from zoo_files import DATA, spoil
from zoo_work import once, who

from canon.errors import CanonError, MissingExtra
from canon.zoo import Cluster, Here, Index, dedup, query, scan
from canon.zoo.places import find
from canon.zoo.pool import chunked
from canon_cli.main import main

PATIENCE = 60.0


def wait_for(ready: object, *running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it does not start"
        assert all(p.poll() is None for p in running), "it ended at once"
        time.sleep(0.1)


def stop(*running: subprocess.Popen[bytes]) -> None:
    for p in running:
        p.kill()
    for p in running:
        p.wait()


def groups(pool: object, *words: str) -> list[tuple[str, list[tuple[str, str]]]]:
    with Index() as index:
        scan(words, index, pool)  # type: ignore[arg-type]
        found = dedup(index, pool)  # type: ignore[arg-type]
        return [(g.keep.place.path, [(x.file.place.path, x.kind) for x in g.links]) for g in found.groups]


# Dask


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    folder = tmp_path_factory.mktemp("dask")
    where = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    part = [sys.executable, "-m", "distributed.cli"]
    common = ["--no-dashboard", "--scheduler-file", str(where)]
    command = [f"{part[0]}", "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common]
    scheduler = subprocess.Popen(command, env=env, **quiet)  # type: ignore[call-overload]
    wait_for(where.exists, scheduler)
    address = json.loads(where.read_text())["address"]
    command = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *common]
    workers = [subprocess.Popen(command, env=env, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    yield address, workers
    stop(scheduler, *workers)


def zoo_of(folder: Path) -> Path:
    for i in range(12):
        mlp(folder / f"{i:02}.h5", seed=i % 6)
    spoil(folder)
    return folder


def test_a_cluster_finds_what_one_process_finds(cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path)
    pool = Cluster(cluster[0])
    try:
        found = groups(pool, str(zoo))
        seen = {r for _, rs in pool.run(who, chunked(iter(range(12)), 1, lambda _: 0, 1), lambda _: 0) for r in rs}
    finally:
        pool.close()
    assert found == groups(Here(), str(zoo))
    assert len(found) == 6
    assert len(seen) == 2  # both worked
    assert os.getpid() not in seen


def test_a_worker_that_dies_costs_nothing_but_time(cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path) -> None:
    """The last test of the cluster: one of its two workers is gone after it."""
    tasks = [[str(tmp_path / "deadly")], *([str(DATA / f"mlp-seed{i}.h5")] for i in range(3))]
    pool = Cluster(cluster[0])
    try:
        found = {c[0]: r[0] for c, r in pool.run(once, iter(tasks), lambda t: "lost")}
    finally:
        pool.close()
    assert found == {t: t for (t,) in tasks}
    assert [p.poll() is not None for p in cluster[1]].count(True) == 1


def test_no_scheduler_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canon.zoo.pool.PATIENCE", 0.5)
    with pytest.raises(CanonError, match="no Dask scheduler answers"):
        Cluster("tcp://127.0.0.1:9")
    assert main(["dedup", str(DATA), "--scheduler", "nonsense://1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


# S3


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=subprocess.STDOUT
        )

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return True
        except OSError:
            return False

    patch = pytest.MonkeyPatch()
    for name, value in {
        "FSSPEC_S3_ENDPOINT_URL": url, "FSSPEC_S3_KEY": "test", "FSSPEC_S3_SECRET": "test", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        patch.setenv(name, value)
    wait_for(answers, server)
    import fsspec

    fsspec.config.set_conf_env(fsspec.config.conf)
    system = fsspec.filesystem("s3")
    system.mkdir("zoo")
    for name in ("mlp-seed0.h5", "mlp-seed0-disguised.h5", "mlp-seed1.h5", "README.md"):
        system.pipe_file(f"zoo/deep/{name}", (DATA / name).read_bytes())
    system.pipe_file("zoo/copy.h5", (DATA / "mlp-seed0.h5").read_bytes())
    system.pipe_file("zoo/.hidden.h5", b"")
    yield "s3://zoo"
    fsspec.config.conf.pop("s3", None)
    patch.undo()
    stop(server)


def test_a_zoo_in_a_bucket(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [p.path for p in find(bucket)] == [
        "s3://zoo/copy.h5", "s3://zoo/deep/README.md", "s3://zoo/deep/mlp-seed0-disguised.h5", "s3://zoo/deep/mlp-seed0.h5",
        "s3://zoo/deep/mlp-seed1.h5",
    ]  # fmt: skip
    assert [p.path for p in find(f"{bucket}/deep/*seed0*.h5")] == [
        "s3://zoo/deep/mlp-seed0-disguised.h5", "s3://zoo/deep/mlp-seed0.h5",
    ]  # fmt: skip
    index = tmp_path / "index"
    words = ["dedup", bucket, str(DATA / "mlp-seed2.h5"), str(DATA / "mlp-run.h5"), "--index", str(index), "--json", "-"]
    assert main([*words, "--jobs", "2"]) == 1
    first = json.loads(capsys.readouterr().out)
    (group,) = first["groups"]
    assert group["keep"] == str(DATA / "mlp-run.h5")  # the run holds the same network, and more checkpoints
    assert {(x["path"], x["kind"]) for x in group["links"]} == {
        ("s3://zoo/copy.h5", "identical"), ("s3://zoo/deep/mlp-seed0.h5", "identical"),
        ("s3://zoo/deep/mlp-seed0-disguised.h5", "equivalent"),
    }  # fmt: skip
    assert [u["path"] for u in first["unreadable"]] == ["s3://zoo/deep/README.md"]
    told: list[object] = []
    with Index(index) as opened:
        scan([bucket], opened, tell=told.append)
        assert not told  # nothing is fetched again
        answer = query(f"{bucket}/copy.h5", opened)
        assert {c.file.place.path for c in answer.copies} >= {"s3://zoo/deep/mlp-seed0.h5", str(DATA / "mlp-run.h5")}
    assert main([*words[:-2], "--action", "hardlink", "--jobs", "0"]) == 1
    assert "is not on this machine" in capsys.readouterr().out


def test_what_is_not_in_a_bucket(bucket: str) -> None:
    with pytest.raises(CanonError, match="no such file or folder"):
        list(find(f"{bucket}/nowhere"))
    with pytest.raises(CanonError, match=r"no such file or folder|cannot be listed"):
        list(find("s3://no-such-bucket-here"))


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match="canonform\\[fsspec\\]"):
        list(find("s3://zoo"))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match="canonform\\[dask\\]"):
        Cluster("tcp://127.0.0.1:1")
