"""How fast keras_vit is beside its peers: `python -m benchmarks NAME`, or `all` for what RESULTS.md holds.

Ratios are worth something, times are those of one machine: run it on one that does nothing else. Peers come with
`pip install -e '.[tensorflow,bench,export,train]'`; those that are not installed are left out.
"""

import argparse
import dataclasses
import importlib
import json
import pathlib
import time

from benchmarks import report

# name -> module, which has `run(options)`: a generator of tables
BENCHMARKS = {
    "inference": "inference",
    "operations": "operations",
    "training_step": "training_step",
    "startup": "startup",
    "load": "load",
    "data": "data",
    "scaling": "scaling",
    "merging": "merging",
    "export": "export",
}
ON_REQUEST = {"gpu": "gpu"}  # not among `all`


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line chose.

    Attributes:
        rounds: turns of each contender that count.
        peers: whether peers take part.
        sizes: those of a benchmark's sizes to measure (batch sizes, resolutions); None for all.
        real_data: folder of real weights and images, or None.
    """

    rounds: int = 5
    peers: bool = True
    sizes: tuple | None = None
    real_data: pathlib.Path | None = None

    def choose(self, sizes):
        return [size for size in sizes if self.sizes is None or size in self.sizes]


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=(*BENCHMARKS, *ON_REQUEST, "all"))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender that count")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure peers as well")
    parser.add_argument("--sizes", type=int, nargs="+", help="only these batch sizes, resolutions or depths")
    parser.add_argument("--real-data", type=pathlib.Path, metavar="FOLDER", help="real weights and images")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the tables there as well")
    arguments = parser.parse_args()
    options = Options(
        arguments.rounds, arguments.peers, arguments.sizes and tuple(arguments.sizes), arguments.real_data
    )
    print(f"{report.machine()}; {time.strftime('%Y-%m-%d')}\n")
    tables = []
    for name in BENCHMARKS if arguments.name == "all" else [arguments.name]:
        print(f"## {name}\n")
        for table in importlib.import_module(f"benchmarks.{(BENCHMARKS | ON_REQUEST)[name]}").run(options):
            print(table, flush=True)
            tables.append({"benchmark": name, **dataclasses.asdict(table)})
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": report.machine(), "tables": tables}, indent=1))


if __name__ == "__main__":
    main()
