"""TrainingModel, the mixin of models that train another model, and of those with variables that `fit` leaves alone."""

from typing import Any

import keras


class PartlyTrained:
    """Train some of the variables only.

    It is a mixin for `Model`, which it precedes among the base classes.
    """

    def _untrained(self) -> Any:
        """Return the ids of the variables that `fit` must not change, although their own model may train them."""
        raise NotImplementedError

    @property
    def trainable_variables(self):
        return _without(self._untrained(), super().trainable_variables)

    @property
    def trainable_weights(self):
        return _without(self._untrained(), super().trainable_weights)

    @property
    def non_trainable_variables(self):
        return _without(set(map(id, self.trainable_variables)), self.variables)

    @property
    def non_trainable_weights(self):
        return _without(set(map(id, self.trainable_weights)), self.weights)


class TrainingModel(PartlyTrained):
    """Train another model, and run further models that are not trained.

    It is a mixin as `PartlyTrained`. A subclass lists in `_models` the constructor arguments that are models; they are
    also attributes, and the first one is the model to train. Its property `settings` is a dict of the other arguments,
    as JSON values.
    """

    _models: tuple[str, ...] = ()
    settings: Any

    def trained_model(self) -> keras.Model:
        """Return the model that `fit` trains: the student, or the encoder."""
        return getattr(self, self._models[0])

    def get_config(self):
        models = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in self._models}
        return {**models, **self.settings, "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        models = {name: keras.saving.deserialize_keras_object(config[name], custom_objects) for name in cls._models}
        return cls(**{**config, **models})


def _without(ids, variables):
    return [variable for variable in variables if id(variable) not in ids]
