"""The clients and futures by the long names that some programs import."""

from .admin_client import AdminClient
from .api_future import APIFuture, AwaitableConcurrentFuture
from .backcompat_sampling_client_future import BackcompatSamplingClientFuture
from .backcompat_training_client_future import BackcompatTrainingClientFuture
from .custom_loss import LossHandle, PerDatumLossFn
from .rest_client import RestClient
from .sampling_client import SamplingClient
from .service_client import ServiceClient
from .training_client import TrainingClient

__all__ = [
    "APIFuture",
    "AdminClient",
    "AwaitableConcurrentFuture",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "LossHandle",
    "PerDatumLossFn",
    "RestClient",
    "SamplingClient",
    "ServiceClient",
    "TrainingClient",
]
