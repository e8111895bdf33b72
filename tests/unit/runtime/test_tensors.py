"""The safetensors format: what goes in comes out, for us and for the real package."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longboat.runtime import tensors

ROOT = Path(__file__).parents[3]
PLAIN = [
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
]  # fmt: skip


def write(path: Path, arrays: dict[str, Any], text: dict[str, str] | None = None) -> Path:
    """As a checkpoint is written: header, then all bytes in the header's order."""
    views = {name: tensors.view(value, name) for name, value in arrays.items()}
    described = {name: (dtype, shape) for name, (dtype, shape, _) in views.items()}
    header, size = tensors.header(described, text or {})
    data = b"".join(bytes(views[name][2]) for name in tensors.order(described))
    assert len(data) == size
    path.write_bytes(header + data)
    return path


def numbers(dtype: str, shape: tuple[int, ...] = (3, 4)) -> Any:
    return (
        np.arange(int(np.prod(shape))).reshape(shape) % 2 if dtype == "bool" else np.arange(12).reshape(3, 4)
    ).astype(dtype)


def test_arrays_of_every_plain_type_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {dtype: numbers(dtype) for dtype in PLAIN}
    found, text = tensors.read(str(write(tmp_path / "a", arrays, {"k": "v"})))
    assert text == {"k": "v"}
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)
        found[name][0] = 1  # a state that one may train on


def test_the_real_package_reads_what_we_write(tmp_path: Path) -> None:
    arrays = {dtype: numbers(dtype) for dtype in PLAIN} | {
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    found = load_file(write(tmp_path / "a", arrays, {"longboat": "{}"}))
    assert sorted(found) == sorted(arrays)
    for name, value in arrays.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert np.array_equal(found[name], value)


def test_we_read_what_the_real_package_writes(tmp_path: Path) -> None:
    arrays = {dtype: numbers(dtype) for dtype in PLAIN} | {
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    save_file(arrays, tmp_path / "a", metadata={"from": "elsewhere"})
    found, text = tensors.read(str(tmp_path / "a"))
    assert text == {"from": "elsewhere"}
    for name, value in arrays.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert np.array_equal(found[name], value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_keep_their_bits(tmp_path: Path, dtype: str) -> None:
    value = np.linspace(-2, 2, 12).reshape(3, 4).astype(getattr(ml_dtypes, dtype))
    path = write(tmp_path / "a", {"ours": value, "turned": value.T})
    found, _ = tensors.read(str(path))
    for name, wanted in (("ours", value), ("turned", value.T)):
        assert found[name].dtype == value.dtype
        assert found[name].tobytes() == np.ascontiguousarray(wanted).tobytes()
    header = json.loads(path.read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert {item["dtype"] for item in header.values()} == {tensors._BITS[dtype][0]}


READ_BY_A_STRANGER = """
import sys
from longboat import tensors
{before}
assert "ml_dtypes" not in sys.modules or sys.modules["ml_dtypes"] is None
found = tensors.read({path!r})[0]["w"]
print(found.dtype, found.astype("float32").tolist())
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_come_back_where_nobody_has_imported_them(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "a", {"w": np.array([0.5, -2.0]).astype(getattr(ml_dtypes, dtype))})
    script = READ_BY_A_STRANGER.format(path=str(path), before="")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{dtype} [0.5, -2.0]\n", "")


def test_types_that_numpy_lacks_are_no_integers_where_they_cannot_be_had(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"w": np.ones(3, ml_dtypes.bfloat16)})
    script = READ_BY_A_STRANGER.format(path=str(path), before='sys.modules["ml_dtypes"] = None')
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "ImportError: the checkpoint holds bfloat16, which needs the package ml_dtypes" in done.stderr


WRITTEN_WITH_JAX = """
import sys
from pathlib import Path
import jax.numpy as jnp
from safetensors import safe_open
from tests.unit.runtime.test_tensors import write

arrays = {"w": jnp.arange(6.0).reshape(2, 3), "half": jnp.ones((2, 2), jnp.bfloat16), "n": jnp.int32(7)}
with safe_open(write(Path(sys.argv[1]), arrays), framework="flax") as file:
    assert file.get_tensor("half").dtype == jnp.bfloat16
"""


def test_jax_arrays_are_taken_as_they_are_bfloat16_too(tmp_path: Path) -> None:
    """In a process of its own: JAX's threads and tests that fork do not go together."""
    command = [sys.executable, "-c", WRITTEN_WITH_JAX, str(tmp_path / "a")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, _ = tensors.read(str(tmp_path / "a"))
    assert {name: (str(value.dtype), value.tolist()) for name, value in found.items()} == {
        "w": ("float32", [[0, 1, 2], [3, 4, 5]]),
        "half": ("bfloat16", [[1, 1], [1, 1]]),
        "n": ("int32", 7),
    }


def test_a_view_that_is_not_contiguous_is_kept_in_its_own_order(tmp_path: Path) -> None:
    base = np.arange(24.0).reshape(4, 6)
    arrays = {"turned": base.T, "strided": base[::2, ::3], "backwards": base[::-1], "fortran": np.asfortranarray(base)}
    arrays["bytes"] = memoryview(bytes(range(10)))[::2]
    found, _ = tensors.read(str(write(tmp_path / "a", arrays)))
    for name, value in arrays.items():
        assert np.array_equal(found[name], np.asarray(value)), name


def test_numbers_of_the_other_byte_order_keep_their_values(tmp_path: Path) -> None:
    found, _ = tensors.read(
        str(write(tmp_path / "a", {"x": np.arange(5, dtype=">f4"), "n": np.arange(5, dtype=">i8")}))
    )
    assert found["x"].tolist() == found["n"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [{"w": 1}, "text", np.array(["text"]), np.array([(1, 2)], "i4,i4"), [object()]])
def test_what_is_no_array_of_numbers_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^layer: "):
        tensors.view(value, "layer")


def test_scalars_and_lists_become_arrays(tmp_path: Path) -> None:
    found, _ = tensors.read(str(write(tmp_path / "a", {"f": 2.5, "i": 7, "b": True, "l": [1, 2], "s": np.float32(3)})))
    assert (found["f"], found["i"], found["b"], found["s"]) == (2.5, 7, True, 3)
    assert (found["f"].shape, found["l"].tolist()) == ((), [1, 2])


def test_every_array_stands_at_a_multiple_of_its_item_size(tmp_path: Path) -> None:
    arrays = {"a": np.ones(3, np.int8), "b": np.ones(5, np.float16), "c": np.ones(7), "d": np.ones(1, np.float32)}
    data = write(tmp_path / "a", arrays).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    for item in json.loads(data[8 : 8 + length]).values():
        assert item["data_offsets"][0] % tensors.SIZES[item["dtype"]] == 0


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from array import array
from longboat import tensors
table = memoryview(bytes(range(6))).cast("B", (2, 3))
arrays = {{"d": array("d", [1.5, 2.5]), "l": array("l", [3, 4]), "b": b"abc", "m": table, "e": array("f")}}
views = {{name: tensors.view(value, name) for name, value in arrays.items()}}
described = {{name: (dtype, shape) for name, (dtype, shape, _) in views.items()}}
header, _ = tensors.header(described, {{}})
with open({path!r}, "wb") as file:
    file.write(header)
    for name in tensors.order(described):
        file.write(views[name][2])
found, _ = tensors.read({path!r})
assert found["d"].tolist() == [1.5, 2.5], found["d"].tolist()
assert found["m"].tolist() == [[0, 1, 2], [3, 4, 5]]
assert bytes(found["b"]) == b"abc" and len(found["e"]) == 0
found["d"][0] = 9.0
try:
    tensors.view([1, 2], "list")
except TypeError as error:
    assert "numpy is not installed" in str(error), error
else:
    raise SystemExit("a list was taken without numpy")
"""


def test_array_array_and_memoryview_need_no_numpy(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY.format(path=path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = load_file(path)
    assert found["d"].tolist() == [1.5, 2.5]
    assert (found["l"].dtype, found["l"].tolist()) == (np.dtype(f"i{array('l').itemsize}"), [3, 4])
    assert found["m"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_that_is_not_whole_is_named_and_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"w": np.arange(100.0), "n": np.arange(7, dtype=np.int8)})
    whole = path.read_bytes()
    assert tensors.metadata(str(path)) == {}
    damaged = {
        "empty": b"",
        "cut in the length": whole[:5],
        "cut in the header": whole[:40],
        "cut in the data": whole[:-1],
        "longer than it says": whole + b"\0",
        "zeros": bytes(len(whole)),
        "a length beyond the file": struct.pack("<Q", 1 << 60) + whole[8:],
        "no JSON": whole[:8] + b"x" * 20 + whole[28:],
        "another type": whole.replace(b'"F64"', b'"F32"'),
        "an unknown type": whole.replace(b'"F64"', b'"X64"'),
        "another shape": whole.replace(b"[100]", b"[101]"),
    }
    for what, data in damaged.items():
        assert data != whole
        path.write_bytes(data)
        for reading in (tensors.metadata, tensors.read):
            with pytest.raises(ValueError, match="a is not a valid safetensors file"):
                pytest.fail(f"{what}: {reading(str(path))}")


def test_a_file_that_does_not_exist_is_no_torn_one(tmp_path: Path) -> None:
    for reading in (tensors.metadata, tensors.read):
        with pytest.raises(FileNotFoundError):
            reading(str(tmp_path / "nothing"))


def write_checked(path: Path, arrays: dict[str, Any]) -> str:
    """As a checkpoint is written; returns the checksum."""
    views = {name: tensors.view(value, name) for name, value in arrays.items()}
    described = {name: (dtype, shape) for name, (dtype, shape, _) in views.items()}
    header, _ = tensors.header(described, {tensors.CHECKSUM: tensors.UNSET, "longboat": "{}"})
    data = b"".join(bytes(views[name][2]) for name in tensors.order(described))
    with path.open("wb", buffering=0) as file:
        return tensors.write(file.fileno(), header, memoryview(data))


def test_a_flipped_bit_anywhere_in_a_file_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    checksum = write_checked(path, {"w": np.arange(8.0), "n": np.arange(7, dtype=np.int8), "empty": np.zeros((0, 2))})
    intact = path.read_bytes()
    assert sorted(load_file(path)) == ["empty", "n", "w"]
    assert tensors.read(str(path))[1][tensors.CHECKSUM] == checksum
    assert tensors.damage(io.BytesIO(intact), len(intact), checksum) == ""
    for bit in range(0, 8 * len(intact), 3):
        flipped = bytearray(intact)
        flipped[bit // 8] ^= 1 << bit % 8
        assert tensors.damage(io.BytesIO(flipped), len(intact), checksum), f"bit {bit}"
        path.write_bytes(flipped)
        try:
            _, text = tensors.read(str(path))
        except ValueError:
            continue
        assert tensors.CHECKSUM not in text, f"bit {bit}"  # which a checkpoint does not accept


@pytest.mark.parametrize("dtype", ["complex64", "complex128", ">c8"])
def test_complex_numbers_come_back_and_are_pairs_for_other_readers(tmp_path: Path, dtype: str) -> None:
    value = (np.arange(12) + 1j * np.arange(12)[::-1]).reshape(3, 4).astype(dtype)
    arrays = {"c": value, "column": value[:, 1], "scalar": value[1, 2], "empty": value[:0], "real": np.arange(3.0)}
    path = write(tmp_path / "a", arrays)
    found, _ = tensors.read(str(path))
    for name, wanted in arrays.items():
        assert (found[name].dtype, found[name].shape) == (np.dtype(wanted.dtype).newbyteorder("="), wanted.shape)
        assert np.array_equal(found[name], wanted)
    pairs = load_file(path)
    assert pairs["c"].shape == (3, 4, 2)
    assert np.array_equal(pairs["c"][..., 1], value.imag)
    assert np.array_equal(pairs["real"], arrays["real"])
