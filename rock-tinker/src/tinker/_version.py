"""Names and versions. ``__version__`` is the API level that this SDK speaks, not the version of the wheel."""

__title__ = "tinker"
__version__ = "0.38.0"
__wheel_version__ = "0.1.0"
