"""The continuation of a prompt with all that is known of it."""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .logprobs import TokenLogprobs
from .sampling import TokenChoice

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "timeout", "error"]


class Completion(NamedTuple):
    """A whole continuation of a prompt.

    Parameters
    ----------
    text : str
        Without the prompt, and without special tokens.
    tokens : int64 [n]
        The new tokens. An end token is the last one.
    finish_reason : {"stop", "length"}
        "stop" after an end token, a token of `stop_token_ids` or a text of `stop`; "length" after `max_new_tokens`, or
        at the last position of the model.
    stop_text : str or None
        The text of `stop` that ended the continuation.
    logprobs : tuple of TokenLogprobs, or None
        One for each new token, with the option `logprobs`.
    prompt_logprobs : tuple of TokenLogprobs, or None
        One for each token of the prompt, with the option `prompt_logprobs`. The first one is None, since no token is
        before it.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> model = CausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    >>> completion = model.complete("The capital of France is", max_new_tokens=8, logprobs=2)
    >>> len(completion.logprobs) == len(completion.tokens)
    True
    """

    text: str
    tokens: NDArray[np.int64]
    finish_reason: FinishReason
    stop_text: str | None
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None


def completion_of(choice: TokenChoice, text: str, stop_text: str | None) -> Completion:
    """Return the completion of a sequence that has ended, by its tokens and its text."""
    reason = choice.finish_reason
    assert reason is not None, "the sequence has ended"
    new = np.array(choice.new_tokens, np.int64)
    return Completion(text, new, reason, stop_text, choice.logprobs, choice.prompt_logprobs)
