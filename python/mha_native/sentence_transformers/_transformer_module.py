"""A first module for models of the package sentence-transformers, a drop-in replacement for its Transformer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ..functions.arrays import widened
from ..functions.dtypes import dtype_name
from ..functions.messages import in_the_name_of, listed
from ..functions.needed_packages import needed_package
from ..layers._constructor_arguments import WeightDType, checked_dtypes
from ..models import SentenceEncoder
from ..models.files.hub_cache import find_directory
from ..models.files.modules_json import Module, first_transformer
from ..models.files.sentence_files import settings_file
from ..models.text.inputs import checked_each
from ..models.text.prompts import Settings
from ..models.text.tokenizer import require_library
from ._arguments import find_model, read_arguments
from ._model import EncoderLength

with needed_package("mha_native.sentence_transformers.Transformer", "sentence-transformers", "sentence-transformers"):
    import torch
    from sentence_transformers.base.modules import InputModule

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

__all__ = ["Transformer"]

# Files of a transformer in a folder; files of the whole model are excluded.
_FILES = ("*.json", "model*.safetensors")
_OF_THE_MODEL = ("modules.json", "config_sentence_transformers.json")

# Arguments of `load` that replace the saved formats.
_FORMATS = ("dtype", "torch_dtype", "weight_dtype")


class Transformer(EncoderLength, InputModule):
    """Vectors of tokens by this library: a first module for ``sentence_transformers.SentenceTransformer``.

    Parameters
    ----------
    model_name_or_path : path, or name of a model
        As for `mha_native.models.SentenceEncoder.from_pretrained`; the first module of a model with several.
    max_seq_length : int, optional
        Longer texts are cut to this many tokens. Default: the value in the files.
    dtype, weight_dtype
        As for `from_pretrained`. Vectors are float32 with any of them.

    Raises
    ------
    TypeError, ValueError, OSError
        If the model cannot be read, as for `from_pretrained`.
    ImportError
        Without tokenizers. The module itself needs sentence-transformers.

    Notes
    -----
    Padding is not computed, and texts are cut and tokenized by the rules of that package. The module has no parameters
    to train; later modules may have some. It computes on the CPU: tensors on another device are copied, and the vectors
    copied back. `mha_native.set_num_threads` sets its threads.

    A saved model has unchanged files of the transformer, so that both packages read them. To load it with this module,
    pass ``trust_remote_code=True`` to sentence-transformers, which requires it for every module of another package.

    Examples
    --------
    >>> from sentence_transformers import SentenceTransformer
    >>> from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    >>> from mha_native.sentence_transformers import Transformer
    >>> first = Transformer("all-MiniLM-L6-v2")
    >>> pooling = Pooling(first.get_embedding_dimension(), "mean")
    >>> model = SentenceTransformer(modules=[first, pooling, Normalize()])
    >>> model.encode(["A dog was hungry.", "Stocks fell on Tuesday."]).shape
    (2, 384)
    """

    _encoder: SentenceEncoder

    __module__ = "mha_native.sentence_transformers"  # the path that modules.json of a saved model names
    config_file_name = "mha_native.json"
    config_keys = ["max_seq_length", "dtype", "weight_dtype"]  # noqa: RUF012

    def __init__(
        self,
        model_name_or_path: str | PathLike[str],
        *,
        max_seq_length: int | None = None,
        dtype: DTypeLike = "float32",
        weight_dtype: WeightDType = None,
    ) -> None:
        super().__init__()
        with in_the_name_of("Transformer", model="model_name_or_path"):
            require_library()
            kind, stored = checked_dtypes("Transformer", dtype, weight_dtype)
            home = find_directory(model_name_or_path)
            self._folder = first_transformer(home)
            is_listed = (home / "modules.json").exists() or (self._folder / self.config_file_name).exists()
            modules = [Module("Transformer", self._folder)]
            stored = stored or dtype_name(kind)  # which the settings of a saved model name
            self._encoder = SentenceEncoder._of_modules(modules, is_listed, Settings(), kind, stored)
            if max_seq_length is not None:
                self.max_seq_length = max_seq_length

    @property
    def dtype(self) -> str:
        """The dtype of the computation."""
        return dtype_name(self._encoder.dtype)

    @property
    def weight_dtype(self) -> str:
        """The format of the layers' weights."""
        return self._encoder.weight_dtype

    @property
    def tokenizer(self) -> Any:
        """A copy of the ``tokenizers.Tokenizer`` that does not cut texts."""
        return self._encoder._tokenizer.uncut()

    def get_embedding_dimension(self) -> int:
        """Return E, the features of the vector of a token."""
        return self._encoder.embed_dim

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenize texts.

        Parameters
        ----------
        inputs : B of str
            Pairs of texts are not supported.
        prompt : str, optional
            Text before each input.
        **kwargs
            ``task`` is accepted and has no effect.

        Returns
        -------
        features : dict
            ``input_ids`` and ``attention_mask``, int64 [B, T], with padding on the right; with a prompt also
            ``prompt_length``, its number of tokens.
        """
        name = "Transformer.preprocess"
        if others := kwargs.keys() - {"task"}:
            raise ValueError(f"{name}: a module of this kind has no arguments {listed(sorted(others))}")
        texts = checked_each(f"{name}: inputs", inputs)
        tokenizer = self._encoder._tokenizer
        sequences = list(tokenizer.encode_batch([prompt + text if prompt else text for text in texts]))
        shape = (len(sequences), max(map(len, sequences), default=0))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for i, sequence in enumerate(sequences):
            ids[i, : len(sequence)], mask[i, : len(sequence)] = sequence, 1
        features: dict[str, Any] = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        return features | ({"prompt_length": tokenizer.prompt_length(prompt)} if prompt else {})

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Compute the vectors of tokens.

        Parameters
        ----------
        features : dict
            ``input_ids`` [B, T]; with padding, which must be on the right, also ``attention_mask`` [B, T].

        Returns
        -------
        features : dict
            The input with ``token_embeddings``, float32 [B, T, E]; zeros for padding.
        """
        given = features["input_ids"]
        ids = given.cpu().numpy()
        mask = features.get("attention_mask")
        mask = np.ones_like(ids, bool) if mask is None else mask.cpu().numpy() != 0
        if (mask[:, 1:] > mask[:, :-1]).any():
            raise ValueError("Transformer.forward: attention_mask must be ones, then zeros: padding is on the right")
        if "token_type_ids" in features and features["token_type_ids"].any():
            raise ValueError("Transformer.forward: token_type_ids must be zeros, as each text is alone")
        sequences = [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
        vectors = np.zeros((*ids.shape, self.get_embedding_dimension()), np.float32)
        found = [rows for _, rows, _ in self._encoder._model.batches("Transformer.forward: input_ids", sequences, None)]
        if found:
            vectors[mask] = np.concatenate([widened(rows) for rows in found])
        return features | {"token_embeddings": torch.from_numpy(vectors).to(given.device)}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Copy the files of the transformer, with the current `max_seq_length` and dtypes.

        Parameters
        ----------
        output_path : path
            A folder.
        safe_serialization : bool
            Has no effect: weights are always in safetensors.

        Raises
        ------
        OSError
            If the files have been moved or deleted.
        """
        to = Path(output_path)
        for path in (path for pattern in _FILES for path in self._folder.glob(pattern)):
            if path.name not in _OF_THE_MODEL and path.resolve() != (to / path.name).resolve():
                shutil.copyfile(path, to / path.name)
        found = settings_file(to)
        path = found or to / "sentence_bert_config.json"
        values = json.loads(path.read_text(encoding="utf-8")) if found else {}
        path.write_text(json.dumps(values | {"max_seq_length": self.max_seq_length}, indent=2), encoding="utf-8")
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> Self:
        """Load the module from a folder that `save` has written; ``SentenceTransformer(folder)`` calls this.

        Parameters
        ----------
        model_name_or_path, token, cache_folder, revision, local_files_only
            As for `mha_native.sentence_transformers.SentenceTransformer`.
        subfolder : str
            The folder of the module inside the folder of the model.
        model_kwargs, processor_kwargs, config_kwargs, backend
            As there; ``dtype`` and ``weight_dtype`` replace the saved formats.
        **kwargs
            Have no effect.
        """
        name, given = "Transformer.load", locals()
        formats, most_tokens = read_arguments(name, given)
        folder = find_model(name, given, "sentence-transformers") / subfolder
        saved = cls.load_config(str(folder))
        if any(key in _FORMATS for key in model_kwargs or ()):
            saved |= formats._asdict()
        if most_tokens is not None:
            saved["max_seq_length"] = most_tokens
        with in_the_name_of(name):
            return cls(folder, **saved)
