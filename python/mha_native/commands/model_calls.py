"""Calls of models by commands: loading, results in the order of the inputs, errors as sentences."""

import argparse
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from .. import _core
from ..functions.block_matrix import BLOCK_FORMATS
from ..functions.progress import Progress
from ..models import CausalLM
from .errors import UserError, complain, reason
from .input_images import Source
from .input_texts import Input
from .shared_arguments import formats_of, names_of_options

Model = TypeVar("Model")
Results = TypeVar("Results", bound=Collection[Any])


def loaded(load: Callable[[], Model]) -> Model:
    """Return the result of `load`; UserError if it fails, or if MHA_NATIVE_ISA is not available on this machine."""
    try:
        _core.active_isa()
        return load()
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {reason(error)}" if error.filename else str(error)) from error
    except (TypeError, ValueError, ImportError) as error:
        raise UserError(str(error)) from error


def language_model(options: argparse.Namespace) -> CausalLM:
    """Open the language model that the arguments name, and report the formats of a quantized one."""
    formats = formats_of(options)
    if options.max_length is None:
        model = loaded(lambda: CausalLM.from_pretrained(options.model, **formats))
    else:
        with names_of_options("max_length"):
            model = loaded(lambda: CausalLM.from_pretrained(options.model, max_length=options.max_length, **formats))
    stored = model.weight_bytes if options.weight_dtype is None else {}
    if BLOCK_FORMATS.keys() & stored.keys():
        sizes = ", ".join(f"{name} {count / 1e6:,.1f} MB" for name, count in stored.items())
        complain(f"weights in the formats of the file: {sizes}; --weight-dtype float32 expands them")
    return model


def answers(
    compute: Callable[[Iterable[Input]], Iterator[Results]],
    inputs: Iterable[Input],
    source: Source,
    progress: Progress,
) -> Iterator[tuple[list[Input], Results]]:
    """Yield inputs with their results, a batch at a time. `inputs` come from `source`.

    `compute` yields batches of results, one result for each input in order.
    """
    pending: deque[Input] = deque()  # inputs without a result
    count = 0

    def remembered() -> Iterator[Input]:
        for item in inputs:
            pending.append(item)
            yield item

    try:
        with errors_of_models():
            for results in compute(remembered()):
                yield [pending.popleft() for _ in results], results
                count += len(results)
                progress.show(source.share_read, count)
    finally:
        progress.clear()


@contextlib.contextmanager
def errors_of_models() -> Iterator[None]:
    """Raise errors of inputs as UserErrors: a failing tokenizer, a token that the model lacks, an unknown prompt name,
    an image that cannot be read, or is gone."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
