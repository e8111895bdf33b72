"""A bigru as a Keras .h5 file, for those who want to load it with `keras.models.load_model`, and back again.

The arrays go over as they are: bigru.py's cells are Keras'. Imported only where a name ends in .h5.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
try:
    import h5py
    import keras
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}: .h5 files need Keras: pip install keras h5py") from None

from bigru import LAYERS, WAYS
from files import Model

NAMES = [
    "embedding",
    *(f"{layer} {way} {part}" for layer in LAYERS for way in WAYS for part in ("kernel", "recurrent", "bias")),
    "dense kernel",
    "dense bias",
]
"""In the order of the weights of the Keras model."""


def save(path, model):
    words, embedding = model.arrays["embedding"].shape
    units = model.arrays["dense kernel"].shape[0] // 2
    net = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(words, embedding),
            keras.layers.Bidirectional(keras.layers.GRU(units, return_sequences=True)),
            keras.layers.Bidirectional(keras.layers.GRU(units)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    net.set_weights([model.arrays[name] for name in NAMES])
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.{os.getpid()}.h5"
    net.save(unfinished)
    with h5py.File(unfinished, "a") as file:
        file.attrs.update(rows=model.rows, features=model.features)
    os.replace(unfinished, path)


def load(path):
    try:
        with h5py.File(path, "r") as file:
            rows, features = int(file.attrs["rows"]), str(file.attrs["features"])
        weights = keras.models.load_model(path, compile=False).get_weights()
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist") from None
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"{path} is not a whole .h5 model of this recipe: {error}") from None
    return Model(dict(zip(NAMES, weights, strict=True)), rows, features)
