"""The other side of a model server: asking one, and loading one until its figures are known.

Longboat's own server is one target among others: whatever speaks TensorFlow Serving's REST or
gRPC, or the Open Inference Protocol, can be asked. So nothing here may import the server's
rooms, except what both sides share (`kinds`, `protos`, `pages`), and `local`, which runs a
model in this process through the server's own loader.

`target` reads addresses, `signature` what a model takes and gives, `files` and `rows` make
examples of files, `codecs` and `grpc_codec` put them on the wire, `http` and `grpc_channel`
carry them, `ask` makes one request, `load` many at the times that `ticks` says, `tally` counts
what comes back, `report` holds the figures, `telling` and `sheet` show them, and `scoring` says
what an answer means.
"""
