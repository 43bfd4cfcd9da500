"""Entities in texts, such as names of people and places, by a pretrained classifier of tokens."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from os import PathLike
from typing import Any, Literal, TypeAlias

from numpy.typing import DTypeLike

from .. import _core
from ..functions.messages import in_the_name_of, listed, shown
from ..layers._constructor_arguments import WeightDType, checked_size
from ._classifier_face import ClassifierFace
from .files.hub_cache import find_directory
from .heads.classification import TOKENS
from .heads.classifier import Classifier, load_classifier
from .heads.entities import STRATEGIES, Entity, entities_of, without_overlaps
from .heads.labels import apply_function
from .text.inputs import check_text, checked_texts
from .text.windows import PieceTokenizer, Window

__all__ = ["TokenClassifier"]

Strategy: TypeAlias = Literal["none", "simple", "first", "average", "max"]

_USUAL_STRIDE = 64  # tokens that two windows have in common: an entity with some of the words around it


class TokenClassifier(ClassifierFace):
    """Entities in texts, with their places: names of people, places and organisations, or parts of speech.

    Made by `from_pretrained`. Called with texts, it gives what a pipeline "token-classification" of transformers gives.

    Parameters
    ----------
    classifier
        What `from_pretrained` reads.

    See Also
    --------
    from_pretrained : What a directory holds.
    __call__ : Entities in texts.

    Notes
    -----
    Texts are packed one after another, so that a batch costs what its tokens do, and nothing is padded. What is found
    in a text does not depend on the others. A long text is read whole, in windows of `max_seq_length` tokens.

    Needs tokenizers: ``pip install "mha_native[text]"``. May be used from several threads at once.

    Examples
    --------
    >>> from mha_native.models import TokenClassifier
    >>> model = TokenClassifier.from_pretrained("bert-base-NER")
    >>> text = "Anna Lee lives in Oslo."
    >>> entities = model(text)
    >>> all(list(entity) == ["entity_group", "score", "word", "start", "end"] for entity in entities)
    True
    >>> names = [text[entity["start"] : entity["end"]] for entity in entities]
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        config = classifier.config
        self._pieces = PieceTokenizer(classifier.tokenizer, config.tokenizer, config.max_seq_length)

    @classmethod
    def from_pretrained(
        cls, directory: str | PathLike[str], *, dtype: DTypeLike = "float32", weight_dtype: WeightDType = None
    ) -> "TokenClassifier":
        """The model in `directory`, as transformers saves it: one ...ForTokenClassification.

        Parameters
        ----------
        directory : path, or name of a model
            With the files that `SentenceEncoder.from_pretrained` reads. In config.json, ``id2label`` has the labels.
        dtype, weight_dtype
            As for `SentenceEncoder.from_pretrained`; the head is computed in float32.

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
            return cls(load_classifier(function, find_directory(directory), TOKENS, dtype, weight_dtype))

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: Strategy = "simple",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        num_threads: int | None = None,
    ) -> list[Any]:
        """The entities in texts.

        Parameters
        ----------
        texts : str, or N of them
        aggregation_strategy : {"simple", "first", "average", "max", "none"}, default "simple"
            "simple" joins neighbours of one label. "first", "average" and "max" give all tokens of a word one label
            before: that of its first token, of the average of their scores, of the highest score. "none" gives each
            token.
        ignore_labels : collection of str, default ("O",)
            What is no entity.
        stride : int, optional
            Tokens that two windows over a long text have in common. Where they find entities that overlap, the longer
            one counts. Default: 64, or a quarter of a small window.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own.

        Returns
        -------
        entities : list of N lists of dict
            ``{"entity_group": str, "score": float, "word": str, "start": int, "end": int}``, where the entity is
            ``text[start:end]`` and `word` is what the tokenizer makes of its tokens. With "none" ``entity`` instead of
            ``entity_group``, and the ``index`` of the token. For one str its list alone.

        Raises
        ------
        TypeError, ValueError
            If a text is no str, or holds what is no character: half of a surrogate pair. The message says which.
        """
        name = type(self).__name__
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        found = list(self._entities(name, given, aggregation_strategy, ignore_labels, stride, num_threads))
        return found[0] if is_one else found

    def entity_batches(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Strategy = "simple",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        num_threads: int | None = None,
    ) -> Iterator[list[Entity]]:
        """The entities in one text after another: for more texts than memory holds.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, and never by much further than the entities that have been given.
        aggregation_strategy, ignore_labels, stride, num_threads
            As for a call of the classifier.

        Yields
        ------
        entities : list of dict
            In the next text.
        """
        name = f"{type(self).__name__}.entity_batches"
        given = checked_texts(name, texts)
        return self._entities(name, given, aggregation_strategy, ignore_labels, stride, num_threads)

    def _entities(
        self,
        name: str,
        texts: Iterable[str],
        strategy: Strategy,
        ignored: Collection[str],
        stride: int | None,
        num_threads: int | None,
    ) -> Iterator[list[Entity]]:
        """The entities in each text. The arguments are checked here, texts as they are read."""
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            raise ValueError(f"{name}: aggregation_strategy must be one of {listed(STRATEGIES)}; got {shown(strategy)}")
        several = isinstance(ignored, (list, tuple, set, frozenset)) and all(
            isinstance(label, str) for label in ignored
        )
        if not several:
            raise TypeError(f"{name}: ignore_labels must be several str, such as a list; got {shown(ignored)}")
        if num_threads is not None:
            num_threads = checked_size(name, "num_threads", num_threads)
        room = self._pieces.room
        common = min(_USUAL_STRIDE, room // 4) if stride is None else _core.integer(name, "stride", stride)
        if not 0 <= common < room:
            raise ValueError(f"{name}: stride must be 0 to {room - 1}, for windows of {room} tokens; got {common}")
        return self._found(f"{name}: texts", texts, strategy, ignored, common, num_threads)

    def _found(
        self,
        what: str,
        texts: Iterable[str],
        strategy: str,
        ignored: Collection[str],
        stride: int,
        num_threads: int | None,
    ) -> Iterator[list[Entity]]:
        pending: deque[Window] = deque()

        def remembered() -> Iterator[list[int]]:
            for i, text in enumerate(texts):
                check_text(what, text, i)
                for window in self._pieces.windows(text, stride):
                    pending.append(window)
                    yield window.ids

        entities: list[Entity] = []  # in the windows of one text, so far
        num_windows = 0
        for logits in self._classifier.token_logits(what, remembered(), num_threads):
            window = pending.popleft()
            scores = apply_function("softmax", logits[window.first : window.first + len(window.pieces)])
            for entity in entities_of(window.pieces, scores, self.labels, strategy, self._pieces.join):
                if entity.get("entity", entity.get("entity_group")) not in ignored:
                    entities.append(entity)
            num_windows += 1
            if window.is_last:
                yield without_overlaps(entities) if num_windows > 1 else entities
                entities, num_windows = [], 0
