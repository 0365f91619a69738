"""Chunks, operations under way together, and refusals."""

import tinker
from tinker import types


def datum(length):
    inputs = {"target_tokens": list(range(length)), "weights": [1.0] * length}
    return types.Datum(model_input=types.ModelInput.from_ints(list(range(length))), loss_fn_inputs=inputs)


training = tinker.ServiceClient().create_lora_training_client("m").result()
futures = []
for _ in range(3):
    futures.append(training.forward_backward([datum(n) for n in range(1, 8)], "cross_entropy"))
    futures.append(training.optim_step(types.AdamParams()))
for future in futures:
    print(future.result().metrics)
