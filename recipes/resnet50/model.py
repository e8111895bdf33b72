"""ResNet50 v1.5 in plain JAX: its weights by name, and the way of an image through it.

v1.5 means that a bottleneck which halves the image does so in its 3x3 convolution, not in the 1x1 before it. Images
are N, height, width, colour; weights are kept in float32 and used in the precision that is asked for. How a convolution
or a normalisation is computed is `operations.py`'s business, or `fast.py`'s: this file says what ResNet50 is.
"""

from itertools import count

import jax.numpy as jnp
import numpy as np

BLOCKS = (3, 4, 6, 3)
"""Of each stage. Other numbers make other networks of the kind: 1, 1, 1, 1 is enough for a test."""
EXPANSION = 4
MEAN, SPREAD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of red, green and blue over ImageNet's training images."""


def layers(width=64, blocks=BLOCKS):
    """Every convolution as (name, shape of its kernel); each is followed by a normalisation of the same name."""
    yield "stem", (7, 7, 3, width)
    inputs = width
    for stage, many in enumerate(blocks):
        inner = width << stage
        for block in range(many):
            name = f"stage{stage + 1}.block{block + 1}"
            if block == 0:
                yield f"{name}.shortcut", (1, 1, inputs, EXPANSION * inner)
            yield f"{name}.conv1", (1, 1, inputs, inner)
            yield f"{name}.conv2", (3, 3, inner, inner)
            yield f"{name}.conv3", (1, 1, inner, EXPANSION * inner)
            inputs = EXPANSION * inner


def new(seed, width=64, classes=1000, blocks=BLOCKS):
    """(weights, statistics) before any training, the same for the same seed.

    Kernels are drawn as He et al. do, for the outputs that an input reaches. The last normalisation of each block
    starts at zero, so that every block begins as the identity (Goyal et al.).
    """
    weights, statistics = {}, {}
    for number, (name, shape) in enumerate(layers(width, blocks)):
        draw = np.random.default_rng([seed, 2, number])
        spread = np.sqrt(2 / (shape[0] * shape[1] * shape[3]))
        weights[f"{name}.kernel"] = draw.normal(0, spread, shape).astype(np.float32)
        weights[f"{name}.scale"] = np.full(shape[3], 0 if name.endswith("conv3") else 1, np.float32)
        weights[f"{name}.offset"] = np.zeros(shape[3], np.float32)
        statistics[f"{name}.mean"] = np.zeros(shape[3], np.float32)
        statistics[f"{name}.variance"] = np.ones(shape[3], np.float32)
    inputs = EXPANSION * (width << len(blocks) - 1)
    draw = np.random.default_rng([seed, 3])
    weights["classes.kernel"] = draw.normal(0, 0.01, (inputs, classes)).astype(np.float32)
    weights["classes.offset"] = np.zeros(classes, np.float32)
    return weights, statistics


def decays(name):
    """Weight decay is for kernels: neither for normalisations nor for the last layer's offset."""
    return name.endswith(".kernel")


def blocks_of(weights):
    """(name, stride) of each block. The first block of a stage halves the image, but for the first stage's."""
    for stage in count(1):
        for block in count(1):
            name = f"stage{stage}.block{block}"
            if f"{name}.conv1.kernel" not in weights:
                break
            yield name, 2 if stage > 1 and block == 1 else 1
        if block == 1:
            return


def scores(weights, statistics, pixels, operations, kind=jnp.float32, train=False):
    """(a score for each class and image, the batch's own statistics or, unless training, nothing).

    pixels: red, green, blue and nothing, each from 0 to 255, in the four bytes of a number. The statistics are of
    the batch when training; otherwise the given ones are used.
    """
    found = {}

    def conv(x, name, stride=1):
        return operations.conv(x, weights[f"{name}.kernel"].astype(kind), stride)

    def norm(x, name, relu=True, add=None):
        scale, offset = weights[f"{name}.scale"], weights[f"{name}.offset"]
        if not train:
            return operations.norm_with(
                x, scale, offset, statistics[f"{name}.mean"], statistics[f"{name}.variance"], relu, add
            )
        x, found[f"{name}.mean"], found[f"{name}.variance"] = operations.norm(x, scale, offset, relu, add)
        return x

    x = operations.stem(colours(pixels, kind), weights["stem.kernel"].astype(kind))
    x = operations.max_pool(norm(x, "stem"))
    x = x, x
    for name, stride in blocks_of(weights):
        inner, past = x
        if f"{name}.shortcut.kernel" in weights:
            past = norm(conv(past, f"{name}.shortcut", stride), f"{name}.shortcut", relu=False)
        inner = norm(conv(inner, f"{name}.conv1"), f"{name}.conv1")
        inner = norm(conv(inner, f"{name}.conv2", stride), f"{name}.conv2")
        x = norm(conv(inner, f"{name}.conv3"), f"{name}.conv3", add=past)
    x = jnp.mean(x[0], axis=(1, 2), dtype=jnp.float32).astype(kind)
    found_scores = jnp.dot(x, weights["classes.kernel"].astype(kind), preferred_element_type=jnp.float32)
    return found_scores + weights["classes.offset"], found


def colours(pixels, kind):
    """Red, green and blue of each pixel, about zero and about one wide."""
    bytes_ = jnp.stack([(pixels >> shift) & 255 for shift in (0, 8, 16)], axis=-1).astype(jnp.float32)
    return ((bytes_ - jnp.array(MEAN)) / jnp.array(SPREAD)).astype(kind)
