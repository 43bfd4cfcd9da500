"""Language models: the continuation of a text, answers in a conversation, and what a text is worth to a model."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import _core
from .._messages import in_the_name_of
from ..layers._constructor_arguments import WeightDType, checked_dtypes, checked_size
from ._batching import batches, packed
from ._chat_template import ChatTemplate, checked_conversation
from ._inputs import prompts_in
from ._language_face import LanguageFace
from ._language_files import find_source, read_end_tokens
from ._language_model import LanguageModel
from ._language_tokenizer import LanguageTokenizer
from ._text_score import TextScore
from ._text_stream import TextStream
from ._token_run import GenerationOptions, GenerationStatistics, TokenRun, checked_stop
from ._tokenizer import require_library
from .decoders.opening import open_decoder
from .decoders.source import ModelSource

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["CausalLM", "GenerationStatistics", "TextScore"]

# A text; or its tokens [T], which are taken as they are.
Prompt: TypeAlias = Any


class CausalLM(LanguageFace):
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
    >>> model = CausalLM.from_pretrained("SmolLM2-135M-Instruct")
    >>> text = model.generate("The capital of France is", max_new_tokens=8)
    >>> question = {"role": "user", "content": "Hello!"}
    >>> answer = "".join(piece for piece in model.chat([question], max_new_tokens=8, stream=True))
    >>> model.statistics.new_tokens
    8
    >>> model.score("The capital of France is Paris.").perplexity > 1
    True
    """

    @classmethod
    def from_pretrained(
        cls,
        directory: str | PathLike[str],
        *,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        max_length: int | None = None,
    ) -> "CausalLM":
        """The model in `directory`, as transformers saves it, or in one file of the format GGUF.

        Parameters
        ----------
        directory : path of a directory or of a file, or name of a model
            A directory with config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json) of a model whose ``model_type`` is gemma2, gemma3_text, gpt2, llama, mistral,
            qwen2 or qwen3; generation_config.json and chat_template.jinja may be beside them. Or a file ``.gguf`` of
            such a model, in F32, F16, BF16, Q4_0 to Q8_0, or Q4_K to Q6_K.

            A str that is no path, such as ``"HuggingFaceTB/SmolLM2-135M-Instruct"``, is looked up in the local cache of
            Hugging Face, as by `SentenceEncoder.from_pretrained`.
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            What the model is computed in, whatever its file is in.
        weight_dtype : str, optional
            Of a model in float32, what the matrices of the layers and of the head are stored as, see
            `MultiHeadAttention.quantize`; embeddings of tokens stay in float32. A token takes as long as they take to
            be read, so that bfloat16 and int8 are faster. Default: `dtype`.
        max_length : int, optional
            The most tokens of a text, its continuation included. Default: as many as the model was trained with.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing, damaged, or describes what is not computed here, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError
            If a file cannot be read, or a model cannot be downloaded.
        ImportError
            Without tokenizers.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            longest = None if max_length is None else checked_size(function, "max_length", max_length)
            return cls._from_source(find_source(directory), kind, stored, longest)

    @classmethod
    def _from_source(
        cls, source: ModelSource, dtype: np.dtype[Any], weight_dtype: str, max_length: int | None
    ) -> "CausalLM":
        """The model of a source, in the files of which anything may be wrong."""
        tokenizer = LanguageTokenizer(source.tokenizer())
        parts = open_decoder(source, dtype=dtype, weight_dtype=weight_dtype, max_positions=max_length)
        tokenizer.check_vocabulary(source.path, parts.config.vocab_size)
        template = ChatTemplate(source.path, source.chat_template, source.tokenizer_config)
        return cls(LanguageModel(parts), tokenizer, template, read_end_tokens(source, parts.config.vocab_size))

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
        cache_dtype : optional
            Of the keys and values of the tokens so far, for a model in float32: float32, bfloat16, float16 or int8, as
            for `KVCache`. Default: that of the model.

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
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, num_threads, cache_dtype
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
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, num_threads, cache_dtype
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

    def _prompts(self, name: str, given: Prompt, argument: str = "prompts") -> tuple[bool, list[list[int]]]:
        """Whether there is but one prompt, and the tokens of each."""
        what = f"{name}: {argument}"
        is_one, prompts = prompts_in(what, given)
        with in_the_name_of(name):
            encode = self._tokenizer.encode
            sequences = [encode(what, one, i) if isinstance(one, str) else one for i, one in enumerate(prompts)]
        self._model.check_sequences(what, sequences)
        return is_one, sequences

    def _generated(
        self, name: str, is_one: bool, prompts: list[list[int]], stream: bool, options: GenerationOptions
    ) -> Any:
        stop = checked_stop(name, options.pop("stop", None))
        is_streamed = _core.boolean(name, "stream", stream)
        if not prompts:
            return iter(()) if is_streamed else []
        run = TokenRun(name, self._model, prompts, self._end_tokens, options)
        pieces = self._pieces(name, run, [self._tokenizer.stream(prompt, stop) for prompt in prompts])
        if is_streamed:
            return (piece for (piece,) in pieces if piece) if is_one else (row for row in pieces if any(row))
        texts = ["".join(parts) for parts in zip(*pieces, strict=True)]
        return texts[0] if is_one else texts

    def _pieces(self, name: str, run: TokenRun, streams: list[TextStream]) -> Iterator[list[str]]:
        """The next piece of each text, step by step, and at last what is left of each."""
        for tokens, were_going in run:
            pieces = [""] * len(streams)
            with in_the_name_of(name):
                for b in np.flatnonzero(were_going):
                    if int(tokens[b]) not in self._end_tokens:
                        pieces[b] = streams[b].push(int(tokens[b]))
                        if streams[b].is_stopped:
                            run.end(int(b))
            self._statistics = run.statistics
            yield pieces
        yield [stream.finish() for stream in streams]

    def _rows(
        self, name: str, sequences: list[list[int]], num_threads: int | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """The tokens [T] of each text, and the vectors [T, E] that the last layer gives them."""
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        for batch in batches(sequences):
            tokens, cu_seqlens = packed(batch)
            with in_the_name_of(name):
                rows = self._model.hidden_states(tokens, cu_seqlens, num_threads)
            for first, end in pairwise(cu_seqlens):
                yield tokens[first:end], rows[first:end]


def _conversations(what: str, messages: Any) -> tuple[bool, list[list[dict[str, Any]]]]:
    """Whether there is but one conversation, and the messages of each."""
    is_many = isinstance(messages, Sequence) and not isinstance(messages, (str, bytes))
    if is_many and messages and all(isinstance(one, Sequence) and not isinstance(one, str) for one in messages):
        return False, [checked_conversation(what, one) for one in messages]
    return True, [checked_conversation(what, messages)]
