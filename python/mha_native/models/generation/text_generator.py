"""Texts of a language model: prompts to tokens, and new tokens to text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.messages import in_the_name_of
from ..text.chat_template import ChatTemplate, checked_conversations
from ..text.tokenizer import Tokenizer, read_prompts
from .completion import Completion, completion_of
from .engine import (
    Caches,
    CompletionKeywords,
    GenerationKeywords,
    GenerationOptions,
    GenerationStatistics,
    Step,
    generate_steps,
)
from .sampling import TokenChoice
from .speculation import checked_draft, drafter_of, speculative_steps
from .text_stream import TextStream


class TextGenerator(NamedTuple):
    """A language model with its tokenizer: the parts that `CausalLM` and `serving.Batcher` share."""

    model: Any
    tokenizer: Tokenizer
    template: ChatTemplate
    end_tokens: frozenset[int]  # each of them ends a text
    keep: Callable[[GenerationStatistics], object]  # gets the statistics of a generation after each step

    def prompts(
        self, function: str, argument: str, given: Any, *, special: bool = True
    ) -> tuple[bool, list[list[int]]]:
        """Return whether an argument is a single prompt, and the tokens of each prompt, with `special` ones or not."""
        sizes = self.model.config.vocab_size, self.model.config.max_positions
        return read_prompts(self.tokenizer, function, argument, given, *sizes, special)

    def conversations(
        self, function: str, messages: Any, variables: Mapping[str, Any]
    ) -> tuple[bool, list[list[int]], "TextGenerator"]:
        """Return whether there is a single conversation, the tokens of each, and a generator of their answers.

        An answer also ends with the token that the template writes after answers.
        """
        is_one, conversations = checked_conversations(f"{function}: messages", messages)
        with in_the_name_of(function):
            texts = [self.template.render(conversation, True, variables) for conversation in conversations]
            after = self.tokenizer.first_special(self.template.text_after_answers())
        _, prompts = self.prompts(function, "messages", texts, special=False)
        return is_one, prompts, self._replace(end_tokens=self.end_tokens | after)

    def options(
        self, function: str, given: Mapping[str, Any], keywords: Any = GenerationKeywords, without: Sequence[str] = ()
    ) -> GenerationOptions:
        """Return the options that a caller gave by name, as `GenerationOptions.checked` does for this model."""
        sizes = self.model.dtype, self.model.config.vocab_size
        checked = GenerationOptions.checked(function, given, *sizes, keywords, without)
        return (
            checked if checked.draft is None else checked._replace(draft=checked_draft(function, checked.draft, self))
        )

    def choice(self, function: str, options: GenerationOptions, prompt: list[int], index: int | None) -> TokenChoice:
        """Return the choice of the tokens after a prompt, the one at `index` of the prompts of a call."""
        config = self.model.config
        ends = options.stop_tokens | (frozenset() if options.ignore_eos else self.end_tokens)
        # The last token of a text is chosen by those before it, and takes no position itself.
        most_new = min(options.max_new_tokens, config.max_positions - len(prompt) + 1)
        of_all = options.sampling, prompt, config.vocab_size, most_new, ends
        return TokenChoice(function, *of_all, index, options.logprobs, options.prompt_logprobs)

    def stream(self, prompt: list[int], options: GenerationOptions) -> TextStream:
        """Return an object that makes text of the tokens after a prompt."""
        return TextStream(self.tokenizer.decode, prompt, options.stop)

    def tokens(self, function: str, prompts: list[list[int]], options: GenerationKeywords) -> list[NDArray[np.int64]]:
        """Return the new tokens [n] of each prompt."""
        checked = self.options(function, options, without=("stop",))
        choices, steps = self._begin(function, prompts, checked)
        for _ in steps:
            pass
        return [np.array(choice.new_tokens, np.int64) for choice in choices]

    def texts(
        self, function: str, is_one: bool, prompts: list[list[int]], stream: bool, options: GenerationKeywords
    ) -> Any:
        """Return the texts after prompts, or with `stream` an iterator of pieces; without lists if there `is_one`."""
        is_streamed = _core.boolean(function, "stream", stream)
        checked = self.options(function, options)
        if not is_streamed:
            texts = [completion.text for completion in self._completions(function, prompts, checked)]
            return texts[0] if is_one else texts
        if not prompts:
            return iter(())
        streams = [self.stream(prompt, checked) for prompt in prompts]
        pieces = self._pieces(function, streams, *self._begin(function, prompts, checked))
        return (piece for (piece,) in pieces if piece) if is_one else (row for row in pieces if any(row))

    def completions(self, function: str, prompts: list[list[int]], options: CompletionKeywords) -> list[Completion]:
        """Return the completion of each prompt."""
        return self._completions(function, prompts, self.options(function, options, CompletionKeywords))

    def rows(
        self, function: str, sequences: list[list[int]], num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the tokens [T] of each text and the vectors [T, E] of the last layer."""
        for tokens, rows, cu_seqlens in self.model.batches(function, sequences, num_threads):
            for first, end in pairwise(cu_seqlens):
                yield tokens[first:end], rows[first:end]

    def _completions(self, function: str, prompts: list[list[int]], options: GenerationOptions) -> list[Completion]:
        streams = [self.stream(prompt, options) for prompt in prompts]
        choices, steps = self._begin(function, prompts, options)
        texts = ["".join(parts) for parts in zip(*self._pieces(function, streams, choices, steps), strict=True)]
        stops = [stream.stop_text for stream in streams]
        return [completion_of(*parts) for parts in zip(choices, texts, stops, strict=True)]

    def _begin(
        self, function: str, prompts: list[list[int]], options: GenerationOptions
    ) -> tuple[list[TokenChoice], Iterator[Step]]:
        choices = [self.choice(function, options, prompt, i) for i, prompt in enumerate(prompts)]
        if not choices:
            return [], iter(())
        longest = max(len(prompt) for prompt in prompts)
        most = longest + max(choice.most_new for choice in choices) - 1
        with in_the_name_of(function):
            model = self.model.cached(options.num_threads)
            caches = Caches(model, len(prompts), longest, most, dtype=options.cache_dtype)
            if options.draft is None:
                return choices, generate_steps(function, caches, choices, self.keep)
            drafter = drafter_of(options.draft, len(prompts), longest, most, options.num_threads)
        return choices, speculative_steps(function, caches, choices, drafter, options.num_draft_tokens, self.keep)

    def _pieces(
        self, function: str, streams: list[TextStream], choices: list[TokenChoice], steps: Iterator[Step]
    ) -> Iterator[list[str]]:
        """Yield the next piece of each text after each step, and at last the rest of each text."""
        for step in steps:
            pieces = [""] * len(streams)
            with in_the_name_of(function):
                for b, token in zip(step.sequences.tolist(), step.tokens.tolist(), strict=True):
                    if token not in choices[b].end_tokens:
                        pieces[b] = streams[b].push(token)
                        choices[b].is_stopped = streams[b].is_stopped
            yield pieces
        last = [stream.finish() for stream in streams]
        for choice, text in zip(choices, streams, strict=True):
            choice.is_stopped = text.is_stopped
        yield last
