"""Many texts at once over one language model: requests join and leave between steps."""

import weakref
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import DTypeLike

from .. import _core
from ..functions.messages import in_the_name_of, name_of_type
from ..functions.runtime import threads_of_call
from ..functions.scalars import checked_integer
from ..layers._constructor_arguments import checked_size
from ..models.causal_lm import CausalLM
from ..models.generation.engine import CompletionKeywords
from ..models.generation.text_generator import TextGenerator
from ._paged_caches import PagedCaches
from ._queue import BatcherStatistics, RequestQueue
from ._scheduler import Scheduler, Sequence
from .request import NewText, Request, StepEvent, deadline_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on

# Without num_pages there is room for so many tokens of each sequence, or for one sequence of the longest text. Memory
# is taken from the operating system when a page is first written to.
_USUAL_LENGTH = 1024

# With shared prefixes there are so many slots for each running sequence: one for itself, one for a text that has ended.
_SLOTS_OF_SEQUENCES = 2


class SubmitKeywords(CompletionKeywords, total=False):
    """Keyword arguments of `Batcher.submit` and `Batcher.submit_chat`; the former explains them."""

    index: int
    timeout: float | None
    on_text: Callable[[str | None], object] | None
    cache_salt: str | None


class Batcher:
    """Generates many texts together. Each has the tokens that `CausalLM.generate_tokens` gives it alone, bit for bit.

    A step reads the last token of each running request, and chunks of prompts, in one call of the model.
    Keys and values are in pages, which requests with the same beginning share.

    Parameters
    ----------
    model : CausalLM
    max_sequences : int, default 64
        The most requests that run at once; others wait.
    num_pages : int, optional
        Pages of keys and values of each layer. Default: enough for 1,024 tokens of each of `max_sequences`, and for one
        text of ``model.max_length``. Memory is taken when a page is first used.
    page_size : int, default 64
        Tokens of a page: a multiple of 64.
    tokens_per_step : int, default 256
        The most tokens that a step reads, at least `max_sequences`. A larger number reads prompts a little faster, a
        smaller one lets running requests wait less.
    share_prefixes : bool, default True
        Let a request use pages of another one that begins with the same tokens, and that runs or has ended lately.
    cache_dtype : dtype, optional
        The dtype of keys and values. Default: the dtype of the model.
    num_threads : int, optional
        Threads of the computation; default: `mha_native.num_threads` when the Batcher is made.
    max_waiting : int, default 1024
        The most requests that wait; `submit` raises `QueueFull` then.
    on_step : function, optional
        Called in the thread that steps, after each step, with a list of a `StepEvent` for each request that has new
        tokens or has ended. Each request ends with one event that has a `finish_reason`. The rules of `on_text` of
        `submit` hold: an exception ends the requests of these events.

    See Also
    --------
    CausalLM.generate : One text, or some that begin and end together.

    Notes
    -----
    You can use `submit`, `close`, `statistics` and a `Request` from any thread. As a context manager the Batcher has
    its own thread, which steps while there are requests; without it, call `run_step`.

    The prompt with the fewest tokens left is read first, and a prompt that waits moves forward with every step. When
    there are too few pages, the youngest running request gives its pages back, and reads its tokens again later, with
    the same results.

    A Batcher without references closes itself. A forked process cannot use it.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> from mha_native.serving import Batcher
    >>> model = CausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    >>> with Batcher(model, max_sequences=8, num_pages=64) as batcher:
    ...     requests = [batcher.submit(f"{k} and {k} is", max_new_tokens=4) for k in range(20)]
    ...     texts = [request.result() for request in requests]
    >>> texts[3] == model.generate("3 and 3 is", max_new_tokens=4)
    True
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_sequences: int = 64,
        num_pages: int | None = None,
        page_size: int = 64,
        tokens_per_step: int = 256,
        share_prefixes: bool = True,
        cache_dtype: DTypeLike | None = None,
        num_threads: int | None = None,
        max_waiting: int = 1024,
        on_step: Callable[[list[StepEvent]], object] | None = None,
    ) -> None:
        name = "Batcher"
        if not isinstance(model, CausalLM):
            raise TypeError(f"{name}: model must be a CausalLM; got {name_of_type(model)}")
        most = checked_size(name, "max_sequences", max_sequences)
        size = checked_size(name, "page_size", page_size)
        per_step = checked_size(name, "tokens_per_step", tokens_per_step)
        if per_step < most:
            raise ValueError(
                f"{name}: tokens_per_step must be at least max_sequences, {most}, for each may read one; got {per_step}"
            )
        if num_pages is None:
            tokens = max(most * min(model.max_length, _USUAL_LENGTH), model.max_length)
            num_pages = -(-tokens // size)
        pages = checked_size(name, "num_pages", num_pages)
        shares = _core.boolean(name, "share_prefixes", share_prefixes)
        num_threads = threads_of_call(name, num_threads)
        waiting = checked_size(name, "max_waiting", max_waiting)
        _check_function(name, "on_step", on_step)
        slots = most * _SLOTS_OF_SEQUENCES if shares else most
        with in_the_name_of(name, dtype="cache_dtype"):
            caches = PagedCaches(model.generator.model.cached(num_threads), pages, size, slots, cache_dtype)
        scheduler = Scheduler(caches, most, per_step, shares)
        self._model, self._num_pages, self._page_size = model, pages, size
        self._queue = RequestQueue(caches, scheduler, waiting, monotonic, on_step)
        # It does not wait for the thread: garbage is collected anywhere, in the thread itself, too.
        weakref.finalize(self, self._queue.close, waits=False).atexit = False

    @overload
    def submit(self, prompt: Any, *, n: None = None, **options: "Unpack[SubmitKeywords]") -> Request: ...
    @overload
    def submit(self, prompt: Any, *, n: int, **options: "Unpack[SubmitKeywords]") -> list[Request]: ...
    def submit(self, prompt: Any, *, n: int | None = None, **options: "Unpack[SubmitKeywords]") -> Any:
        """Add a request for the continuation of a prompt.

        Parameters
        ----------
        prompt : str, or integers [T]
            As for `CausalLM.generate`.
        n : int, optional
            Add so many requests, which share the pages of the prompt, and return a list. Request i has the seed
            ``seed + i``. If there is no room for all of them, none is added.
        index : int, default 0
            Draw as the prompt at this place of a list does: `CausalLM.generate` of a list of prompts gives each prompt
            its own random numbers for the same `seed`.
        timeout : float, optional
            Seconds until the text must be whole; else the request ends with TimeoutError, even if it still waits.
        on_text : function, optional
            Called in the thread that steps, with each piece of the text, and at last with None, however the request
            ends. It must not take long. It may submit and cancel requests and close the Batcher, but not wait for a
            request. An exception of any kind in it ends this request only. The exceptions are KeyboardInterrupt and
            SystemExit in the main thread, which may come from a signal: they leave `run_step`, and end no request.
        cache_salt : str, optional
            Share pages only with requests of the same salt, so that nobody else can find out by the time of an answer
            which prompts came before. Default: with all requests that have none.
        **options
            As for `CausalLM.complete`, without `num_threads` and `cache_dtype`. A request with `prompt_logprobs` reads
            its whole prompt itself.

        Returns
        -------
        request : Request
            With `n` a list of n.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or if the prompt and `max_new_tokens` take more pages than there are.
        QueueFull
            If `max_waiting` requests wait.
        RuntimeError
            If the Batcher is closed, or belongs to another process.
        """
        name = "Batcher.submit"

        def read() -> tuple[list[int], TextGenerator]:
            generator = self._model.generator
            is_one, prompts = generator.prompts(name, "prompt", prompt)
            if not is_one:
                raise TypeError(f"{name}: prompt must be one text, or its tokens [T]; got a list of {len(prompts)}")
            return prompts[0], generator

        return self._add(name, read, n, options)

    @overload
    def submit_chat(
        self,
        messages: Any,
        *,
        variables: Mapping[str, Any] | None = None,
        n: None = None,
        **options: "Unpack[SubmitKeywords]",
    ) -> Request: ...
    @overload
    def submit_chat(
        self, messages: Any, *, variables: Mapping[str, Any] | None = None, n: int, **options: "Unpack[SubmitKeywords]"
    ) -> list[Request]: ...
    def submit_chat(
        self,
        messages: Any,
        *,
        variables: Mapping[str, Any] | None = None,
        n: int | None = None,
        **options: "Unpack[SubmitKeywords]",
    ) -> Any:
        """Add a request for the answer to a conversation, with the tokens of `CausalLM.chat`.

        Parameters
        ----------
        messages : list of dict
            As for `CausalLM.chat`, one conversation.
        variables : dict, optional
            Further variables of the chat template, such as ``enable_thinking``.
        n, **options
            As for `submit`.

        Returns
        -------
        request : Request
            With `n` a list of n.

        Raises
        ------
        TypeError, ValueError, QueueFull, RuntimeError
            As `submit`; if the model has no chat template, or the template refuses the messages.
        ImportError
            Without jinja2.
        """
        name = "Batcher.submit_chat"

        def read() -> tuple[list[int], TextGenerator]:
            if not isinstance(variables, Mapping | None):
                raise TypeError(f"{name}: variables must be a dict; got {name_of_type(variables)}")
            is_one, prompts, generator = self._model.generator.conversations(name, messages, variables or {})
            if not is_one:
                raise TypeError(f"{name}: messages must be one conversation; got a list of {len(prompts)}")
            return prompts[0], generator

        return self._add(name, read, n, options)

    def _add(
        self,
        name: str,
        read: Callable[[], tuple[list[int], TextGenerator]],
        n: int | None,
        options: SubmitKeywords,
    ) -> Request | list[Request]:
        """Add a request for the continuation of the tokens that `read` returns, or `n` of them, by the caller's
        options."""
        self._queue.check_process(name)
        given: dict[str, Any] = dict(options)
        on_text, timeout, salt = given.pop("on_text", None), given.pop("timeout", None), given.pop("cache_salt", None)
        _check_function(name, "on_text", on_text)
        for option in ("num_threads", "cache_dtype"):
            if option in given:
                raise TypeError(f"{name}: {option} is an argument of Batcher, for all of its requests")
        for option in ("draft", "num_draft_tokens"):
            if option in given:
                raise TypeError(f"{name}: {option} is an option of CausalLM.generate; a Batcher takes no drafts")
        if salt is not None and not isinstance(salt, str):
            raise TypeError(f"{name}: cache_salt must be a str; got {name_of_type(salt)}")
        count = 1 if n is None else checked_size(name, "n", n)
        if n is not None and on_text is not None:
            raise TypeError(f"{name}: on_text is for one request; with n use on_step of the Batcher")
        index = checked_integer(name, "index", given.pop("index", 0), 0)
        checked = self._model.generator.options(name, given, CompletionKeywords)
        tokens, generator = read()
        now, requests = self._queue.clock(), []
        deadline, seed = deadline_of(name, timeout, now), checked.sampling.seed
        for i in range(count):
            sampling = checked.sampling
            if n is not None and seed is not None:
                sampling = sampling._replace(seed=checked_integer(name, "seed", seed, 0) + i)
            sequence = Sequence(tokens, salt)
            choice = generator.choice(name, checked._replace(sampling=sampling), sequence.tokens, index or None)
            if choice.reads_all:
                sequence.observer = choice.read_prompt
            if (needed := self._queue.scheduler.needs(len(tokens) + choice.most_new - 1)) > self._num_pages:
                raise ValueError(
                    f"{name}: {len(tokens)} tokens of prompt and {choice.most_new} new ones take {needed} pages of "
                    f"{self._page_size}, and the Batcher has {self._num_pages}"
                )
            text = NewText(lambda: generator.stream(tokens, checked), choice.end_tokens)
            needs_text = bool(checked.stop) or self._queue.on_step is not None
            wake, is_stepping = self._queue.wake, self._queue.is_stepping
            requests.append(Request(sequence, choice, text, deadline, on_text, needs_text, now, wake, is_stepping))
        self._queue.add(name, requests)
        return requests[0] if n is None else requests

    def run_step(self) -> bool:
        """Do one step in this thread, for your own loops and for tests. Return whether a request is left.

        Raises
        ------
        RuntimeError
            If another thread steps, or if the Batcher was started or closed.
        KeyboardInterrupt, SystemExit
            In the main thread, also from `on_text`, where they may come from a signal. No request ends.
        Exception
            An error of the step, such as MemoryError. No request ends: the next call retries the step. Use
            `Request.cancel` to drop a request first.
        """
        return self._queue.step("Batcher.run_step")

    def start(self) -> "Self":
        """Start a thread that steps while there are requests. Return the Batcher.

        A step that fails ends the requests that were running, and the thread goes on with the others. RuntimeError if
        a step is under way, as in a callback of `run_step`.
        """
        self._queue.start("Batcher.start")
        return self

    def close(self) -> None:
        """End all requests, which raise CancelledError then, end the thread, and free the pages. You can call it
        again."""
        self._queue.close()

    @property
    def statistics(self) -> BatcherStatistics:
        """The requests of the Batcher, and the work that it has done."""
        self._queue.check_process("Batcher.statistics")
        return self._queue.statistics

    def __enter__(self) -> "Self":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        waiting, running, num_pages, *_ = self._queue.statistics
        return f"{type(self).__name__}({self._model!r}, num_pages={num_pages}, waiting={waiting}, running={running})"


def _check_function(name: str, argument: str, function: Any) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"{name}: {argument} must be a function; got {name_of_type(function)}")
