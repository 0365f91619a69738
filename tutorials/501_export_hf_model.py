import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="501 Export a Hugging Face model")

with app.setup:
    import asyncio

    import marimo as mo
    import matplotlib.pyplot as plt
    import torch
    from backend import connect
    from transformers import AutoModelForCausalLM

    import tinker
    from tinker_cookbook import weights
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.supervised.data import conversation_to_datum


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 501 · Export a Hugging Face model

    What was trained is yours: a LoRA that can be **merged** into its base. The result is an ordinary model folder for
    transformers, vLLM, llama.cpp and everything else. This notebook trains a little, merges, and proves that the folder
    computes what the server computed.
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
    return client, renderer, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Download, merge

    `download` takes any checkpoint path; `build_hf_model` computes W + (α/r)·B·A shard by shard, so memory is that of one
    shard. Where output layer and embedding share their weights, the merged model gets an output layer of its own, because only
    that was trained. `dtype="float32"` keeps every bit for the comparison below; `bfloat16`, the default, is what one serves.
    """)
    return


@app.cell
async def _(client, server):
    state = await client.save_state("export")
    adapter = await asyncio.to_thread(weights.download, tinker_path=state.path, output_dir=str(server.runs / "adapter"))
    merged = weights.build_hf_model(
        base_model=server.model_folder, adapter_path=adapter, output_path=str(server.runs / "merged"), dtype="float32"
    )
    print(sorted(p.name for p in (server.runs / "merged").iterdir()))
    return (merged,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Proof

    The same tokens through transformers and through the server.
    """)
    return


@app.cell
async def _(client, merged, renderer, server):
    prompt = renderer.build_generation_prompt([Message(role="user", content="Password?")])
    tokens = prompt.to_ints() + renderer.tokenizer.encode("Swordfish")
    sampler = await client.save_weights_and_get_sampling_client()
    served = await sampler.compute_logprobs(tinker.ModelInput.from_ints(tokens))

    def score(folder):
        """Logprobs of the tokens after the first, by transformers."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return [float(logprobs[i, token]) for i, token in enumerate(tokens[1:])]

    exported, base = score(merged), score(server.model_folder)
    _gap = max(abs(a - b) for a, b in zip(served[1:], exported, strict=True))
    print(f"largest difference of a logprob: {_gap:.2e}")
    assert _gap < 0.1 and max(abs(a - b) for a, b in zip(base, exported, strict=True)) > _gap
    return base, exported, served


@app.cell
def _(base, exported, served):
    figure, _axis = plt.subplots(figsize=(6, 3))
    _axis.plot(base, label="base")
    _axis.plot(exported, label="merged, transformers")
    _axis.plot(served[1:], "k--", label="server")
    _axis.set_xlabel("position")
    _axis.set_ylabel("logprob")
    _axis.legend()
    figure.tight_layout()
    figure
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    On a server that computes in bfloat16 the difference is that of rounding, 1e-2 or so.

    From the command line: `tinker-cookbook weights download PATH FOLDER`, then
    `tinker-cookbook weights merge FOLDER OUTPUT --base-model BASE`. **502** keeps the adapter as an adapter.
    """)
    return


if __name__ == "__main__":
    app.run()
