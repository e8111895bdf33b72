"""The model server: `longboat serve`. A bundle is loaded, batched and answered over three protocols.

From the bottom: `refusals` and `kinds` are values; `loading` makes a bundle into a function; `batching` feeds it;
`models` keeps names and versions; `signature` holds what clients send against what the model wants; `http` parses
requests; `tfs_rest`, `v2_rest` and `grpc_server` are the protocols, `routes` says which answers what; `server` puts one
process together and `process` several. Nothing here is imported before a server or client is asked for.
"""
