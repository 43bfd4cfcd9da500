"""Labels of texts, or of pairs of texts, by a pretrained classifier."""

from collections.abc import Iterable, Iterator
from types import EllipsisType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..functions.deprecation import renamed
from ..functions.messages import shown
from ..functions.runtime import threads_of_call
from ..layers._constructor_arguments import checked_size
from .heads.classification import TEXTS
from .heads.classifier import PretrainedClassifier
from .heads.labels import FUNCTIONS, apply_function, best_labels
from .text.inputs import checked_texts
from .text.text_call import TextCall, text_call

__all__ = ["TextClassifier"]

Function: TypeAlias = Literal["softmax", "sigmoid", "none"] | None


class TextClassifier(PretrainedClassifier):
    """Labels of texts, or of pairs of texts: sentiment, topic, whether one follows from the other.

    Use `from_pretrained` to open a model. Call it with texts for the results of a pipeline "text-classification" of
    transformers.

    Parameters
    ----------
    classifier
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    __call__ : Labels of texts, the best first.
    predict_proba : Scores of all labels, as an array.
    mha_native.sentence_transformers.CrossEncoder : Scores of pairs, and the best documents for a query.

    Notes
    -----
    Texts are packed one after another without padding, so the cost of a batch is the cost of its tokens. The scores of
    a text have the same bits alone and in any batch. Long texts are cut to `max_length` tokens; of a long pair the
    longer text is cut first.

    Needs the package tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> from mha_native.models import TextClassifier
    >>> model = TextClassifier.from_pretrained("distilbert/distilbert-base-uncased-finetuned-sst-2-english")
    >>> model.labels
    ('NEGATIVE', 'POSITIVE')
    >>> (best,) = model("The service was friendly.")
    >>> list(best)
    ['label', 'score']
    >>> model.predict_proba(["The service was friendly.", "The soup was cold."]).shape
    (2, 2)
    """

    _TASK = TEXTS

    def __call__(
        self,
        texts: Any,
        *,
        top_k: int | EllipsisType | None = ...,
        function_to_apply: Function = None,
        num_threads: int | None = None,
    ) -> list[Any]:
        """Return the labels of texts with their scores.

        Parameters
        ----------
        texts : text or pair, or N of them in a list
            A pair is a dict with ``text`` and ``text_pair``, or, in a list, a tuple of two texts.
        top_k : int, optional
            Number of labels for each text, the best first; None for all of them. Default: the best one, not in a list.
        function_to_apply : {"softmax", "sigmoid", "none"}, optional
            The function from logits to scores. Default: "none" if config.json has the ``problem_type`` regression;
            "sigmoid" for a single label or for multi_label_classification; "softmax" otherwise.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own threads.

        Returns
        -------
        labels : list of N dict
            ``{"label": str, "score": float}``; with `top_k`, a list of such lists, or one list for one text.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text.
        """
        name = type(self).__name__
        count = None if top_k is None else 1 if isinstance(top_k, EllipsisType) else checked_size(name, "top_k", top_k)
        is_one = isinstance(texts, (str, dict))
        given = [texts] if is_one else checked_texts(name, texts)
        results = [
            best_labels(self.labels, row, count)
            for rows in self._scores(name, given, function_to_apply, num_threads)
            for row in rows
        ]
        if isinstance(top_k, EllipsisType):
            return [best for (best,) in results]
        return results[0] if is_one else results

    def predict_proba(
        self, texts: Any, *, function_to_apply: Function = None, num_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return the scores of texts for all labels.

        Parameters
        ----------
        texts, function_to_apply, num_threads
            As for a call of the classifier.

        Returns
        -------
        scores : float32 [N, L]
            In the order of `labels`; for one text [L]. Probabilities, unless `function_to_apply` is "none".
        """
        name = f"{type(self).__name__}.predict_proba"
        is_one = isinstance(texts, (str, dict))
        given = [texts] if is_one else checked_texts(name, texts)
        empty = np.empty((0, len(self.labels)), np.float32)
        result = np.concatenate([empty, *self._scores(name, given, function_to_apply, num_threads)])
        return result[0] if is_one else result

    def predict_proba_batches(
        self, texts: Iterable[Any], *, function_to_apply: Function = None, num_threads: int | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of `predict_proba` in order, some at a time: for more texts than fit in memory.

        Parameters
        ----------
        texts : iterable of texts or pairs
            Read as needed, a bounded number of texts ahead of the scores.
        function_to_apply, num_threads
            As for a call of the classifier.

        Yields
        ------
        scores : float32 [n, L]
            The scores of the next n texts.
        """
        name = f"{type(self).__name__}.predict_proba_batches"
        return self._scores(name, checked_texts(name, texts), function_to_apply, num_threads)

    scores = renamed("scores", "predict_proba")
    score_batches = renamed("score_batches", "predict_proba_batches")

    def _scores(
        self, name: str, texts: Iterable[Any], function: Function, num_threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        chosen = self._function(name, function)
        logits = self._classifier.logits(f"{name}: texts", texts, "", threads_of_call(name, num_threads))
        return (apply_function(chosen, rows) for rows in logits)

    def _function(self, name: str, function: Function) -> str:
        """Return the function from logits to scores that a caller has chosen, or the default of the model."""
        if function is None:
            return self._classifier.labels.function
        if isinstance(function, str) and function in FUNCTIONS:
            return function
        raise ValueError(f"{name}: function_to_apply must be {' or '.join(FUNCTIONS)}; got {shown(function)}")

    def _text_call(self, name: str, texts: Any, *, function_to_apply: Function = None) -> TextCall:
        """Return the call `predict_proba`."""
        chosen = self._function(name, function_to_apply)
        is_one = isinstance(texts, (str, dict))
        given = [texts] if is_one else checked_texts(name, texts)

        def result(rows: list[Any]) -> "NDArray[np.float32]":  # a string, which no call evaluates
            scores = apply_function(chosen, np.array(rows, np.float32).reshape(len(rows), self.num_labels))
            return scores[0] if is_one else scores

        return text_call(self._model, self._classifier.texts_of(f"{name}: texts", given, ""), result)
