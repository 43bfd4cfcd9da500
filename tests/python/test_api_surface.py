"""The public face: every name documented, every example true, every version the same."""

from __future__ import annotations

import ast
import doctest
import enum
import importlib
import importlib.metadata
import importlib.util
import inspect
import operator
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import mha_native
from mha_native import _core, models, optim, sentence_transformers, serving, speech
from mha_native.interop import onnx, transformers

interop_torch = importlib.import_module("mha_native.interop.torch") if importlib.util.find_spec("torch") else None

ROOT = Path(__file__).parents[2]
PACKAGE = Path(mha_native.__file__).parent
PUBLIC = [name for name in mha_native.__all__ if not name.startswith("__")]
ADAPTERS = [
    f"{module}.{name}"
    for module, names in (
        ("interop.onnx", onnx.__all__),
        ("models", models.__all__),
        ("optim", optim.__all__),
        ("sentence_transformers", sentence_transformers.__all__),
        ("interop.transformers", transformers.__all__),
        ("interop.torch", interop_torch.__all__ if interop_torch else ()),
        ("serving", serving.__all__),
        ("speech", speech.__all__),
    )
    for name in names
]

# Names in modules that need a package, and which.
PLUGS = {
    "interop.bertopic.Embedder": "bertopic",
    "interop.chroma.MhaNativeEmbeddingFunction": "chromadb",
    "interop.chroma.MhaNativeSparseEmbeddingFunction": "chromadb",
    "interop.haystack.MhaNativeDocumentEmbedder": "haystack",
    "interop.haystack.MhaNativeDocumentImageEmbedder": "haystack",
    "interop.haystack.MhaNativeRanker": "haystack",
    "interop.haystack.MhaNativeSparseDocumentEmbedder": "haystack",
    "interop.haystack.MhaNativeSparseTextEmbedder": "haystack",
    "interop.haystack.MhaNativeTextEmbedder": "haystack",
    "interop.keybert.Embedder": "keybert",
    "interop.langchain.MhaNativeEmbeddings": "langchain_core",
    "interop.langchain.MhaNativeRanker": "langchain_core",
    "interop.langchain_qdrant.MhaNativeSparseEmbeddings": "langchain_qdrant",
    "interop.llama_index.MhaNativeEmbedding": "llama_index.core",
    "interop.llama_index.MhaNativeMultiModalEmbedding": "llama_index.core",
    "interop.llama_index.MhaNativeRanker": "llama_index.core",
    "interop.llama_index.MhaNativeSparseEmbedding": "llama_index.core",
    "interop.qdrant.MhaNativeSparseEmbedding": "tokenizers",
    "interop.qdrant.SparseVector": "tokenizers",
    "interop.sklearn.TextEmbedder": "sklearn",
    "server.Config": "prometheus_client",
    "server.app": "prometheus_client",
    "sentence_transformers.Transformer": "sentence_transformers",
}

# Models that documents name in full. No package carries most of them: tiny ones with random weights stand in.
SENTENCE_MODEL = "all-MiniLM-L6-v2"  # of the default organization
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "cross-encoder/ms-marco-MiniLM-L6-v2": {"labels": 1},
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": {
        "labels": 2,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    },
    "dslim/bert-base-NER": {"tokens": True},
}
LANGUAGE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SEQ2SEQ_MODEL = "facebook/bart-large-cnn"
# Sparse and multi-vector models, with the functions that write them.
TINY_MODELS = {
    "naver/splade-v3": "tiny_sparse.write_plain",
    "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill": "tiny_sparse.write_files",
    "BAAI/bge-m3": "tiny_sparse.write_bge",
    "lightonai/GTE-ModernColBERT-v1": "tiny_multi_vector.write_pylate",
}
SPEECH_MODEL = "openai/whisper-tiny.en"
IMAGE_MODELS: dict[str, tuple[str, int | None]] = {
    "google/vit-base-patch16-224": ("vit", 5),
    "google/vit-base-patch16-224-in21k": ("vit", None),
    "openai/clip-vit-base-patch32": ("clip", None),
    "clip-ViT-B-32": ("clip", None),
}
SPOKEN_MODEL = "tiny.en"  # with the weights of the package, in documents that have text of recordings


def test_all_is_the_whole_face() -> None:
    visible = {name for name in dir(mha_native) if not name.startswith("_")} - {"TYPE_CHECKING", "functions", "layers"}
    modules = {name for name in visible if inspect.ismodule(getattr(mha_native, name))}
    assert modules >= {"distributed", "interop", "models", "optim", "reference", "sentence_transformers", "serving"}
    assert visible - modules == set(PUBLIC) - modules
    assert len(set(mha_native.__all__)) == len(mha_native.__all__)
    assert sorted(mha_native.__all__) == list(mha_native.__all__)


def _import_or_skip(name: str) -> None:
    """Import a package of somebody else, which may warn of what it lacks itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip(name)
    if any(Path(path).is_relative_to(ROOT / "tests") for path in package.__path__):  # a folder of tests of its name
        pytest.skip(f"could not import '{name}'")


def _thing(name: str) -> Any:
    if name in PLUGS:
        _import_or_skip(PLUGS[name])
        importlib.import_module(f"mha_native.{name}".rpartition(".")[0])
    return operator.attrgetter(name)(mha_native)


@pytest.mark.parametrize("name", [*PUBLIC, *ADAPTERS, *PLUGS])
def test_every_name_is_documented(name: str) -> None:
    thing = _thing(name)
    # The first line of an undocumented binding is its signature.
    assert re.match(r"[A-Z`].*", inspect.getdoc(thing) or ""), f"{name}: {inspect.getdoc(thing)!r}"
    for member, x in vars(thing).items() if inspect.isclass(thing) else ():
        if not member.startswith("_") and (inspect.isroutine(x) or isinstance(x, property)):
            assert inspect.getdoc(x), f"{name}.{member}"


def _has_parameters(thing: Any) -> bool:
    """Whether it is a function or class of Python, other than an enumeration, whose parameters are those of Enum."""
    return isinstance(thing, type | types.FunctionType) and not isinstance(thing, enum.EnumMeta)


PYTHON = [name for name in PUBLIC + ADAPTERS if _has_parameters(_thing(name))]


@pytest.mark.parametrize("name", [*PYTHON, *PLUGS])
def test_every_parameter_is_documented(name: str) -> None:
    thing = _thing(name)
    text = inspect.getdoc(thing) or ""
    # What makes components of Haystack takes anything, and hands it to __init__.
    called = thing.__init__ if name.startswith("interop.haystack.") else thing
    for parameter in inspect.signature(called).parameters.keys() - {"self"}:
        assert re.search(rf"\b{parameter}\b", text), f"{name}: {parameter}"


@pytest.mark.parametrize("name", [*(name for name in PUBLIC + ADAPTERS if callable(_thing(name))), *PLUGS])
def test_examples_are_true(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _enter_folder_for(inspect.getdoc(_thing(name)) or "", request, tmp_path, monkeypatch)
    tests = [test for test in doctest.DocTestFinder().find(_thing(name), name) if test.examples]
    assert tests, f"{name} has no example"
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def _enter_folder_for(code: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter an empty folder, without a network: it has the models that `code` names in full, and no other."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    names = (*CLASSIFIERS, *IMAGE_MODELS, LANGUAGE_MODEL, SEQ2SEQ_MODEL, *TINY_MODELS, SPEECH_MODEL)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
    if f'"{SENTENCE_MODEL}"' in code:
        (folder / SENTENCE_MODEL).symlink_to(request.getfixturevalue("model_directory").resolve())
    for name, arguments in CLASSIFIERS.items():
        if f'"{name}"' in code:
            pytest.importorskip("tokenizers")
            pytest.importorskip("safetensors")
            import tiny_classifiers

            tiny_classifiers.write(folder / name, **arguments)
    for name, of_model in IMAGE_MODELS.items():
        if f'"{name}"' in code:
            for package in ("PIL", "tokenizers", "safetensors"):
                pytest.importorskip(package)
            import tiny_images

            tiny_images.write(folder / name, tiny_images.config(*of_model))
            for picture in re.findall(r'"(\w+\.(?:png|jpg))"', code):
                importlib.import_module("PIL.Image").new("RGB", (40, 30)).save(folder / picture)
    if f'"{LANGUAGE_MODEL}"' in code:
        pytest.importorskip("tokenizers")
        pytest.importorskip("safetensors")
        pytest.importorskip("jinja2")
        import tiny_language_model

        tiny_language_model.write(folder / LANGUAGE_MODEL, n_positions=400)
    if f'"{SEQ2SEQ_MODEL}"' in code:
        pytest.importorskip("tokenizers")
        pytest.importorskip("safetensors")
        import tiny_generators

        tiny_generators.write(folder / SEQ2SEQ_MODEL, tiny_generators.config("bart"))
    for name, written in TINY_MODELS.items():
        if f'"{name}"' in code:
            pytest.importorskip("tokenizers")
            pytest.importorskip("safetensors")
            module, function = written.split(".")
            getattr(importlib.import_module(module), function)(folder / name)
    if f'"{SPOKEN_MODEL}"' in code:
        pytest.importorskip("tokenizers")
        from recordings import recording_file

        (folder / SPOKEN_MODEL).symlink_to(request.getfixturevalue("speech_model_directory").resolve())
        (folder / "talk.wav").symlink_to(recording_file("sentence"))
    if f'"{SPEECH_MODEL}"' in code:
        pytest.importorskip("tokenizers")
        pytest.importorskip("safetensors")
        import tiny_speech

        tiny_speech.write(folder / SPEECH_MODEL, tiny_speech.config(vocab_size=51864))
    monkeypatch.chdir(folder)


def _stub() -> ast.Module:
    return ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))


def _declared(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_the_stub_matches_the_module() -> None:
    stub = _stub()
    present = {name for name in vars(_core) if not name.startswith("_")} | {"__version__"}
    assert _declared(stub.body) == present
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
            assert {name for name in _declared(node.body) if not name.startswith("_")} == members


def test_the_stub_matches_the_signatures() -> None:
    # pybind11 writes the number of positional arguments into the docstring of a function.
    for node in _stub().body:
        if isinstance(node, ast.FunctionDef):
            first_line = (getattr(_core, node.name).__doc__ or "").splitlines()[0]
            written = first_line[first_line.index("(") + 1 : first_line.rindex(") ->")]
            assert len([part for part in written.split(",") if part.strip()]) == len(node.args.posonlyargs), node.name


def test_versions_agree() -> None:
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert stated
    assert mha_native.__version__ == _core.__version__ == stated[1]


def test_the_installed_version_agrees() -> None:
    assert importlib.metadata.version("mha_native") == mha_native.__version__


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


# distributed.md asks for clusters, and data that no test has; its calls are in tests/python/distributed.
NEED_PROCESSES = {ROOT / "docs" / "distributed.md", ROOT / "docs" / "serve.md"}
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - NEED_PROCESSES)]
SNIPPETS = {
    path.relative_to(ROOT).as_posix(): snippets
    for path in DOCUMENTS
    if (snippets := re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S))
}
EXTRAS = (
    "torch",
    "transformers",
    "matplotlib",
    "onnxruntime",
    "openvino",
    "tokenizers",
    "safetensors",
    "jax",
    "bertopic",
    "keybert",
    "sentence_transformers",
    "sklearn",
    "chromadb",
    "haystack",
    "langchain_core",
    "llama_index",
)


def test_blocks_that_need_a_cluster_or_a_server_compile() -> None:
    for document in NEED_PROCESSES:
        blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)
        assert len(blocks) > 1
        for block in blocks:
            compile(block, str(document), "exec")


def test_the_documents_have_python() -> None:
    assert {"README.md", "docs/guide/attention.md", "docs/serving.md", "docs/site/gallery.md"} <= SNIPPETS.keys()


@pytest.mark.parametrize(
    ("document", "snippet"),
    [
        pytest.param(document, snippet, id=f"{document}-{i}")
        for document, snippets in SNIPPETS.items()
        for i, snippet in enumerate(snippets)
    ],
)
def test_the_documents_are_true(
    document: str,
    snippet: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for extra in EXTRAS:
        if re.search(rf"\bimport {extra}\b|\bfrom {extra}\b", snippet):
            _import_or_skip(extra)
    _enter_folder_for(snippet, request, tmp_path, monkeypatch)
    if "sys.modules" in snippet:  # it puts a module in the place of another
        monkeypatch.setattr(sys, "modules", sys.modules.copy())
    exec(compile(snippet, document, "exec"), {"__name__": "document"})


def test_importing_needs_numpy_only() -> None:
    requirements = importlib.metadata.requires("mha_native") or []
    assert [r for r in requirements if "extra ==" not in r] == ["numpy"]
