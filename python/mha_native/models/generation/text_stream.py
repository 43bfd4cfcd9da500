"""From tokens as they come to text: whole characters, and nothing of a stop string."""

from collections.abc import Callable, Sequence

# How many tokens before the first one its text depends on: decoders of some tokenizers drop a space at the beginning of
# a text, and a character of four bytes may be as many tokens.
_CONTEXT = 8

# The most tokens that are held back because their bytes end within a character: no character has more bytes than four,
# so that of more tokens some have bytes that are no character.
_MOST_HELD = 8

_NO_CHARACTER = "\ufffd"  # what decoders make of bytes that are no character, or the beginning of one


class TextStream:
    """The text of one sequence, piece by piece.

    Parameters
    ----------
    decode : function
        From tokens to text, without special tokens.
    prompt : tokens
        What stands before the text.
    stop : tuple of str
        What ends the text, and is no part of it.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int], stop: tuple[str, ...]) -> None:
        self._decode, self._stop = decode, stop
        self._tokens = list(prompt[-_CONTEXT:])
        self._num_shown = len(self._tokens)  # of the tokens, whose text is `_before`
        self._before = decode(self._tokens)
        self._held = ""  # what may be the beginning of a stop string
        self.is_stopped = False

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
        self._tokens = self._tokens[self._num_shown :]  # so that what is decoded stays short
        self._num_shown = len(self._tokens)
        self._before = self._decode(self._tokens)
        return new

    def _released(self, new: str) -> str:
        """What of `new`, and of what is held back, can be shown."""
        if self.is_stopped:
            return ""
        text = self._held + new
        places = [place for place in map(text.find, self._stop) if place >= 0]
        if places:
            self.is_stopped, self._held = True, ""
            return text[: min(places)]
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
