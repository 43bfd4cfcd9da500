"""Entities in texts, such as names of people and places, by a pretrained classifier of tokens."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, MutableSequence
from typing import Any, Literal, TypeAlias

from .. import _core
from ..functions.deprecation import renamed
from ..functions.messages import in_the_name_of, listed, shown
from ..functions.runtime import threads_of_call
from .heads.classification import TOKENS
from .heads.classifier import Classifier, PretrainedClassifier
from .heads.entities import STRATEGIES, Entity, entities_of, without_overlaps
from .heads.labels import apply_function
from .text.inputs import checked_each, checked_texts
from .text.text_call import TextCall
from .text.windows import PieceTokenizer, Window

__all__ = ["TokenClassifier"]

Strategy: TypeAlias = Literal["none", "simple", "first", "average", "max"]

_USUAL_STRIDE = 64  # tokens that two windows have in common: an entity with some of the words around it


class TokenClassifier(PretrainedClassifier):
    """Entities in texts, with their places: names of people, places and organisations, or parts of speech.

    Use `from_pretrained` to open a model. Call it with texts for the results of a pipeline "token-classification" of
    transformers.

    Parameters
    ----------
    classifier
        The parts that `from_pretrained` reads.

    See Also
    --------
    from_pretrained : Open a model.
    __call__ : Entities in texts.

    Notes
    -----
    Texts are packed one after another without padding, so the cost of a batch is the cost of its tokens. The entities
    of a text do not depend on the other texts. A long text is read whole, in windows of `max_length` tokens.

    Needs the package tokenizers. You can call a model from several threads at once.

    Examples
    --------
    >>> from mha_native.models import TokenClassifier
    >>> model = TokenClassifier.from_pretrained("dslim/bert-base-NER")
    >>> text = "Anna Lee lives in Oslo."
    >>> entities = model(text)
    >>> all(list(entity) == ["entity_group", "score", "word", "start", "end"] for entity in entities)
    True
    >>> names = [text[entity["start"] : entity["end"]] for entity in entities]
    """

    _TASK = TOKENS

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        config = classifier.config
        self._pieces = PieceTokenizer(classifier.tokenizer, config.tokenizer, config.max_seq_length)

    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: Strategy = "simple",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        num_threads: int | None = None,
    ) -> list[Any]:
        """Return the entities in texts.

        Parameters
        ----------
        texts : str, or N of them
        aggregation_strategy : {"simple", "first", "average", "max", "none"}, default "simple"
            "simple" joins neighbouring tokens with the same label. "first", "average" and "max" first give all tokens
            of a word one label: the label of its first token, of the average of their scores, or of the highest score.
            "none" returns each token.
        ignore_labels : collection of str, default ("O",)
            Labels to leave out.
        stride : int, optional
            Number of tokens shared by two neighbouring windows of a long text. Of two entities that overlap, the longer
            one counts. Default: 64, or a quarter of a small window.
        num_threads : int, optional
            Threads of the computation; default: `mha_native.num_threads`. The tokenizer has its own threads.

        Returns
        -------
        entities : list of N lists of dict
            ``{"entity_group": str, "score": float, "word": str, "start": int, "end": int}``, where the entity is
            ``text[start:end]`` and `word` is the text that the tokenizer decodes from its tokens. With "none", the keys
            are ``entity`` instead of ``entity_group``, and the ``index`` of the token. For one str a single list.

        Raises
        ------
        TypeError, ValueError
            If a text is not a str, or holds half of a surrogate pair; the message says which text.
        """
        name = type(self).__name__
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        found = list(self._entities(name, given, aggregation_strategy, ignore_labels, stride, num_threads))
        return found[0] if is_one else found

    def iter_entities(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Strategy = "simple",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        num_threads: int | None = None,
    ) -> Iterator[list[Entity]]:
        """Yield the entities of one text after another: for more texts than fit in memory.

        Parameters
        ----------
        texts : iterable of str
            Read as needed, a bounded number of texts ahead of the entities.
        aggregation_strategy, ignore_labels, stride, num_threads
            As for a call of the classifier.

        Yields
        ------
        entities : list of dict
            The entities in the next text.
        """
        name = f"{type(self).__name__}.iter_entities"
        given = checked_texts(name, texts)
        return self._entities(name, given, aggregation_strategy, ignore_labels, stride, num_threads)

    entity_batches = renamed("entity_batches", "iter_entities")

    def _entities(
        self,
        name: str,
        texts: Iterable[str],
        strategy: Strategy,
        ignored: Collection[str],
        stride: int | None,
        num_threads: int | None,
    ) -> Iterator[list[Entity]]:
        """Yield the entities of each text. The arguments are checked here, texts as they are read."""
        common = self._stride(name, strategy, ignored, stride)
        pending: deque[Window] = deque()
        sequences = self._sequences(f"{name}: texts", texts, common, pending)
        logits = self._classifier.token_logits(f"{name}: texts", sequences, threads_of_call(name, num_threads))
        return self._found(pending, logits, strategy, ignored)

    def _text_call(
        self,
        name: str,
        texts: Any,
        *,
        aggregation_strategy: Strategy = "simple",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
    ) -> TextCall:
        """Return the call of the classifier, whose texts are windows."""
        common = self._stride(name, aggregation_strategy, ignore_labels, stride)
        is_one = isinstance(texts, str)
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        windows: list[Window] = []
        sequences = self._classifier.windows_of(self._sequences(f"{name}: texts", given, common, windows))
        counts = [0]
        for window in windows:
            counts[-1] += len(window.ids)
            if window.is_last:
                counts.append(0)

        def result(logits: list[Any]) -> list[Any]:
            found = list(self._found(deque(windows), logits, aggregation_strategy, ignore_labels))
            return found[0] if is_one else found

        return TextCall(self._model, sequences, counts[:-1], result)

    def _stride(self, name: str, strategy: Strategy, ignored: Collection[str], stride: int | None) -> int:
        """Check the arguments of a call, and return the number of tokens that windows share."""
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            raise ValueError(f"{name}: aggregation_strategy must be one of {listed(STRATEGIES)}; got {shown(strategy)}")
        several = isinstance(ignored, (list, tuple, set, frozenset)) and all(
            isinstance(label, str) for label in ignored
        )
        if not several:
            raise TypeError(f"{name}: ignore_labels must be several str, such as a list; got {shown(ignored)}")
        room = self._pieces.room
        common = min(_USUAL_STRIDE, room // 4) if stride is None else _core.integer(name, "stride", stride)
        if not 0 <= common < room:
            raise ValueError(f"{name}: stride must be 0 to {room - 1}, for windows of {room} tokens; got {common}")
        return common

    def _sequences(
        self, what: str, texts: Iterable[str], stride: int, seen: MutableSequence[Window]
    ) -> Iterator[list[int]]:
        """Yield the tokens of the windows over each text, and append the windows to `seen`."""
        for text in checked_each(what, texts):
            with in_the_name_of(what):
                for window in self._pieces.windows(text, stride):
                    seen.append(window)
                    yield window.ids

    def _found(
        self,
        pending: deque[Window],
        logits_of_windows: Iterable[Any],
        strategy: str,
        ignored: Collection[str],
    ) -> Iterator[list[Entity]]:
        """Yield the entities of each text, by the logits of its windows, which are taken from `pending`."""
        entities: list[Entity] = []  # in the windows of one text, so far
        num_windows = 0
        for logits in logits_of_windows:
            window = pending.popleft()
            scores = apply_function("softmax", logits[window.first : window.first + len(window.pieces)])
            for entity in entities_of(window.pieces, scores, self.labels, strategy, self._pieces.join):
                if entity.get("entity", entity.get("entity_group")) not in ignored:
                    entities.append(entity)
            num_windows += 1
            if window.is_last:
                yield without_overlaps(entities) if num_windows > 1 else entities
                entities, num_windows = [], 0
