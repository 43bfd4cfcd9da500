"""One text that a `Batcher` generates: its pieces as they come, and how it ends."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from math import nan
from typing import NamedTuple, TypeVar

from ..functions.messages import name_of_type, shown
from ..functions.scalars import checked_real
from ..models.generation.completion import Completion, FinishReason, completion_of
from ..models.generation.logprobs import TokenLogprobs
from ..models.generation.sampling import TokenChoice
from ..models.generation.text_stream import TextStream
from ._scheduler import Sequence

Item = TypeVar("Item")


class RequestStatistics(NamedTuple):
    """Numbers of tokens that a request has read and generated, and the times that they took.

    Parameters
    ----------
    prompt_tokens, new_tokens : int
        Tokens of the prompt; tokens generated so far.
    shared_tokens : int
        Tokens shared with another request and not read. Tokens that are read again, because other requests needed
        their pages, count again.
    first_token_seconds : float
        From `Batcher.submit` to the first new token; NaN before it is there.
    new_seconds : float
        From the first new token to the last one so far.
    queue_seconds : float
        From `Batcher.submit` to the first step that reads the prompt; NaN before it.
    cached_tokens : int
        Tokens of the prompt that were never read, since another request had read them. Unlike `shared_tokens`, it does
        not grow when tokens are read again.

    Examples
    --------
    >>> from mha_native.serving import RequestStatistics
    >>> RequestStatistics(500, 101, 448, 0.5, 2.0).seconds_per_token
    0.02
    """

    prompt_tokens: int
    new_tokens: int
    shared_tokens: int
    first_token_seconds: float
    new_seconds: float
    queue_seconds: float = nan
    cached_tokens: int = 0

    @property
    def seconds_per_token(self) -> float:
        """Average time from one new token to the next; NaN for a single token."""
        return self.new_seconds / (self.new_tokens - 1) if self.new_tokens > 1 else nan


class StepEvent(NamedTuple):
    """The news of a request after a step of its Batcher, for `on_step`.

    Parameters
    ----------
    request : Request
    piece : str
        The next piece of the text, in whole characters. It may be empty.
    tokens : tuple of int
        The new tokens.
    logprobs : tuple of TokenLogprobs
        One for each of `tokens`, with the option `logprobs`; else empty.
    finish_reason : str or None
        `Request.finish_reason` in the last event of the request, else None.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> from mha_native.serving import Batcher
    >>> model = CausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    >>> found = []
    >>> with Batcher(model, on_step=found.extend) as batcher:
    ...     text = batcher.submit("The capital of France is", max_new_tokens=8).result()
    >>> "".join(event.piece for event in found) == text, found[-1].finish_reason
    (True, 'length')
    """

    request: "Request"
    piece: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None


class NewText:
    """The text of new tokens, one piece for each of them and one more at the end.

    `begin` makes a `TextStream`. The tokens in `silent` are no text.
    """

    def __init__(self, begin: Callable[[], TextStream], silent: frozenset[int]) -> None:
        self._begin, self._silent = begin, silent
        self._state: tuple[TextStream, int] | None = None  # and how many tokens it has got
        self.pieces: list[str] = []
        self.stop_text: str | None = None

    def advance(self, tokens: list[int], is_whole: bool) -> list[str]:
        """Return all pieces of the text of `tokens`, with the last piece if these are the whole text."""
        # After an exception the text begins again with the first token: the same tokens give the same pieces.
        state, self._state = self._state, None
        stream, num_pushed = state or (self._begin(), 0)
        for token in tokens[num_pushed:]:
            piece = "" if token in self._silent else stream.push(token)
            num_pushed += 1
            if num_pushed > len(self.pieces):
                self.pieces.append(piece)
        if is_whole and len(self.pieces) == len(tokens):
            self.pieces.append(stream.finish())
        self.stop_text = stream.stop_text
        self._state = stream, num_pushed
        return self.pieces


class Request:
    """A text that is being generated. Use `Batcher.submit` to make one.

    Iterate it for the text in pieces of whole characters, none of them empty; the iterator waits for each. You can
    iterate several times, from several threads. An error that ends the request before its text is whole is raised after
    the last piece: TimeoutError, CancelledError of `concurrent.futures`, or the exception of a callback. One that is no
    Exception, such as SystemExit or CancelledError of asyncio, would end the thread or task that waits. So it is the
    cause of a RuntimeError.

    Parameters
    ----------
    sequence, choice, text, deadline, on_text, needs_text, now, wake, is_stepping
        Values that `Batcher.submit` computes.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> from mha_native.serving import Batcher
    >>> model = CausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    >>> with Batcher(model) as batcher:
    ...     request = batcher.submit("The capital of France is", max_new_tokens=8)
    ...     text = "".join(piece for piece in request)
    >>> text == request.result() == model.generate("The capital of France is", max_new_tokens=8)
    True
    """

    def __init__(
        self,
        sequence: Sequence,
        choice: TokenChoice,
        text: NewText,
        deadline: tuple[float, float] | None,
        on_text: Callable[[str | None], object] | None,
        needs_text: bool,
        now: float,
        wake: Callable[[], None],
        is_stepping: Callable[[], bool],
    ) -> None:
        self._sequence, self._choice, self._text = sequence, choice, text
        self._num_prompt = len(sequence.tokens)
        self._deadline, self._on_text, self._wake, self._is_stepping = deadline, on_text, wake, is_stepping
        self._is_text_needed = needs_text or on_text is not None  # in each step; else whoever wants it makes it
        self._begin = now
        self._reading_began: float | None = None
        self._token_times: list[float] = []  # of the first and the last new token
        self._num_called, self._is_last_called = 0, False
        self._num_told = 0, 0  # tokens and pieces in events so far
        self._is_end_told = False
        self._error: BaseException | None = None
        self._reason: FinishReason | None = None
        self._changed = threading.Condition()
        self._process = os.getpid()

    def __iter__(self) -> Iterator[str]:
        return (piece for piece in self._each(self._pieces) if piece)

    def tokens(self) -> Iterator[int]:
        """Yield the new tokens as they come. A token that ends the text is the last one."""
        return self._each(lambda: self._choice.new_tokens)

    def result(self, timeout: float | None = None) -> str:
        """Wait for the whole text, and return it.

        Parameters
        ----------
        timeout : float, optional
            Wait no longer than so many seconds. The request goes on. Default: until it ends.

        Raises
        ------
        TimeoutError
            If it has not ended in that time.
        RuntimeError
            In a callback of the same Batcher without `timeout`, where the wait would have no end.
        Exception
            The error that ended the request.
        """
        return self._whole_text("result", timeout)

    def completion(self, timeout: float | None = None) -> Completion:
        """Wait for the whole text, and return it as `CausalLM.complete` does.

        Parameters
        ----------
        timeout : float, optional
            As for `result`, with the same errors.
        """
        return completion_of(self._choice, self._whole_text("completion", timeout), self._text.stop_text)

    def cancel(self) -> bool:
        """End the request, whose pages are free before the next step. Return whether it was going on."""
        self._check_process("cancel")
        return self._end(CancelledError("Request.cancel: the request was cancelled"), "cancelled")

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it has ended; None while it goes on.

        "stop" and "length" as in `Completion`; "cancelled" by `cancel` or `Batcher.close`; "timeout"; or "error", which
        `result` raises.
        """
        return self._reason if self.done else None

    @property
    def stop_text(self) -> str | None:
        """The text of `stop` that has ended it, if one has."""
        return self._text.stop_text

    @property
    def done(self) -> bool:
        """Whether it has ended: with its whole text, or by an error."""
        return self._sequence.has_ended

    @property
    def statistics(self) -> RequestStatistics:
        """Statistics of the tokens so far."""
        self._check_process("statistics")
        with self._changed:
            times, num_new = self._token_times, len(self._sequence.tokens) - self._num_prompt
            first_seconds, new_seconds = (times[0] - self._begin, times[-1] - times[0]) if times else (nan, 0.0)
            queued = nan if self._reading_began is None else self._reading_began - self._begin
            sequence = self._sequence
            return RequestStatistics(
                self._num_prompt,
                num_new,
                sequence.num_shared,
                first_seconds,
                new_seconds,
                queued,
                min(sequence.num_cached, self._num_prompt),
            )

    def __repr__(self) -> str:
        state = "going on" if not self.done else "done" if self._error is None else name_of_type(self._error)
        num_new = len(self._sequence.tokens) - self._num_prompt
        return f"{type(self).__name__}({self._num_prompt} tokens, {num_new} new, {state})"

    def _whole_text(self, what: str, timeout: float | None) -> str:
        self._check_process(what)
        longest = None if timeout is None else checked_real(f"Request.{what}", "timeout", timeout)
        if longest is None:
            self._check_wait(what)
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, longest):
                raise TimeoutError(f"Request.{what}: the request has not ended in {timeout} s; it goes on")
            if self._error is not None:
                raise self._error
            return "".join(self._pieces())

    def _pieces(self) -> list[str]:
        return self._text.advance(self._choice.new_tokens, self.done and self._error is None)

    def _each(self, so_far: Callable[[], list[Item]]) -> Iterator[Item]:
        """Yield the items of a list that grows, then raise the error that has ended the request, if any."""
        place = 0
        while True:
            self._check_process("iteration")
            with self._changed:
                while len(items := so_far()) == place and not self.done:
                    self._check_wait("iteration")
                    self._changed.wait()
                new = items[place:]
            if not new and self._error is not None:
                raise self._error
            if not new:
                return
            place += len(new)
            yield from new

    def _check_process(self, what: str) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"Request.{what}: the request belongs to process {self._process}, "
                f"and this is {os.getpid()}, a fork of it"
            )

    def _check_wait(self, what: str) -> None:
        if not self.done and self._is_stepping():
            raise RuntimeError(
                f"Request.{what}: a callback must not wait for a request: the step waits for the callback"
            )

    # The thread that steps calls the methods below.

    def _begin_reading(self, now: float) -> None:
        """Keep the time of the first step that reads tokens of the request."""
        if self._reading_began is None:
            self._reading_began = now

    def _take(self, token: int, now: float) -> None:
        """Append the next token."""
        with self._changed:
            if not self.done:
                self._token_times[1:] = [now]
                self._sequence.tokens.append(token)
                self._changed.notify_all()

    def _advance(self, now: float) -> None:
        """Update the text, call the callback, and end the request, by the tokens so far and the time."""
        if self._deadline is not None and now >= self._deadline[0]:
            message = f"Batcher.submit: the request has not ended in its timeout, {self._deadline[1]} s"
            self._end(TimeoutError(message), "timeout")
        new = self._choice.new_tokens
        if not new or self.done:
            return
        try:
            is_whole = self._choice.has_ended
            if self._is_text_needed:
                with self._changed:
                    self._text.advance(new, False)
                    is_whole = is_whole or self._text.stop_text is not None
                    self._text.advance(new, is_whole)
                    self._choice.is_stopped = self._text.stop_text is not None
                self._call(is_whole)
            if is_whole:
                self._end(None, self._choice.finish_reason)
        except BaseException as error:  # of the tokenizer, or whatever the callback raises
            if is_of_signal(error):
                raise
            self._end(for_waiters("Batcher.submit: on_text", error), "error")

    def _call(self, is_last: bool) -> None:
        """Call the callback with its next pieces, and with None at the end."""
        while self._on_text is not None and self._num_called < len(self._text.pieces):
            self._num_called += 1
            if piece := self._text.pieces[self._num_called - 1]:
                self._on_text(piece)
        if is_last and self._on_text is not None and not self._is_last_called:
            self._is_last_called = True
            self._on_text(None)

    def _forget(self) -> None:
        """Call the callback with None if the request ended without such a call; exceptions in it have no effect."""
        self._num_called = len(self._text.pieces)
        self._wake, self._is_stepping = do_nothing, never
        try:
            self._call(True)
        except BaseException as error:
            if is_of_signal(error):
                raise

    def _news(self) -> StepEvent | None:
        """Return the event of what has happened since the last call, if anything has."""
        with self._changed:
            tokens, pieces, reason = self._choice.new_tokens, self._text.pieces, self.finish_reason
            num_tokens, num_pieces = self._num_told
            new, piece = tuple(tokens[num_tokens:]), "".join(pieces[num_pieces:])
            if self._is_end_told or not (new or piece or reason):
                return None
            self._num_told, self._is_end_told = (len(tokens), len(pieces)), reason is not None
        logprobs = self._choice.logprobs or ()
        return StepEvent(self, piece, new, logprobs[num_tokens : len(tokens)], reason)

    def _end(self, error: BaseException | None, reason: FinishReason | None) -> bool:
        """End the request, and return True, unless it has ended."""
        with self._changed:
            if self.done:
                return False
            self._error, self._reason = error, reason
            self._sequence.has_ended = True
            self._changed.notify_all()
        self._wake()
        return True


def do_nothing() -> None:
    """Wake nobody: a request that has ended keeps no reference to its Batcher."""


def never() -> bool:
    """Return False: no step waits for a request that has ended."""
    return False


def is_of_signal(error: BaseException) -> bool:
    """Return whether a signal handler may have raised `error`: only the main thread runs them."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and isinstance(error, (KeyboardInterrupt, SystemExit))


def for_waiters(callback: str, error: BaseException) -> Exception:
    """Return the exception for those who wait for a request, by the one with which a callback ended it."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"{callback} failed with {name_of_type(error)}: {shown(str(error))}")
    failure.__cause__ = error
    return failure


def deadline_of(function: str, timeout: float | None, now: float) -> tuple[float, float] | None:
    """Return the time at which a request that begins now times out, and the seconds until then."""
    if timeout is None:
        return None
    seconds = checked_real(function, "timeout", timeout)
    if seconds <= 0:
        raise ValueError(f"{function}: timeout must be above 0; got {seconds}")
    return now + seconds, seconds
