"""One walk through every method that makes a request; prints what comes back."""

import datetime

import tinker
from tinker import types

PATH = "tinker://run:train:0/weights/c1"


def datum(length=4):
    inputs = {"target_tokens": list(range(2, length + 2)), "weights": [0.0] + [1.0] * (length - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(list(range(1, length + 1))), loss_fn_inputs=inputs)


def show(value):
    print(repr(value))


def attempt(call):
    try:
        show(call().result())
    except Exception as error:
        print(type(error).__name__)


service = tinker.ServiceClient(user_metadata={"a": "b"}, display_name="walk", project_id="p0")
training = service.create_lora_training_client("Qwen/Qwen3-8B", rank=16, seed=1).result()
show(training.get_info())
output = training.forward_backward([datum(), datum(3)], "cross_entropy").result()
print(output.metrics, output.loss_fn_output_type, [entry["logprobs"].tolist() for entry in output.loss_fn_outputs])
show(training.optim_step(types.AdamParams()).result())
training.forward([datum()], "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "name": "x"}).result()
spans = [types.PromptProvenanceSpan(sequence_id="s", length=1), types.SampledProvenanceSpan(sequence_id="s", length=3)]
training.forward_backward([datum().with_provenance(spans, spans)], "stable_reinforce", {"kl_coeff": 0.01}).result()
image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=2)
mixed = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1]), image])
training.forward([types.Datum(mixed, {"target_tokens": [1, 2, 3], "weights": [1.0] * 3})], "cross_entropy").result()
show(training.save_state("s", ttl_seconds=3600, overwrite=True, user_metadata={"k": "v"}).result())
show(training.save_weights_for_sampler("w", ttl_seconds=60, user_metadata={"k": "v"}).result())
show(training.save_weights_external("e", ttl_seconds=60, age_encryption_recipients=["age1x"]).result())
show(training.optim_step(types.DimuonParams(learning_rate=0.1)).result())
training.load_state(PATH).result()
training.load_state_with_optimizer(PATH, weights_access_token="tok").result()
sampler = training.save_weights_and_get_sampling_client().result()
training.save_weights_and_get_sampling_client(kind="inflight").result()
prompt = types.ModelInput.from_ints([1, 2, 3])
params = types.SamplingParams(max_tokens=5, seed=3, stop=["\n"], temperature=0.7, top_k=4, top_p=0.5)
answer = sampler.sample(prompt, 2, params, include_prompt_logprobs=True).result()
print([(s.tokens, s.logprobs, s.stop_reason, s.sequence_id) for s in answer.sequences], answer.prompt_logprobs)
target = types.TensorData([5, 6], "int64", [2, 3], [0, 1, 2], [1, 2])
sampler.sample(
    prompt, 1, types.SamplingParams(stop=[7]), target_prompt_logprobs=target, topk_sample_logprobs=2
).result()
sampler.sample(mixed, 1, types.SamplingParams(stop=[])).result()
print(sampler.compute_logprobs(prompt).result(), sampler.get_base_model())
service.create_training_client_from_state(PATH, user_metadata={"x": "y"}).result()
service.create_training_client_from_state_with_optimizer(PATH, "base", None, "tok").result()
service.create_sampling_client(model_path="tinker://x/sampler_weights/c", record_stability_info=True).result()
service.create_sampling_client(base_model="Qwen/Qwen3-8B").result()
training.create_sampling_client("tinker://x/sampler_weights/c").result()
rest = tinker.RestClient()
admin = tinker.AdminClient()
for call in (
    lambda: service.copy_weights(PATH, ttl_seconds=9),
    lambda: rest.get_server_capabilities(),
    lambda: rest.get_training_run("run:train:0"),
    lambda: rest.get_training_run_by_tinker_path(PATH, "accessible"),
    lambda: rest.get_weights_info_by_tinker_path(PATH),
    lambda: rest.list_training_runs(5, 6, "accessible", "pp"),
    lambda: rest.list_checkpoints("run:train:0"),
    lambda: rest.list_user_checkpoints(),
    lambda: rest.get_external_weights_urls("tinker://r/external_weights/e"),
    lambda: rest.delete_checkpoint("run:train:0", "weights/c1"),
    lambda: rest.delete_checkpoint_from_tinker_path(PATH),
    lambda: rest.copy_weights(PATH, "proj", ttl_seconds=5, weights_access_token="tk"),
    lambda: rest.publish_checkpoint_from_tinker_path(PATH),
    lambda: rest.unpublish_checkpoint_from_tinker_path(PATH),
    lambda: rest.set_checkpoint_ttl_from_tinker_path(PATH, None),
    lambda: rest.set_checkpoint_ttl_from_tinker_path(PATH, 3600),
    lambda: rest.get_session("s"),
    lambda: rest.list_sessions(),
    lambda: rest.assign_session_project("s", "p"),
    lambda: rest.export_session_trace("s"),
    lambda: rest.get_sampler("s"),
    lambda: rest.search_sessions(types.SessionSearchRequest(display_name="x")),
    lambda: rest.whoami(),
    lambda: rest.copy_weights(PATH),
    lambda: rest.get_external_weights_urls(PATH),
    lambda: rest.delete_checkpoint_from_tinker_path("nonsense"),
    lambda: rest.get_sampler("missing/really"),
    lambda: admin.get_audit_log("projects", datetime.date(2026, 1, 2)),
    lambda: admin.get_billing_usage("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    lambda: admin.get_current_checkpoint_storage_usage("pj"),
):
    attempt(call)
service.close("success", "done").result()
