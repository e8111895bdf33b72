"""Protobuf messages of TensorFlow Serving and the Open Inference Protocol.

`.ci/protos` compiles the .proto files to descriptors, which are loaded into a separate pool. So they work with every
protobuf runtime that has `GetMessageClass` (TensorFlow may pin an older one), and never clash with the official
packages in the same process.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def messages(name: str) -> dict[str, Any]:
    """The message classes of one .proto file, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name(f"{name}.binpb").read_bytes())
    for file in files.file:
        pool.Add(file)
    descriptors = pool.FindFileByName(f"{name}.proto").message_types_by_name
    return {each: message_factory.GetMessageClass(descriptor) for each, descriptor in descriptors.items()}
