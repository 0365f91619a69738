"""Prints names, signatures and fields of the installed tinker package as JSON."""

import inspect
import json

from pydantic import BaseModel

import tinker
from tinker import types

CLIENTS = [
    "ServiceClient",
    "TrainingClient",
    "SamplingClient",
    "RestClient",
    "AdminClient",
    "APIFuture",
    "BackcompatTrainingClientFuture",
    "BackcompatSamplingClientFuture",
]


def parameters(function):
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        found.append([parameter.name, parameter.kind.name, default])
    return found


surface = {"all": sorted(tinker.__all__), "clients": {}, "models": {}, "mro": {}}
for name in CLIENTS:
    cls = getattr(tinker, name)
    methods = {"__init__": parameters(cls.__init__)} if name != "APIFuture" else {}
    for attribute in dir(cls):
        member = inspect.getattr_static(cls, attribute)
        if attribute.startswith("_") or isinstance(member, property) or not callable(getattr(cls, attribute)):
            continue
        method = getattr(cls, attribute)
        methods[attribute] = parameters(method)
    surface["clients"][name] = methods
for name in dir(types):
    value = getattr(types, name)
    if not inspect.isclass(value) or not name[0].isupper():
        continue
    if issubclass(value, BaseModel):
        fields = {
            key: [
                field.is_required(),
                None if field.is_required() else repr(field.get_default(call_default_factory=True)),
            ]
            for key, field in value.model_fields.items()
        }
        surface["models"][name] = [fields, value.model_config.get("extra"), value.model_config.get("frozen")]
    elif value.__module__.startswith("tinker") and not issubclass(value, str):
        surface["models"][name] = parameters(value)
for name in tinker.__all__:
    value = getattr(tinker, name)
    if inspect.isclass(value) and issubclass(value, BaseException):
        surface["mro"][name] = [base.__name__ for base in value.__mro__]
print(json.dumps(surface))
