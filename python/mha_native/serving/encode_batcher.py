"""Texts of many callers at once over one model of embeddings, scores or labels."""

import inspect
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..functions.messages import listed, name_of_type
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_real
from ..layers._constructor_arguments import checked_size
from ._encode_queue import EncodeBatcherStatistics, EncodeQueue
from ._encode_request import EncodeRequest, seconds_to_wait

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class EncodeBatcher:
    """Computes embeddings, scores and labels of many callers together, with the bits of the model's own call.

    One thread computes. While it computes a batch, the texts of the next one arrive, so a text does not wait for others
    to come. A batch ends early when all its requests are cancelled.

    Parameters
    ----------
    model : SentenceEncoder, TextClassifier, TokenClassifier, or CrossEncoder
    target_seconds : float, default 0.05
        The time that a batch may take, by the speed of the last batches. A single text that takes longer is a batch of
        its own.
    max_batch_tokens : int, optional
        The most tokens of a batch of several texts; default: 2,048. It bounds memory; `target_seconds` bounds time.
    max_wait_seconds : float, default 0
        The time that the oldest request waits for others, unless a batch or the queue is full before.
    max_waiting : int, default 512
        The most requests that wait; `submit` raises `QueueFull` then.
    max_waiting_tokens : int, default 262144
        The most tokens of texts that wait. An empty queue takes a request with more.
    num_threads : int, optional
        Threads of the computation; default: `mha_native.num_threads` when the EncodeBatcher is made.

    See Also
    --------
    Batcher : Texts of many users over a language model.

    Notes
    -----
    A batch takes a text of each request in turn, so a request of many texts does not hold up single texts.

    You can use every method from any thread, and requests from coroutines. As a context manager the EncodeBatcher
    computes all requests before it closes. Without references it closes itself, and cancels its requests. A forked
    process cannot use it.

    Examples
    --------
    >>> from mha_native.models import SentenceEncoder
    >>> from mha_native.serving import EncodeBatcher
    >>> model = SentenceEncoder.from_pretrained("all-MiniLM-L6-v2")
    >>> with EncodeBatcher(model) as batcher:
    ...     requests = [batcher.submit(f"{k} dogs") for k in range(20)]
    ...     embeddings = [request.result() for request in requests]
    >>> bool((embeddings[3] == model.encode("3 dogs")).all())
    True
    """

    def __init__(
        self,
        model: Any,
        *,
        target_seconds: float = 0.05,
        max_batch_tokens: int | None = None,
        max_wait_seconds: float = 0.0,
        max_waiting: int = 512,
        max_waiting_tokens: int = 262_144,
        num_threads: int | None = None,
    ) -> None:
        name = "EncodeBatcher"
        if not hasattr(model, "_text_call"):
            raise TypeError(
                f"{name}: model must be a SentenceEncoder, TextClassifier, TokenClassifier or CrossEncoder; "
                f"got {name_of_type(model)}"
            )
        seconds = checked_real(name, "target_seconds", target_seconds)
        if seconds <= 0:
            raise ValueError(f"{name}: target_seconds must be above 0; got {seconds}")
        most = None if max_batch_tokens is None else checked_size(name, "max_batch_tokens", max_batch_tokens)
        wait = checked_real(name, "max_wait_seconds", max_wait_seconds)
        if not 0 <= wait <= threading.TIMEOUT_MAX:
            raise ValueError(f"{name}: max_wait_seconds must be from 0 to {threading.TIMEOUT_MAX:.0f}; got {wait}")
        waiting = checked_size(name, "max_waiting", max_waiting)
        tokens = checked_size(name, "max_waiting_tokens", max_waiting_tokens)
        num_threads = threads_of_call(name, num_threads)
        self._model = model
        parameters = inspect.signature(model._text_call).parameters.values()
        self._options = {each.name for each in parameters if each.kind == each.KEYWORD_ONLY}
        self._queue = EncodeQueue(seconds, most, wait, waiting, tokens, num_threads, monotonic)
        # It does not wait for the thread: garbage is collected anywhere, in the thread itself, too.
        weakref.finalize(self, self._queue.close, 0.0, waits=False).atexit = False

    def submit(self, texts: Any, **options: Any) -> EncodeRequest:
        """Add a request for the result of a call of the model. Texts become tokens here, in the thread of the caller.

        Parameters
        ----------
        texts : text, or N of them
            As for the call of the model: `SentenceEncoder.encode`, which here also takes integers [T] for tokens, as
            `encode_tokens` does, `TextClassifier.predict_proba`, `TokenClassifier`, or `CrossEncoder.predict`.
        **options
            Arguments of that call: ``prompt_name``, ``prompt``, ``truncate_dim`` and ``normalize``, or ``per_token``
            for the vectors of the tokens of each text, as by `SentenceEncoder.encode_to_rows`;
            ``function_to_apply``; ``aggregation_strategy``, ``ignore_labels`` and ``stride``; or ``prompt_name``,
            ``prompt`` and ``activation_fn``.

        Returns
        -------
        request : EncodeRequest
            Its result is the one of the call, bit for bit.

        Raises
        ------
        TypeError, ValueError
            As the call; if tokens are given with a prompt, or without a token.
        QueueFull
            If as many requests or tokens wait as may wait. Nothing is added.
        RuntimeError
            If the EncodeBatcher is closed, or belongs to another process.
        """
        name, queue = "EncodeBatcher.submit", self._queue
        queue.check_process(name)
        if unknown := options.keys() - self._options:
            known = listed(sorted(self._options))
            raise TypeError(f"{name}: options must be of {known}; got {listed(sorted(unknown))}")
        queue.check_room(name)
        call = self._model._text_call(name, texts, **options)
        request = EncodeRequest(call, queue.clock(), queue.forget, queue.is_computing, queue.check_process)
        queue.add(name, request)
        return request

    def close(self, timeout: float | None = None) -> None:
        """Take no more requests, compute the present ones, and end the thread. You can call it again.

        Parameters
        ----------
        timeout : float, optional
            Compute for so many seconds, and then cancel the rest, except for the current batch; 0 cancels at once.
            Default: until all have their results.
        """
        longest = seconds_to_wait("EncodeBatcher.close", timeout)
        if longest is not None and longest < 0:
            raise ValueError(f"EncodeBatcher.close: timeout must be at least 0; got {longest}")
        self._queue.close(longest)

    @property
    def statistics(self) -> EncodeBatcherStatistics:
        """The requests of the EncodeBatcher, and the work that it has done."""
        self._queue.check_process("EncodeBatcher.statistics")
        return self._queue.statistics

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(None if kind is None else 0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, waiting={self._queue.statistics.waiting})"
