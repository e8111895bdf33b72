"""Builds and pushes images of a job, its code and packages on a base image, without a daemon.

`image_name` parses names, `registry_login` finds credentials, `registry` is the registry client, `base_image` reads the
base image, `layers` and `python_packages` make the added layers, `oci_image` composes the image, `build_request` turns
a plan and options into an order, `building` runs it, `builders` calls docker, podman or buildah instead, and
`push_record` records pushed images. Only the standard library is used: a registry needs eight HTTP requests, and a
library for them would be the largest that Longboat imports.
"""
