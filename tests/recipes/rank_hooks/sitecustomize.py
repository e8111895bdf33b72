"""What ranks of the recipes' tests do at their start."""

# mypy: ignore-errors

import importlib.util
import os
import sys


class SameCacheKeyInAllRanks:
    """JAX's compilation cache has a key for each process on CPUs, and only the first process writes: all others compile
    again in every run. What differs is the fingerprint of the topology, which describes the process."""

    def find_spec(self, name, path, target=None):
        if name != "jax._src.cache_key":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module._hash_accelerator_config = module._hash_devices

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, SameCacheKeyInAllRanks())

HELD = ("1", "2") if "HOLD_UNTIL_STOPPED" in os.environ else ("1",) if "HOLD" in os.environ else ()
generation = os.environ.get("LONGBOAT_GENERATION")
if generation in HELD:
    import time

    import longboat

    save = longboat.checkpoint.save

    def save_and_hold(*args, **kwargs):
        save(*args, **{**kwargs, "wait": True})
        while generation == "1" or not longboat.stopping():
            time.sleep(0.01)

    longboat.checkpoint.save = save_and_hold
