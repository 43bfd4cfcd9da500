"""Bodies of multipart/form-data: their fields, and a file, which goes to the disk as it comes."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from .calls import Call
from .errors import Failure

_MOST_FIELDS = 64
_MOST_BYTES = 65536  # of a field
_LEAST_RATE = 131_072  # bytes a second that a sender needs
_FIRST_SECONDS = 30.0  # and so many seconds more
_PLAIN = (b"", b"7bit", b"8bit", b"binary")  # encodings that change no byte


class TemporaryFile:
    """A file on the disk, which is removed by `close`, or at the end of the object."""

    def __init__(self) -> None:
        number, self.path = tempfile.mkstemp(prefix="mha_native-")
        self.file: BinaryIO = os.fdopen(number, "w+b")
        self.close = weakref.finalize(self, _remove, self.file, self.path)


def _remove(file: BinaryIO, path: str) -> None:
    file.close()
    with contextlib.suppress(OSError):
        os.unlink(path)


class Form:
    """The fields of a body, by their names in the order of the body, and its only file."""

    def __init__(self, content_type: bytes, file_field: str) -> None:
        kind, options = parse_options_header(content_type.decode("latin-1"))
        if kind != b"multipart/form-data":
            raise Failure("media", "The body must be a form: Content-Type must be multipart/form-data.")
        if not (boundary := options.get(b"boundary")):
            raise Failure("invalid", "The header Content-Type must have the boundary of the form.")
        self.fields: dict[str, list[str]] = {}
        self.file: TemporaryFile | None = None
        self._file_field = file_field
        self._headers: list[tuple[bytes, bytes]] = []
        self._header: tuple[bytearray, bytearray] = bytearray(), bytearray()
        self._name, self._value = "", bytearray()
        self._write: Callable[[bytes], Any] = self._extend
        self._num_fields, self._is_whole = 0, False
        callbacks: Any = {
            "on_part_begin": self._headers.clear,
            "on_header_begin": self._begin_header,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": lambda: self._headers.append((bytes(self._header[0]), bytes(self._header[1]))),
            "on_headers_finished": self._begin_part,
            "on_part_data": lambda data, start, end: self._write(data[start:end]),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        with _errors_of_forms():
            self._parser = MultipartParser(boundary, callbacks)

    def feed(self, data: bytes) -> None:
        """Read a part of the body."""
        with _errors_of_forms():
            self._parser.write(data)

    def finish(self) -> None:
        """Raise the failure of a body that has ended too early."""
        if not self._is_whole:
            raise Failure("invalid", "The form ends before its last boundary.")

    def close(self) -> None:
        """Remove the file, unless somebody has taken it."""
        if self.file is not None:
            self.file.close()

    def take_file(self) -> TemporaryFile:
        """Return the file, for a caller that closes it."""
        if self.file is None:
            raise Failure("invalid", f"{self._file_field}: must be a file", self._file_field)
        taken, self.file = self.file, None
        return taken

    def _begin_header(self) -> None:
        self._header = bytearray(), bytearray()

    def _begin_part(self) -> None:
        """Find out by its headers whether a part is a field or the file."""
        headers = {name.lower(): value for name, value in self._headers}
        kind, options = parse_options_header(headers.get(b"content-disposition", b"").decode("latin-1"))
        if kind != b"form-data" or not options.get(b"name"):
            raise Failure(
                "invalid", 'Each part of the form must have a header Content-Disposition: form-data; name="..".'
            )
        self._name = _decoded("a name", options[b"name"])
        if headers.get(b"content-transfer-encoding", b"").strip().lower() not in _PLAIN:
            raise Failure("invalid", f"{self._name}: Content-Transfer-Encoding is not supported", self._name)
        self._num_fields += 1
        if self._num_fields > _MOST_FIELDS:
            raise Failure("invalid", f"The form must have at most {_MOST_FIELDS} fields.")
        if b"filename" not in options:
            self._value = bytearray()
            self._write = self._extend
            return
        if self._name != self._file_field:
            raise Failure("invalid", f"{self._name}: must not be a file; the file is {self._file_field}", self._name)
        if self.file is not None:
            raise Failure("invalid", f"{self._name}: must come once", self._name)
        self.file = TemporaryFile()
        self._write = self.file.file.write

    def _extend(self, data: bytes) -> None:
        self._value += data
        if len(self._value) > _MOST_BYTES:
            raise Failure("invalid", f"{self._name}: must have at most {_MOST_BYTES} bytes", self._name)

    def _end_part(self) -> None:
        if self._write == self._extend:
            self.fields.setdefault(self._name, []).append(_decoded(self._name, bytes(self._value)))
        elif self.file is not None:
            self.file.file.flush()

    def _end(self) -> None:
        self._is_whole = True


async def read_form(call: Call, file_field: str, most: int) -> Form:
    """Return the form of a request of at most `most` bytes. Its file is removed at the end of the request."""
    if call.headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise Failure("media", "The body must not be compressed: Content-Encoding must be absent.")
    form = Form(call.headers.get(b"content-type", b""), file_field)
    call.at_end(form.close)
    await call.receive_body(most, _FIRST_SECONDS + most / _LEAST_RATE, form.feed)
    form.finish()
    return form


@contextlib.contextmanager
def _errors_of_forms() -> Any:
    """Raise errors of the parser, and of the disk, as failures of the request."""
    try:
        yield
    except FormParserError as error:
        raise Failure("invalid", f"The form is damaged: {error}") from None
    except OSError as error:
        raise Failure("storage", "The server has no room on its disk for the file.") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Failure("invalid", f"{name}: must be text in UTF-8", None if name == "a name" else name) from None
