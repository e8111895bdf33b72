"""What the client makes of addresses, files and answers, before and after the network."""

from __future__ import annotations

import gzip
import math
import random
import struct
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import replace
from longboat.serve.client import example_files, predictions, report, rows, target, tf_example
from longboat.serve.client.model_signature import Signature, TensorSpec, of_tfs, of_v2
from longboat.serve.client.target import Target
from longboat.serve.protos import tfs_pb2

DIGITS = Signature("digits", "1", (TensorSpec("x", "float32", (None, 784)),), (TensorSpec("p", "float32", (None, 10)),))
TEXT = Signature("words", "1", (TensorSpec("text", "string", (None,)),), ())
CLICKS = Signature(
    "clicks",
    "1",
    (
        *(TensorSpec(f"I{n}", "float32", (None,)) for n in range(1, 14)),
        *(TensorSpec(f"C{n}", "string", (None,)) for n in range(1, 27)),
    ),
    (),
)
CRITEO = (
    "1," + ",".join(str(n) if n != 4 else "" for n in range(1, 14)) + "," + ",".join(f"c{n:07x}" for n in range(1, 27))
)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("localhost:8500", Target("localhost", 8500)),
        ("[::1]:8500", Target("::1", 8500)),
        ("http://h:8501", Target("h", 8501)),
        ("http://h:8501/", Target("h", 8501)),
        ("http://h/v1/models/m", Target("h", 80, "rest", "m")),
        ("https://h/v1/models/m/versions/3:predict", Target("h", 443, "rest", "m", "3", True)),
        ("http://h:1/a/b/v1/models/m/metadata", Target("h", 1, "rest", "m", prefix="/a/b")),
        ("http://h:1/v2/models/m/versions/2/infer", Target("h", 1, "v2", "m", "2")),
        ("http://h:1/models/m%20n", Target("h", 1, "", "m n")),
        ("grpc://h/m", Target("h", 8500, "grpc", "m")),
        ("grpc://h:9/m/versions/4", Target("h", 9, "grpc", "m", "4")),
        ("h:9/m", Target("h", 9, "", "m")),
        ("ftp://h/m", None),
        ("http://h:99999/", None),
        ("http:///v1/models/m", None),
    ],
)
def test_an_address_names_server_protocol_and_model(text: str, means: Target | None) -> None:
    if means is None:
        with pytest.raises(LongboatError, match="not a server address"):
            target.parse(text)
        return
    found = target.parse(text)
    assert found == means
    if means.protocol:
        assert target.parse(found.url) == found, "what is printed can be typed again"


def test_a_protocol_that_is_asked_for_wins_but_does_not_contradict() -> None:
    assert target.parse("http://h:1/v1/models/m", "v2").protocol == "v2"
    with pytest.raises(LongboatError, match="is a gRPC address"):
        target.parse("grpc://h/m", "rest")
    assert not target.looks_like_one("models/mnist")
    assert not target.looks_like_one("imdb-fadi")


def test_criteos_headerless_rows_give_label_figures_and_categories(tmp_path: Path) -> None:
    path = tmp_path / "eval.csv"
    path.write_text(f"{CRITEO}\n{CRITEO.replace('1,', '0,', 1)}\n")
    found = rows.fit(example_files.read(str(path)), CLICKS, "eval.csv")
    assert found.labels == [1, 0]
    row = found.rows[0]
    assert (row["I1"], row["I13"], row["C1"], row["C26"]) == (1.0, 13.0, "c0000001", "c000001a")
    assert isinstance(row["I4"], float)
    assert math.isnan(row["I4"])
    assert "2 empty cells were sent as nan" in found.notes[0]
    assert rows.fit(example_files.read(str(path)), CLICKS, "eval.csv", empty=0.0).rows[0]["I4"] == 0.0


def test_a_stock_estimator_gets_the_same_row_as_a_serialized_example(tmp_path: Path) -> None:
    """The bytes are read back with the server's messages, which hold the official field numbers."""
    path = tmp_path / "eval.csv"
    path.write_text(CRITEO.replace("c0000002", "12e45678") + "\n")
    stock = Signature("wd", "1", (TensorSpec("inputs", "string", (None,)),), (), serialized=True)
    found = rows.fit(example_files.read(str(path)), stock, "eval.csv")
    assert found.labels == [1]
    read = tfs_pb2.Example.FromString(tf_example.encode(found.rows[0])).features.feature
    assert list(read["I13"].float_list.value) == [13.0]
    assert list(read["C26"].bytes_list.value) == [b"c000001a"]
    assert list(read["C2"].bytes_list.value) == [b"12e45678"], "a hash that looks like a number is none"
    assert "I4" not in read, "an empty cell is left out"
    assert "clicked" not in read, "the label does not travel"


def test_columns_go_by_name_and_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "reviews.tsv"
    path.write_text("source\tlabel\ttext\nimdb\tneg\ta, b\n")
    found = rows.fit(example_files.read(str(path)), TEXT, "reviews.tsv")
    assert (found.rows, found.labels) == ([{"text": "a, b"}], ["neg"])
    assert rows.fit(example_files.read(str(path)), TEXT, "reviews.tsv", "source").labels == ["imdb"]
    assert rows.fit(example_files.read(str(path)), TEXT, "reviews.tsv", "none").labels is None
    with pytest.raises(LongboatError, match="no column 'truth'"):
        rows.fit(example_files.read(str(path)), TEXT, "reviews.tsv", "truth")


def test_a_vector_takes_its_columns_in_order_with_the_label_first(tmp_path: Path) -> None:
    model = Signature("m", "1", (TensorSpec("x", "float32", (None, 3)),), ())
    path = tmp_path / "x.csv"
    path.write_text("7,1,2,3\n8,4,5,6\n")
    found = rows.fit(example_files.read(str(path)), model, "x.csv")
    assert (found.rows, found.labels) == ([{"x": [1.0, 2.0, 3.0]}, {"x": [4.0, 5.0, 6.0]}], [7, 8])
    path.write_text("1,2,3\n")
    assert rows.fit(example_files.read(str(path)), model, "x.csv").labels is None
    path.write_text("1,2\n")
    with pytest.raises(LongboatError, match=r"has 2 columns .* but the model takes 3 values"):
        rows.fit(example_files.read(str(path)), model, "x.csv")
    path.write_text("1,2,3\n1,2\n")
    with pytest.raises(LongboatError, match=r"x\.csv:2 has 2 columns"):
        rows.fit(example_files.read(str(path)), model, "x.csv")
    path.write_text("1,2,3\n1,two,3\n")
    with pytest.raises(LongboatError, match=r"x\.csv:2: 'two' in column 1 is not float32"):
        rows.fit(example_files.read(str(path)), model, "x.csv")


@pytest.mark.parametrize(
    "text",
    [
        '{"instances": [{"text": "a"}, {"text": "b"}]}',
        '{"instances": ["a", "b"]}',
        '{"inputs": {"text": ["a", "b"]}}',
        '["a", "b"]',
        '[{"inputs": {"text": "a"}}, {"inputs": {"text": "b"}}]',
        '{"text": "a"}\n{"text": "b"}\n',
        '"a"\n\n"b"\n',
    ],
)
def test_json_comes_in_every_usual_shape(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    assert rows.fit(example_files.read(str(path)), TEXT, "rows.json").rows == [{"text": "a"}, {"text": "b"}]


def test_json_that_does_not_fit_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"words": "b"}\n')
    with pytest.raises(LongboatError, match="row 2 has no text"):
        rows.fit(example_files.read(str(path)), TEXT, "rows.jsonl")
    path.write_text('{"text": "a", "label": 1}\n{"text": "b"}\n')
    with pytest.raises(LongboatError, match="1 of 2 rows have a label"):
        rows.fit(example_files.read(str(path)), TEXT, "rows.jsonl")
    path.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(LongboatError, match=r"rows\.jsonl:2: not JSON"):
        example_files.read(str(path))


def test_mnists_files_bring_their_labels_and_may_be_packed(tmp_path: Path) -> None:
    pixels = bytes(range(256)) * 7
    images, labels = tmp_path / "t10k-images-idx3-ubyte.gz", tmp_path / "t10k-labels-idx1-ubyte.gz"
    images.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, 2, 28, 28) + pixels[:1568]))
    labels.write_bytes(gzip.compress(struct.pack(">II", 0x801, 2) + b"\x07\x02"))
    found = rows.fit(example_files.read(str(images)), DIGITS, "images")
    assert found.labels == [7, 2]
    assert np.array([row["x"] for row in found.rows]) == pytest.approx(
        np.frombuffer(pixels[:1568], "u1").reshape(2, 784) / 255
    )
    white = replace(DIGITS, pixels=255)
    assert rows.fit(example_files.read(str(images)), white, "images").rows[0]["x"] == list(pixels[:784]), (
        "as its examples are"
    )
    images.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, 3, 28, 28) + pixels[:1568]))
    with pytest.raises(LongboatError, match="is not valid"):
        example_files.read(str(images))


def test_an_archive_of_numpy_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "0.npz"
    np.savez(path, x=np.arange(8, dtype=np.float32).reshape(2, 2, 2), label=np.array([3, 4]))
    model = Signature("m", "1", (TensorSpec("x", "float32", (None, 2, 2)),), ())
    found = rows.fit(example_files.read(str(path)), model, "0.npz")
    assert (found.rows[1], found.labels) == ({"x": [[4.0, 5.0], [6.0, 7.0]]}, [3, 4])


def read_image(path: Path) -> example_files.PixelImage:
    records = example_files.read(str(path))
    assert isinstance(records, example_files.PixelImages)
    return records.rows[0]


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [("L", "png", 1), ("1", "png", 1), ("RGB", "png", 3), ("P", "png", 3), ("L", "jpg", 1), ("RGB", "jpg", 3)],
)
def test_an_image_has_one_channel_if_it_is_grey_else_three(
    tmp_path: Path, mode: str, suffix: str, channels: int
) -> None:
    path = tmp_path / f"picture.{suffix}"
    Image.effect_noise((13, 9), 90).convert(mode).save(path)
    image = read_image(path)
    assert (image.height, image.width, image.channels) == (9, 13, channels)
    assert image.pixels == Image.open(path).convert("RGB" if channels == 3 else "L").tobytes()


def test_transparent_pixels_of_an_image_become_white(tmp_path: Path) -> None:
    path = tmp_path / "drawing.png"
    for mode, clear, half, expected in (
        ("LA", (0, 0), (0, 128), [255, 127]),
        ("RGBA", (9, 9, 9, 0), (0, 0, 255, 128), [255, 255, 255, 127, 127, 255]),
    ):
        drawing = Image.new(mode, (2, 1), clear)
        drawing.putpixel((1, 0), half)
        drawing.save(path)
        assert list(read_image(path).pixels) == expected, mode


def test_images_that_are_broken_too_large_or_too_deep_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "noise.png"
    Image.effect_noise((64, 64), 90).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LongboatError, match=r"noise\.png is not a valid image: "):
        read_image(path)
    Image.new("I;16", (4, 4)).save(path)
    with pytest.raises(LongboatError, match="16 bits per pixel"):
        read_image(path)
    monkeypatch.setattr(example_files, "LARGEST", 10)
    Image.new("L", (4, 4)).save(path)
    with pytest.raises(LongboatError, match="too large: 4 x 4 pixels"):
        read_image(path)


def test_an_image_without_pillow_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "digit.png"
    Image.new("L", (4, 4)).save(path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(LongboatError, match="Pillow is not installed") as error:
        read_image(path)
    assert error.value.hint.endswith("install pillow")


def test_a_file_that_holds_nothing_of_use_says_so(tmp_path: Path) -> None:
    empty = tmp_path / "none.csv"
    empty.write_text("")
    with pytest.raises(LongboatError, match="has no rows"):
        example_files.read(str(empty))
    with pytest.raises(LongboatError, match="does not exist"):
        example_files.read(str(tmp_path / "absent.csv"))
    with pytest.raises(LongboatError, match="is a directory"):
        example_files.read(str(tmp_path))
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(LongboatError, match="is not UTF-8"):
        example_files.read(str(tmp_path / "x.bin"))


@pytest.mark.parametrize(
    ("columns", "labels", "value", "share"),
    [
        ({"p": [[0.1, 0.9]]}, ("no", "yes"), "yes", 0.9),
        ({"p": [[0.1, 0.9]]}, (), 1, 0.9),
        ({"logits": [[0.0, math.log(3)]]}, (), 1, 0.75),
        ({"probability": [0.2]}, ("no", "yes"), "no", 0.8),
        ({"logit": [[math.log(4)]]}, ("no", "yes"), "yes", 0.8),
        ({"z": [-0.5]}, ("-1", "1"), "-1", 0.75),
        ({"class_ids": [[1]], "probabilities": [[0.3, 0.7]], "logistic": [[0.7]]}, (), 1, 0.7),
        ({"classes": [["a", "b"]], "scores": [[0.6, 0.4]]}, (), "a", 0.6),
        ({"label": ["cat"]}, (), "cat", None),
        ({"label": ["cat"], "p": [[0.2, 0.8]]}, (), "cat", None),
        ({"label": ["cat"], "probabilities": [[0.2, 0.8]]}, (), "cat", 0.8),
        ({"class": [2]}, ("a", "b", "c"), "c", None),
    ],
)
def test_an_answer_is_understood_however_the_model_says_it(
    columns: dict[str, list[object]], labels: tuple[str, ...], value: object, share: float | None
) -> None:
    (said,) = predictions.read(columns, labels)
    assert said.value == value
    assert said.share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("said", "truth", "labels", "right"),
    [
        (predictions.Predicted("yes"), 1, ("no", "yes"), True),
        (predictions.Predicted("yes"), "yes", ("no", "yes"), True),
        (predictions.Predicted("yes"), "no", ("no", "yes"), False),
        (predictions.Predicted(1), 1.0, (), True),
        (predictions.Predicted("2"), 2, ("1", "2"), True),
        (predictions.Predicted("1"), 2, ("1", "2"), False),
        (predictions.Predicted(0.7, None, False), 1, (), True),
        (predictions.Predicted(0.7, None, False), 0, (), False),
        (predictions.Predicted(-0.2, None, False), -1, (), True),
        (predictions.Predicted(-0.2, None, False), 1, (), False),
        (predictions.Predicted(0.2, None, False), -1, (), False),
        (predictions.Predicted(3.7, None, False), 3.5, (), None),
        (predictions.Predicted(math.nan, None, False), 0, (), False),
    ],
)
def test_right_and_wrong_are_told_apart(
    said: predictions.Predicted, truth: example_files.Label, labels: tuple[str, ...], right: bool | None
) -> None:
    assert predictions.right(said, truth, labels) is right


def test_an_answer_that_is_no_number_is_no_prediction() -> None:
    for value in ([math.nan, 1.0], math.nan, None, [None, 1.0], [[0.1, math.nan]]):
        (said,) = predictions.read({"p": [value]}, ("no", "yes"))
        assert predictions.right(said, 1, ("no", "yes")) is not True
        assert said.share is None


def test_signatures_of_both_protocols_are_read_as_one_value() -> None:
    shape = {"dim": [{"size": "-1"}, {"size": "3"}], "unknown_rank": False}
    signature = {
        "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x:0"}},
        "outputs": {"y": {"dtype": "DT_INT64", "tensor_shape": {"dim": [{"size": "-1"}]}, "name": "y:0"}},
        "method_name": "tensorflow/serving/predict",
    }
    document = {
        "model_spec": {"name": "m", "version": "4"},
        "metadata": {"signature_def": {"signature_def": {"serving_default": signature, "other": signature}}},
    }
    ends = (TensorSpec("x", "float32", (None, 3)),), (TensorSpec("y", "int64", (None,)),)
    assert of_tfs("m", document) == Signature("m", "4", *ends)
    assert of_tfs("m", document, "other").name == "other"
    with pytest.raises(LongboatError, match="no signature 'x'"):
        of_tfs("m", document, "x")
    with pytest.raises(LongboatError, match="cannot parse"):
        of_tfs("m", {"metadata": {}})
    open_one = {
        "name": "m",
        "versions": ["3", "4"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}],
    }
    assert of_v2("m", open_one, ["binary_tensor_data"]) == Signature("m", "4", *ends, binary=True)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 999, 1000, 1001])
def test_a_percentile_is_the_least_value_that_so_many_did_not_exceed(count: int) -> None:
    chance = random.Random(count)
    values = [chance.expovariate(1) for _ in range(count)]
    found = report.latency(values)
    assert found is not None
    for name, per_cent in report.PERCENTILES:
        share = Fraction(str(per_cent)) / 100
        enough = (each for each in sorted(values) if sum(v <= each for v in values) >= share * count)
        assert getattr(found, name) == next(enough), name
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.minimum, found.maximum) == (min(values), max(values))


def test_the_bars_of_a_histogram_hold_every_value_once() -> None:
    chance = random.Random(7)
    for _ in range(200):
        values = [10 ** chance.uniform(-5, 2) for _ in range(chance.randint(1, 300))]
        bars = report.histogram(values)
        assert len(bars) <= 16
        assert all(a.high == b.low for a, b in pairwise(bars))
        for bar in bars:
            assert bar.count == sum(bar.low <= value < bar.high for value in values)
        assert sum(bar.count for bar in bars) == len(values)
