"""What XLA calls, seen from XLA's side: layouts as its own header has them, and versions that it may have."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mha_native._core import xla_attention

HEADER = Path(__file__).parents[3] / "cpp" / "bindings" / "xla_ffi.hpp"

# The structs of the header, and what XLA calls the fields that have other names there.
STRUCTS = {
    "Extension": ("Extension_Base", {}),
    "Version": ("Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "Metadata": ("Metadata", {"version": "api_version"}),
    "MetadataExtension": ("Metadata_Extension", {"base": "extension_base"}),
    "Buffer": ("Buffer", {"extents": "dims"}),
    "Text": ("ByteSpan", {"data": "ptr", "size": "len"}),
    "Scalar": ("Scalar", {}),
    "Attributes": ("Attrs", {"values": "attrs"}),
    "CreateError": ("Error_Create_Args", {"code": "errc"}),
    "DestroyError": ("Error_Destroy_Args", {}),
    "Schedule": ("ThreadPool_Schedule_Args", {"context": "ctx"}),
    "CountThreads": ("ThreadPool_NumThreads_Args", {"context": "ctx", "count": "num_threads"}),
    "CallFrame": (
        "CallFrame",
        {"context": "ctx", "arguments": "args", "results": "rets", "attributes": "attrs"},
    ),
    "Api": (
        "Api",
        {
            "version": "api_version",
            "internals": "internal_api",
            "create_error": "XLA_FFI_Error_Create",
            "get_message": "XLA_FFI_Error_GetMessage",
            "destroy_error": "XLA_FFI_Error_Destroy",
            "not_called": "XLA_FFI_Handler_Register",
            "schedule": "XLA_FFI_ThreadPool_Schedule",
            "count_threads": "XLA_FFI_ThreadPool_NumThreads",
        },
    ),
}
NUMBERS = {
    "kMajorVersion": "XLA_FFI_API_MAJOR",
    "kMetadataExtension": "XLA_FFI_Extension_Metadata",
    "kBufferArgument": "XLA_FFI_ArgType_BUFFER",
    "kScalarAttribute": "XLA_FFI_AttrType_SCALAR",
    "kExecuteStage": "XLA_FFI_ExecutionStage_EXECUTE",
    "DataType::boolean": "XLA_FFI_DataType_PRED",
    "DataType::s32": "XLA_FFI_DataType_S32",
    "DataType::s64": "XLA_FFI_DataType_S64",
    "DataType::f16": "XLA_FFI_DataType_F16",
    "DataType::f32": "XLA_FFI_DataType_F32",
    "DataType::f64": "XLA_FFI_DataType_F64",
    "DataType::bf16": "XLA_FFI_DataType_BF16",
    "ErrorCode::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "ErrorCode::unimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "ErrorCode::internal": "XLA_FFI_Error_Code_INTERNAL",
}


def fields_of(struct: str) -> list[str]:
    """The names of the fields, of which a line has one or several."""
    body = re.search(rf"struct {struct} {{\n(.*?)\n}};", HEADER.read_text(encoding="utf-8"), re.DOTALL)
    assert body, struct
    lines = [line.partition("//")[0].strip() for line in body[1].splitlines()]
    of_functions = re.compile(r"\(\*(\w+)(?:\[\d+\])?\)\(")
    names: list[str] = []
    for line in lines:
        if function := of_functions.search(line):
            names.append(function[1])
        else:
            names += [re.findall(r"\w+", part)[-1] for part in line.split(",")]
    return names


def test_layouts_and_numbers_are_those_of_the_header_of_xla(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", minversion="0.6.2")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    checks = []
    for ours, (theirs, names) in STRUCTS.items():
        for field in fields_of(ours):
            known = names.get(field, "extension_start" if field == "extensions" else field)
            checks.append(f"offsetof(xla::{ours}, {field}) == offsetof(XLA_FFI_{theirs}, {known})")
            if field not in ("not_called", "version"):  # several at once; of which the sizes are compared by themselves
                checks.append(f"sizeof(xla::{ours}::{field}) == sizeof(XLA_FFI_{theirs}::{known})")
    checks += [f"int(xla::{ours}) == int({theirs})" for ours, theirs in NUMBERS.items()]
    checks += ["xla::kMinorVersion >= XLA_FFI_API_MINOR", "xla::kOldestMinorVersion <= XLA_FFI_API_MINOR"]
    program = tmp_path / "layouts.cpp"
    program.write_text(
        f'#include <xla/ffi/api/c_api.h>\n#include "{HEADER}"\nnamespace xla = mha::bindings::xla;\n'
        + "".join(f"static_assert({check});\n" for check in checks)
    )
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{jax.ffi.include_dir()}", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert len(checks) > 80


class Version(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("next", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class Metadata(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32))


class MetadataExtension(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(Metadata)),
    )


class ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("next", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorArguments))


class Api(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("next", ctypes.c_void_p),
        ("version", Version),
        ("internals", ctypes.c_void_p),
        ("create_error", CreateError),
    )


class Frame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(MetadataExtension)),
        ("api", ctypes.POINTER(Api)),
        ("rest", ctypes.c_byte * 256),
    )


def ask(major: int, minor: int, *, size: int = ctypes.sizeof(Frame), for_version: bool = True) -> Any:
    """What an XLA of this version is told of the function's own, or the errors that it is given."""
    errors: list[str] = []

    def create(arguments: Any) -> int:
        errors.append(arguments[0].message.decode())
        return 1

    api = Api(ctypes.sizeof(Api), None, Version(24, None, major, minor), None, CreateError(create))
    metadata = Metadata(ctypes.sizeof(Metadata), Version(24, None, -1, -1), 7)
    extension = MetadataExtension(ctypes.sizeof(MetadataExtension), 1, None, ctypes.pointer(metadata))
    frame = Frame(size, ctypes.pointer(extension) if for_version else None, ctypes.pointer(api))
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address(xla_attention(), None))
    failed = function(ctypes.addressof(frame))
    assert bool(failed) == bool(errors)
    return errors or (metadata.version.major, metadata.version.minor, metadata.traits)


@pytest.mark.parametrize(("theirs", "ours"), [(1, 1), (3, 3), (7, 3)])
def test_an_xla_is_told_a_version_that_both_know(theirs: int, ours: int) -> None:
    assert ask(0, theirs) == (0, ours, 0)


def test_an_xla_of_another_major_version_is_refused() -> None:
    (message,) = ask(1, 0)
    assert "this XLA has version 1.0 of its foreign function interface, and only versions 0.x are known" in message


def test_a_call_that_is_too_short_is_refused() -> None:
    (message,) = ask(0, 3, size=40, for_version=False)
    assert "calls functions in an unknown way" in message
