"""TextEmbedder in what scikit-learn makes of transformers: pipelines, searches, data frames, copies, processes.

Skipped without that package.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
sklearn = pytest.importorskip("sklearn", minversion="1.6")

import joblib  # noqa: E402
from sklearn.base import clone  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils import estimator_checks  # noqa: E402
from tolerance import assert_same_bits  # noqa: E402

from mha_native.interop.sklearn import TextEmbedder  # noqa: E402
from mha_native.models import SentenceEncoder  # noqa: E402

TEXTS = [
    "A dog was hungry.", "Stocks fell.", "The puppy slept.", "The bank raised its rates.", "My cat purrs.",
    "Shares rose sharply.", "The kitten chased a dog.", "Investors sold stocks.",
]  # fmt: skip
LABELS = ["pets", "money"] * 4

# Of the checks that scikit-learn has for estimators, those whose data may be texts, or that have none.
CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.fixture(scope="module")
def expected(model_directory: Path) -> Any:
    return SentenceEncoder.from_pretrained(model_directory).encode(TEXTS)


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_estimators(name: str, model_directory: Path) -> None:
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip(f"scikit-learn {sklearn.__version__} has no {name}")
    check("TextEmbedder", TextEmbedder(str(model_directory)))


def test_embeddings_are_those_of_the_encoder(model_directory: Path, expected: Any) -> None:
    embedder = TextEmbedder(model_directory)
    assert_same_bits(embedder.fit_transform(TEXTS), expected)
    assert_same_bits(embedder.transform(np.array(TEXTS)), expected)
    names = embedder.get_feature_names_out()
    assert (names[0], names[-1], len(names)) == ("textembedder0", "textembedder383", 384)


def test_a_pipeline_gives_data_frames(model_directory: Path, expected: Any) -> None:
    pandas = pytest.importorskip("pandas")
    pipeline = make_pipeline(TextEmbedder(model_directory, truncate_dim=8)).set_output(transform="pandas")
    column = pandas.Series(TEXTS, index=range(10, 18))
    frame = pipeline.fit_transform(column)
    assert list(frame.columns) == [f"textembedder{i}" for i in range(8)]
    assert list(frame.index) == list(column.index)
    np.testing.assert_array_equal(frame.to_numpy(), expected[:, :8])


def test_a_column_of_a_data_frame(model_directory: Path, expected: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "length": [len(text) for text in TEXTS]})
    columns = make_column_transformer((TextEmbedder(model_directory), "text"), remainder="passthrough")
    found = columns.fit_transform(frame)
    np.testing.assert_array_equal(found[:, :-1], expected)
    assert columns.get_feature_names_out()[-2:].tolist() == ["textembedder__textembedder383", "remainder__length"]
    with pytest.raises(TypeError, match=r"^TextEmbedder.fit: X must be .* got DataFrame"):
        TextEmbedder(model_directory).fit(frame[["text"]])


def test_a_parameter_has_its_effect_with_the_next_fit(model_directory: Path, expected: Any) -> None:
    embedder = TextEmbedder(model_directory).fit(TEXTS)
    embedder.set_params(truncate_dim=4)
    assert_same_bits(embedder.transform(TEXTS), expected)
    assert len(embedder.get_feature_names_out()) == 384
    assert embedder.fit_transform(TEXTS).shape == (8, 4)
    copy = clone(embedder)
    assert copy.get_params() == embedder.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)
    with pytest.raises(NotFittedError):
        copy.get_feature_names_out()


def test_copies_have_the_name_of_the_model(model_directory: Path, expected: Any) -> None:
    embedder = TextEmbedder(model_directory).fit(TEXTS)
    pickled = pickle.dumps(embedder)
    assert len(pickled) < 2000
    assert_same_bits(pickle.loads(pickled).transform(TEXTS), expected)
    file = io.BytesIO()
    joblib.dump(embedder, file)
    file.seek(0)
    assert_same_bits(joblib.load(file).transform(TEXTS), expected)


def test_an_open_model_may_be_given(model_directory: Path, expected: Any) -> None:
    embedder = clone(TextEmbedder(SentenceEncoder.from_pretrained(model_directory)))
    assert_same_bits(embedder.fit_transform(TEXTS), expected)


@pytest.mark.filterwarnings("ignore")  # of processes and their resources
def test_a_grid_search_in_two_processes(model_directory: Path) -> None:
    pipeline = make_pipeline(TextEmbedder(str(model_directory), num_threads=1), LogisticRegression())
    grid = {"textembedder__truncate_dim": [1, None], "textembedder__prompt": [None, "topic: "]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(TEXTS, LABELS)
    assert search.best_score_ == 1
    assert list(search.predict(["The hungry puppy.", "The shares of a bank."])) == ["pets", "money"]


def test_threads_share_nothing(model_directory: Path) -> None:
    pipeline = make_pipeline(TextEmbedder(model_directory), LogisticRegression())
    with joblib.parallel_backend("threading"):
        assert cross_val_score(pipeline, TEXTS, LABELS, cv=2, n_jobs=2).mean() > 0.5


def test_mistakes_are_named(model_directory: Path) -> None:
    with pytest.raises(ValueError, match=r"^TextEmbedder.fit: truncate_dim must be .* got 0"):
        TextEmbedder(model_directory, truncate_dim=0).fit(TEXTS)
    with pytest.raises(TypeError, match=r"^TextEmbedder.fit: model must be a path; got 3"):
        TextEmbedder(3).fit(TEXTS)  # type: ignore[arg-type]
    embedder = TextEmbedder(model_directory).fit(TEXTS)
    with pytest.raises(TypeError, match=r"^TextEmbedder.transform: X must be str; got NoneType at 1"):
        embedder.transform(["a", None])
