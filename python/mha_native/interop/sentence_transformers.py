"""Former place of `mha_native.sentence_transformers.Transformer`, which modules.json of saved models names."""

from ..sentence_transformers._transformer_module import Transformer as Transformer
