"""Order, idempotency, batching, backpressure: from accepted operations to calls of the runtime and back."""
