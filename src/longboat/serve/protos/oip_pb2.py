"""The classes of oip.proto; their types are in the .pyi beside this."""

from longboat.serve.protos import messages

globals().update(messages("oip"))
