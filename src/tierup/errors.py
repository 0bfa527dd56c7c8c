"""Every error that Tierup raises on purpose.

    TierupError
    ├── ModelError            the model cannot be loaded: damaged, hostile or inconsistent
    │   └── UnsupportedError  the model is sound, but uses something that has no row in the op table
    ├── InputError            a call's inputs do not fit the model
    ├── ConfigError           a Config field or a TIERUP_ variable is out of its range
    └── StoreError            what is kept on disk cannot be read or written

A message is a sentence for its reader: what was given, what was expected, what to do.
"""


class TierupError(Exception):
    """Parent of every error that is raised on purpose."""


class ModelError(TierupError, ValueError):
    """The model cannot be loaded."""


class UnsupportedError(ModelError):
    """The model needs an operator, opset or type that Tierup does not know."""


class InputError(TierupError, ValueError):
    """The inputs of a call do not fit the model."""


class ConfigError(TierupError, ValueError):
    """A setting is out of its range."""


class StoreError(TierupError, OSError):
    """What is kept on disk cannot be read or written."""
