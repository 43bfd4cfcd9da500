"""The model's tables, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mha_native_bench.scaling_model.checks import name_of, predicted
from mha_native_bench.scaling_model.constants import Actor, Constants, Worker, from_document
from mha_native_bench.scaling_model.contexts import Call, best_fan_out, moved_bytes, step_seconds
from mha_native_bench.scaling_model.corpora import corpus_seconds, pace_limits

MACHINES = (1, 8, 16, 32, 64, 128, 256, 512, 1000)
GIGABITS = (10, 100)

# A context, and a corpus, that are worth a thousand machines; a shorter one for comparison.
KEYS, FEWER_KEYS, TEXTS = 10_000_000, 1_000_000, 100_000_000


def all_of(path: Path) -> str:
    """Constants, checks and predictions, of a file of constants."""
    document = json.loads(path.read_text(encoding="utf-8"))
    found = from_document(document["constants"])
    parts = [
        f"Processor: {found.processor}, {found.cores} cores",
        constants_table(found),
        checks_table(found, document["runs"]),
    ]
    for call in (Call(1, KEYS), Call(1, FEWER_KEYS), Call(512, KEYS)):
        parts.append(f"Queries: {call.queries}, over {call.keys:,} keys, in ms")
        parts.append(context_table(found, call))
    parts += [f"{TEXTS:,} texts", corpus_table(found)]
    return "\n\n".join(parts)


def machine_of(constants: Constants) -> Worker:
    """A worker on all cores of a machine as this: busy cores share its memory."""
    return constants.busy.faster(constants.cores)


def actor_of(constants: Constants) -> Actor:
    """All actors of a machine as this, as one."""
    return replace(constants.actor_busy, text=constants.actor_busy.text / constants.cores)


def constants_table(found: Constants) -> str:
    """What was measured."""
    rows = [
        ("a request to a worker, independent of its keys", found.alone.call, found.busy.call),
        ("1 query over a block of 512 keys", found.alone.decode_block, found.busy.decode_block),
        ("64 queries over a block", found.alone.queries_block, found.busy.queries_block),
        ("a text in an actor", found.actor_alone.text, found.actor_busy.text),
    ]
    of_workers = [(what, _microseconds(alone), _microseconds(busy)) for what, alone, busy in rows]
    others = [
        ("a call of `attend`, without messages and shards", _microseconds(found.asker.step)),
        ("each further worker: request and merge", _microseconds(found.asker.worker)),
        ("a message sent and one received", _microseconds(found.asker.message)),
        ("an empty request and its answer, by shared memory", _microseconds(found.memory.exchange)),
        ("the same by TCP over loopback", _microseconds(found.sockets.exchange)),
        ("a byte by shared memory", f"{1e9 * found.memory.byte:.3f} ns"),
        ("a byte by TCP over loopback", f"{1e9 * found.sockets.byte:.3f} ns"),
        ("start of a Ray actor, with its model", f"{found.actor_alone.start:.2f} s"),
        ("a block of texts, in the process that drives Ray", f"{1e3 * found.actor_alone.block:.2f} ms"),
        ("a text, processor time outside of actors", f"{1e3 * found.actor_alone.beside:.2f} ms"),
        ("bytes of a row: text, and embedding", f"{found.actor_alone.row_bytes:.0f}"),
        ("bytes of the model", f"{found.actor_alone.model_bytes / 1e6:.0f} MB"),
    ]
    tail = ", ".join(f"{q:g}: {_microseconds(seconds)}" for q, seconds in found.busy.delays if q > 0.5)
    return "\n\n".join(
        [
            _table(("a process of one thread", "alone", "all cores busy"), of_workers),
            _table(("outside of workers", ""), others),
            f"Delays of a call of {_microseconds(found.busy.delays_over)}, quantiles: {tail}",
        ]
    )


def checks_table(found: Constants, runs: list[dict[str, Any]]) -> str:
    """The model beside runs."""
    rows = []
    for run in runs:
        said, measured = predicted(found, run), run["measured"]
        error = f"{100 * (said / measured - 1):+.0f} %"
        rows.append((name_of(run), str(run["processes"]), _seconds(measured), _seconds(said), error))
    return _table(("", "processes", "measured", "model", "error"), rows)


def context_table(found: Constants, call: Call) -> str:
    """Milliseconds over so many machines, for each network: as it is, and by the best tree."""
    worker = machine_of(found)
    alone = step_seconds(worker, found.asker, found.sockets, call, 1)
    rows = []
    for machines in MACHINES:
        row = [str(machines), f"{moved_bytes(worker, call, machines) / 1e6:.2f}"]
        for gigabits in GIGABITS:
            network = found.sockets.with_gigabits(gigabits)
            star = step_seconds(worker, found.asker, network, call, machines)
            fan_out = best_fan_out(worker, found.asker, network, call, machines)
            tree = step_seconds(worker, found.asker, network, call, machines, fan_out=fan_out)
            row += [_digits(1e3 * star), f"{alone / star:.0f} x", _digits(1e3 * tree), f"{alone / tree:.0f} x"]
        rows.append(row)
    header = ["machines", "MB moved"]
    for gigabits in GIGABITS:
        header += [f"{gigabits} Gbit/s", "", "by a tree", ""]
    return _table(header, rows)


def corpus_table(found: Constants) -> str:
    """Minutes for so many machines, for each bandwidth of the store."""
    actor = actor_of(found)
    alone = corpus_seconds(actor, TEXTS, 1)
    wide = replace(actor, rows=8192, block=actor.block)
    rows = []
    for machines in MACHINES:
        row = [str(machines)]
        for gigabits in GIGABITS:
            for blocks in (actor, wide):
                took = corpus_seconds(blocks, TEXTS, machines, store_byte=8e-9 / gigabits)
                row += [_digits(took / 60), f"{100 * alone / took / machines:.0f} %"]
        rows.append(row)
    header = ["machines"]
    for gigabits in GIGABITS:
        header += [f"{gigabits} Gbit/s, blocks of {actor.rows}", "", f"of {wide.rows}", ""]
    lines = []
    for blocks in (actor, wide):
        for gigabits in GIGABITS:
            limits = pace_limits(blocks, store_byte=8e-9 / gigabits).items()
            lines.append(f"{blocks.rows} rows, {gigabits} Gbit/s: " + ", ".join(f"{n}: {x:.0f}" for n, x in limits))
    return _table(header, rows) + "\n\nMachines that keep up with " + "; ".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value > 1 else f"{1e3 * value:.3g} ms"


def _microseconds(value: float) -> str:
    return f"{_digits(1e6 * value)} us"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
