"""The operations of the network as anybody would write them in JAX. `fast.py` has others that mean the same.

A normalisation may add the block's input and cut off what is below zero; with something to add it gives the result
twice, once for each of the two ways that leave a block, because that is where `fast.py` saves memory traffic.
"""

import jax
import jax.numpy as jnp
from jax import lax

EPSILON = 1e-5


class Plain:
    def __init__(self, groups=1):
        """groups: a batch is normalised in so many equal parts, each by its own mean and variance."""
        self.groups = groups

    def conv(self, x, kernel, stride=1):
        pad = kernel.shape[0] // 2
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), [(pad, pad)] * 2, dimension_numbers=dimensions)

    def stem(self, x, kernel):
        return self.conv(x, kernel, 2)

    def max_pool(self, x):
        padding = [(0, 0), (1, 1), (1, 1), (0, 0)]
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    def norm(self, x, scale, offset, relu=True, add=None):
        """(the result, mean, variance): by the batch's own mean and variance; those are averaged over the groups."""
        parts = x.reshape(self.groups, -1, *x.shape[1:])
        mean = jnp.mean(parts, axis=(1, 2, 3), dtype=jnp.float32)
        variance = jnp.maximum(jnp.mean(jnp.square(parts.astype(jnp.float32)), axis=(1, 2, 3)) - mean**2, 0)
        wide = (slice(None), None, None, None)
        result = self.norm_with(parts, scale, offset, mean[wide], variance[wide], False).reshape(x.shape)
        return self.end(result, relu, add), jnp.mean(mean, axis=0), jnp.mean(variance, axis=0)

    def norm_with(self, x, scale, offset, mean, variance, relu=True, add=None):
        slope = scale * lax.rsqrt(variance + EPSILON)
        return self.end((x.astype(jnp.float32) * slope + (offset - mean * slope)).astype(x.dtype), relu, add)

    def end(self, x, relu, add):
        if add is not None:
            x = x + add
        x = jax.nn.relu(x) if relu else x
        return x if add is None else (x, x)
