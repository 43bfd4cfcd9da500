"""Text of tokens as they come, in whole characters and without stop strings."""

from collections.abc import Callable, Sequence

# The text of a token depends on this many tokens before it: some tokenizers drop a space at the beginning of a text,
# and a character of four bytes may be four tokens.
_CONTEXT = 8

# The most tokens that are held back because their bytes end within a character. A character has at most four bytes, so
# more tokens contain bytes that are not a character.
_MOST_HELD = 8

_NO_CHARACTER = "\ufffd"  # text of bytes that are not a character, or only its beginning


class TextStream:
    """The text of one sequence, piece by piece.

    `decode` returns the text of tokens, without special ones. `prompt` are the tokens before the text. Each of `stop`
    ends the text, and is not a part of it.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int], stop: tuple[str, ...]) -> None:
        self._decode, self._stop = decode, stop
        self._tokens = list(prompt[-_CONTEXT:])
        self._num_shown = len(self._tokens)  # of the tokens, whose text is `_before`
        self._before = decode(self._tokens)
        self._held = ""  # a possible beginning of a stop string
        self.stop_text: str | None = None  # the stop string that has ended the text

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop_text is not None

    def push(self, token: int) -> str:
        """The next piece of the text, which may be empty."""
        self._tokens.append(token)
        return self._released(self._new_text(is_end=False))

    def finish(self) -> str:
        """The last piece of the text."""
        piece = self._released(self._new_text(is_end=True))
        if self.is_stopped:
            return piece
        held, self._held = self._held, ""
        return piece + held

    def _new_text(self, is_end: bool) -> str:
        text = self._decode(self._tokens)
        num_new = len(self._tokens) - self._num_shown
        is_within_character = text.endswith(_NO_CHARACTER) and not is_end and num_new <= _MOST_HELD
        if len(text) <= len(self._before) or is_within_character:
            return ""
        new = text[len(self._before) :]
        self._tokens = self._tokens[self._num_shown :]  # to keep calls of `decode` short
        self._num_shown = len(self._tokens)
        self._before = self._decode(self._tokens)
        return new

    def _released(self, new: str) -> str:
        """Return the part of the text held back and of `new` that can be shown."""
        if self.is_stopped:
            return ""
        text = self._held + new
        places = [(place, i) for i, place in enumerate(map(text.find, self._stop)) if place >= 0]
        if places:
            place, i = min(places)
            self.stop_text, self._held = self._stop[i], ""
            return text[:place]
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


def _overlap(text: str, stop: str) -> int:
    """Return the number of characters at the end of `text` that are the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
