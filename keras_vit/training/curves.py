"""The training curves of a run as a PNG. This is the only training module that uses matplotlib, which is optional."""

from keras_vit.training.checkpoint_files import write_atomically

_PANELS = (
    ("loss", ("loss", "val_loss")),
    ("accuracy", ("accuracy", "val_accuracy")),
    ("mean absolute error", ("mean_absolute_error", "val_mean_absolute_error")),
    ("learning rate", ("learning_rate",)),
)


def draw_curves(rows, path):
    """Draw loss, accuracy or mean absolute error, and learning rate over the steps as a PNG.

    Args:
        rows: one dict per epoch, as returned by `history_rows`.
        path: of the file; it is replaced atomically.

    Returns:
        Whether matplotlib is installed; without it, no file is written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    known = rows[0] if rows else {}
    panels = [(title, [name for name in names if name in known]) for title, names in _PANELS]
    panels = [panel for panel in panels if panel[1]] or panels[:1]
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in names:
            axes.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".", label=name)
        axes.set(title=title, xlabel="step")
        if axes.has_data():
            axes.legend()
    write_atomically(path, lambda partial: figure.savefig(partial, dpi=120))
    return True
