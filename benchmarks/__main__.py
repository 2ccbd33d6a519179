"""Compare the speed of keras_vit with other libraries: `python -m benchmarks NAME`, or `all` for RESULTS.md.

Times hold only for the machine; ratios are comparable across machines. Run it on a machine that runs nothing else.
`pip install -e '.[tensorflow,bench,export,train]'` installs the other libraries; missing ones are skipped.
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
    "large": "large",
    "dense": "dense",
    "probes": "probes",
    "export": "export",
}
# not part of `all`
ON_REQUEST = {
    "fidelity": "fidelity",
    "field_files": "field_files",
    "gpu": "gpu",
    "heads": "train_heads",
    "task_answers": "task_answers",
    "task_models": "task_models",
    "timm_files": "timm_files",
    "tradeoff": "tradeoff",
    "transformers_files": "transformers_files",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options from the command line.

    Attributes:
        rounds: number of measured runs of each contender.
        peers: whether to measure other libraries as well.
        sizes: the sizes of a benchmark to measure (batch sizes, resolutions); None for all.
        real_data: folder of real weights and images, or None.
        dry_run: whether the benchmark gpu runs on the CPU, with small models.
    """

    rounds: int = 5
    peers: bool = True
    sizes: tuple | None = None
    real_data: pathlib.Path | None = None
    dry_run: bool = False

    def choose(self, sizes):
        return [size for size in sizes if self.sizes is None or size in self.sizes]


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=(*BENCHMARKS, *ON_REQUEST, "all"))
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each contender")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure other libraries")
    parser.add_argument("--sizes", type=int, nargs="+", help="only these batch sizes, resolutions or depths")
    parser.add_argument("--real-data", type=pathlib.Path, metavar="FOLDER", help="real weights and images")
    parser.add_argument("--dry-run", action="store_true", help="run the benchmark gpu on the CPU, with small models")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the tables to this file")
    arguments = parser.parse_args()
    if arguments.dry_run and arguments.name != "gpu":
        parser.error(f"--dry-run is an option of the benchmark gpu; got {arguments.name}")
    sizes = arguments.sizes and tuple(arguments.sizes)
    options = Options(arguments.rounds, arguments.peers, sizes, arguments.real_data, arguments.dry_run)
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
