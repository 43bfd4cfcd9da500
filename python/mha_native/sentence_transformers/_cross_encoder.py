"""`CrossEncoder`: scores of pairs of texts, with the arguments of sentence-transformers."""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import in_the_name_of, listed, name_of_type, shown
from ..functions.progress import fill_rows, is_wanted
from ..layers._constructor_arguments import checked_size
from ..models.heads.activations import activation_of
from ..models.heads.classification import TEXTS
from ..models.heads.classifier import Classifier, load_classifier
from ..models.heads.labels import apply_function
from ..models.heads.score_activation import read_activation
from ..models.heads.token_ranker import TokenRanker, is_token_ranker, load_token_ranker
from ..models.text.inputs import check_text
from ..models.text.prompts import Prompts, read_settings
from ..models.text.text_call import TextCall, text_call
from ..models.text.tokens_of_texts import ReadsTexts
from ._arguments import Formats
from ._model import Model, Pool, check_call
from ._tensors import as_array, as_tensor, results

_logger = logging.getLogger(__name__)

# Old names of arguments, which some libraries still pass.
_OLD_NAMES = {"sentences": "inputs", "activation_fct": "activation_fn"}
_WITHOUT_EFFECT = {"num_workers"}


class CrossEncoder(ReadsTexts, Model):
    """Scores of pairs of texts by a pretrained model, a drop-in for the class of sentence-transformers 6.2.

    The model reads a pair as one text, so that each word of a query attends to each word of a document. This is slower
    than embeddings and more accurate. Use it to rerank some hundred documents that a search by embeddings has found.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        Of a model ...ForSequenceClassification, as for `TextClassifier.from_pretrained`. A name without an organization
        is one of ``cross-encoder``. Or of a language model ...ForCausalLM, such as Qwen3-Reranker, whose chat template
        has a query and a document: the score is the logit of the token "yes" minus the logit of "no".
    device, cache_folder, revision, local_files_only, token, backend
        As for `SentenceTransformer`.
    model_kwargs, processor_kwargs, tokenizer_kwargs, config_kwargs
        As for `SentenceTransformer`.
    prompts, default_prompt_name
        As for `SentenceTransformer`, for text before the first text of a pair.
    num_labels : int, optional
        Must be the number of labels of the model.
    max_length : int, optional
        Longer pairs are cut to this many tokens. Default: as the files of the model say.
    activation_fn : callable, optional
        The function from logits [n, L] to scores. A function of torch gets a tensor, others an array. Default: as the
        files of the model say; else the sigmoid for a single label, and the identity for more.
    trust_remote_code, model_card_data, keep_in_fp32_modules
        Have no effect: no code of a model runs, no model is saved, and its head computes in float32.
    modules
        Not supported.

    Attributes
    ----------
    activation_fn : callable
        You can set it.
    prompts, default_prompt_name
        As for `SentenceTransformer`.

    See Also
    --------
    mha_native.models.TextClassifier : The same models, with labels.

    Notes
    -----
    Pairs are packed one after another without padding, so that `batch_size` has no effect. The score of a pair has the
    same bits alone and in any batch. Several threads may use a model at once.

    Examples
    --------
    >>> from mha_native.sentence_transformers import CrossEncoder
    >>> model = CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2")
    >>> documents = ["Children swim for free.", "Bulky waste is collected on the first Monday of the month."]
    >>> model.predict([("an old couch", text) for text in documents]).shape
    (2,)
    >>> best = model.rank("an old couch", documents, top_k=1, return_documents=True)
    >>> [list(entry) for entry in best]
    [['corpus_id', 'score', 'text']]
    """

    _ORGANIZATION = "cross-encoder"
    _classifier: Classifier | TokenRanker
    activation_fn: Callable[[Any], Any]

    def __init__(
        self,
        model_name_or_path: str | PathLike[str] | None = None,
        *,
        modules: Any = None,
        device: Any = None,
        prompts: Mapping[str, str | None] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        model_card_data: Any = None,
        backend: str = "torch",
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        keep_in_fp32_modules: Sequence[str] | None = None,
    ) -> None:
        if activation_fn is not None:
            _check_callable(type(self).__name__, activation_fn)
            self.activation_fn = activation_fn
        self._open(locals())
        if num_labels is not None and num_labels != self.num_labels:
            name = type(self).__name__
            raise ValueError(f"{name}: num_labels must be {self.num_labels}, as in the model; got {shown(num_labels)}")

    def _load(self, directory: Path, formats: Formats) -> Prompts:
        function = type(self).__name__
        known = read_settings(directory, "CrossEncoder").prompts
        if is_token_ranker(directory):
            self._classifier = load_token_ranker(function, directory, *formats)
        else:
            self._classifier = load_classifier(function, directory, TEXTS, *formats)
        if not hasattr(self, "activation_fn"):  # else the one in the files does not count
            path = self._classifier.folder / "config.json"
            self.activation_fn = activation_of(read_activation(directory, path, self.num_labels))
        return known

    def _reader(self) -> tuple[Any, bool]:
        return self._reads_tokens("CrossEncoder").tokenizer, True

    def _reads_tokens(self, function: str) -> Classifier:
        if isinstance(self._classifier, TokenRanker):
            raise ValueError(f"{function}: this model writes pairs into its chat template, and has no tokens of texts")
        return self._classifier

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute scores of pairs of texts.

        Parameters
        ----------
        inputs : pair, or N of them
            Two texts in a list or tuple. A long pair is cut to `max_seq_length` tokens, the longer text first.
            ``sentences`` is the old name of this argument.
        prompt_name, prompt
            As for `SentenceTransformer.encode`. The prompt is put before the first text.
        batch_size, chunk_size, show_progress_bar, convert_to_numpy, convert_to_tensor, device, pool
            As for `SentenceTransformer.encode`.
        activation_fn : callable, optional
            The function from logits [N, L] to scores. Default: the attribute. ``activation_fct`` is the old name.
        apply_softmax : bool
            Apply a softmax to the scores of each pair, if the model has several labels.
        **kwargs
            Old names; ``num_workers`` has no effect.

        Returns
        -------
        scores : float32 [N], or [N, L] for L > 1 labels
            For one pair a number, or [L]; for no pairs [0].

        Raises
        ------
        TypeError, ValueError
            If an input is not a pair of str, or an argument is not valid.
        """
        function = f"{type(self).__name__}.predict"
        old = _old_arguments(function, kwargs)
        inputs = old.get("inputs") if inputs is None else inputs
        activation_fn = old.get("activation_fn") if activation_fn is None else activation_fn
        check_call(function, batch_size, device, pool, chunk_size)
        is_one = _is_one(inputs)
        pairs = [list(inputs) if isinstance(inputs, np.ndarray) else inputs] if is_one else _as_list(function, inputs)
        before = self._prompt(function, prompt_name, prompt)
        scores = self._scores(function, "inputs", pairs, before, show_progress_bar, activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = apply_function("softmax", scores)
        if not pairs:
            scores = np.zeros(0, np.float32 if convert_to_tensor else np.float64)  # as there
        return results(function, scores, is_one, convert_to_numpy, convert_to_tensor)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        device: Any = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Rank documents for a query, the best first, by a model with a single label.

        Parameters
        ----------
        query : str
        documents : N str
        top_k : int, optional
            Return this many documents. Default: all.
        return_documents : bool
            Include the documents in the result, as ``text``.
        prompt_name, prompt, batch_size, show_progress_bar, activation_fn, device, pool, chunk_size
            As for `predict`.
        **kwargs
            Old names; ``num_workers``, ``apply_softmax``, ``convert_to_numpy`` and ``convert_to_tensor`` have no
            effect.

        Returns
        -------
        ranking : list of dict
            ``{"corpus_id": int, "score": float}``, with the index in `documents`. Documents with equal scores keep
            their order.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, the model has several labels, or an argument is not valid.
        """
        function = f"{type(self).__name__}.rank"
        if self.num_labels != 1:
            raise ValueError(f"{function}: the model must have a single label; it has {self.num_labels}")
        old = _old_arguments(function, kwargs, {"apply_softmax", "convert_to_numpy", "convert_to_tensor"})
        activation_fn = old.get("activation_fn") if activation_fn is None else activation_fn
        check_call(function, batch_size, device, pool, chunk_size)
        if not isinstance(query, str):
            raise TypeError(f"{function}: query must be a str; got {name_of_type(query)}")
        check_text(f"{function}: query", query, 0)
        texts = _as_list(function, documents, "documents")
        if top_k is not None:
            top_k = checked_size(function, "top_k", top_k)
        pairs = [(query, text) for text in texts]
        before = self._prompt(function, prompt_name, prompt)
        scores = self._scores(function, "documents", pairs, before, show_progress_bar, activation_fn)
        order = sorted(range(len(texts)), key=lambda i: -float(scores[i]))[:top_k]
        ranking: list[dict[str, Any]] = [{"corpus_id": i, "score": float(scores[i])} for i in order]
        if return_documents:
            for entry in ranking:
                entry["text"] = texts[entry["corpus_id"]]
        return ranking

    def _scores(
        self,
        function: str,
        name: str,
        pairs: list[Any],
        prompt: str,
        show_progress_bar: bool | None,
        activation_fn: Callable[[Any], Any] | None,
    ) -> NDArray[Any]:
        """Compute the scores of pairs, [N] for a single label, else [N, L]. `name` names the pairs in errors."""
        logits = np.empty((len(pairs), self.num_labels), np.float32)
        shows = bool(pairs) and is_wanted(show_progress_bar, _logger)
        fill_rows(logits, self._classifier.logits(f"{function}: {name}", pairs, prompt, None), "pairs", shows)
        return self._activated(function, logits, activation_fn)

    def _activated(
        self, function: str, logits: NDArray[np.float32], activation_fn: Callable[[Any], Any] | None
    ) -> NDArray[Any]:
        """Return the scores of logits [N, L]: [N] for a single label, else [N, L]."""
        chosen = self.activation_fn if activation_fn is None else activation_fn
        _check_callable(function, chosen)
        given = as_tensor(function, "activation_fn", logits) if _is_of_torch(chosen) else logits
        scores = as_array(chosen(given))
        if scores.dtype.kind not in "fiub" or scores.shape[:1] != logits.shape[:1]:
            got = f"{scores.dtype} {list(scores.shape)}"
            raise ValueError(f"{function}: activation_fn must give numbers, {len(logits)} rows of them; got {got}")
        scores = scores.astype(np.float32, copy=False)
        return scores[:, 0] if self.num_labels == 1 and scores.ndim > 1 else scores

    def _text_call(
        self,
        function: str,
        texts: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
    ) -> TextCall:
        """Return the call `predict` of pairs, as a numpy array or number."""
        is_one = _is_one(texts)
        given = texts.tolist() if isinstance(texts, np.ndarray) else texts
        pairs = [given] if is_one else _as_list(function, given, "texts")
        before = self._prompt(function, prompt_name, prompt)

        def result(rows: list[Any]) -> Any:
            logits = np.array(rows, np.float32).reshape(len(rows), self.num_labels)
            return results(function, self._activated(function, logits, activation_fn), is_one, True, False)

        classifier = self._classifier
        return text_call(classifier.model, classifier.texts_of(f"{function}: texts", pairs, before), result)

    @property
    def num_labels(self) -> int:
        """L, the number of scores of a pair."""
        return len(self._classifier.labels.names)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a pair, including special tokens. You can set it, up to the positions of the model."""
        return self._classifier.config.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, max_seq_length: int) -> None:
        self._classifier = self._classifier.cut_at(type(self).__name__, max_seq_length)

    @property
    def max_length(self) -> int:
        """The old name of `max_seq_length`."""
        return self.max_seq_length

    @max_length.setter
    def max_length(self, max_length: int) -> None:
        with in_the_name_of(type(self).__name__, max_seq_length="max_length"):
            self.max_seq_length = max_length

    def __repr__(self) -> str:
        classifier = self._classifier
        return (
            f"{type(self).__name__}(num_labels={self.num_labels}, max_seq_length={self.max_seq_length}, "
            f"dtype={str(classifier.model.dtype)!r}, weight_dtype={classifier.model.weight_dtype!r})"
        )


def _is_one(inputs: Any) -> bool:
    """Return whether `inputs` is one pair: a list, tuple or array of texts."""
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 1 and inputs.size > 0
    if isinstance(inputs, (list, tuple)):
        return len(inputs) > 0 and isinstance(inputs[0], str)
    return isinstance(inputs, str)


def _as_list(function: str, given: Any, name: str = "inputs") -> list[Any]:
    if isinstance(given, (str, bytes, Mapping, set, frozenset)) or not isinstance(given, Iterable):
        raise TypeError(f"{function}: {name} must be several, in an order, such as a list; got {name_of_type(given)}")
    return given.tolist() if isinstance(given, np.ndarray) else list(given)


def _old_arguments(function: str, kwargs: dict[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """Return arguments with old names by their new names; TypeError for unknown names."""
    if others := kwargs.keys() - _OLD_NAMES.keys() - _WITHOUT_EFFECT - set(more):
        raise TypeError(f"{function} has no argument {listed(sorted(others))}")
    return {_OLD_NAMES[old]: value for old, value in kwargs.items() if old in _OLD_NAMES}


def _check_callable(function: str, activation_fn: Any) -> None:
    if not callable(activation_fn) or isinstance(activation_fn, type):
        raise TypeError(
            f"{function}: activation_fn must be a function of logits, or a module of torch; got {shown(activation_fn)}"
        )


def _is_of_torch(activation_fn: Any) -> bool:
    """Return whether a function takes tensors: a module or function of torch, or a class derived from one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    is_function = (getattr(activation_fn, "__module__", None) or "").partition(".")[0] == "torch"
    return is_function or isinstance(activation_fn, torch.nn.Module) or type(activation_fn).__module__[:5] == "torch"
