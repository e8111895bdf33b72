"""Client for model servers: predictions and load tests.

It works with any server that speaks TensorFlow Serving's REST or gRPC, or the Open Inference Protocol. So nothing here
imports the server's modules, except the shared `dtypes`, `protos` and `pages`, and `in_process`, which runs a model in
this process with the server's loader.

`target` parses addresses, `model_signature` describes a model's inputs and outputs, `example_files` and `rows` read
examples from files, `http_codecs` and `grpc_codec` encode them, `http_channel` and `grpc_channel` send them,
`model_requests` makes one request, `load_test` many at the times set by `schedule`, `counters` counts the results,
`report` holds the numbers, `text_report` and `html_report` format them, and `predictions` interprets outputs.
"""
