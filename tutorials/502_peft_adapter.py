import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="502 Export a PEFT adapter")

with app.setup:
    import asyncio
    import json
    from pathlib import Path

    import marimo as mo
    import torch
    from backend import connect
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    import tinker
    from tinker_cookbook import weights
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.supervised.data import conversation_to_datum


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 502 · Export a PEFT adapter

    An adapter is a few megabytes beside a model of gigabytes. Servers such as vLLM and SGLang load many of them on one base.
    `build_lora_adapter` writes the layout that PEFT defines and those servers read.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    renderer = server.renderer
    client = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0)
    data = [
        conversation_to_datum(
            [Message(role="user", content="Password?"), Message(role="assistant", content="Swordfish")], renderer, 128
        )
    ]
    for _ in range(10):
        _passed = client.forward_backward(data, "cross_entropy")
        await client.optim_step(tinker.AdamParams(learning_rate=server.learning_rate / 2))
        await _passed
    state = await client.save_state("adapter")
    return client, renderer, server, service, state


@app.cell
async def _(server, state):
    downloaded = await asyncio.to_thread(
        weights.download, tinker_path=state.path, output_dir=str(server.runs / "downloaded")
    )
    adapter = weights.build_lora_adapter(
        base_model=server.model_folder, adapter_path=downloaded, output_path=str(server.runs / "adapter")
    )
    for _file in sorted(Path(adapter).iterdir()):
        print(_file.name, _file.stat().st_size, "bytes")
    _config = json.loads((Path(adapter) / "adapter_config.json").read_text())
    print({key: _config[key] for key in ("r", "lora_alpha", "target_modules")})
    return (adapter,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Load it with PEFT

    The output layer is trained too (`train_unembed`); the adapter names it `lm_head`. In small models its base weights are
    shared with the embedding, and PEFT warns about that: nothing to fear here, because the adapter changes the output alone.
    Servers that load no adapter on `lm_head` need a run with `train_unembed=False`, or the merged model of **501**.
    """)
    return


@app.cell
async def _(adapter, client, renderer, server):
    tokens = renderer.build_generation_prompt([Message(role="user", content="Password?")]).to_ints()
    tokens += renderer.tokenizer.encode("Swordfish")

    def score(model):
        """Logprobs of the tokens after the first."""
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return [float(logprobs[i, token]) for i, token in enumerate(tokens[1:])]

    base = AutoModelForCausalLM.from_pretrained(server.model_folder, dtype=torch.float32)
    before = score(base)
    adapted = score(PeftModel.from_pretrained(base, adapter))
    sampler = await client.save_weights_and_get_sampling_client()
    served = await sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens))
    gap = max(abs(a - b) for a, b in zip(served[1:], adapted, strict=True))
    print(
        f"server and PEFT differ by {gap:.2e}; the adapter moved a logprob by up to "
        f"{max(abs(a - b) for a, b in zip(before, adapted, strict=True)):.2f}"
    )
    return (gap,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## A leaner adapter

    Only attention and MLP, as most serving stacks expect. The choice is made when the run is created.
    """)
    return


@app.cell
async def _(gap, server, service):
    lean = await service.create_lora_training_client(base_model=server.model, rank=8, seed=0, train_unembed=False)
    _state = await lean.save_state("lean")
    _folder = await asyncio.to_thread(
        weights.download, tinker_path=_state.path, output_dir=str(server.runs / "lean-downloaded")
    )
    _adapter = weights.build_lora_adapter(
        base_model=server.model_folder, adapter_path=_folder, output_path=str(server.runs / "lean")
    )
    lean_modules = json.loads((Path(_adapter) / "adapter_config.json").read_text())["target_modules"]
    print(lean_modules)
    assert gap < 0.1 and "lm_head" not in lean_modules
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    From the command line: `tinker-cookbook weights adapter DOWNLOADED OUTPUT --base-model BASE`. vLLM takes the folder as
    `--enable-lora --lora-modules name=FOLDER`.
    """)
    return


if __name__ == "__main__":
    app.run()
