"""The documentation of arguments that several plugs have, inserted into their docstrings."""

import textwrap
from typing import TypeVar

Class = TypeVar("Class", bound=type)

_FORMATS = """\
dtype, weight_dtype : optional
    The formats of the computation and of the layers' weights, such as "int8", as for
    `mha_native.models.SentenceEncoder.from_pretrained`.
"""

# A text may have lines ``{name}`` of the texts after it.
_TEXTS = {
    "topics": """\
Parameters
----------
{model}
{prompt}
{embedder}

{errors}
ImportError
    Without tokenizers. The module itself needs {package}: ``pip install {package}``.
""",
    "fields": """\
{model_name}
{prompts}
{embedder}
{kwargs}
""",
    "embedder": f"""\
{_FORMATS}truncate_dim, normalize, num_threads : optional
    These options of `mha_native.models.SentenceEncoder.encode`.
""",
    "sparse_fields": """\
{model_name}
{prompts}
{sparse}
{sparse_kwargs}
""",
    "sparse": f"""\
{_FORMATS}max_active_dims, num_threads : optional
    These options of `mha_native.models.SparseEncoder.encode`.
""",
    "sparse_kwargs": """\
model_kwargs : dict, optional
    Further arguments of `mha_native.sentence_transformers.SparseEncoder`, such as ``{"revision": "main"}``, which JSON
    can hold.
""",
    "kwargs": """\
model_kwargs : dict, optional
    Further arguments of `mha_native.sentence_transformers.SentenceTransformer`, such as ``{"revision": "main"}``.
    JSON must be able to hold all arguments.
encode_kwargs : dict, optional
    Arguments of its ``encode``: ``normalize_embeddings``, ``truncate_dim``, ``show_progress_bar``. ``batch_size`` and
    ``device`` are accepted and have no effect.
""",
    "prompts": """\
query_prompt, document_prompt : str, optional
    Text before each query, and before each document. Default: the prompts of the model for these, if it has any.
""",
    "model": """\
model : path, name of a model, or SentenceEncoder
    As `mha_native.models.SentenceEncoder.from_pretrained` takes it, or its result.
""",
    "model_name": """\
model_name : str
    A directory, or the name of a model, as for the classes of `mha_native.sentence_transformers`. ``model`` is another
    name of this argument.
""",
    "ranker": f"""\
{_FORMATS}model_kwargs : dict, optional
    Further options of `mha_native.sentence_transformers.CrossEncoder`, which JSON can hold.
""",
    "prompt": """\
prompt_name, prompt : str, optional
    The prompt before each text, by name or as it is.
""",
    "errors": """\
Raises
------
FileNotFoundError, OSError
    If the model cannot be read.
TypeError, ValueError
    If an argument is not valid.
""",
    "invalid": """\
Raises
------
TypeError, ValueError
    If an argument is not valid.
""",
}


def with_argument_docs(documented: Class) -> Class:
    """Replace each line ``{name}`` in the docstring of a class by the text of that name, and ``{package}``."""
    doc = documented.__doc__ or ""  # None under python -OO
    for name, text in _TEXTS.items():
        doc = doc.replace(f"    {{{name}}}\n", textwrap.indent(text, "    "))
    documented.__doc__ = doc.replace("{package}", documented.__module__.rpartition(".")[2])
    return documented
