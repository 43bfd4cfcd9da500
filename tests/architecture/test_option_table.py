"""The score options are one table, attention_options.def. What must name them all does, and little else lists them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "mha_native"
CPP = ROOT / "cpp"

ROWS = re.findall(
    r"^MHA_OPTION\((\w+), ([^,]+), (\w+), (\w+)\)$",
    (CPP / "include" / "mha" / "attention_options.def").read_text(encoding="utf-8"),
    re.M,
)
KEYWORDS = list(dict.fromkeys(argument for _, _, argument, _ in ROWS))

# What only layers do something with.
OF_LAYERS = {"positions"}
# What only functions over arrays and their gradients take.
OF_FUNCTIONS = {"dropout_p", "dropout_seed"}

# The places that name at least seven options within twelve lines, by file: more than are tensors, which checks name.
# All others refer to one of these.
LISTS = {
    "cpp/include/mha/attention.hpp": 1,  # the struct, documented
    "cpp/include/mha/attention_options.def": 1,
    "cpp/src/plan/attention_plan.hpp": 1,
    "cpp/src/plan/make_plan.cpp": 1,
    "python/mha_native/functions/options.py": 1,
    "python/mha_native/functions/attention.py": 1,  # documentation
    "python/mha_native/interop/torch/operator.py": 1,  # types of arguments, which operators of torch must state
    "python/mha_native/interop/torch/attention.py": 2,  # signature, documentation
    "python/mha_native/layers/multi_head_attention.py": 1,  # documentation
    "python/mha_native/reference/attention.py": 3,  # where they have their meaning
}


def parsed(path: str) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text(encoding="utf-8"))


def keywords_of(path: str, function: str) -> set[str]:
    """Parameters of a function or method, with the keys of a TypedDict behind ``**``."""
    (node,) = (x for x in ast.walk(parsed(path)) if isinstance(x, ast.FunctionDef) and x.name == function)
    kwargs = node.args.kwarg and node.args.kwarg.annotation
    unpacked = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(kwargs)) if kwargs else None
    keys = keys_of(unpacked[1]) if unpacked else set()
    return keys | {argument.arg for argument in node.args.args + node.args.kwonlyargs}


def keys_of(typed_dict: str) -> set[str]:
    """The keys of a TypedDict of the option table, with those of its bases."""
    classes = {node.name: node for node in parsed("functions/options.py").body if isinstance(node, ast.ClassDef)}
    keys: set[str] = set()
    pending = [typed_dict]
    while pending:
        if node := classes.get(pending.pop()):
            keys |= {x.target.id for x in node.body if isinstance(x, ast.AnnAssign)}  # type: ignore[union-attr]
            pending += [ast.unparse(base) for base in node.bases]
    return keys


def lists_in(text: str) -> int:
    """Places that name at least seven different options within twelve lines; one that goes on is one place."""
    names = rf"(?<![a-zA-Z])_?({'|'.join(KEYWORDS)})s?(?![a-z])"
    hits = [(i, match[1]) for i, line in enumerate(text.splitlines()) for match in re.finditer(names, line)]
    places, end = 0, -1
    for at, (first, _) in enumerate(hits):
        near = [(line, name) for line, name in hits[at:] if line < first + 12]
        if len({name for _, name in near}) >= 7:
            places += first > end
            end = near[-1][0]
    return places


def test_the_table_is_read() -> None:
    text = (CPP / "include" / "mha" / "attention_options.def").read_text(encoding="utf-8")
    assert len(ROWS) == text.count("\nMHA_OPTION(") >= 12
    assert len(KEYWORDS) >= 10


def test_every_row_is_a_key_of_score_options() -> None:
    classes = [node for node in parsed("functions/options.py").body if isinstance(node, ast.ClassDef)]
    keys = [x.target.id for node in classes for x in node.body if isinstance(x, ast.AnnAssign)]  # type: ignore[union-attr]
    assert sorted(keys) == sorted(KEYWORDS)


def test_every_row_is_a_keyword_of_the_documented_calls() -> None:
    assert set(KEYWORDS) - OF_LAYERS <= keywords_of("functions/attention.py", "scaled_dot_product_attention")
    assert set(KEYWORDS) - OF_FUNCTIONS <= keywords_of("layers/multi_head_attention.py", "__call__")


def test_every_row_is_an_argument_of_the_operator_of_torch() -> None:
    assert set(KEYWORDS) - OF_LAYERS <= keywords_of("interop/torch/attention.py", "scaled_dot_product_attention")
    (schema,) = (
        ast.literal_eval(node.value)
        for node in parsed("interop/torch/operator.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_ARGUMENTS"
    )
    assert set(KEYWORDS) - OF_LAYERS <= set(re.findall(r" (\w+)(?:,|$)", schema))


def test_every_row_is_a_field() -> None:
    # test_c_api.py compares AttentionOptions with its twin in C, which has the rows of the table.
    header = (CPP / "include" / "mha" / "attention.hpp").read_text(encoding="utf-8")
    struct = re.search(r"^struct AttentionOptions {(.*?)^};", header, re.M | re.S)
    assert struct
    fields = re.findall(r"^  [^/\n]*?(\w+)(?: = [^;]*)?;", struct[1], re.M)
    assert fields == [*(field for field, *_ in ROWS), "num_threads"]


def test_the_recipe_names_eight_files_that_have_every_option() -> None:
    guide = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
    recipe = guide.partition("## A score option\n")[2].partition("**Follows by itself:**")[0]
    files = []
    for item in re.findall(r"^\* (`.*?`):", recipe, re.M):
        first, *others = re.findall(r"`(.*?)`", item)
        folders = [(ROOT / first).parent, (ROOT / first).parents[1]]
        files += [ROOT / first, *(x / other for other in others for x in folders if (x / other).is_file())]
    assert len(files) == 8
    for path in files:
        text = path.read_text(encoding="utf-8")
        for keyword in set(KEYWORDS) - OF_LAYERS - (OF_FUNCTIONS if path.parent.name == "layers" else set()):
            # Some have no rule, so that no check names them.
            without_rule = ("is_causal", "query_offset", "dropout_seed")
            assert keyword.removesuffix("_p") in text or (path.parent.name == "checks" and keyword in without_rule)


def test_few_places_list_the_options() -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    for folder in ("bindings", "include", "src"):
        files += [path for path in (CPP / folder).rglob("*") if path.suffix in (".cpp", ".hpp", ".h", ".def")]
    counted = {path.relative_to(ROOT).as_posix(): lists_in(path.read_text(encoding="utf-8")) for path in files}
    assert {path: count for path, count in counted.items() if count} == LISTS
    assert sum(LISTS.values()) <= 15


def test_lists_are_found() -> None:
    line = "attn_mask, key_mask, block_mask, is_causal, query_offset, key_lengths"
    assert lists_in(line) == 0
    assert lists_in(f"{line}, window") == 1
    assert lists_in(f"{line}\n{line}, window_left\n{line}, scale") == 1
    assert lists_in(f"{line}, softcap" + "\n" * 12 + f"{line}, sinks") == 2
    assert lists_in(line + "\n" * 12 + "softcap") == 0
