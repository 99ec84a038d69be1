"""Valid and broken files that every validator of the API must accept or reject.

BROKEN are well-formed YAML that the API rejects; BROKEN_YAML never become one RLJob. A row is the file JOB with some of
its text replaced, and the position and field of each of its problems. The messages are in problems.golden.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata:
  name: gsm8k-grpo
spec:
  model: {path: Qwen/Qwen2.5-0.5B-Instruct}
  data:
    train: [/data/train.parquet]
    promptsPerStep: 64
  rollout:
    engine: vllm
    samplesPerPrompt: 8
  actor:
    learningRate: 1e-6
    miniBatchSize: 32
  rewards:
    functions:
    - name: exact
      builtin: gsm8k
  training:
    steps: 100
"""

OTHER = JOB.replace("gsm8k-grpo", "gsm8k-other")

SCRATCH = "model: {fromScratch: {hiddenSize: 128, heads: 4}}"


@dataclass(frozen=True)
class Row:
    """One file. edits: (text of JOB, its replacement). expected: "LINE:COLUMN FIELD" of each problem, in order."""

    name: str
    edits: tuple[tuple[str, str], ...]
    expected: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        text = JOB
        for old, new in self.edits:
            assert text.count(old) == 1, f"{old!r} must stand in the file once"
            text = text.replace(old, new)
        return text


def good(name: str, *edits: tuple[str, str]) -> Row:
    return Row(name, edits)


def broken(old: str, new: str, *expected: str) -> Row:
    return Row(f"{old} -> {new}".replace("\n", "|"), ((old, new),), expected)


SUPERVISED = (
    ("  rewards:\n    functions:\n    - name: exact\n      builtin: gsm8k\n", "  algorithm: {preset: sft}\n"),
    ("    miniBatchSize: 32\n", ""),
)
"""What makes JOB a supervised job; its rollout has the default values, which cannot be told from none."""


def broken_supervised(old: str, new: str, *expected: str) -> Row:
    return Row(f"supervised: {old} -> {new}".replace("\n", "|"), (*SUPERVISED, (old, new)), expected)


def file(name: str, text: str, *expected: str) -> Row:
    return Row(name, ((JOB, text),), expected)


_BUILTIN = "      builtin: gsm8k\n"
_RM = "{name: rm, path: org/rm, kind: classifier"


_ANY_POD = (
    "{metadata: {labels: {team: a, env: b}, annotations: {note: c}}, spec: {nodeSelector: {pool: cpu},"
    " tolerations: [{key: gpu, operator: Exists, effect: NoSchedule, tolerationSeconds: null}],"
    " topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}],"
    " hostAliases: [{ip: 10.0.0.1, hostnames: [hub]}], imagePullSecrets: [{name: registry}],"
    " securityContext: {supplementalGroups: [7]}, dnsConfig: {searches: [a.b], options: [{name: ndots}]},"
    " volumes: [{name: scratch, emptyDir: {}}, {name: both, projected: {sources: [{secret: {name: s}}]}}],"
    " initContainers: [{name: fetch, image: i, command: [sh, -c, x], volumeMounts: [{name: scratch, mountPath: /s}]}],"
    " containers: [{name: side, image: i, args: [a], env: [{name: A, value: b}], envFrom: [{secretRef: {name: s}}],"
    " ports: [{containerPort: 9, name: p}], volumeMounts: [{name: scratch, mountPath: /s}]},"
    " {name: OURS, env: [{name: B, value: c}], livenessProbe: null}]}}"
)
"""A pod template with every list that one may have. OURS: the operator's container there, which has its image."""
_HEAD, _WORKER, _SERVER = (_ANY_POD.replace("OURS", name) for name in ("ray-head", "ray-worker", "vllm"))


GOOD = (
    good("as it is"),
    good("a length in epochs", ("    steps: 100", "    epochs: 2")),
    good(
        "arguments of the chat template",
        ("promptsPerStep: 64", "templateArguments: {enable_thinking: false, tools_in: {a: [1]}}"),
        ("    miniBatchSize: 32\n", ""),
    ),
    good(
        "a character in the two halves that JSON escapes",
        ("  training:", '  env: [{name: A, value: "\\ud83d\\ude00"}]\n  training:'),
    ),
    good(
        "no CPU asked for, and little of everything else",
        (
            "  training:",
            "  cluster: {head: {cpu: '0', memory: 0.5Gi}, worker: {memory: 0.01Gi, sharedMemory: 9M}}\n  training:",
        ),
    ),
    good("a volume of a pebibyte", ("  training:", "  checkpoint: {volume: {size: 1Pi}}\n  training:")),
    good("a preset by name", ("  rollout:", "  algorithm: {preset: dapo}\n  rollout:")),
    good(
        "a teacher's likeliest tokens",
        ("  rollout:", "  algorithm: {preset: distillation, teacher: {path: t, topK: 8}}\n  rollout:"),
    ),
    good(
        "overrides of a preset",
        ("  rollout:", "  algorithm: {preset: rloo, kl: {controller: adaptive, target: 6}}\n  rollout:"),
    ),
    good("another loss", ("  rollout:", "  algorithm: {loss: dual_clip, clipRatio: 0.1, clipRatioC: 2}\n  rollout:")),
    good(
        "a loss with settings of its own",
        ("  rollout:", "  algorithm: {preset: gspo, clipRatioLow: 0.001, positiveNllCoefficient: 0.1}\n  rollout:"),
    ),
    good(
        "a reference that follows, and an early stop",
        (
            "  rollout:",
            "  algorithm: {kl: {controller: adaptive, clip: 10, refreshEvery: 9}, earlyStop: {kl: 1}}\n  rollout:",
        ),
    ),
    good(
        "tokens chosen by covariance",
        ("  rollout:", "  algorithm: {preset: dapo, loss: clip_cov, clipCovRatio: 0.001, clipCovLb: 0.5}\n  rollout:"),
    ),
    good("supervised start", ("  rollout:", "  sft: {steps: 20, batchSize: 32}\n  rollout:")),
    good("supervised only", *SUPERVISED),
    good("a model from scratch", ("model: {path: Qwen/Qwen2.5-0.5B-Instruct}", SCRATCH)),
    good(
        "a learnt vocabulary",
        ("model: {path: Qwen/Qwen2.5-0.5B-Instruct}", "model: {fromScratch: {tokenizer: {kind: bpe, vocabSize: 512}}}"),
    ),
    good(
        "one sample suffices",
        ("engine: vllm\n    samplesPerPrompt: 8", "samplesPerPrompt: 1"),
        ("  actor:", "  algorithm: {preset: reinforce_plus_plus}\n  actor:"),
    ),
    good("deterministic", ("engine: vllm", "engine: hf\n    deterministic: true")),
    good("labels", ("  name: gsm8k-grpo", "  name: gsm8k-grpo\n  labels: {kueue.x-k8s.io/queue-name: research}")),
    good(
        "an object read back",
        ("  name: gsm8k-grpo", "  name: gsm8k-grpo\n  creationTimestamp: null\n  uid: 1f-2"),
        ("    steps: 100\n", "    steps: 100\nstatus: {phase: Running}\n"),
    ),
    good(
        "variables",
        (
            "  training:",
            (
                "  env:\n  - {name: A, value: ''}\n  - {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}\n "
                " training:"
            ),
        ),
    ),
    good(
        "arguments of any form",
        ("builtin: gsm8k", "path: reward.py\n      arguments: {a: null, b: [1, {c: 2.5}], d: {e: yes}}"),
    ),
    good(
        "source code", ("builtin: gsm8k", "source: |\n        def compute_score(*row, **more):\n          return 1.0")
    ),
    good("a null takes the default", ("samplesPerPrompt: 8", "samplesPerPrompt:")),
    good(
        "a policy of recovery",
        (
            "  training:",
            (
                "  recovery:\n    maxRestarts: 0\n    backoff: {initial: 0s, factor: 1, max: 0s}\n"
                "    rules: [{onExitCodes: [137, 79], action: restart_uncharged},"
                " {onReasons: [RankLost], onExitCodes: [75], action: give_up}]\n"
                "    hangAfter: 1s\n    takeoverWithin: 1ms\n    nodeLostAfter: 1s\n    forceDeleteLostPods: true\n"
                "  preflight: {fabric: {minBusBandwidthGBps: 40, timeLimit: 1s}}\n"
                "  gang: {scheduler: volcano}\n"
                "  training:"
            ),
        ),
    ),
    good(
        "pods and volumes of a cluster",
        (
            "  training:",
            (
                "  cluster:\n    image: trainer:1\n    nodes: 2\n    gpusPerNode: 4\n"
                "    head: {cpu: '2', memory: 8Gi, template: {spec: {nodeSelector: {pool: cpu}}}}\n"
                "    worker: {sharedMemory: 1.5Gi}\n    priorityClassName: high\n"
                "  checkpoint: {volume: {existingClaim: data, subPath: runs/1}}\n"
                "  envFrom: [{secretRef: {name: tokens}}]\n  volumes: [{name: data, emptyDir: {}}]\n"
                "  volumeMounts: [{name: data, mountPath: /data}]\n  imagePullSecrets: [{name: registry}]\n"
                "  suspend: true\n  activeDeadline: 48h\n  ttlAfterFinished: 24h\n  managedBy: example.com/other\n"
                "  training:"
            ),
        ),
    ),
    good(
        "templates with every list, which replace and remove what is there",
        (
            "  training:",
            f"  cluster:\n    head: {{template: {_HEAD}}}\n    worker: {{template: {_WORKER}}}\n  training:",
        ),
        (_BUILTIN, f"{_BUILTIN}    models: [{_RM}, template: {_SERVER}}}]\n"),
    ),
    good("the operator by its own name", ("  training:", "  managedBy: rljob.dev/operator\n  training:")),
    good(
        "shared memory of another kind",
        (
            "  training:",
            "  cluster: {worker: {template: {spec: {volumes: [{name: shared-memory, emptyDir: {}}]}}}}\n  training:",
        ),
    ),
    good("an empty template", ("  training:", "  cluster: {head: {template: {metadata: null, spec:}}}\n  training:")),
    good(
        "variables of both kinds, and two mounts of the job's own volume and of another",
        (
            "  training:",
            (
                "  envFrom: [{prefix: A_, configMapRef: {name: a, optional: true}}, {secretRef: {name: b}}]\n"
                "  volumes: [{name: data, emptyDir: {}}]\n"
                "  volumeMounts: [{name: data, mountPath: /d, readOnly: true},"
                " {name: checkpoints, mountPath: /checkpoints2},"
                " {name: data, mountPath: /..d/.e/..., subPath: ..a/.b/...},"
                " {name: data, mountPath: /f, subPath: ''}]\n"
                "  checkpoint: {volume: {subPath: ..a/.b/...}}\n  cluster: {gpuResource: amd.com/gpu}\n  training:"
            ),
        ),
    ),
    good(
        "reward models alone",
        (
            "    functions:\n    - name: exact\n      builtin: gsm8k\n",
            (
                "    models:\n    - {name: rm, path: org/reward-7b, kind: classifier, replicas: 2, weight: 0.5}\n"
                "    - {name: judge, path: org/chat, kind: generative, promptTemplate: '{prompt} {response}?',"
                " scorePattern: '([0-9])', maxTokens: 8, gpusPerReplica: 0, arguments: [--dtype, float32]}\n"
            ),
        ),
    ),
    good(
        "functions named by default, for some rows, with a variable",
        (
            "    - name: exact\n      builtin: gsm8k",
            "    - builtin: gsm8k\n      dataSources: [openai/gsm8k, 'aime*']\n    - {path: r.py, env: [JUDGE_KEY]}",
        ),
    ),
    good(
        "a reward model that runs already",
        (
            _BUILTIN,
            f"{_BUILTIN}    models: [{_RM}, url: 'https://h/x', key: {{name: s, key: k}}, rateLimit: 60}}]\n",
        ),
    ),
    good("a reward model beside functions", (_BUILTIN, f"{_BUILTIN}    models: [{_RM}}}]\n")),
    good(
        "the longest times and a name of 19 characters",
        (
            _BUILTIN,
            f"{_BUILTIN}    models: [{{name: {'a' * 19}, path: m, kind: classifier, timeout: 1h, lostAfter: 1h}}]\n",
        ),
    ),
    good(
        "a name that is no part of another's", (_BUILTIN, f"{_BUILTIN}    models: [{_RM.replace('rm', 'b-rm', 1)}}}]\n")
    ),
    good("a name that is no head's", (_BUILTIN, f"{_BUILTIN}    models: [{_RM.replace('rm', 'ahead-svc', 1)}}}]\n")),
    good("whole floats are integers", ("steps: 100", "steps: 100.0")),
    good("numbers of YAML 1.1", ("steps: 100", "steps: 1_000"), ("promptsPerStep: 64", "promptsPerStep: 0x40")),
    good("words for booleans", ("promptsPerStep: 64", "shuffle: no")),
    good("an integer where a float is due", ("learningRate: 1e-6", "learningRate: 0")),
    good(
        "anchors and merges",
        ("  rollout:", "  sft: &common {steps: 5, learningRate: 1e-5}\n  rollout:"),
        ("    learningRate: 1e-6", "    <<: {learningRate: 1e-5}"),
    ),
    good(
        "several documents",
        ("    steps: 100\n", "    steps: 100\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n"),
    ),
    good(
        "JSON",
        (
            JOB,
            (
                '{"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}, "spec": {"model":'
                ' {"path": "m"}, "data": {"train": ["t"]}, "training": {"steps": 1}, "rewards": {"functions": [{"name":'
                ' "e", "builtin": "gsm8k"}]}}}'
            ),
        ),
    ),
    good("no GPUs", ("  training:", "  cluster: {nodes: 2, gpusPerNode: 0, ranksPerNode: 2}\n  training:")),
    good(
        "the longest durations",
        ("engine: vllm", "deadline: 99999h99999h99999h99999h99999h"),
        ("  rewards:", "  rewards:\n    timeout: 1.5h0.001s99999ms"),
    ),
    good("the longest name", ("name: gsm8k-grpo", "name: " + "a" * 40)),
)


def _broken_files() -> Iterator[Row]:
    for each in yaml.safe_load(Path(__file__).with_name("broken_files.yaml").read_text()):
        if "model" in each:
            edit = _BUILTIN, f"{_BUILTIN}    models: [{each['model']}]\n"
        elif "add" in each:
            edit = "  training:", f"  {each['add']}\n  training:"
        else:
            edit = each["old"], each["new"]
        yield (broken_supervised if each.get("supervised") else broken)(*edit, *each["at"])


BROKEN = (
    *_broken_files(),
    broken("[/data/train.parquet]", f"[{', '.join(['a'] * 257)}]", "8:12 spec.data.train"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", f"{{path: {'m' * 1025}}}", "6:17 spec.model.path"),
)

BROKEN_YAML = (
    broken("Qwen/Qwen2.5-0.5B-Instruct", '"\\ud83d"', "6:17 spec.model.path"),
    broken("learningRate: 1e-6", "learningRate: .nan", "14:19 spec.actor.learningRate"),
    broken(
        "    samplesPerPrompt: 8",
        "    samplesPerPrompt: 8\n    samplesPerPrompt: 16",
        "13:5 spec.rollout.samplesPerPrompt",
    ),
    broken("    samplesPerPrompt: 8", "\tsamplesPerPrompt: 8", "12:1"),
    broken("    samplesPerPrompt: 8", "     samplesPerPrompt: 8", "12:22"),
    broken("    samplesPerPrompt: 8", "   samplesPerPrompt: 8", "12:4"),
    broken("    samplesPerPrompt: 8", "    samplesPerPrompt 8", "12:5"),
    broken("[/data/train.parquet]", "[/data/train.parquet", "8:12"),
    broken("engine: vllm", "engine: 'vllm", "11:13"),
    broken("engine: vllm", "engine: *engine", "11:13"),
    broken("engine: vllm", "engine: !env ENGINE", "11:13 spec.rollout.engine"),
    broken("engine: vllm", "engine: @vllm", "11:13"),
    broken("engine: vllm", "engine: vllm\x01", "11:1"),
    broken("engine: vllm", "[engine]: vllm", "11:5 spec.rollout"),
    broken("engine: vllm", "<<: vllm", "11:9 spec.rollout[<<]"),
    broken("    learningRate: 1e-6", "    &a learningRate: *a", "14:5 spec.actor.learningRate"),
    file("an endless alias", "a: &a [*a]\n", "1:1"),
    file("an empty file", "", "1:1"),
    file("comments only", "# nothing yet\n---\n", "1:1"),
    file("text", "hello\n", "1:1"),
    file("a list", "- kind: RLJob\n", "1:1"),
    file("another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", "1:1"),
    file(
        "a kind of verl",
        "data:\n  train_batch_size: 8\n",
        "1:1 apiVersion",
        "1:1 kind",
        "1:1 metadata",
        "1:1 spec",
        "1:1 data",
    ),
    file(
        "the second of two", JOB + "---\n" + OTHER.replace("engine: vllm", "engine: vlm"), "33:13 spec.rollout.engine"
    ),
    file("one twice", JOB + "---\n" + JOB, "26:9 metadata.name"),
    file(
        "one twice, and neither right",
        JOB.replace("steps: 100", "steps: 0") + "---\n" + JOB.replace("engine: vllm", "engine: vlm"),
        "21:12 spec.training.steps",
        "26:9 metadata.name",
        "33:13 spec.rollout.engine",
    ),
    file(
        "both of two",
        JOB.replace("steps: 100", "steps: 0") + "---\n" + OTHER.replace("engine: vllm", "engine: vlm"),
        "21:12 spec.training.steps",
        "33:13 spec.rollout.engine",
    ),
)
