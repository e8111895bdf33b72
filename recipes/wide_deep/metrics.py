"""How good predictions are: accuracy, AUC and log loss, always beside what saying no to everything would get."""

from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    rows: int
    accuracy: float
    always_no: float
    """The accuracy of a model that never expects a click."""
    auc: float
    log_loss: float

    def __str__(self):
        return (
            f"accuracy {self.accuracy:.4f} (always no: {self.always_no:.4f}), AUC {self.auc:.4f}, "
            f"log loss {self.log_loss:.4f}, {self.rows} rows"
        )

    def as_dict(self):
        return asdict(self)


def scores(labels, likely):
    """labels: 0 or 1; likely: how likely a click was said to be."""
    labels, likely = np.asarray(labels) > 0.5, np.asarray(likely, np.float64)
    safe = np.clip(likely, 1e-7, 1 - 1e-7)
    return Scores(
        rows=len(labels),
        accuracy=float(((likely > 0.5) == labels).mean()),
        always_no=float(1 - labels.mean()),
        auc=auc(labels, likely),
        log_loss=float(-np.log(np.where(labels, safe, 1 - safe)).mean()),
    )


def auc(clicked, likely):
    """How often a click was said to be likelier than a row without one; ties count half. nan with rows of one kind."""
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        return float("nan")
    values, number = np.unique(likely, return_inverse=True)
    per_value = np.bincount(number, minlength=len(values))
    rank = np.cumsum(per_value) - (per_value - 1) / 2
    return float((rank[number][clicked].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
