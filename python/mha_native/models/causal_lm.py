"""Language models: the continuation of a text, answers in a conversation, and what a text is worth to a model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._dtypes import checked_dtype
from .._messages import in_the_name_of, name_of_type
from ..layers._constructor_arguments import WeightDType, checked_size, checked_weight_dtype
from ._batching import batches, packed
from ._chat_template import ChatTemplate, checked_conversation
from ._inputs import checked_sequences
from ._language_model import LanguageModel
from ._language_tokenizer import LanguageTokenizer
from ._token_run import GenerationOptions, GenerationStatistics, TokenRun, checked_stop
from ._tokenizer import require_library

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["CausalLM", "GenerationStatistics", "TextScore"]

# A text; or its tokens [T], which are taken as they are.
Prompt: TypeAlias = Any


class TextScore(NamedTuple):
    """How likely a text is to a language model.

    Parameters
    ----------
    tokens : int64 [T]
        Of the text, special ones included.
    log_likelihoods : float64 [T - 1]
        Of each token but the first: the logarithm of its probability behind those before it.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import TextScore
    >>> score = TextScore(np.array([1, 7, 4]), np.log([0.5, 0.125]))
    >>> round(score.total, 4), round(score.perplexity, 4)
    (-2.7726, 4.0)
    """

    tokens: NDArray[np.int64]
    log_likelihoods: NDArray[np.float64]

    @property
    def total(self) -> float:
        """The sum of `log_likelihoods`."""
        return float(self.log_likelihoods.sum())

    @property
    def perplexity(self) -> float:
        """``exp(-mean(log_likelihoods))``; NaN for a text of a single token."""
        return float(np.exp(-self.log_likelihoods.mean())) if len(self.log_likelihoods) else float("nan")


class CausalLM:
    """A pretrained language model: it continues texts, answers in conversations, and scores texts.

    Made by `from_pretrained`.

    Parameters
    ----------
    model, tokenizer, template, end_tokens
        What `from_pretrained` reads.

    See Also
    --------
    from_pretrained : What a directory or a file holds.
    generate : The continuation of prompts.
    chat : The answer in a conversation.
    score : Log-likelihoods and perplexity.
    mha_native.generate : The same loop for stacks of layers of one's own.

    Notes
    -----
    Prompts of a list are read and continued together. What a prompt gets has the same tokens alone and in any list.

    Needs tokenizers: ``pip install "mha_native[text]"``; `chat` and `apply_chat_template` need jinja2:
    ``pip install "mha_native[chat]"``. May be used from several threads at once.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> model = CausalLM.from_pretrained("smollm2-135m-instruct.gguf")
    >>> text = model.generate("The capital of France is", max_new_tokens=8)
    >>> for piece in model.chat([{"role": "user", "content": "Hello!"}], max_new_tokens=8, stream=True):
    ...     shown = piece
    >>> model.statistics.new_tokens
    8
    """

    def __init__(
        self, model: LanguageModel, tokenizer: LanguageTokenizer, template: ChatTemplate, end_tokens: Iterable[int]
    ) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._end_tokens = frozenset(end_tokens)
        self._statistics = GenerationStatistics(0, 0, 0, 0.0, 0.0)

    @overload
    def generate(
        self, prompts: str, *, stream: Literal[False] = False, **options: "Unpack[GenerationOptions]"
    ) -> str: ...
    @overload
    def generate(
        self, prompts: str, *, stream: Literal[True], **options: "Unpack[GenerationOptions]"
    ) -> Iterator[str]: ...
    @overload
    def generate(self, prompts: Prompt, *, stream: bool = False, **options: "Unpack[GenerationOptions]") -> Any: ...
    def generate(self, prompts: Prompt, *, stream: bool = False, **options: "Unpack[GenerationOptions]") -> Any:
        """The continuation of prompts.

        Parameters
        ----------
        prompts : str, or integers [T], or B of them in a list
            Texts get the special tokens that the tokenizer begins a text with; tokens are taken as they are.
        stream : bool, default False
            Give the text as it comes.
        max_new_tokens : int, default 256
            A text ends with so many new tokens, at a token that ends it, or where the model has no more positions.
        temperature, top_k, top_p, min_p, repetition_penalty, seed : optional
            What chooses a token, as for `mha_native.generate`, in this order: first the penalty, then the temperature.
            Default: the most probable one. What generation_config.json says of them is not used.
        stop : str, or list of str, optional
            Where one of them begins, the text ends before it.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`.

        Returns
        -------
        text : str
            Without the prompt, and without special tokens. For a list of prompts a list of B.
        pieces : iterator of str
            With `stream`: the text in pieces of whole characters, none of them empty. For a list of prompts lists of B,
            of which some may be empty.

        Raises
        ------
        TypeError, ValueError
            Before anything is computed, if an argument breaks a rule, or if a prompt has more tokens than `max_length`.
        """
        name = f"{type(self).__name__}.generate"
        is_one, given = self._prompts(name, prompts)
        return self._generated(name, is_one, given, stream, options)

    def chat(self, messages: Any, *, stream: bool = False, **options: "Unpack[GenerationOptions]") -> Any:
        """The answer to the last message of a conversation.

        Parameters
        ----------
        messages : list of dict
            Each with ``role`` (such as "system", "user" or "assistant") and ``content``, as the template of the model
            takes them; or a list of B conversations.
        stream : bool, default False
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, num_threads
            As for `generate`.

        Returns
        -------
        text or pieces
            As `generate` gives them.

        Raises
        ------
        TypeError, ValueError
            As `generate`; and if the model has no chat template, or that refuses the messages.
        ImportError
            Without jinja2.
        """
        name = f"{type(self).__name__}.chat"
        is_one, conversations = _conversations(f"{name}: messages", messages)
        with in_the_name_of(name):
            texts = [self._template.render(conversation, True, {}) for conversation in conversations]
        given = [self._tokenizer.encode(f"{name}: messages", text, i, special=False) for i, text in enumerate(texts)]
        return self._generated(name, is_one, given, stream, options)

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation as the model reads it.

        Parameters
        ----------
        messages : list of dict
            As for `chat`.
        add_generation_prompt : bool, default True
            End with what stands before an answer.
        **variables
            Further ones of the template, such as ``tools``.

        Returns
        -------
        text : str
            With its special tokens. `generate` of tokens continues it: ``generate(encode(text,
            add_special_tokens=False))``.
        """
        name = f"{type(self).__name__}.apply_chat_template"
        conversation = checked_conversation(f"{name}: messages", messages)
        wanted = _core.boolean(name, "add_generation_prompt", add_generation_prompt)
        with in_the_name_of(name):
            return self._template.render(conversation, wanted, variables)

    def generate_tokens(self, prompts: Prompt, **options: "Unpack[GenerationOptions]") -> Any:
        """The tokens that `generate` makes text of.

        Parameters
        ----------
        prompts : str, or integers [T], or B of them in a list
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, num_threads
            As for `generate`.

        Returns
        -------
        tokens : int64 [n]
            The new ones. A token that ends the text is the last one. For a list of prompts a list of B.
        """
        name = f"{type(self).__name__}.generate_tokens"
        is_one, given = self._prompts(name, prompts)
        if not given:
            return []
        run = TokenRun(name, self._model, given, self._end_tokens, options)
        steps = [(tokens, were_going) for tokens, were_going in run]
        self._statistics = run.statistics
        tokens, were_going = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
        found = [row[mask] for row, mask in zip(tokens, were_going, strict=True)]
        return found[0] if is_one else found

    def logits(self, texts: Prompt, *, num_threads: int | None = None) -> Any:
        """What the model gives every token of the vocabulary behind each token of a text.

        Parameters
        ----------
        texts : str, or integers [T], or B of them in a list
            As `prompts` of `generate`.
        num_threads : int, optional

        Returns
        -------
        logits : float32 [T, V]
            Of a model in float64 in float64. For a list of texts a list of B.
        """
        name = f"{type(self).__name__}.logits"
        is_one, given = self._prompts(name, texts, "texts")
        found = [self._model.logits(rows, num_threads) for _, rows in self._rows(name, given, num_threads)]
        return found[0] if is_one else found

    def score(self, texts: Prompt, *, num_threads: int | None = None) -> Any:
        """How likely texts are to the model. The softmax is computed in float64.

        Parameters
        ----------
        texts : str, or integers [T], or B of them in a list
            As `prompts` of `generate`.
        num_threads : int, optional

        Returns
        -------
        score : TextScore
            For a list of texts a list of B.
        """
        name = f"{type(self).__name__}.score"
        is_one, given = self._prompts(name, texts, "texts")
        found = []
        for tokens, rows in self._rows(name, given, num_threads):
            found.append(TextScore(tokens, self._model.log_likelihoods(rows[:-1], tokens[1:], num_threads)))
        return found[0] if is_one else found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> NDArray[np.int64]:
        """The tokens [T] of a text, with those that begin or end each text unless `add_special_tokens` is False."""
        name = f"{type(self).__name__}.encode"
        special = _core.boolean(name, "add_special_tokens", add_special_tokens)
        with in_the_name_of(name):
            return np.array(self._tokenizer.encode(f"{name}: text", text, 0, special=special), np.int64)

    def decode(self, tokens: Any) -> str:
        """The text of tokens [T], without special ones."""
        name = f"{type(self).__name__}.decode"
        (checked,) = checked_sequences(f"{name}: tokens", [tokens])
        with in_the_name_of(name):
            return self._tokenizer.decode(checked)

    @property
    def statistics(self) -> GenerationStatistics:
        """Of the last call that has generated something, or of a stream that has ended or is at its last step."""
        return self._statistics

    @property
    def max_length(self) -> int:
        """P, the most tokens of a text, its continuation included."""
        return self._model.max_length

    @property
    def vocab_size(self) -> int:
        """V, the logits of a token."""
        return self._model.config.vocab_size

    @property
    def embed_dim(self) -> int:
        """E, the features of a token."""
        return self._model.config.embed_dim

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._model.config.blocks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the model is computed in."""
        return self._model.dtype

    @property
    def weight_dtype(self) -> str:
        """What the matrices of the layers are stored as, by name."""
        return self._model.weight_dtype

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(embed_dim={self.embed_dim}, num_layers={self.num_layers}, "
            f"vocab_size={self.vocab_size}, max_length={self.max_length}, "
            f"dtype={_core.dtype_name(self.dtype)!r}, weight_dtype={self.weight_dtype!r})"
        )
