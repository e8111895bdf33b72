"""The operations of the network for a GPU, where a training step spends more time on memory than on arithmetic.

They mean what `operations.py`'s mean; what differs is how often an activation is read or written:
- norm: a gradient of its own. Forward, one pass finds sum and sum of squares, one applies. Backward, one pass finds
  both sums, one gives the gradient; what the ReLU cut off is seen again from the input, so nothing else is kept.
- norm with an addition: its result leaves twice, so the two gradients arrive apart. The pass that needs both sums reads
  them, adds them, and writes the sum down for the two readers that follow.
- sums: kernels written with Pallas, because a column sum that reads two arrays is what XLA's own reach least well.
- max_pool: keeps which of the nine was the largest in a byte, instead of looking for it again.
- stem: the 7x7 convolution over 3 colours as a 4x4 one over 16: four neighbours at a time, and an empty fourth colour,
  because the matrix units want eights.
"""

from functools import partial

import jax
import jax.numpy as jnp
import operations
from jax import lax
from jax.experimental import pallas as pl

PROGRAMS = 1056
"""About how many programs a kernel is divided into: eight for each of an H200's multiprocessors."""
TILE = 4096
"""Elements that a program loads at once from each array."""
WARPS = 4


class Fast(operations.Plain):
    def __init__(self, groups=1, kernels=True, interpret=False):
        if groups != 1:
            raise ValueError("the fast operations normalise a batch as a whole")
        super().__init__()
        self.sums = partial(_sums, kernels=kernels, interpret=interpret)

    def stem(self, x, kernel):
        x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1)))
        kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 1), (0, 0)))
        n, height, width, colours = x.shape
        x = x.reshape(n, height // 2, 2, width // 2, 2, colours).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, height // 2, width // 2, 4 * colours)
        kernel = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0)))
        kernel = kernel.reshape(4, 2, 4, 2, colours, -1).transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, 4 * colours, -1)
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), [(2, 1)] * 2, dimension_numbers=dimensions)

    def max_pool(self, x):
        return _max_pool(x)

    def norm(self, x, scale, offset, relu=True, add=None):
        if add is not None:
            return _norm_add(self.sums, x, scale, offset, add)
        return _norm(self.sums, relu, x, scale, offset)


def _moments(sums, x):
    count = x.size // x.shape[-1]
    _, (total, squares) = sums(_of_squares, [x], [])
    mean = total / count
    return mean, jnp.maximum(squares / count - mean**2, 0)


def _line(scale, offset, mean, variance):
    slope = scale * lax.rsqrt(variance + operations.EPSILON)
    return slope, offset - mean * slope


def _backward(x, g, total, product, scale, mean, variance):
    """Gradients for the input, the scale and the offset; total and product: the sums of g and of g times x."""
    count = x.size // x.shape[-1]
    inverse = lax.rsqrt(variance + operations.EPSILON)
    d_scale = inverse * (product - mean * total)
    slope = scale * inverse
    by_x = -slope * inverse * d_scale / count
    rest = -slope * total / count - by_x * mean
    return (slope * g + by_x * x.astype(jnp.float32) + rest).astype(x.dtype), d_scale, total


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _norm(sums, relu, x, scale, offset):
    return _norm_forward(sums, relu, x, scale, offset)[0]


def _norm_forward(sums, relu, x, scale, offset):
    mean, variance = _moments(sums, x)
    slope, rest = _line(scale, offset, mean, variance)
    result = x.astype(jnp.float32) * slope + rest
    result = (jax.nn.relu(result) if relu else result).astype(x.dtype)
    return (result, mean, variance), (x, scale, offset, mean, variance)


def _norm_backward(sums, relu, kept, gradients):
    x, scale, offset, mean, variance = kept
    g = gradients[0]
    slope, rest = _line(scale, offset, mean, variance)
    _, (total, product) = sums(_of_cut if relu else _of_product, [g, x], [slope, rest] if relu else [])
    g = g.astype(jnp.float32)
    if relu:
        g = jnp.where(x.astype(jnp.float32) * slope + rest > 0, g, 0)
    return _backward(x, g, total, product, scale, mean, variance)


_norm.defvjp(_norm_forward, _norm_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm_add(sums, x, scale, offset, add):
    return _norm_add_forward(sums, x, scale, offset, add)[0]


def _norm_add_forward(sums, x, scale, offset, add):
    mean, variance = _moments(sums, x)
    slope, rest = _line(scale, offset, mean, variance)
    result = jax.nn.relu(x.astype(jnp.float32) * slope + rest + add.astype(jnp.float32)).astype(x.dtype)
    result = lax.optimization_barrier(result)  # or XLA would compute it again, from ever more inputs, in later blocks
    return ((result, result), mean, variance), (x, scale, mean, variance, result)


def _norm_add_backward(sums, kept, gradients):
    x, scale, mean, variance, result = kept
    g, (total, product) = sums(_of_two, [*gradients[0], result, x], [])
    return *_backward(x, g.astype(jnp.float32), total, product, scale, mean, variance), g


_norm_add.defvjp(_norm_add_forward, _norm_add_backward)


def _of_squares(x):
    return None, x, x * x


def _of_product(g, x):
    return None, g, g * x


def _of_cut(g, x, slope, rest):
    g = jnp.where(x * slope + rest > 0, g, 0)
    return None, g, g * x


def _of_two(first, second, result, x):
    g = jnp.where(result > 0, first + second, 0)
    return g, g, g * x


def _sums(two_of, arrays, lines, kernels, interpret):
    """(what `two_of` writes down, if anything; the two column sums of what it gives), in one pass over the arrays.

    arrays: ... x channels; lines: one number for each channel. two_of sees float32.
    """
    shape = arrays[0].shape
    channels = shape[-1]
    rows = arrays[0].size // channels
    shares = _shares(rows, channels) if kernels else None
    if shares is None:
        written, first, second = two_of(*(a.astype(jnp.float32) for a in arrays), *lines)
        axes = tuple(range(len(shape) - 1))
        if written is not None:
            written = written.astype(arrays[0].dtype)
        return written, (jnp.sum(first, axes), jnp.sum(second, axes))
    parts, wide, high = shares
    arrays = [a.reshape(rows, channels) for a in arrays]
    writes = two_of is _of_two
    kernel = partial(_sums_kernel, two_of, len(arrays), len(lines), writes, rows // parts // high, high, wide)
    block = pl.BlockSpec((rows // parts, wide), lambda part, at: (part, at))
    line = pl.BlockSpec((1, wide), lambda _, at: (0, at))
    sums = pl.BlockSpec((1, 2, wide), lambda part, at: (part, 0, at))
    sums_shape = jax.ShapeDtypeStruct((parts, 2, channels), jnp.float32)
    result = pl.pallas_call(
        kernel,
        grid=(parts, channels // wide),
        in_specs=[block] * len(arrays) + [line] * len(lines),
        out_specs=[sums] + [block] * writes,
        out_shape=[sums_shape] + [jax.ShapeDtypeStruct((rows, channels), arrays[0].dtype)] * writes,
        interpret=interpret,
        name=two_of.__name__.strip("_"),
        **_compiler(interpret),
    )(*arrays, *(line.reshape(1, channels) for line in lines))
    first, second = jnp.sum(result[0], axis=0)
    return result[1].reshape(shape) if writes else None, (first, second)


def _sums_kernel(two_of, arrays, lines, writes, steps, high, wide, *refs):
    inputs, fixed, outputs = refs[:arrays], refs[arrays : arrays + lines], refs[arrays + lines :]
    fixed = [line[...] for line in fixed]

    def step(number, sums):
        at = pl.ds(number * high, high)
        written, first, second = two_of(*(array[at, :].astype(jnp.float32) for array in inputs), *fixed)
        if writes:
            outputs[1][at, :] = written.astype(outputs[1].dtype)
        return sums[0] + first, sums[1] + second

    nothing = jnp.zeros((high, wide), jnp.float32)
    first, second = lax.fori_loop(0, steps, step, (nothing, nothing))
    outputs[0][0, 0, :] = jnp.sum(first, axis=0)
    outputs[0][0, 1, :] = jnp.sum(second, axis=0)


def _compiler(interpret):
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=WARPS, num_stages=2)}


def _shares(rows, channels):
    """(parts of the rows, channels of a tile, rows of a tile), or None where the array cannot be cut evenly."""
    wide = min(channels, 128)
    if channels % wide or wide & (wide - 1):
        return None
    high = TILE // wide
    while high > 8 and rows % high:
        high //= 2
    if rows % high:
        return None
    tiles = rows // high
    wanted = max(PROGRAMS * wide // channels, 1)
    parts = min((p for p in range(1, min(tiles, 4 * wanted) + 1) if tiles % p == 0), key=lambda p: abs(p - wanted))
    return parts, wide, high


@jax.custom_vjp
def _max_pool(x):
    return _max_pool_forward(x)[0]


def _windows(x):
    """The nine neighbours of every second pixel, one after the other; height and width are even."""
    low = jnp.array(-jnp.inf, x.dtype)
    _, height, width, _ = x.shape
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=low)
    for row in range(3):
        for column in range(3):
            yield x[:, row : row + height - 1 : 2, column : column + width - 1 : 2]


def _max_pool_forward(x):
    best = which = None
    for number, window in enumerate(_windows(x)):
        if best is None:
            best, which = window, jnp.zeros(window.shape, jnp.int8)
        else:
            larger = window > best
            best, which = jnp.where(larger, window, best), jnp.where(larger, jnp.int8(number), which)
    return best, which


def _max_pool_backward(which, gradient):
    """A pixel with even numbers is in one window, one with an odd number in two, one with two odd numbers in four."""

    def to(tap, down=0, right=0):
        """What goes to that one of the nine of a window which lies so many windows further."""
        part = jnp.where(which == tap, gradient, jnp.zeros((), gradient.dtype))
        part = jnp.pad(part, ((0, 0), (0, down), (0, right), (0, 0)))
        return part[:, down:, right:]

    even = jnp.stack([to(4), to(5) + to(3, right=1)], axis=3)
    odd = jnp.stack([to(7) + to(1, down=1), to(8) + to(6, right=1) + to(2, down=1) + to(0, down=1, right=1)], axis=3)
    n, height, width, channels = gradient.shape
    return (jnp.stack([even, odd], axis=2).reshape(n, 2 * height, 2 * width, channels),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
