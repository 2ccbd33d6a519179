"""ModelParallel for models of this package: kernels are sharded along "model" if the devices divide them.

Keras selects a layout by the path of a variable only, and fails if the number of devices does not divide its side.
Delete this file when `keras.distribution.ModelParallel` does not shard such variables.
"""

import keras

# path of a variable -> axes of the mesh that shard its sides: first columns, then rows, so that the two products of an
# attention or an MLP need one exchange between the devices (arXiv 1909.08053, section 3).
_LAYOUTS = {
    r".*qkv/kernel": (None, "model"),
    r".*qkv/bias": ("model",),
    r".*proj/kernel": ("model", None),
    r".*mlp/dense1/kernel": (None, "model"),
    r".*mlp/dense1/bias": ("model",),
    r".*mlp/dense2/kernel": ("model", None),
}


class ViTModelParallel(keras.distribution.ModelParallel):
    """`keras.distribution.ModelParallel` with the layouts above.

    Args:
        mesh: `keras.distribution.DeviceMesh` with the axes "data" and "model".
    """

    def __init__(self, mesh):
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in _LAYOUTS.items():
            layouts[path] = axes
        super().__init__(layout_map=layouts, batch_dim_name="data")

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        parts = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        fits = all(side % parts.get(axis, 1) == 0 for side, axis in zip(variable.shape, layout.axes, strict=True))
        return layout if fits else keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)
