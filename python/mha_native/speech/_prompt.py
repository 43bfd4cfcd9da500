"""The special tokens of Whisper, and the prompt that the decoder reads before the text of a window."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..functions.messages import listed, shown
from ..models.text.tokenizer import Tokenizer

TASKS = ("transcribe", "translate")

SECONDS_PER_TIMESTAMP = 0.02

# Marks of subtitles that nobody speaks, such as "[laughs]", "(music)", speakers' names and notes.
_SIGNS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_NOTES = tuple("♩♪♫♬♭♮♯")
_BEFORE_WORDS = (" -", " '")  # a dash or a quote inside of a word is speech


class Prompt(NamedTuple):
    """The tokens that the decoder reads before it writes.

    Parameters
    ----------
    tokens : list of int
        Previous text, the start of the transcript, and the prefix.
    start : int
        The place of the start-of-transcript token in `tokens`.
    num_prefix : int
        Tokens at the end that belong to the written text already.
    max_length : int
        The most tokens of the prompt and the text. Half as many may be text, and fewer than half a part of the prompt.
    """

    tokens: list[int]
    start: int
    num_prefix: int
    max_length: int


class SpeechTokens:
    """The tokenizer of a Whisper model, and its special tokens by name.

    A prompt and its text have at most `max_length` tokens. Raises ValueError if the tokenizer lacks one of them.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        find = tokenizer.library.token_to_id

        def number(*names: str) -> int:
            for name in names:
                token = find(f"<|{name}|>")
                if token is not None:
                    return int(token)
            raise ValueError(f"the tokenizer has no token <|{names[0]}|>, so it is not one of Whisper")

        self.end, self.start = number("endoftext"), number("startoftranscript")
        self.tasks = {task: number(task) for task in TASKS}
        self.previous, self.language_model = number("startofprev"), number("startoflm")
        self.no_speech = number("nospeech", "nocaptions")
        self.no_timestamps = number("notimestamps")
        self.first_timestamp = self.no_timestamps + 1
        # The languages are the tokens after the start, up to the first task.
        between = range(self.start + 1, min(self.tasks.values()))
        self.languages = {str(tokenizer.library.id_to_token(token)).strip("<|>"): token for token in between}

    @property
    def unspoken(self) -> tuple[int, ...]:
        """Tokens of marks that nobody speaks: brackets, quotes, notes of music."""
        found = {self.encode(text)[0] for text in _BEFORE_WORDS}
        for sign in (*_SIGNS, *_NOTES):
            for tokens in (self.encode(sign), self.encode(" " + sign)):
                # Notes of several tokens are told by the first one, which only such signs have.
                if len(tokens) == 1 or sign in _NOTES:
                    found.add(tokens[0])
        return tuple(sorted(found))

    def suppressed(self, tokens: Sequence[int] | None) -> tuple[int, ...]:
        """Return the tokens that are never written, by the argument `suppress_tokens`: -1 stands for `unspoken`."""
        if not tokens:
            return ()
        found = {*tokens, *(self.unspoken if -1 in tokens else ())} - {-1}
        special = (*self.tasks.values(), self.start, self.previous, self.language_model, self.no_speech)
        return tuple(sorted(found.union(special)))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return self.tokenizer.encode("text", text, 0, special=False)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones and timestamps."""
        return self.tokenizer.decode([token for token in tokens if token < self.end])

    def language(self, function: str, language: Any) -> int:
        """Return the token of a language code such as "en", or raise ValueError."""
        if not isinstance(language, str) or language not in self.languages:
            raise ValueError(
                f"{function}: language must be a code of the model ({listed(sorted(self.languages))}); "
                f"got {shown(language)}"
            )
        return self.languages[language]

    def prompt(
        self,
        task: Sequence[int],
        previous: Sequence[int] = (),
        *,
        without_timestamps: bool = False,
        prefix: str | None = None,
        hotwords: str | None = None,
        room: int = 1,
    ) -> Prompt:
        """Return the prompt of a window, which leaves room for so many tokens.

        `task` are the tokens of language and task, none for a model of English. Of the `previous` tokens it has the
        last ones.
        """
        hints = [] if prefix or not hotwords else self._begin_with_space(hotwords)
        begin = [self.start, *task, *[self.no_timestamps] * without_timestamps]
        written = self._begin_with_space(prefix) if prefix else []
        if written and not without_timestamps:
            written.insert(0, self.first_timestamp)
        left = self.max_length - room - len([self.previous, *hints, *begin, *written])
        heard = list(previous[-min(self.max_length // 2 - 1, left) :]) if left > 0 else []
        before = [self.previous, *hints, *heard] if hints or heard else []
        return Prompt(before + begin + written, len(before), len(written), self.max_length)

    def _begin_with_space(self, text: str) -> list[int]:
        return self.encode(" " + text.strip())[: self.max_length // 2 - 1]
