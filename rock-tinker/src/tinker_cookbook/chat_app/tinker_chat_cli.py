"""Talk to a base model or a checkpoint in a terminal."""

from __future__ import annotations

import chz

import tinker
from tinker_cookbook import checkpoint_utils, cli_utils, renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Message, format_content_as_string


@chz.chz
class Config:
    """``model_path``: sampler weights (``tinker://...``); its base model comes from the server."""

    base_model: str | None = None
    model_path: str | None = None
    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.9
    base_url: str | None = None
    renderer_name: str | None = None
    system_prompt: str | None = None


class ChatSession:
    """A conversation and the model that answers."""

    def __init__(self, client: tinker.SamplingClient, renderer: renderers.Renderer, config: Config) -> None:
        self._client, self._renderer, self._config = client, renderer, config
        self.messages: list[Message] = []
        self.clear_history()

    def add_user_message(self, content: str) -> None:
        """What the person says."""
        self.messages.append(Message(role="user", content=content))

    def add_assistant_message(self, message: Message) -> None:
        """What the model said."""
        self.messages.append(message)

    def clear_history(self) -> None:
        """Begin again."""
        system = self._config.system_prompt
        self.messages = [Message(role="system", content=system)] if system else []

    async def generate_response(self) -> Message:
        """The model's answer to the conversation so far."""
        config = self._config
        params = tinker.SamplingParams(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            stop=self._renderer.get_stop_sequences(),
        )
        prompt = self._renderer.build_generation_prompt(self.messages)
        response = await self._client.sample(prompt=prompt, num_samples=1, sampling_params=params)
        return self._renderer.parse_response(list(response.sequences[0].tokens))[0]


async def main(config: Config) -> None:
    """Read lines, print answers. ``/clear`` begins again, ``/quit`` or end of input ends."""
    if (config.base_model is None) == (config.model_path is None):
        raise ConfigurationError("give base_model or model_path")
    with tinker.ServiceClient(base_url=config.base_url, display_name="chat") as service:
        client = await service.create_sampling_client(model_path=config.model_path, base_model=config.base_model)
        base = config.base_model or client.get_base_model()
        name = await checkpoint_utils.resolve_renderer_name_from_checkpoint_or_default_async(
            model_name=base,
            explicit_renderer_name=config.renderer_name,
            load_checkpoint_path=config.model_path,
            base_url=config.base_url,
        )
        session = ChatSession(client, renderers.get_renderer(name, tokenizer_utils.get_tokenizer(base)), config)
        print(f"{config.model_path or base} ({name}); /clear begins again, /quit ends")
        while True:
            try:
                line = await cli_utils.ask("> ")
            except EOFError:
                print()
                return
            if line.strip() == "/quit":
                return
            if line.strip() == "/clear":
                session.clear_history()
                continue
            session.add_user_message(line)
            answer = await session.generate_response()
            session.add_assistant_message(answer)
            print(format_content_as_string(answer["content"]))


if __name__ == "__main__":
    entry.run(main)
