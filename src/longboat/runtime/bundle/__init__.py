"""A model as a directory that can be served anywhere: `longboat.bundle.save`, `.read`, `.versions`.

`bundle_format` reads and checks a version, `bundle_writer` writes one, `onnx_model` converts functions of frameworks to
ONNX. The packages `onnx` and `jax2onnx` are needed only to write a model.
"""

from __future__ import annotations

from longboat.runtime.bundle.bundle_format import MANIFEST as MANIFEST
from longboat.runtime.bundle.bundle_format import Bundle as Bundle
from longboat.runtime.bundle.bundle_format import Example as Example
from longboat.runtime.bundle.bundle_format import Tensor as Tensor
from longboat.runtime.bundle.bundle_format import read as read
from longboat.runtime.bundle.bundle_format import versions as versions
from longboat.runtime.bundle.bundle_writer import save as save
