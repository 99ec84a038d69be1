"""Valid and broken files that every validator of the API must accept or reject.

BROKEN are well-formed YAML that the API rejects; BROKEN_YAML never become one RLJob. A row is the file JOB with some of
its text replaced, and the position and field of each of its problems. The messages are in problems.golden.
"""

from dataclasses import dataclass

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


def broken_model(fields: str, *expected: str) -> Row:
    """JOB with a reward model, in line 20, of which `fields` are wrong."""
    return broken(_BUILTIN, f"{_BUILTIN}    models: [{fields}]\n", *expected)


GOOD = (
    good("as it is"),
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
        "overrides of a preset",
        ("  rollout:", "  algorithm: {preset: rloo, kl: {controller: adaptive, target: 6}}\n  rollout:"),
    ),
    good("another loss", ("  rollout:", "  algorithm: {loss: dual_clip, clipRatio: 0.1, clipRatioC: 2}\n  rollout:")),
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

BROKEN = (
    # what Kubernetes itself declares
    broken("rljob.dev/v1alpha1", "rljob.dev/v1", "1:13 apiVersion"),
    broken("kind: RLJob", "kind: RlJob", "2:7 kind"),
    broken("kind: RLJob\n", "", "1:1 kind"),
    broken("apiVersion: rljob.dev/v1alpha1\n", "", "1:1 apiVersion"),
    broken("  name: gsm8k-grpo", "  nmae: gsm8k-grpo", "4:3 metadata.nmae"),
    broken("name: gsm8k-grpo", "name: GSM8K_grpo", "4:9 metadata.name"),
    broken("name: gsm8k-grpo", "name: " + "a" * 41, "4:9 metadata.name"),
    broken("name: gsm8k-grpo", "name: 7b-grpo", "4:9 metadata.name"),
    broken("name: gsm8k-grpo", "name: 2024", "4:9 metadata.name"),
    broken("  name: gsm8k-grpo", "  name: j\n  labels: {urgent: yes}", "5:20 metadata.labels.urgent"),
    broken("metadata:\n  name: gsm8k-grpo\n", "", "1:1 metadata"),
    broken("spec:", "specs:", "5:1 specs"),
    # unknown and misplaced fields
    broken("promptsPerStep", "prompts_per_step", "9:5 spec.data.prompts_per_step"),
    broken("promptsPerStep", "train_batch_size", "9:5 spec.data.train_batch_size"),
    broken("samplesPerPrompt", "sampelsPerPrompt", "12:5 spec.rollout.sampelsPerPrompt"),
    broken("  actor:", "  temperature: 0.7\n  actor:", "13:3 spec.temperature"),
    broken(
        "    miniBatchSize: 32",
        "    topP:",  # a null is dropped where the field is known
        "15:5 spec.actor.topP",
    ),
    broken("    miniBatchSize: 32", "    topP: 0.9", "15:5 spec.actor.topP"),
    broken("    samplesPerPrompt: 8", "    n: 8", "12:5 spec.rollout.false"),
    broken("  training:", "  optimizer: {}\n  training:", "20:3 spec.optimizer"),
    broken("spec:", "data: {}\nspec:", "5:1 data"),
    broken("builtin: gsm8k", "buildin: gsm8k", "19:7 spec.rewards.functions[0].buildin"),
    # wrong types
    broken("samplesPerPrompt: 8", "samplesPerPrompt: '8'", "12:23 spec.rollout.samplesPerPrompt"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: 8.5", "12:23 spec.rollout.samplesPerPrompt"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: true", "12:23 spec.rollout.samplesPerPrompt"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: eight", "12:23 spec.rollout.samplesPerPrompt"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: [8]", "12:23 spec.rollout.samplesPerPrompt"),
    broken("learningRate: 1e-6", "learningRate: '1e-6'", "14:19 spec.actor.learningRate"),
    broken("learningRate: 1e-6", "learningRate: on", "14:19 spec.actor.learningRate"),
    broken("promptsPerStep: 64", "shuffle: 1", "9:14 spec.data.shuffle"),
    broken("promptsPerStep: 64", "shuffle: 'true'", "9:14 spec.data.shuffle"),
    broken("[/data/train.parquet]", "/data/train.parquet", "8:12 spec.data.train"),
    broken("[/data/train.parquet]", "[/data/train.parquet, ]\n    validation: [1]", "9:18 spec.data.validation[0]"),
    broken("[/data/train.parquet]", "[~]", "8:13 spec.data.train[0]"),
    broken("[/data/train.parquet]", "[2024-01-01, no]", "8:25 spec.data.train[1]"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", "Qwen/Qwen2.5-0.5B-Instruct", "6:10 spec.model"),
    broken("    steps: 100", "  - steps: 100", "21:3 spec.training"),
    broken("builtin: gsm8k", "path: r.py\n      arguments: [1]", "20:18 spec.rewards.functions[0].arguments"),
    # missing fields
    broken("    train: [/data/train.parquet]\n", "", "7:3 spec.data.train"),
    broken("    train: [/data/train.parquet]", "    train:", "8:5 spec.data.train"),
    broken("    steps: 100", "    {}", "20:3 spec.training.steps"),
    broken("  training:\n    steps: 100\n", "", "5:1 spec.training"),
    broken("    - name: exact\n      builtin: gsm8k", "    - builtin: gsm8k", "18:7 spec.rewards.functions[0].name"),
    broken("  rollout:", "  sft: {batchSize: 32}\n  rollout:", "10:3 spec.sft.steps"),
    # values out of bounds
    broken("engine: vllm", "engine: vlm", "11:13 spec.rollout.engine"),
    broken("engine: vllm", "engine: sglang", "11:13 spec.rollout.engine"),
    broken("engine: vllm", "engine: ''", "11:13 spec.rollout.engine"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: 0", "12:23 spec.rollout.samplesPerPrompt"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: 99999999999999999999", "12:23 spec.rollout.samplesPerPrompt"),
    broken("    engine: vllm", "    temperature: 0", "11:18 spec.rollout.temperature"),
    broken("    engine: vllm", "    topP: 1.5", "11:11 spec.rollout.topP"),
    broken("    engine: vllm", "    gpuMemoryUtilization: 1", "11:27 spec.rollout.gpuMemoryUtilization"),
    broken("    engine: vllm", "    topK: 0", "11:11 spec.rollout.topK"),
    broken("    engine: vllm", "    deadline: 5 minutes", "11:15 spec.rollout.deadline"),
    broken("    engine: vllm", "    deadline: 300", "11:15 spec.rollout.deadline"),
    broken("    engine: vllm", "    deadline: 0s", "11:15 spec.rollout.deadline"),
    broken("    engine: vllm", "    stop: ['']", "11:12 spec.rollout.stop[0]"),
    broken("    miniBatchSize: 32", "    beta1: 1", "15:12 spec.actor.beta1"),
    broken("[/data/train.parquet]", "[]", "8:12 spec.data.train"),
    broken("[/data/train.parquet]", f"[{', '.join(['a'] * 257)}]", "8:12 spec.data.train"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", "{path: ''}", "6:17 spec.model.path"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", f"{{path: {'m' * 1025}}}", "6:17 spec.model.path"),
    broken("- name: exact", "- name: Exact Match", "18:13 spec.rewards.functions[0].name"),
    broken("builtin: gsm8k", "module: my-rewards.gsm8k", "19:15 spec.rewards.functions[0].module"),
    broken(
        "    steps: 100", "    steps: 100\n    loggers: [console, wandb, console]", "22:31 spec.training.loggers[2]"
    ),
    broken("    steps: 100", "    steps: 100\n    loggers: [tensorbord]", "22:15 spec.training.loggers[0]"),
    broken("  training:", "  env: [{name: 1A, value: x}]\n  training:", "20:16 spec.env[0].name"),
    broken(
        "  training:",
        "  env: [{name: A, value: x}, {name: A, value: y}]\n  training:",
        "20:37 spec.env[1].name",
        "20:47 spec.env[1].value",
    ),
    broken("  training:", "  env: [{name: A, value: 1}]\n  training:", "20:26 spec.env[0].value"),
    broken(
        "      builtin: gsm8k",
        "      builtin: gsm8k\n    - {name: exact, builtin: regex}",
        "20:14 spec.rewards.functions[1].name",
    ),
    # rules across fields
    broken("  training:", "  env: [{name: A}]\n  training:", "20:9 spec.env[0].value"),
    broken("builtin: gsm8k", "builtin: gsm8k\n      path: reward.py", "19:16 spec.rewards.functions[0].builtin"),
    broken("\n    - name: exact\n      builtin: gsm8k", " []", "17:16 spec.rewards.functions"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", "{path: m, fromScratch: {}}", "6:17 spec.model.path"),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", "{fromScratch: {}, revision: main}", "6:38 spec.model.revision"),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {architecture: qwen2}}",
        "6:39 spec.model.fromScratch.architecture",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {hiddenSize: 96, heads: 4}}",
        "6:48 spec.model.fromScratch.heads",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {heads: 8, kvHeads: 3}}",
        "6:44 spec.model.fromScratch.kvHeads",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {tokenizer: {kind: bpe}}}",
        "6:25 spec.model.fromScratch.tokenizer.vocabSize",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {tokenizer: {vocabSize: 300}}}",
        "6:48 spec.model.fromScratch.tokenizer.vocabSize",
    ),
    broken("miniBatchSize: 32", "miniBatchSize: 48", "15:20 spec.actor.miniBatchSize"),
    broken("miniBatchSize: 32", "tokensPerMicroBatch: 1024", "15:26 spec.actor.tokensPerMicroBatch"),
    broken("samplesPerPrompt: 8", "samplesPerPrompt: 1", "12:23 spec.rollout.samplesPerPrompt"),
    broken(
        "    engine: vllm",
        "    tensorParallelSize: 3",
        "11:25 spec.rollout.tensorParallelSize",
        "11:25 spec.rollout.tensorParallelSize",
    ),
    broken("    engine: vllm", "    engine: vllm\n    deterministic: true", "12:20 spec.rollout.deterministic"),
    broken("    engine: vllm", "    engine: hf\n    tensorParallelSize: 2", "12:25 spec.rollout.tensorParallelSize"),
    broken(
        "  training:",
        "  cluster: {nodes: 2, gpusPerNode: 2}\n  training:\n    validateEvery: 5",
        "22:20 spec.training.validateEvery",
    ),
    broken_supervised("  training:", "  checkpoint: {keepBest: 1}\n  training:", "16:26 spec.checkpoint.keepBest"),
    broken_supervised("  rollout:", "    validation: [/data/test.parquet]\n  rollout:", "10:17 spec.data.validation"),
    broken_supervised("samplesPerPrompt: 8", "samplesPerPrompt: 4", "11:5 spec.rollout"),
    broken_supervised("engine: vllm", "validation: {temperature: 0.7}\n    stop: [x]", "11:5 spec.rollout"),
    broken_supervised("  training:", "  rewards: {processes: 2}\n  training:", "16:12 spec.rewards"),
    broken_supervised(
        "  training:", "  rewards: {functions: [{name: a, builtin: gsm8k}]}\n  training:", "16:12 spec.rewards"
    ),
    broken_supervised(
        "learningRate: 1e-6",
        "miniBatchSize: 32\n    epochs: 2",
        "14:20 spec.actor.miniBatchSize",
        "15:13 spec.actor.epochs",
    ),
    broken_supervised(
        "    steps: 100",
        "    steps: 100\n    validateBeforeTraining: false",
        "18:29 spec.training.validateBeforeTraining",
    ),
    broken("name: exact", "name: mean", "18:13 spec.rewards.functions[0].name"),
    broken("  training:", "  cluster: {nodes: 100}\n  training:", "9:21 spec.data.promptsPerStep"),
    broken(
        "  training:",
        "  checkpoint: {volume: {existingClaim: c, size: 5Gi}}\n  training:",
        "20:40 spec.checkpoint.volume.existingClaim",
    ),
    broken(
        "  training:",
        "  cluster: {head: {cpu: 2, memory: 8GB}}\n  training:",
        "20:25 spec.cluster.head.cpu",
        "20:36 spec.cluster.head.memory",
    ),
    broken(
        "  training:",
        "  cluster: {head: {memory: '0'}, worker: {memory: 0Gi, sharedMemory: '0.0'}}\n  training:",
        "20:28 spec.cluster.head.memory",
        "20:51 spec.cluster.worker.memory",
        "20:70 spec.cluster.worker.sharedMemory",
    ),
    broken(
        "  training:",
        "  cluster: {head: {memory: 64m}, worker: {memory: '16', sharedMemory: '0.0001'}}\n  training:",
        "20:28 spec.cluster.head.memory",
        "20:51 spec.cluster.worker.memory",
        "20:71 spec.cluster.worker.sharedMemory",
    ),
    broken("  training:", "  checkpoint: {volume: {size: 0Ti}}\n  training:", "20:31 spec.checkpoint.volume.size"),
    broken_model(f"{_RM}, memory: 0Gi}}", "20:65 spec.rewards.models[0].memory"),
    broken(
        "  training:", "  checkpoint: {volume: {subPath: a/../b}}\n  training:", "20:34 spec.checkpoint.volume.subPath"
    ),
    broken("  training:", "  checkpoint: {volume: {subPath: /a}}\n  training:", "20:34 spec.checkpoint.volume.subPath"),
    broken("  training:", "  cluster: {gpuResource: 'Bad Resource!!'}\n  training:", "20:26 spec.cluster.gpuResource"),
    broken("  training:", "  cluster: {gpuResource: gpu}\n  training:", "20:26 spec.cluster.gpuResource"),
    broken("  training:", "  managedBy: me\n  training:", "20:14 spec.managedBy"),
    broken("  training:", "  managedBy: example.com/\n  training:", "20:14 spec.managedBy"),
    broken("  training:", "  managedBy: Example.com/other\n  training:", "20:14 spec.managedBy"),
    broken("  training:", "  volumes: [{name: a}, {name: b}, {name: a}]\n  training:", "20:42 spec.volumes[2].name"),
    broken("  training:", "  volumes: [{name: job}]\n  training:", "20:12 spec.volumes"),
    broken("  training:", "  volumes: [{name: shared-mem}]\n  training:", "20:12 spec.volumes"),
    broken(
        "  training:",
        "  volumes: [{name: a}]\n  volumeMounts: [{name: a, mountPath: /a}, {name: a, mountPath: /a}]\n  training:",
        "21:65 spec.volumeMounts[1].mountPath",
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: {path}}}]\n  training:",
            "21:17 spec.volumeMounts",
        )
        for path in ("/checkpoints", "/checkpoints/", "//checkpoints/.", "/etc/./rljob//job", "/dev/shm/", "dev/shm")
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: {path}}}]\n  training:",
            "21:39 spec.volumeMounts[0].mountPath",
        )
        for path in ("/a/../checkpoints", "/..", "../checkpoints")
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: /a, subPath: {path}}}]\n  training:",
            "21:52 spec.volumeMounts[0].subPath",
        )
        for path in ("../x", "a/../../b", "/a", "..")
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {spec: {volumes: [{name: checkpoints}]}}}}\n  training:",
        "20:47 spec.cluster.head.template.spec.volumes",
    ),
    broken(
        "  training:",
        "  cluster: {worker: {template: {spec: {volumes: [{name: auth}]}}}}\n  training:",
        "20:49 spec.cluster.worker.template.spec.volumes",
    ),
    *(
        broken(
            "  training:",
            f"  cluster: {{head: {{template: {{spec: {{{entries}: [{{name: a}}, {{name: a}}]}}}}}}}}\n  training:",
            f"20:{59 + len(entries)} spec.cluster.head.template.spec.{entries}[1].name",
        )
        for entries in ("volumes", "containers", "initContainers")
    ),
    broken(
        "  training:",
        "  volumes: [{name: a}]\n  volumeMounts: [{name: nope, mountPath: /x}]\n  training:",
        "21:17 spec.volumeMounts",
    ),
    broken(
        "  training:",
        "  volumes: [{emptyDir: {}}]\n  volumeMounts: [{name: 7}]\n  training:",
        "20:13 spec.volumes[0].name",
        "21:18 spec.volumeMounts[0].mountPath",
        "21:25 spec.volumeMounts[0].name",
    ),
    broken("  training:", "  volumes: [{NAME: a}]\n  training:", "20:13 spec.volumes[0].name"),
    broken(
        "  training:",
        "  envFrom: [{foo: {name: x}}]\n  training:",
        "20:13 spec.envFrom[0].secretRef",
        "20:14 spec.envFrom[0].foo",
    ),
    broken(
        "  training:",
        "  envFrom: [{secretRef: {name: x}, configMapRef: {name: x}}]\n  training:",
        "20:25 spec.envFrom[0].secretRef",
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {spec: {tolerations: x}}}, worker: {template: {spec: {volumes: [x]}}}}\n"
        "  training:",
        "20:51 spec.cluster.head.template.spec.tolerations",
        "20:94 spec.cluster.worker.template.spec.volumes[0]",
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {metadata: {labels: x}}}, worker: {template: {spec: x}}}\n  training:",
        "20:50 spec.cluster.head.template.metadata.labels",
        "20:82 spec.cluster.worker.template.spec",
    ),
    broken_model(
        _RM + ", template: {spec: {tolerations: [x], initContainers: z}}}",
        "20:89 spec.rewards.models[0].template.spec.tolerations[0]",
        "20:109 spec.rewards.models[0].template.spec.initContainers",
    ),
    broken("  training:", "  cluster: {ranksPerNode: 4}\n  training:", "20:27 spec.cluster.ranksPerNode"),
    broken("  training:", "  sft: {steps: 3, batchSize: 4}\n  training:", "20:30 spec.sft.batchSize"),
    broken_supervised(
        "{preset: sft}", "{preset: sft, loss: clip}\n  sft: {steps: 3}", "15:23 spec.algorithm.preset", "16:8 spec.sft"
    ),
    broken("  training:", "  algorithm: {preset: dapo, clipRatio: 0.2}\n  training:", "20:40 spec.algorithm.clipRatio"),
    broken(
        "  training:",
        "  algorithm: {clipRatioHigh: 0.3, clipRatioC: 3, gamma: 0.9}\n  training:",
        "20:30 spec.algorithm.clipRatioHigh",
        "20:47 spec.algorithm.clipRatioC",
        "20:57 spec.algorithm.gamma",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: dr_grpo, kl: {coefficient: 0.1}}\n  training:",
        "20:50 spec.algorithm.kl.coefficient",
    ),
    broken(
        "  training:",
        "  algorithm: {kl: {target: 3, controller: adaptive}}\n  training:",
        "20:43 spec.algorithm.kl.controller",
    ),
    broken(
        "  training:",
        "  algorithm: {kl: {target: 1, horizon: 3}, dynamicSampling: {maxRounds: 2}}\n  training:",
        "20:28 spec.algorithm.kl.target",
        "20:40 spec.algorithm.kl.horizon",
        "20:73 spec.algorithm.dynamicSampling.maxRounds",
    ),
    broken("    functions:", "    timeout: 0ms\n    functions:", "17:14 spec.rewards.timeout"),
    broken_model("{name: mean, path: m, kind: classifier}", "20:21 spec.rewards.models[0].name"),
    *(
        broken_model(f"{{name: {name}, path: m, kind: classifier}}", "20:21 spec.rewards.models[0].name")
        for name in ("head-svc", "a-head-svc", "b-rm-c", "rm-c")
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {metadata: {labels: {ray.io/cluster: a}}}},\n"
        "    worker: {template: {metadata: {labels: {app.kubernetes.io/name: kuberay}}}}}\n  training:",
        "20:50 spec.cluster.head.template.metadata.labels",
        "21:44 spec.cluster.worker.template.metadata.labels",
    ),
    broken_model(
        _RM + ", template: {metadata: {labels: {app.kubernetes.io/created-by: kuberay-operator}}}}",
        "20:87 spec.rewards.models[0].template.metadata.labels",
    ),
    broken_model(
        _RM + ", template: {metadata: {labels: {team: 7}}}}",
        "20:94 spec.rewards.models[0].template.metadata.labels.team",
    ),
    broken_model("{name: exact, path: m, kind: classifier}", "20:13 spec.rewards.models"),
    broken_model(_RM + "}, " + _RM + "}", "20:65 spec.rewards.models[1].name"),
    broken_model(_RM + ", scorePattern: x}", "20:45 spec.rewards.models[0].kind"),
    broken_model(
        "{name: rm, path: m, kind: generative, promptTemplate: '{response}'}", "20:40 spec.rewards.models[0].kind"
    ),
    broken_model(_RM + ", promptTemplate: '{prompt}'}", "20:73 spec.rewards.models[0].promptTemplate"),
    broken_model(_RM + ", timeout: 11m}", "20:66 spec.rewards.models[0].timeout"),
    broken_model(
        "{name: aaaaaaaaaaaaaaaaaaaa, path: m, kind: reward}",
        "20:21 spec.rewards.models[0].name",
        "20:58 spec.rewards.models[0].kind",
    ),
    broken_supervised(
        "  training:", "  rewards: {models: [{name: a, path: m, kind: classifier}]}\n  training:", "16:12 spec.rewards"
    ),
    broken("  training:", "  recovery: {backoff: {initial: 90s}}\n  training:", "20:33 spec.recovery.backoff.initial"),
    broken(
        "  training:",
        "  recovery: {rules: [{action: restart}, {onExitCodes: [75, 76], action: give_up}]}\n  training:",
        "20:22 spec.recovery.rules[0].onExitCodes",
        "20:55 spec.recovery.rules[1].onExitCodes",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onReasons: [RankLost, Fenced], action: restart}]}\n  training:",
        "20:34 spec.recovery.rules[0].onReasons",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onReasons: [RankLots, OomKilled], action: give_up}]}\n  training:",
        "20:34 spec.recovery.rules[0].onReasons",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onExitCodes: [-9, 0], onReasons: [rank hung], action: ignore}]}\n  training:",
        "20:37 spec.recovery.rules[0].onExitCodes[0]",
        "20:41 spec.recovery.rules[0].onExitCodes[1]",
        "20:57 spec.recovery.rules[0].onReasons[0]",
        "20:77 spec.recovery.rules[0].action",
    ),
    broken("  training:", "  activeDeadline: 0s\n  training:", "20:19 spec.activeDeadline"),
    broken(
        "  training:",
        "  recovery: {hangAfter: 500ms, takeoverWithin: 0s, nodeLostAfter: 10ms}\n  training:",
        "20:25 spec.recovery.hangAfter",
        "20:48 spec.recovery.takeoverWithin",
        "20:67 spec.recovery.nodeLostAfter",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: dapo, kl: {estimator: k1, controller: fixed}}\n  training:",
        "20:45 spec.algorithm.kl.estimator",
        "20:61 spec.algorithm.kl.controller",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: rloo, clipRatioLow: 0.1}\n  training:",
        "20:43 spec.algorithm.clipRatioLow",
    ),
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
