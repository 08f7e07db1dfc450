"""Deployments go in: whatever starts an engine in YAML is read as the command line that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import build_policy
from replay_engine.profile import load_profile
from tests.exports.conftest import demo_rows
from tracekit.errors import UsageError
from tracekit.policy_source import policy_from, serving_command
from tracekit.replay import replay

H100 = load_profile("h100")
FLAGS = "--max-num-seqs 64 --max-num-batched-tokens 4096 --no-enable-prefix-caching"
POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 2
  template:
    spec:
      initContainers:
      - {name: fetch, image: vllm/vllm-openai, command: [sh, -c, "vllm serve x --max-num-seqs 1"]}
      containers:
"""
SIDECAR = "      - {name: proxy, image: envoy, args: [--config, /etc/envoy.yaml]}\n"
CONTAINERS = {
    "an image with its own entry point": "      - {name: e, image: 'vllm/vllm-openai:v0.33.0', args: [--model, m, --max-num-seqs,"
    " '64', --max-num-batched-tokens=4096, --no-enable-prefix-caching]}\n",
    "numbers without quotes": "      - name: e\n        image: vllm\n        args: [--max-num-seqs, 64, --max-num-batched-tokens,"
    " 4096, --no-enable-prefix-caching]\n",
    "command and args": f"      - {{name: e, image: x, command: [vllm, serve, m], args: [{', '.join(FLAGS.split())}]}}\n",
    "the module": "      - {name: e, image: x, command: [python3, -m, vllm.entrypoints.openai.api_server], args:"
    f" [{', '.join(FLAGS.split())}]}}\n",
    "a shell": f"      - {{name: e, image: x, command: [/bin/sh, -c], args: ['exec vllm serve m {FLAGS} > /log 2>&1']}}\n",
    "a script": "      - name: e\n        command: [bash, -lc]\n        args:\n        - |\n          # vllm serve is next\n"
    f"          set -e; pip list && \\\n          vllm serve m \\\n            {FLAGS} | tee log\n",
    "the environment": "      - name: e\n        image: vllm\n        env: [{name: SEATS, value: '64'}]\n        args:"
    " [--max-num-seqs, $(SEATS), --max-num-batched-tokens, '4096', --no-enable-prefix-caching]\n",
}  # fmt: skip
OTHERS = {
    "values of Helm": "servingEngineSpec:\n  modelSpec:\n  - name: m\n    modelURL: org/m\n    vllmConfig: {maxNumSeqs: 64,"
    " enablePrefixCaching: false, extraArgs: [--max-num-batched-tokens, '4096']}\n",
    "vLLM's own": "model: m\nmax-num-seqs: 64\nmax_num_batched_tokens: 4096\nenable-prefix-caching: false\n",
    "a model of KServe": "kind: InferenceService\nspec:\n  predictor:\n    model:\n      modelFormat: {name: huggingface}\n"
    f"      args: [{', '.join(FLAGS.split())}]\n",
    "several documents": "kind: Service\nspec: {ports: [{port: 80}]}\n---\n" + POD + CONTAINERS["command and args"],
    "a list": "kind: List\nitems:\n- kind: Pod\n  spec:\n    containers:\n" + CONTAINERS["command and args"][2:],
}


def written(folder: Path, text: str, name: str = "d.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("kind", [*CONTAINERS, *OTHERS])
def test_a_deployment_runs_its_command(tmp_path: Path, kind: str) -> None:
    text = OTHERS[kind] if kind in OTHERS else POD + SIDECAR + CONTAINERS[kind]
    policy = policy_from(H100, written(tmp_path, text))
    assert policy.scheduler == build_policy(H100, f"vllm serve m {FLAGS}").scheduler
    assert policy_from(H100, written(tmp_path, text), ["max_num_seqs=8"]).scheduler.max_num_seqs == 8


def test_sglang_in_a_pod(tmp_path: Path) -> None:
    own = "      - {name: e, image: lmsysorg/sglang, command: [python3, -m, sglang.launch_server, --model-path, m," \
          " --chunked-prefill-size, '2048']}\n"  # fmt: skip
    plain = build_policy(H100, "python3 -m sglang.launch_server --model-path m --chunked-prefill-size 2048")
    assert policy_from(H100, written(tmp_path, POD + own)).scheduler == plain.scheduler


def test_two_engines_are_told_apart(tmp_path: Path) -> None:
    two = POD + "".join(f"      - {{name: {name}, command: [vllm, serve, m, --max-num-seqs, '{seats}']}}\n"
                        for name, seats in (("small", 8), ("large", 80)))  # fmt: skip
    path = written(tmp_path, two)
    with pytest.raises(UsageError, match="2 engines \\(small, large\\)"):
        policy_from(H100, path)
    assert policy_from(H100, f"{path}#large").scheduler.max_num_seqs == 80
    with pytest.raises(UsageError, match="no engine called huge"):
        policy_from(H100, f"{path}#huge")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (POD + SIDECAR, "starts no engine"),
        ("", "starts no engine"),
        ("[1, 2]", "starts no engine"),
        ("a: [1", "line 1: .*; expected YAML"),
        ("a: &a [*a]", "starts no engine"),
        ("a: &a {x: 1}\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [*{p}, *{p}, *{p}]\n" for i, p in
         enumerate(["b", *(f"c{i}" for i in range(40))])), "starts no engine"),  # 3^40 by aliases
        ("!!python/object/apply:os.system ['true']", "expected YAML"),
        ("x: " + "y" * (1 << 20), "larger than a manifest"),
    ],
)
def test_what_is_no_deployment_is_said(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        policy_from(H100, written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_missing_and_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        policy_from(H100, str(tmp_path / "none.yaml"))
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        policy_from(H100, str(tmp_path / "b.yml"))


def test_a_wrong_flag_in_it_is_told_as_in_a_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs: max_num_seqs = many"):
        policy_from(H100, written(tmp_path, "max-num-seqs: many\n"))


def test_other_sources_are_left_alone() -> None:
    for source in ("policy.toml", "vllm serve m --config x.yaml", "[scheduler]\nmax_num_seqs = 4", "sglang --x a.yaml"):
        assert serving_command(source) == source


def test_replay_takes_it(tmp_path: Path) -> None:
    import json

    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in demo_rows(20)))
    path = written(tmp_path, POD + SIDECAR + CONTAINERS["a script"])
    report = replay(str(trace), policy=path, db=str(tmp_path / "t.duckdb"), diagnose=False)
    assert report.matrix["knobs"]["max_num_seqs"] == 64
