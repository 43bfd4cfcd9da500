"""Language models: continuations of texts, answers in conversations, and scores of texts."""

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from numpy.typing import DTypeLike

from .. import _core
from ..functions.deprecation import renamed, renamed_keyword
from ..functions.messages import in_the_name_of
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import WeightDType, checked_dtypes, optional_size
from .architecture.family import GENERATION
from .architecture.model import Model
from .architecture.open import open_model
from .files.language_files import find_source, read_end_tokens
from .generation.completion import Completion
from .generation.engine import CompletionKeywords, GenerationKeywords, GenerationStatistics
from .generation.logprobs import TokenLogprobs
from .generation.pretrained_generator import PretrainedGenerator
from .generation.sampling import explains_sampling
from .generation.text_generator import TextGenerator
from .generation.text_score import TextScore
from .text.chat_template import ChatTemplate, checked_conversation
from .text.tokenizer import Tokenizer, require_library

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["CausalLM", "Completion", "GenerationStatistics", "TextScore", "TokenLogprobs"]

Prompt: TypeAlias = Any  # a text, or its tokens [T]


class CausalLM(PretrainedGenerator):
    """A pretrained language model: it continues texts, answers in conversations, and scores texts.

    Use `from_pretrained` to open a model.

    Parameters
    ----------
    model, tokenizer, template, end_tokens
        The parts that `from_pretrained` reads.

    Notes
    -----
    The prompts of a list are read and continued together. A prompt gets the same tokens alone and in any list. For
    requests that come and go use `mha_native.serving.Batcher`, for your own stacks of layers `mha_native.generate`.

    Needs the package tokenizers, and jinja2 for `chat` and `apply_chat_template`. You can call a model from several
    threads at once.

    Examples
    --------
    >>> from mha_native.models import CausalLM
    >>> model = CausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    >>> text = model.generate("The capital of France is", max_new_tokens=8)
    >>> question = {"role": "user", "content": "Hello!"}
    >>> answer = "".join(piece for piece in model.chat([question], max_new_tokens=8, stream=True))
    >>> model.statistics.new_tokens
    8
    >>> model.score("The capital of France is Paris.").perplexity > 1
    True
    """

    _model: Model

    def __init__(self, model: Model, tokenizer: Tokenizer, template: ChatTemplate, end_tokens: Iterable[int]) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._end_tokens = frozenset(end_tokens)
        self._statistics = GenerationStatistics(0, 0, 0, 0.0, 0.0)

    @classmethod
    @renamed_keyword("directory", "model")
    def from_pretrained(
        cls,
        model: str | PathLike[str],
        *,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
        max_length: int | None = None,
    ) -> "CausalLM":
        """Open a model in the files of transformers, or in one file of the format GGUF.

        Parameters
        ----------
        model : path of a directory or of a file, or name of a model
            A directory with config.json, tokenizer.json and model.safetensors (or several such files with
            model.safetensors.index.json) of a model whose ``model_type`` is cohere, cohere2, ernie4_5, exaone4, gemma2,
            gemma3 (its text model), gemma3_text, glm, glm4, gpt2, gpt_neox, gpt_oss, granite, llama, mistral, mixtral,
            olmo2, olmo3, olmoe, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3, stablelm or starcoder2;
            generation_config.json and chat_template.jinja are optional. Or a file ``.gguf`` of such a model, in F32,
            F16, BF16, Q4_0 to Q8_0, Q4_K to Q6_K, IQ4_NL or MXFP4. A directory may be quantized by AWQ or GPTQ, with 4
            bits.

            A str that is not a path, such as ``"HuggingFaceTB/SmolLM2-135M-Instruct"``, is looked up in the local cache
            of Hugging Face, and downloaded if it is missing, as by `SentenceEncoder.from_pretrained`.
            ``"organization/model:Q4_K_M"`` is a GGUF file in that cache, by a word or a pattern of its name.
        dtype : {"float32", "bfloat16", "float16", "float64"}, default "float32"
            The dtype of the computation, whatever the dtype of the files.
        weight_dtype : str, optional
            For a model in float32, the format of the matrices of the layers and of the head, see
            `MultiHeadAttention.quantize`; embeddings of tokens stay in float32. The time of a token is the time to read
            these matrices, so bfloat16, int8 and int4 are faster. Default: each matrix of quantized files, also the
            embeddings of tokens, stays in its format, which products multiply; of other files `dtype`.
        max_length : int, optional
            The largest number of tokens of a text, continuation included. Default: the number in training.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file is missing or damaged, if it asks for an unsupported feature, or if weights are not finite. The
            message names the file, and tensors with both shapes.
        OSError, ImportError
            If a file cannot be read, or a model cannot be downloaded; without tokenizers.
        """
        function = f"{cls.__name__}.from_pretrained"
        with in_the_name_of(function):
            require_library()
            kind, stored = checked_dtypes(function, dtype, weight_dtype)
            longest = optional_size(function, "max_length", max_length)
            source = find_source(model)
            template = ChatTemplate(source.path, source.chat_template, source.tokenizer_config)
            tokenizer = Tokenizer(source.tokenizer())
            opened = open_model(source, GENERATION, longest)
            vocab_size = opened.config.vocab_size
            tokenizer.check_vocabulary(source.path, vocab_size)
            end_tokens = read_end_tokens(source, vocab_size)
            return cls(opened.load(kind, stored), tokenizer, template, end_tokens)

    @overload
    def generate(
        self, prompts: str, *, stream: Literal[False] = False, **options: "Unpack[GenerationKeywords]"
    ) -> str: ...
    @overload
    def generate(
        self, prompts: str, *, stream: Literal[True], **options: "Unpack[GenerationKeywords]"
    ) -> Iterator[str]: ...
    @overload
    def generate(self, prompts: Prompt, *, stream: bool = False, **options: "Unpack[GenerationKeywords]") -> Any: ...
    @explains_sampling
    def generate(self, prompts: Prompt, *, stream: bool = False, **options: "Unpack[GenerationKeywords]") -> Any:
        """Continue prompts. Sampling options in generation_config.json are not used.

        Parameters
        ----------
        prompts : str, or integers [T], or B of them in a list
            Texts get the special tokens that the tokenizer begins a text with; tokens are taken as they are.
        stream : bool, default False
            Return an iterator of pieces of the text while it is generated.
        max_new_tokens : int, default 256
            The largest number of new tokens. A text also ends at an end token, or with the last position of the model.
        {sampling}
        stop : str, or list of str, optional
            Strings that end the text. The text ends before the first of them.
        stop_token_ids : list of int, optional
            Tokens that end the text, as the end tokens of the model do. They are no part of it.
        ignore_eos : bool, default False
            Continue after end tokens of the model, up to `max_new_tokens`.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`.
        cache_dtype : optional
            The dtype of the cache of keys and values, for a model in float32: float32, bfloat16, float16 or int8, as
            for `KVCache`. Default: the dtype of the model.
        draft : CausalLM or "prompt-lookup", optional
            Draft tokens by a smaller model with the same tokens, or by a lookup of the last tokens in the text so far,
            and verify several of them in one call of the model. The new tokens are the same as without a draft.
        num_draft_tokens : int, default 8
            The most tokens that are drafted before they are verified.

        Returns
        -------
        text : str
            Without the prompt, and without special tokens. For a list of prompts a list of B.
        pieces : iterator of str
            With `stream`: pieces of whole characters, never empty. For a list of prompts, lists of B pieces, where some
            pieces can be empty.

        Raises
        ------
        TypeError, ValueError
            Before anything is computed, if an argument breaks a rule, or if a prompt has more tokens than `max_length`.
        """
        name = f"{type(self).__name__}.generate"
        is_one, given = self.generator.prompts(name, "prompts", prompts)
        return self.generator.texts(name, is_one, given, stream, options)

    def chat(self, messages: Any, *, stream: bool = False, **options: "Unpack[GenerationKeywords]") -> Any:
        """Answer the last message of a conversation.

        Parameters
        ----------
        messages : list of dict
            Each with ``role`` (such as "system", "user" or "assistant") and ``content``, as the chat template of the
            model expects them; or a list of B conversations.
        stream : bool, default False
        **options
            As for `generate`.

        Returns
        -------
        text or pieces
            As for `generate`.

        Raises
        ------
        TypeError, ValueError, ImportError
            As `generate`; if the model has no chat template, or the template refuses the messages; without jinja2.
        """
        name = f"{type(self).__name__}.chat"
        is_one, given, generator = self.generator.conversations(name, messages, {})
        return generator.texts(name, is_one, given, stream, options)

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """Return the text of a conversation as the model reads it, with its special tokens.

        To continue it: ``generate(tokenize(text, add_special_tokens=False))``.

        Parameters
        ----------
        messages : list of dict
            As for `chat`.
        add_generation_prompt : bool, default True
            End with the beginning of an answer.
        **variables
            Further variables of the template, such as ``tools``.
        """
        name = f"{type(self).__name__}.apply_chat_template"
        conversation = checked_conversation(f"{name}: messages", messages)
        wanted = _core.boolean(name, "add_generation_prompt", add_generation_prompt)
        with in_the_name_of(name):
            return self._template.render(conversation, wanted, variables)

    def generate_tokens(self, prompts: Prompt, **options: "Unpack[GenerationKeywords]") -> Any:
        """Return the new tokens that `generate` decodes to text.

        Parameters
        ----------
        prompts : str, or integers [T], or B of them in a list
        **options
            As for `generate`, without `stop`.

        Returns
        -------
        tokens : int64 [n]
            A token that ends the text is the last one. For a list of prompts a list of B.
        """
        name = f"{type(self).__name__}.generate_tokens"
        is_one, given = self.generator.prompts(name, "prompts", prompts)
        found = self.generator.tokens(name, given, options)
        return found[0] if is_one else found

    def complete(self, prompts: Prompt, **options: "Unpack[CompletionKeywords]") -> Any:
        """Continue prompts as `generate` does, and return more than their texts.

        Parameters
        ----------
        prompts : str, or integers [T], or B of them in a list
        logprobs : int, optional
            Also return the log-probability of each new token, and of so many most probable tokens at its place; 0 for
            the token alone. The softmax is computed in float64, before all sampling options.
        prompt_logprobs : int, optional
            The same for the tokens of the prompt.
        **options
            As for `generate`.

        Returns
        -------
        completion : Completion
            The text, its tokens, the reason of its end, and log-probabilities. For a list of prompts a list of B.
        """
        name = f"{type(self).__name__}.complete"
        is_one, given = self.generator.prompts(name, "prompts", prompts)
        found = self.generator.completions(name, given, options)
        return found[0] if is_one else found

    def logits(self, texts: Prompt, *, num_threads: int | None = None) -> Any:
        """Return the logits of the token after each token of a text.

        Parameters
        ----------
        texts : str, or integers [T], or B of them in a list
            As `prompts` of `generate`.
        num_threads : int, optional

        Returns
        -------
        logits : float32 [T, V]
            float64 for a model in float64. For a list of texts a list of B.
        """
        name = f"{type(self).__name__}.logits"
        is_one, given = self.generator.prompts(name, "texts", texts)
        num_threads = threads_of_call(name, num_threads)
        found = [self._model.logits(rows, num_threads) for _, rows in self.generator.rows(name, given, num_threads)]
        return found[0] if is_one else found

    def score(self, texts: Prompt, *, num_threads: int | None = None) -> Any:
        """Return the likelihood of texts. The softmax is computed in float64.

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
        is_one, given = self.generator.prompts(name, "texts", texts)
        num_threads = threads_of_call(name, num_threads)
        found = [
            TextScore(tokens, self._model.log_likelihoods(rows[:-1], tokens[1:], num_threads))
            for tokens, rows in self.generator.rows(name, given, num_threads)
        ]
        return found[0] if is_one else found

    encode = renamed("encode", "tokenize")

    @property
    def statistics(self) -> GenerationStatistics:
        """Statistics of the last call that generated tokens; during a stream, of its steps so far."""
        return self._statistics

    @property
    def generator(self) -> TextGenerator:
        """The model with its tokenizer and end tokens, as this class and `serving.Batcher` use them."""
        return TextGenerator(self._model, self._tokenizer, self._template, self._end_tokens, self._keep)

    def _keep(self, statistics: GenerationStatistics) -> None:
        self._statistics = statistics
