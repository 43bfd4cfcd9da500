"""check_exports.py finds what it is there to find, and every public header marks what it declares."""

from pathlib import Path

import pytest
from check_exports import exported, marked, unmarked

HEADERS = sorted((Path(__file__).resolve().parents[2] / "cpp" / "include" / "mha").glob("*.h*"))

HEADER = """
#define MHA_API \\
  attributes(visible)
namespace mha {
/// Not a declaration: attend(x);
MHA_API void attend(const TensorView& query,
                    int threads = 0);
MHA_API const char* why();
class InnerPart;
class MHA_API Cache {
 public:
  void append(int count);
  struct MHA_LOCAL Impl;
};
constexpr int twice(int x) { return 2 * x; }
inline int once(int x) { return x; }
template <class T>
int of(T x);
}  // namespace mha
"""


def test_marks_are_found() -> None:
    assert marked(HEADER) == {"attend", "why", "Cache"}
    assert unmarked(HEADER) == []


@pytest.mark.parametrize("name", ["attend", "why", "Cache"])
def test_a_missing_mark_is_found(name: str) -> None:
    lines = HEADER.splitlines()
    [at] = [i for i, line in enumerate(lines) if "MHA_API" in line and name in line]
    lines[at] = lines[at].replace("MHA_API ", "")
    assert unmarked("\n".join(lines)) == [name]


def test_an_inner_class_that_would_be_shown_is_found() -> None:
    assert unmarked(HEADER.replace("struct MHA_LOCAL Impl", "struct Impl")) == ["Impl"]


def test_names_of_symbols() -> None:
    symbols = """\
0000000000010e40 T mha::attend(mha::BasicTensorView<void const*> const&, int)
0000000000010e50 T mha::Cache::keys() const
0000000000010e60 V typeinfo name for mha::DTypeError
0000000000010e70 T mha_last_error
0000000000010e80 T mha::Cache::Impl::run()
0000000000010e90 W std::vector<int>::push_back(int&&)
"""
    names = {"attend", "Cache", "DTypeError", "mha_last_error", "mha::Cache::Impl::run()", "std"}
    assert exported(symbols) == names


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_public_headers_mark_what_they_declare(path: Path) -> None:
    assert unmarked(path.read_text(encoding="utf-8")) == []
