"""A model as a directory that can be served anywhere: `longboat.bundle.save`, `.read`, `.versions`.

`form` is what a version holds and how it is read back, `writing` makes one, `functions` turns what
a framework calls a model into ONNX.

Ships into strangers' images: standard library only, Python 3.9 (the packages `onnx` and `jax2onnx`
are asked for when a model is written).
"""

from __future__ import annotations

from longboat.runtime.bundle.bundle_format import MANIFEST as MANIFEST
from longboat.runtime.bundle.bundle_format import Bundle as Bundle
from longboat.runtime.bundle.bundle_format import Example as Example
from longboat.runtime.bundle.bundle_format import Tensor as Tensor
from longboat.runtime.bundle.bundle_format import read as read
from longboat.runtime.bundle.bundle_format import versions as versions
from longboat.runtime.bundle.bundle_writer import save as save
