"""The messages on the wire: TensorFlow Serving's and the Open Inference Protocol's.

The .proto files are compiled to descriptors by `.ci/protos` and loaded into a pool of our own. So they work with every
runtime of protobuf that has `GetMessageClass` (a TensorFlow beside us may hold it at an older one), and never clash
with the official packages imported in the same process. Nothing but messages lives here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def messages(name: str) -> dict[str, Any]:
    """The message classes of one .proto file by their names."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name(f"{name}.binpb").read_bytes())
    for file in files.file:
        pool.Add(file)
    found = pool.FindFileByName(f"{name}.proto").message_types_by_name
    return {each: message_factory.GetMessageClass(descriptor) for each, descriptor in found.items()}
