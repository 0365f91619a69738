"""``python -m rock.model_service``: the same commands as ``rock model-service``."""

from rock.model_service.cli import model_service

model_service(prog_name="rock model-service")
