"""Chat over a base model: messages to tokens and tokens to messages, for the OpenAI and the Anthropic door.

Everything here but ``generation`` is pure: no HTTP, no runtime. The prompt is made by the model's own Jinja template.
"""
