"""The package scikit-learn: a transformer, in its sense of the word, from texts to embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..functions.messages import in_the_name_of
from ..functions.needed_packages import needed_package
from ..models.text.inputs import checked_texts
from ._argument_docs import with_argument_docs
from ._text_embedder import Model, opened

with needed_package(__name__, "scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

    from ..layers._constructor_arguments import WeightDType

__all__ = ["TextEmbedder"]


@with_argument_docs
class TextEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embeddings of texts by a sentence model, as a transformer of scikit-learn.

    Parameters
    ----------
    {model}
        Default: "all-MiniLM-L6-v2".
    {prompt}
    {embedder}

    Attributes
    ----------
    embedding_model_
        The model, opened by `fit`. A copy by pickle or joblib has the name or path, and opens the model on first use;
        it contains a SentenceEncoder that you gave.

    Raises
    ------
    ImportError
        Without scikit-learn, when the module is imported: ``pip install scikit-learn``.

    Notes
    -----
    `fit` learns nothing from the texts, but a changed parameter takes effect with the next `fit`. A grid search embeds
    the texts of every fold again unless its pipeline has a ``memory``.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from mha_native.interop.sklearn import TextEmbedder
    >>> classifier = make_pipeline(TextEmbedder("all-MiniLM-L6-v2"), LogisticRegression())
    >>> texts = ["A dog was hungry.", "Stocks fell.", "The puppy slept.", "The bank raised its rates."]
    >>> classifier.fit(texts, ["pets", "money", "pets", "money"]).predict(["My cat purrs."])
    array(['pets'], dtype='<U5')
    """

    def __init__(
        self,
        model: Model = "all-MiniLM-L6-v2",
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        num_threads: int | None = None,
        dtype: DTypeLike | None = None,
        weight_dtype: WeightDType = None,
    ) -> None:
        self.model = model
        self.prompt_name = prompt_name
        self.prompt = prompt
        self.truncate_dim = truncate_dim
        self.normalize = normalize
        self.num_threads = num_threads
        self.dtype = dtype
        self.weight_dtype = weight_dtype

    def fit(self, X: Any, y: Any = None) -> Self:
        """Open the model.

        Parameters
        ----------
        X : N of str
            As for `transform`; not read.
        y
            Has no effect.

        Raises
        ------
        TypeError, ValueError, OSError
            If the model cannot be read, or a parameter is not valid.
        """
        with in_the_name_of("TextEmbedder.fit", texts="X"):
            checked_texts("TextEmbedder.fit", X)
            self.embedding_model_ = opened("TextEmbedder.fit", **self.get_params(deep=False))
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Embed texts.

        Parameters
        ----------
        X : N of str
            A list, an array of one axis, or a column of a data frame.

        Returns
        -------
        embeddings : float32 [N, E]
            Or a data frame, after ``set_output``.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str.
        """
        check_is_fitted(self)
        with in_the_name_of("TextEmbedder.transform", texts="X"):
            return self.embedding_model_.embeddings(X)

    @property
    def _n_features_out(self) -> int:  # read by the mixin that names features
        return self.embedding_model_.num_features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags
