"""Calls that another thread ends."""

from .. import _core


class CancellationToken:
    """A switch by which any thread ends the calls of another one.

    As a context manager it belongs to the calls of the thread that enters it, until the block ends. Blocks nest: each
    of their tokens ends the calls inside. Use one token for one piece of work: `cancel` cannot be taken back.

    Raises
    ------
    concurrent.futures.CancelledError
        In the block, by the call under way after `cancel`, and by each later one. The tasks that are being computed end
        first, which takes milliseconds.
    RuntimeError
        If a block ends in another thread than it began in.

    See Also
    --------
    mha_native.serving.EncodeBatcher : Cancels a batch when nobody waits for it.

    Notes
    -----
    After an ended call the contents of an `out` argument are undefined, and no cache has grown. Operations that move
    tokens within a cache, such as `KVCache.reorder`, are not ended.

    A block belongs to a thread and not to a coroutine: leave it before ``await``.

    Examples
    --------
    >>> import concurrent.futures
    >>> import numpy as np
    >>> import mha_native as mha
    >>> token, x = mha.CancellationToken(), np.ones((1, 1, 4, 8), np.float32)
    >>> with token:
    ...     token.cancel()  # as another thread may do
    ...     try:
    ...         mha.scaled_dot_product_attention(x, x, x)
    ...     except concurrent.futures.CancelledError as error:
    ...         print(error)
    mha_native: the call was cancelled
    """

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = _core.CancellationFlag()

    def cancel(self) -> None:
        """End the calls in the block of this token. You can call it again, from any thread, and before the block."""
        self._flag.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._flag.is_set()

    def __enter__(self) -> "CancellationToken":
        self._flag.begin()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._flag.end():
            raise RuntimeError("CancellationToken: a block must end in the thread in which it began")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'cancelled' if self.is_cancelled else 'not cancelled'})"
