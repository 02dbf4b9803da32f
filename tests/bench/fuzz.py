"""Damages files at random and reads them: never a traceback, a crash, a hang or a gigabyte.

    python tests/bench/fuzz.py --seconds 600 --keep found FOLDER_OR_FILE ...

Each input is read in a process of its own, forked from this one, with a time limit and a memory limit. Whatever goes
wrong is kept: the damaged file, and a line with the seed that makes it again. Same seeds, same inputs.
"""

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SECONDS, RESIDENT, ADDRESS = 10, 1 << 30, 6 << 30
TRACEBACK, LINES, HEAVY = 3, 4, 5
WORDS = {
    0: "read",
    2: "refused in one line",
    TRACEBACK: "TRACEBACK",
    LINES: "MORE THAN A LINE AND A HINT",
    HEAVY: "TOO MUCH MEMORY",
    -signal.SIGALRM: "TOO SLOW",
}
EXTREMES = (0, 1, 255, 0x7F, 0x80, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 16)


def damage(raw: bytes, rng: np.random.Generator) -> bytes:
    """One to three random mutations, most of them where a file keeps its structure: at its ends."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        if len(data) < 16:
            break
        size = len(data)
        near = int(min(size, 4096 if rng.random() < 0.5 else size))
        at = int(rng.integers(near)) if rng.random() < 0.7 else size - 1 - int(rng.integers(near))
        match int(rng.integers(9)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.integers(256))
            case 2:
                width = int(rng.choice([1, 2, 4, 8]))
                value = EXTREMES[int(rng.integers(len(EXTREMES)))] % (1 << 8 * width)
                data[at : at + width] = value.to_bytes(width, "little")
            case 3:
                del data[at:]
            case 4:
                n = int(rng.integers(1, 512))
                data[at : at + n] = bytes(len(data[at : at + n]))
            case 5:
                n, other = int(rng.integers(1, 512)), int(rng.integers(size))
                data[at : at + n] = data[other : other + n]
            case 6:
                del data[at : at + int(rng.integers(1, 64))]
            case 7:
                data[at:at] = rng.integers(0, 256, int(rng.integers(1, 64)), dtype=np.uint8).tobytes()
            case _:
                pointer = int(rng.integers(size)) & ~7  # addresses in HDF5 are eight bytes
                data[at & ~7 : (at & ~7) + 8] = pointer.to_bytes(8, "little")
    return bytes(data)


def inside(raw: bytes, rng: np.random.Generator) -> bytes:
    """Damage a member of a zip archive rather than the archive, half of the time."""
    import io

    if not raw.startswith(b"PK") or rng.random() < 0.5:
        return damage(raw, rng)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    hit, out = int(rng.integers(len(members))), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i, (name, held) in enumerate(members):
            archive.writestr(name, damage(held, rng) if i == hit else held)
    return out.getvalue()


def attempt(path: Path) -> int:
    """Read a file in a forked process; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid:
        _, status, used = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return HEAVY if code in (0, 2) and used.ru_maxrss * 1024 > RESIDENT else code
    code = TRACEBACK
    try:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS, ADDRESS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)
        code = read(path)
    finally:
        os._exit(code)


def read(path: Path) -> int:
    """0 for a run, 2 for an error as it should be."""
    from canon import formats
    from canon.errors import CanonError

    try:
        formats.read(path)
    except CanonError as e:
        said = str(e)
        return 2 if len(said.splitlines()) <= 2 and len(said) < 4000 else LINES
    except BaseException:
        import traceback

        traceback.print_exc()
        return TRACEBACK
    return 0


def generated(folder: Path) -> list[Path]:
    """Small files of every format that canon reads."""
    import h5py
    import keras_files as kf

    from canon import formats

    rng = np.random.default_rng(0)
    kf.mlp(folder / "keras.h5", optimizer=True)
    kf.mlp(folder / "weights.h5", full=False)
    run = formats.read(folder / "keras.h5")
    formats.write(run, folder / "canon.h5", "canon")
    formats.write(run, folder / "archive.keras", "keras-zip")
    with h5py.File(folder / "dense.h5", "w", libver="latest") as f:
        for i in range(40):  # many links and attributes: other structures than a few have
            f.create_dataset(f"l{i}.weight", data=rng.standard_normal((4, 4)).astype("f4"), chunks=(2, 2), compression="gzip")
            f.attrs[f"a{i}"] = "x" * 50
    np.savez(folder / "state.npz", **{"a.weight": rng.standard_normal((4, 3)), "a.bias": rng.standard_normal(4)})
    return sorted(folder.iterdir())


def main() -> int:
    """Fuzz until the time is over; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files, or folders of files; without any, small files are made")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each input takes the next")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder for what goes wrong")
    parser.add_argument("--most", type=int, default=1 << 20, help="files larger than this are left out")
    args = parser.parse_args()
    from canon import formats  # noqa: F401  # before the forks, so that they start at once

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        found = [p for path in args.paths for p in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        sources = [p for p in found if p.is_file() and p.stat().st_size <= args.most] or generated(made)
        outcomes: Counter[str] = Counter()
        target, until, seed, bad = Path(folder) / "input", time.monotonic() + args.seconds, args.seed, 0
        while time.monotonic() < until:
            rng = np.random.default_rng(seed)
            source = sources[int(rng.integers(len(sources)))]
            target.write_bytes(inside(source.read_bytes(), rng))
            code = attempt(target)
            word = WORDS.get(code, f"CRASH (signal {-code})" if code < 0 else f"EXIT {code}")
            outcomes[word] += 1
            if word.isupper() or word.startswith("CRASH"):
                bad += 1
                args.keep.mkdir(exist_ok=True)
                (args.keep / f"{seed}-{source.name}").write_bytes(target.read_bytes())
                print(f"seed {seed}: {source}: {word}", flush=True)
            seed += 1
    print(f"{seed - args.seed:,} inputs: " + ", ".join(f"{n:,} {word}" for word, n in outcomes.most_common()))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
