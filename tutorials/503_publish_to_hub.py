import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="503 Publish to the hub")

with app.setup:
    import asyncio
    import json
    import os
    from pathlib import Path

    import marimo as mo
    from backend import connect

    import tinker
    from tinker_cookbook import weights


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    # 503 · Publish to the hub

    `publish_to_hf_hub` creates a repository and uploads a folder: a merged model (**501**) or an adapter (**502**), with a model
    card. Without an account this notebook is a **dry run**: it prints what would be sent. With `HF_TOKEN` *and*
    `TUTORIAL_REPO=name/repository` set, it publishes, privately.
    """)
    return


@app.cell
async def _():
    server = await connect()
    service = tinker.ServiceClient()
    client = await service.create_lora_training_client(base_model=server.model, rank=4, seed=0)
    state = await client.save_state("publish")
    downloaded = await asyncio.to_thread(
        weights.download, tinker_path=state.path, output_dir=str(server.runs / "downloaded")
    )
    adapter = weights.build_lora_adapter(
        base_model=server.model_folder, adapter_path=downloaded, output_path=str(server.runs / "adapter")
    )
    return adapter, server


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## The model card

    What a stranger needs: the base, the data, the licence. The kind (adapter or full model) is read from the folder.
    """)
    return


@app.cell
def _(adapter, server):
    repo_id = os.environ.get("TUTORIAL_REPO", "your-name/tutorial-503")
    card_config = weights.ModelCardConfig(
        base_model=server.model, datasets=["your-name/your-data"], tags=["tutorial"], license="apache-2.0"
    )
    card = weights.generate_model_card(config=card_config, repo_id=repo_id, model_path=adapter)
    mo.md(f"```markdown\n{card}\n```")
    return card_config, repo_id


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Before it leaves the machine

    An adapter's configuration names its base model. A path of your machine there helps nobody: write the public name in.
    """)
    return


@app.cell
def _(adapter, server):
    config_file = Path(adapter) / "adapter_config.json"
    _config = json.loads(config_file.read_text())
    print("base_model_name_or_path was", Path(_config["base_model_name_or_path"]).name, "in a local folder")
    config_file.write_text(json.dumps({**_config, "base_model_name_or_path": server.model}, indent=2))
    files = {path.name: path.stat().st_size for path in sorted(Path(adapter).iterdir())}
    return (files,)


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Publish, or say what would happen
    """)
    return


@app.cell
def _(adapter, card_config, files, repo_id):
    if os.environ.get("HF_TOKEN") and os.environ.get("TUTORIAL_REPO"):
        outcome = weights.publish_to_hf_hub(model_path=adapter, repo_id=repo_id, private=True, model_card=card_config)
    else:
        outcome = f"dry run: would create the private repository {repo_id} and upload README.md and {files}"
    print(outcome)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    From the command line: `tinker-cookbook weights publish FOLDER NAME/REPOSITORY` (`--public` for a public one). The SDK's own
    `tinker checkpoint push-hf` sends a checkpoint without a stop on your disk.
    """)
    return


if __name__ == "__main__":
    app.run()
