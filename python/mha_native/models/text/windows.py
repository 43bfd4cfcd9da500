"""The tokens of whole texts with their positions in the text, in overlapping windows for long texts."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..heads.entities import Piece
from .tokenizer import Tokenizer

_UNKNOWN = ("[UNK]", "<unk>")  # names of the unknown token, if no file has one


class Window(NamedTuple):
    """A window: some tokens of a text, with the special tokens around them."""

    ids: list[int]
    first: int  # row of the first piece
    pieces: list[Piece]
    is_last: bool  # the last window of its text


class PieceTokenizer:
    """Split texts into windows of at most `max_seq_length` tokens; neighbours share `stride` tokens.

    The tokenizer must not cut texts. `settings` are the entries of tokenizer_config.json.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Any, max_seq_length: int) -> None:
        self._tokenizer = tokenizer
        library = tokenizer.library
        self.room = max_seq_length - library.num_special_tokens_to_add(False)  # tokens of the text in a window
        model = library.model
        self._marks_continuations = bool(getattr(model, "continuing_subword_prefix", None))  # as "##" does
        given = settings.get("unk_token")
        names = (
            given.get("content") if isinstance(given, dict) else given,
            getattr(model, "unk_token", None),
            *_UNKNOWN,
        )
        ids = (library.token_to_id(name) for name in names if isinstance(name, str))
        self._unknown = next((number for number in ids if number is not None), None)

    def join(self, words: list[str]) -> str:
        """Return the text of tokens, decoded by the tokenizer."""
        decoder = self._tokenizer.library.decoder
        return " ".join(words) if decoder is None else str(decoder.decode(words))

    def windows(self, text: str, stride: int) -> Iterator[Window]:
        """Yield the windows over a text, in order."""
        encoding = self._tokenizer.encode_pieces(text)
        is_added, ids = encoding.special_tokens_mask, encoding.ids
        content = [i for i, added in enumerate(is_added) if not added]
        begin, end = (content[0], content[-1] + 1) if content else (len(ids), len(ids))
        pieces = [self._piece(text, encoding, i) for i in range(begin, end)]
        starts = range(0, max(len(pieces) - stride, 1), self.room - stride)
        for start in starts:
            stop = min(start + self.room, len(pieces))
            window = [*ids[:begin], *ids[begin + start : begin + stop], *ids[end:]]
            yield Window(window, begin, pieces[start:stop], start == starts[-1])

    def _piece(self, text: str, encoding: Any, i: int) -> Piece:
        (start, end), word = encoding.offsets[i], self._tokenizer.library.id_to_token(encoding.ids[i])
        if encoding.ids[i] == self._unknown:
            return Piece(text[start:end], start, end, i, False)
        if self._marks_continuations:
            continues = len(word) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        return Piece(word, start, end, i, continues)
