"""The model server, `longboat serve`: loads bundles, batches requests, speaks three protocols.

From the bottom: `request_errors` and `dtypes` are values; `model_loading` turns a bundle into a function; `batching`
feeds it; `model_versions` holds names and versions; `input_checks` validates requests; `http_server` parses HTTP;
`tfs_rest`, `v2_rest` and `grpc_server` are the protocols, and `routes` maps URLs to them; `server` is one process and
`worker_processes` several. Nothing here is imported before a server or client starts.
"""
