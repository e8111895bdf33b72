"""What is committed of the .proto files is what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "src/longboat/serve/protos"


def test_the_descriptors_are_current(tmp_path: Path) -> None:
    subprocess.run(["bash", str(ROOT / ".ci/protos"), str(tmp_path)], check=True, capture_output=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["oip.binpb", "oip_pb2.pyi", "tfs.binpb", "tfs_pb2.pyi"]
    for name in made:
        assert (tmp_path / name).read_bytes() == (PROTOS / name).read_bytes(), f"{name} is stale: run .ci/protos"


def test_nothing_is_put_into_the_pool_that_others_use() -> None:
    code = """
from google.protobuf import descriptor_pool
from longboat.serve.protos import oip_pb2, tfs_pb2
tfs_pb2.PredictRequest(), oip_pb2.ModelInferRequest()
for name in ("tfs.proto", "oip.proto"):
    try:
        descriptor_pool.Default().FindFileByName(name)
    except KeyError:
        continue
    raise SystemExit(name + " is in the default pool")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
