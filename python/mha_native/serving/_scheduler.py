"""Which tokens of which sequences a step reads: pure logic over a pool of pages.

All state is in the sequences and in the pool; the scheduler derives the rest from them at the beginning of a step. So a
step that is interrupted anywhere leaves nothing half done: the next one plans from the state that it finds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

# A prompt is ranked by the steps that reading the rest of it would take alone, in quarters of a step. It is overtaken
# only by shorter prompts that come within so many steps for each quarter.
_QUARTERS = 4
_STEPS_OF_QUARTER = 2


class Pool(Protocol):
    """Slots that hold the tokens of a sequence each, in pages that they may share."""

    page_size: int
    num_pages: int
    num_slots: int

    @property
    def free_pages(self) -> int:
        """Number of pages that no slot uses."""

    def lengths(self) -> list[int]:
        """Return the number of tokens in each slot."""

    def count_pages(self, slots: list[int]) -> int:
        """Return the number of pages that slots use together."""

    def fork(self, source: int, into: int, length: int) -> None:
        """Let a slot without tokens share the pages of the first `length` tokens of another one."""

    def shorten(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot, if it has more, and give back the pages after them."""


class Sequence:
    """The state of one sequence between steps. The prompt has at least one token.

    Sequences share pages only with others of the same `salt`. A sequence with an `observer` reads all tokens itself.
    """

    def __init__(self, prompt: list[int], salt: str | None = None) -> None:
        self.tokens = list(prompt)  # and the tokens chosen so far
        self.salt = salt
        # It gets the place of the first token of each run, the rows of the tokens, and a function from rows to logits.
        self.observer: Callable[[int, Any, Any], object] | None = None
        self.num_observed = 0  # tokens whose rows it has
        self.slot: int | None = None  # the slot of its tokens in the pool; None while it waits
        self.has_ended = False  # whether no more tokens are read
        self.age = 0  # steps since it came
        self.num_shared = 0  # tokens shared with another sequence and not read again
        self.num_reached = 0  # the most tokens that were read or shared at a time
        self.num_cached = 0  # tokens shared with another sequence before they were reached in another way
        self.was_admitted = False


class _Kept(NamedTuple):
    """The tokens of a slot whose sequence has ended."""

    tokens: list[int]
    salt: str | None


class Run(NamedTuple):
    """Tokens `first` to `end` of a sequence, which a step reads into its slot."""

    sequence: Sequence
    slot: int
    first: int
    end: int


class Scheduler:
    """Chooses the tokens that each step reads, from sequences in the order in which they came.

    Older sequences are let in first, and younger ones are the first to give pages back. The oldest sequence goes on in
    every step, and each sequence becomes the oldest one.

    Of the prompts the shortest goes first: the prompt with the fewest tokens left to read. With each step a prompt
    comes forward, so that long prompts are read, too. Prompts with equal rank keep their order.

    At most `max_sequences` sequences are read together. The pool has a slot for each; further slots keep tokens of
    sequences that have ended. `tokens_per_step` is at least `max_sequences`, which leaves tokens for prompts when all
    sequences read one token. With `share_prefixes` a sequence may begin with pages of another one, which may have
    ended.
    """

    def __init__(self, pool: Pool, max_sequences: int, tokens_per_step: int, share_prefixes: bool) -> None:
        self._pool, self._max_sequences, self._tokens_per_step = pool, max_sequences, tokens_per_step
        self._shares = share_prefixes
        self._kept: dict[int, _Kept] = {}  # slots whose sequence has ended, the longest unused ones first
        self.num_preempted = 0
        # Tokens of sequences that were looked for in other slots, and tokens that were found there.
        self.num_queried = self.num_hit = 0

    def free_pages(self, sequences: list[Sequence]) -> int:
        """Return the number of pages that none of the sequences uses."""
        slots = [sequence.slot for sequence in sequences if sequence.slot is not None]
        return self._pool.num_pages - self._pool.count_pages(slots)

    def needs(self, num_tokens: int) -> int:
        """Return the number of pages for `num_tokens` tokens."""
        return -(-num_tokens // self._pool.page_size)

    def plan(self, sequences: list[Sequence]) -> list[Run]:
        """Return the runs of the next step: at most one for each sequence, and no more than there are pages for.

        Each sequence needs no more pages than the pool has, and sequences that have ended were forgotten.
        """
        for sequence in sequences:
            sequence.age += 1
        running = self._running(sequences)
        self._admit(sequences, running)
        runs, prompts = [], []
        for sequence, read in running.items():
            if read == len(sequence.tokens) - 1:
                runs.append(_run(sequence, read, 1))
            else:
                prompts.append(sequence)
        oldest = next(iter(running), None)
        budget = self._tokens_per_step - len(runs) - (oldest in prompts)  # one token is for the oldest sequence
        prompts.sort(key=lambda prompt: self._rank(prompt, running[prompt]))
        for i, sequence in enumerate(prompts):
            own = int(sequence is oldest)
            most = own + (budget if budget > 0 and self._begin(sequence, running, prompts[:i]) else 0)
            if most > 0:
                runs.append(_run(sequence, running[sequence], most))
                budget -= runs[-1].end - runs[-1].first - own
        runs = self._affordable(runs, list(running))
        for run in runs:
            run.sequence.num_reached = max(run.sequence.num_reached, run.end)
        return runs

    def forget(self, sequence: Sequence) -> None:
        """Keep the tokens of a sequence that has ended for others that begin alike, or give its pages back."""
        if sequence.slot is None:
            return
        if self._shares:
            self._kept[sequence.slot] = _Kept(sequence.tokens, sequence.salt)
        else:
            self._pool.shorten(sequence.slot, 0)
        sequence.slot = None

    def release_kept(self) -> None:
        """Give back the pages of sequences that have ended."""
        while self._kept:
            self._release_longest_unused()

    def _rank(self, sequence: Sequence, read: int) -> int:
        """The place of a prompt among others: the lowest goes first."""
        quarter = max(1, self._tokens_per_step // _QUARTERS)
        return _STEPS_OF_QUARTER * -(-(len(sequence.tokens) - read) // quarter) - sequence.age

    def _running(self, sequences: list[Sequence]) -> dict[Sequence, int]:
        """The sequences in the pool, and how many tokens of each have been read: never the last one, by which the next
        token is chosen."""
        lengths, running = self._pool.lengths(), {}
        used = {sequence.slot for sequence in sequences} | self._kept.keys()
        for slot, length in enumerate(lengths):
            if length > 0 and slot not in used:  # a step ended before it let a sequence in
                self._pool.shorten(slot, 0)
        for sequence in sequences:
            if sequence.slot is not None:
                running[sequence] = min(lengths[sequence.slot], len(sequence.tokens) - 1)
                if sequence.observer is not None:
                    running[sequence] = min(running[sequence], sequence.num_observed)
                # A step ended before it chose a token, or before the observer had all rows.
                if lengths[sequence.slot] > running[sequence]:
                    self._pool.shorten(sequence.slot, running[sequence])
        return running

    def _admit(self, sequences: list[Sequence], running: dict[Sequence, int]) -> None:
        """Let sequences that wait into the pool, in their order, while it has pages for all their tokens."""
        for sequence in sequences:
            if sequence.slot is not None:
                continue
            if len(running) == self._max_sequences:
                return
            slot = self._free_slot(running)
            shared = self._share(sequence, slot, 0, running)
            # Pages for all tokens so far, and one more for each sequence, which may soon need it: a sequence that is
            # let in should not have to give its pages back at once.
            promised = sum(self.needs(len(other.tokens)) - self.needs(read) for other, read in running.items())
            needed = self.needs(len(sequence.tokens)) - self.needs(shared) + promised + len(running)
            if not self._make_free(needed):
                self._pool.shorten(slot, 0)
                return
            sequence.slot, running[sequence] = slot, shared
            if self._shares and not sequence.was_admitted:
                sequence.was_admitted = True
                self.num_queried += len(sequence.tokens)
            self._count_shared(sequence, 0, shared)

    def _free_slot(self, running: dict[Sequence, int]) -> int:
        """An empty slot."""
        if len(running) + len(self._kept) == self._pool.num_slots:
            self._release_longest_unused()
        used = {sequence.slot for sequence in running} | self._kept.keys()
        return next(slot for slot in range(self._pool.num_slots) if slot not in used)

    def _begin(self, sequence: Sequence, running: dict[Sequence, int], before: list[Sequence]) -> bool:
        """Let a sequence share pages that others have read meanwhile; return False if it should wait for pages that a
        prompt `before` it is reading."""
        assert sequence.slot is not None
        if not self._shares or sequence.observer is not None:
            return True
        read = running[sequence]
        running[sequence] = self._share(sequence, sequence.slot, read, running)
        self._count_shared(sequence, read, running[sequence])
        own = running[sequence] // self._pool.page_size
        return all(self._common_pages(sequence, other, len(other.tokens)) <= own for other in before)

    def _count_shared(self, sequence: Sequence, read: int, shared: int) -> None:
        """Count the tokens that a sequence shares beyond `read` ones."""
        cached = max(0, shared - max(read, sequence.num_reached))
        sequence.num_reached = max(sequence.num_reached, shared)
        sequence.num_shared += shared - read
        sequence.num_cached += cached
        self.num_hit += cached

    def _share(self, sequence: Sequence, slot: int, read: int, running: dict[Sequence, int]) -> int:
        """Let `slot`, which holds `read` tokens of `sequence`, share the most pages that another slot has of it.
        Return the number of tokens in the slot then."""
        if not self._shares or sequence.observer is not None:
            return read
        lengths, best, source = self._pool.lengths(), read // self._pool.page_size, -1
        others: list[tuple[int | None, Sequence | _Kept]] = [*self._kept.items()]
        others[:0] = [(other.slot, other) for other in running if other is not sequence]
        for other_slot, other in others:
            assert other_slot is not None
            pages = self._common_pages(sequence, other, lengths[other_slot])
            if pages > best:
                best, source = pages, other_slot
        if source < 0:
            return read
        if source in self._kept:
            self._kept[source] = self._kept.pop(source)  # it is the last one used now
        self._pool.shorten(slot, 0)
        self._pool.fork(source, slot, best * self._pool.page_size)
        return best * self._pool.page_size

    def _common_pages(self, sequence: Sequence, other: Sequence | _Kept, count: int) -> int:
        """Return the number of whole pages, of the first `count` tokens of another sequence, with which a sequence of
        the same salt begins that has at least one more token."""
        if sequence.salt != other.salt:
            return 0
        size, own, tokens = self._pool.page_size, sequence.tokens, other.tokens
        most = min(count, len(tokens), len(own) - 1) // size
        pages = 0
        while pages < most and own[pages * size : (pages + 1) * size] == tokens[pages * size : (pages + 1) * size]:
            pages += 1
        return pages

    def _affordable(self, runs: list[Run], running: list[Sequence]) -> list[Run]:
        """Return the runs that there are pages for, after the youngest sequences have given theirs back if needed."""
        while not self._make_free(sum(self.needs(run.end) - self.needs(run.first) for run in runs)):
            youngest = running.pop()
            assert youngest.slot is not None
            self._pool.shorten(youngest.slot, 0)
            youngest.slot = None
            self.num_preempted += 1
            runs = [run for run in runs if run.sequence is not youngest]
        return runs

    def _make_free(self, count: int) -> bool:
        """Return whether `count` pages are free, after sequences that have ended have given theirs back if needed."""
        lengths = self._pool.lengths()
        if count > self._pool.free_pages + sum(self.needs(lengths[slot]) for slot in self._kept):
            return False  # nothing is given back if it would not suffice
        while count > self._pool.free_pages and self._kept:
            self._release_longest_unused()
        return count <= self._pool.free_pages

    def _release_longest_unused(self) -> None:
        slot = next(iter(self._kept))
        self._pool.shorten(slot, 0)
        del self._kept[slot]


def _run(sequence: Sequence, first: int, most: int) -> Run:
    assert sequence.slot is not None
    return Run(sequence, sequence.slot, first, min(first + most, len(sequence.tokens)))
