"""Images of a job: its code and packages on top of another image, written and pushed without any daemon.

`reference` reads names, `login` finds credentials, `registry` speaks to registries, `base` is the
image below, `layers` and `packages` make what is added, `image` is the result as bytes, `orders`
say what is wanted, `building` puts it together, `tools` lets docker, podman or buildah do it, and
`record` remembers what was pushed. The standard library does all of it: a registry needs eight
HTTP requests, and a library for those would be the largest thing that Longboat imports.
"""
