"""Two workers against one, workers killed at random moments, and many small pictures into Parquet.

    python benchmarks/workers.py speed --data cifar10      one worker and two, a thread each
    python benchmarks/workers.py kills --number 20         kill -9 of either of two workers
    python benchmarks/workers.py parquet --number 100000   interrupted twice: seconds and the largest memory

Everything is written below --folder, and what it says as JSON on the last line.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "codanet"]
ASKED = ["--methods", "contributions,ixg,occlusion5", "--points", "9"]


def environment(rank: int | None = None, size: int = 1) -> dict[str, str]:
    ranked = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return {**os.environ, "OMP_NUM_THREADS": "1", **ranked}


def evaluated(options: argparse.Namespace, folder: Path) -> list[str]:
    command = [*COMMAND, "evaluate", options.model, "--data", options.data, *ASKED, "--metrics", options.metrics]
    return [*command, "--images", str(options.images), "-o", str(folder)]


def numbers(folder: Path) -> Any:
    """The table without the times."""
    rows = json.loads((folder / "results.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key != "seconds_per_map"} for row in rows]


def timed(command: list[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds on the clock, which need a quiet machine, and of the processor: of one, and of the busier of two."""
    found: dict[str, Any] = {}
    for size, name in ((1, "one"), (2, "two")):
        command, started = (
            evaluated(options, options.folder / name),
            time.monotonic(),
        )
        workers = [_start(command, rank, size) for rank in range(size)]
        usage = [os.wait4(worker.pid, 0) for worker in workers]
        if any(status for _, status, _ in usage):
            raise RuntimeError(f"a worker of {size} failed")
        found[name] = round(time.monotonic() - started, 1)
        found[f"{name}_processor"] = [round(used.ru_utime + used.ru_stime, 1) for _, _, used in usage]
    found["ratio"] = round(found["two"] / found["one"], 3)
    found["ratio_processor"] = round(max(found["two_processor"]) / found["one_processor"][0], 3)
    return {**found, "same": numbers(options.folder / "one") == numbers(options.folder / "two")}


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Two workers with a rank each; at a random moment one of them is killed and started again, until both end."""
    alone = options.folder / "alone"
    took = timed(evaluated(options, alone))
    rng, folder = random.Random(options.seed), options.folder / "killed"
    command, done, runs = evaluated(options, folder), 0, 0
    while done < options.number:
        runs += 1
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        workers = [_start(command, rank) for rank in range(2)]
        while any(worker.poll() is None for worker in workers):
            time.sleep(rng.uniform(0, 0.25 * took))
            rank = rng.randrange(2)
            if done < options.number and workers[rank].poll() is None:
                workers[rank].send_signal(signal.SIGKILL)
                workers[rank].wait()
                workers[rank], done = _start(command, rank), done + 1
        if any(worker.returncode for worker in workers):
            return {"kills": done, "runs": runs, "same": False, "codes": [worker.returncode for worker in workers]}
        if numbers(folder) != numbers(alone):
            return {"kills": done, "runs": runs, "same": False}
    return {"kills": done, "runs": runs, "same": True, "seconds_alone": round(took, 1)}


def _start(command: list[str], rank: int, size: int = 2) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, env=environment(rank, size), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def parquet(options: argparse.Namespace) -> dict[str, Any]:
    """`number` pictures of 8x8, and an untrained nano_coda."""
    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    import codanet

    pictures, maps, weights = (options.folder / name for name in ("pictures", "maps", "nano.safetensors"))
    rng = np.random.default_rng(options.seed)
    for number in range(options.number):
        path = pictures / f"{number // 1000:03d}" / f"{number:06d}.png"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    codanet.save(codanet.create_model("nano_coda"), weights)
    command = [*COMMAND, "explain", str(weights), str(pictures), "--parquet", "-o", str(maps), "--workers", "2"]
    started, largest, stops = time.monotonic(), 0, []
    for stop_at in (0.3, 0.7, None):  # of the shards
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None:
            largest = max(largest, _memory(process.pid))
            there = len(list(maps.glob("maps-*.parquet")))
            if stop_at is not None and there >= stop_at * options.number / 1000:
                process.kill()
                process.wait()
                stops.append(there)
            time.sleep(0.2)
    seconds = time.monotonic() - started
    found = pq.read_table(maps, columns=["picture", "error"])
    whole = sorted(found["picture"].to_pylist()) == list(range(options.number))
    return {
        "pictures": options.number,
        "stopped_after_shards": stops,
        "every_picture_once": whole,
        "failed": len(found) - found["error"].null_count,
        "seconds": round(seconds, 1),
        "largest_memory_MB": round(largest / 2**20),
        "per_second": round(options.number / seconds),
    }


def _memory(group: int) -> int:
    """Resident bytes of the largest process of a group (Linux)."""
    largest = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            largest = max(largest, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "kills", "parquet"))
    parser.add_argument("--folder", type=Path, default=Path("workers"))
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--metrics", default="accuracy,removal,completeness")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"speed": speed, "kills": kills, "parquet": parquet}[options.what](options)))


if __name__ == "__main__":
    main()
