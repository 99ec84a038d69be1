"""The files that every judge of the API is held to: good ones, and broken ones with what must be said about them.

BROKEN are well-formed YAML that the API refuses; BROKEN_YAML never become one RLJob. A row is the file JOB with some
of its text replaced, and the lines that `rljob validate` prints about it, without the file's name.
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
    """One file. edits: (what JOB says, what this file says instead). expected: the problems, in the file's order."""

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
_SIZED = " must be a size above 0 with a unit of bytes, such as 512Mi or 64Gi: correct it"
_RM = "{name: rm, path: org/rm, kind: classifier"


_MANAGER = "20:14: spec.managedBy: must be a controller's name with its domain, such as example.com/controller; got "


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
    broken("rljob.dev/v1alpha1", "rljob.dev/v1", "1:13: apiVersion: must be rljob.dev/v1alpha1; got 'rljob.dev/v1'"),
    broken("kind: RLJob", "kind: RlJob", "2:7: kind: must be RLJob; got 'RlJob'"),
    broken("kind: RLJob\n", "", "1:1: kind: is required. Always RLJob"),
    broken("apiVersion: rljob.dev/v1alpha1\n", "", "1:1: apiVersion: is required. Always rljob.dev/v1alpha1"),
    broken("  name: gsm8k-grpo", "  nmae: gsm8k-grpo", "4:3: metadata.nmae: unknown field. Did you mean name?"),
    broken(
        "name: gsm8k-grpo",
        "name: GSM8K_grpo",
        "4:9: metadata.name: metadata.name must be lowercase letters, digits and '-', begin with a letter and have at"
        " most 40 characters: the objects made for the job carry it with a suffix",
    ),
    broken(
        "name: gsm8k-grpo",
        "name: " + "a" * 41,
        "4:9: metadata.name: metadata.name must be lowercase letters, digits and '-', begin with a letter and have at"
        " most 40 characters: the objects made for the job carry it with a suffix",
    ),
    broken(
        "name: gsm8k-grpo",
        "name: 7b-grpo",
        "4:9: metadata.name: metadata.name must be lowercase letters, digits and '-', begin with a letter and have at"
        " most 40 characters: the objects made for the job carry it with a suffix",
    ),
    broken("name: gsm8k-grpo", "name: 2024", "4:9: metadata.name: must be text; got 2024. Put it in quotes"),
    broken(
        "  name: gsm8k-grpo",
        "  name: j\n  labels: {urgent: yes}",
        "5:20: metadata.labels.urgent: must be text; got true. Put it in quotes",
    ),
    broken("metadata:\n  name: gsm8k-grpo\n", "", "1:1: metadata: is required. Name and labels"),
    broken("spec:", "specs:", "5:1: specs: unknown field. Did you mean spec?"),
    # unknown and misplaced fields
    broken(
        "promptsPerStep",
        "prompts_per_step",
        "9:5: spec.data.prompts_per_step: unknown field. Did you mean promptsPerStep?",
    ),
    broken(
        "promptsPerStep",
        "train_batch_size",
        "9:5: spec.data.train_batch_size: unknown field. Did you mean spec.data.promptsPerStep?",
    ),
    broken(
        "samplesPerPrompt",
        "sampelsPerPrompt",
        "12:5: spec.rollout.sampelsPerPrompt: unknown field. Did you mean samplesPerPrompt?",
    ),
    broken(
        "  actor:",
        "  temperature: 0.7\n  actor:",
        "13:3: spec.temperature: unknown field. Did you mean spec.rollout.temperature or"
        " spec.rollout.validation.temperature?",
    ),
    broken(
        "    miniBatchSize: 32",
        "    topP:",  # a null is dropped where the field is known
        "15:5: spec.actor.topP: unknown field. Did you mean spec.rollout.topP or spec.rollout.validation.topP?",
    ),
    broken(
        "    miniBatchSize: 32",
        "    topP: 0.9",
        "15:5: spec.actor.topP: unknown field. Did you mean spec.rollout.topP or spec.rollout.validation.topP?",
    ),
    broken(
        "    samplesPerPrompt: 8",
        "    n: 8",
        "12:5: spec.rollout.false: unknown field. YAML reads the keys y, n, yes, no, on and off as booleans: put the"
        " key in quotes",
    ),
    broken(
        "  training:",
        "  optimizer: {}\n  training:",
        "20:3: spec.optimizer: unknown field. The fields here are model, data, algorithm, sft, rollout, actor, rewards,"
        " training, checkpoint, cluster, env, envFrom, volumes, volumeMounts, imagePullSecrets, recovery, suspend,"
        " activeDeadline, ttlAfterFinished, managedBy",
    ),
    broken("spec:", "data: {}\nspec:", "5:1: data: unknown field. Did you mean spec.data or spec.sft.data?"),
    broken(
        "builtin: gsm8k",
        "buildin: gsm8k",
        "19:7: spec.rewards.functions[0].buildin: unknown field. Did you mean builtin?",
    ),
    # wrong types
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: '8'",
        "12:23: spec.rollout.samplesPerPrompt: must be a whole number; got '8'. Remove the quotes",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: 8.5",
        "12:23: spec.rollout.samplesPerPrompt: must be a whole number; got 8.5",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: true",
        "12:23: spec.rollout.samplesPerPrompt: must be a whole number; got true",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: eight",
        "12:23: spec.rollout.samplesPerPrompt: must be a whole number; got 'eight'",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: [8]",
        "12:23: spec.rollout.samplesPerPrompt: must be a whole number; got a list",
    ),
    broken(
        "learningRate: 1e-6",
        "learningRate: '1e-6'",
        "14:19: spec.actor.learningRate: must be a number; got '1e-6'. Remove the quotes",
    ),
    broken("learningRate: 1e-6", "learningRate: on", "14:19: spec.actor.learningRate: must be a number; got true"),
    broken("promptsPerStep: 64", "shuffle: 1", "9:14: spec.data.shuffle: must be true or false; got 1"),
    broken(
        "promptsPerStep: 64",
        "shuffle: 'true'",
        "9:14: spec.data.shuffle: must be true or false; got 'true'. Remove the quotes",
    ),
    broken(
        "[/data/train.parquet]",
        "/data/train.parquet",
        "8:12: spec.data.train: must be a list; got '/data/train.parquet'. Write it as a list, in [ ]",
    ),
    broken(
        "[/data/train.parquet]",
        "[/data/train.parquet, ]\n    validation: [1]",
        "9:18: spec.data.validation[0]: must be text; got 1. Put it in quotes",
    ),
    broken("[/data/train.parquet]", "[~]", "8:13: spec.data.train[0]: must be text; got nothing"),
    broken(
        "[/data/train.parquet]",
        "[2024-01-01, no]",
        "8:25: spec.data.train[1]: must be text; got false. Put it in quotes",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "6:10: spec.model: must be a mapping of fields; got 'Qwen/Qwen2.5-0.5B-Instruct'. Its fields are path,"
        " fromScratch, revision, dtype, attention, trustRemoteCode, chatTemplate",
    ),
    broken(
        "    steps: 100",
        "  - steps: 100",
        "21:3: spec.training: must be a mapping of fields; got a list. Its fields are steps, epochs, validateEvery,"
        " validateBeforeTraining, seed, loggers, project",
    ),
    broken(
        "builtin: gsm8k",
        "path: r.py\n      arguments: [1]",
        "20:18: spec.rewards.functions[0].arguments: must be a mapping of fields; got a list",
    ),
    # missing fields
    broken(
        "    train: [/data/train.parquet]\n",
        "",
        "7:3: spec.data.train: is required. Training files, read in this order",
    ),
    broken(
        "    train: [/data/train.parquet]",
        "    train:",
        "8:5: spec.data.train: is required. Training files, read in this order",
    ),
    broken(
        "    steps: 100",
        "    {}",
        "20:3: spec.training.steps: is required. Training steps (after the supervised ones of spec.sft)",
    ),
    broken("  training:\n    steps: 100\n", "", "5:1: spec.training: is required. Length and reporting of the run"),
    broken(
        "    - name: exact\n      builtin: gsm8k",
        "    - builtin: gsm8k",
        "18:7: spec.rewards.functions[0].name: is required. Name in logs and metrics: reward/NAME",
    ),
    broken(
        "  rollout:",
        "  sft: {batchSize: 32}\n  rollout:",
        "10:3: spec.sft.steps: is required. Supervised steps; RL steps are counted after them",
    ),
    # values out of bounds
    broken(
        "engine: vllm",
        "engine: vlm",
        "11:13: spec.rollout.engine: must be one of vllm, hf; got 'vlm'. Did you mean vllm?",
    ),
    broken("engine: vllm", "engine: sglang", "11:13: spec.rollout.engine: must be one of vllm, hf; got 'sglang'"),
    broken("engine: vllm", "engine: ''", "11:13: spec.rollout.engine: must be one of vllm, hf; got ''"),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: 0",
        "12:23: spec.rollout.samplesPerPrompt: must be from 1 to 4096; got 0",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: 99999999999999999999",
        "12:23: spec.rollout.samplesPerPrompt: must be from 1 to 4096; got 1e+20",
    ),
    broken(
        "    engine: vllm",
        "    temperature: 0",
        "11:18: spec.rollout.temperature: must be above 0 and at most 10; got 0",
    ),
    broken("    engine: vllm", "    topP: 1.5", "11:11: spec.rollout.topP: must be above 0 and at most 1; got 1.5"),
    broken(
        "    engine: vllm",
        "    gpuMemoryUtilization: 1",
        "11:27: spec.rollout.gpuMemoryUtilization: must be from 0.05 to 0.95; got 1",
    ),
    broken(
        "    engine: vllm",
        "    topK: 0",
        "11:11: spec.rollout.topK: rollout.topK of 0 leaves no token to sample: set it to -1 for all tokens",
    ),
    broken(
        "    engine: vllm",
        "    deadline: 5 minutes",
        "11:15: spec.rollout.deadline: must be a duration such as 90s, 1h30m or 500ms; got '5 minutes'",
    ),
    broken(
        "    engine: vllm",
        "    deadline: 300",
        "11:15: spec.rollout.deadline: must be a duration such as 90s, 1h30m or 500ms; got 300",
    ),
    broken(
        "    engine: vllm",
        "    deadline: 0s",
        "11:15: spec.rollout.deadline: rollout.deadline must be above 0s: set it to 30m, say",
    ),
    broken("    engine: vllm", "    stop: ['']", "11:12: spec.rollout.stop[0]: must not be empty; got ''"),
    broken("    miniBatchSize: 32", "    beta1: 1", "15:12: spec.actor.beta1: must be at least 0 and below 1; got 1"),
    broken("[/data/train.parquet]", "[]", "8:12: spec.data.train: needs at least 1 entry"),
    broken(
        "[/data/train.parquet]",
        f"[{', '.join(['a'] * 257)}]",
        "8:12: spec.data.train: takes at most 256 entries; got 257",
    ),
    broken("{path: Qwen/Qwen2.5-0.5B-Instruct}", "{path: ''}", "6:17: spec.model.path: must not be empty; got ''"),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        f"{{path: {'m' * 1025}}}",
        "6:17: spec.model.path: must have at most 1024 characters, not 1025; got"
        " 'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm...'",
    ),
    broken(
        "- name: exact",
        "- name: Exact Match",
        "18:13: spec.rewards.functions[0].name: must be lowercase letters, digits and '-', with a letter or digit at"
        " both ends; got 'Exact Match'",
    ),
    broken(
        "builtin: gsm8k",
        "module: my-rewards.gsm8k",
        "19:15: spec.rewards.functions[0].module: must be a Python module such as package.module; got"
        " 'my-rewards.gsm8k'",
    ),
    broken(
        "    steps: 100",
        "    steps: 100\n    loggers: [console, wandb, console]",
        "22:31: spec.training.loggers[2]: 'console' stands in this list already. Remove it",
    ),
    broken(
        "    steps: 100",
        "    steps: 100\n    loggers: [tensorbord]",
        "22:15: spec.training.loggers[0]: must be one of console, tensorboard, wandb, mlflow, trackio; got"
        " 'tensorbord'. Did you mean tensorboard?",
    ),
    broken(
        "  training:",
        "  env: [{name: 1A, value: x}]\n  training:",
        "20:16: spec.env[0].name: must be letters, digits and '_', not beginning with a digit; got '1A'",
    ),
    broken(
        "  training:",
        "  env: [{name: A, value: x}, {name: A, value: y}]\n  training:",
        "20:37: spec.env[1].name: 'A' stands in this list already. Rename it",
        "20:47: spec.env[1].value: must be text; got true. Put it in quotes",
    ),
    broken(
        "  training:",
        "  env: [{name: A, value: 1}]\n  training:",
        "20:26: spec.env[0].value: must be text; got 1. Put it in quotes",
    ),
    broken(
        "      builtin: gsm8k",
        "      builtin: gsm8k\n    - {name: exact, builtin: regex}",
        "20:14: spec.rewards.functions[1].name: 'exact' stands in this list already. Rename it",
    ),
    # rules across fields
    broken("  training:", "  env: [{name: A}]\n  training:", "20:9: spec.env[0].value: set either value or valueFrom"),
    broken(
        "builtin: gsm8k",
        "builtin: gsm8k\n      path: reward.py",
        "19:16: spec.rewards.functions[0].builtin: a reward comes from one place: set exactly one of builtin, path,"
        " module, source",
    ),
    broken(
        "\n    - name: exact\n      builtin: gsm8k",
        " []",
        "17:16: spec.rewards.functions: an RL job needs a reward: add rewards.functions, for example [{name: exact,"
        " builtin: exact_match}], or rewards.models",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{path: m, fromScratch: {}}",
        "6:17: spec.model.path: a model comes from one place: set either path or fromScratch",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {}, revision: main}",
        "6:38: spec.model.revision: revision belongs to path: set path, or remove revision",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {architecture: qwen2}}",
        "6:39: spec.model.fromScratch.architecture: transformers reads every qwen2 folder with Qwen2's byte-level"
        " tokenizer, which drops what a character tokenizer knows: set architecture to llama, or tokenizer.kind to"
        " byte",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {hiddenSize: 96, heads: 4}}",
        "6:48: spec.model.fromScratch.heads: hiddenSize must be a multiple of heads, and hiddenSize / heads at least"
        " 32: lower heads or raise hiddenSize",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {heads: 8, kvHeads: 3}}",
        "6:44: spec.model.fromScratch.kvHeads: kvHeads must divide heads: set kvHeads to a divisor of heads, or"
        " remove it",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {tokenizer: {kind: bpe}}}",
        "6:25: spec.model.fromScratch.tokenizer.vocabSize: tokenizer.vocabSize belongs to kind bpe, which needs it: set"
        " it for bpe, remove it for the other kinds",
    ),
    broken(
        "{path: Qwen/Qwen2.5-0.5B-Instruct}",
        "{fromScratch: {tokenizer: {vocabSize: 300}}}",
        "6:48: spec.model.fromScratch.tokenizer.vocabSize: tokenizer.vocabSize belongs to kind bpe, which needs it: set"
        " it for bpe, remove it for the other kinds",
    ),
    broken(
        "miniBatchSize: 32",
        "miniBatchSize: 48",
        "15:20: spec.actor.miniBatchSize: actor.miniBatchSize must divide data.promptsPerStep: set it to a divisor, or"
        " remove it",
    ),
    broken(
        "miniBatchSize: 32",
        "tokensPerMicroBatch: 1024",
        "15:26: spec.actor.tokensPerMicroBatch: actor.tokensPerMicroBatch must hold one whole sample: raise it to at"
        " least data.maxPromptTokens + data.maxResponseTokens",
    ),
    broken(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: 1",
        "12:23: spec.rollout.samplesPerPrompt: this advantage compares the samples of a prompt: set"
        " rollout.samplesPerPrompt to 2 or more",
    ),
    broken(
        "    engine: vllm",
        "    tensorParallelSize: 3",
        "11:25: spec.rollout.tensorParallelSize: rollout.tensorParallelSize must divide the number of ranks, which is"
        " cluster.nodes x cluster.ranksPerNode",
        "11:25: spec.rollout.tensorParallelSize: an engine stays within one node: rollout.tensorParallelSize must"
        " divide cluster.gpusPerNode",
    ),
    broken(
        "    engine: vllm",
        "    engine: vllm\n    deterministic: true",
        "12:20: spec.rollout.deterministic: rollout.deterministic needs rollout.engine: hf, because vllm's rounding"
        " depends on its batches: set it, or remove rollout.deterministic",
    ),
    broken(
        "    engine: vllm",
        "    engine: hf\n    tensorParallelSize: 2",
        "12:25: spec.rollout.tensorParallelSize: engine hf runs on one device: set rollout.tensorParallelSize to 1, or"
        " rollout.engine to vllm",
    ),
    broken(
        "  training:",
        "  cluster: {nodes: 2, gpusPerNode: 2}\n  training:\n    validateEvery: 5",
        "22:20: spec.training.validateEvery: training.validateEvery needs data to validate on: set data.validation, or"
        " training.validateEvery: 0",
    ),
    broken_supervised(
        "  training:",
        "  checkpoint: {keepBest: 1}\n  training:",
        "16:26: spec.checkpoint.keepBest: preset sft has no reward that tells which checkpoint is best: remove"
        " checkpoint.keepBest, or choose an RL preset",
    ),
    broken_supervised(
        "  rollout:",
        "    validation: [/data/test.parquet]\n  rollout:",
        "10:17: spec.data.validation: preset sft does not validate: remove data.validation, or choose an RL preset",
    ),
    broken_supervised(
        "samplesPerPrompt: 8",
        "samplesPerPrompt: 4",
        "11:5: spec.rollout: preset sft generates no responses: remove rollout, or choose an RL preset",
    ),
    broken_supervised(
        "engine: vllm",
        "validation: {temperature: 0.7}\n    stop: [x]",
        "11:5: spec.rollout: preset sft generates no responses: remove rollout, or choose an RL preset",
    ),
    broken_supervised(
        "  training:",
        "  rewards: {processes: 2}\n  training:",
        "16:12: spec.rewards: preset sft scores nothing: remove rewards, or choose an RL preset",
    ),
    broken_supervised(
        "  training:",
        "  rewards: {functions: [{name: a, builtin: gsm8k}]}\n  training:",
        "16:12: spec.rewards: preset sft scores nothing: remove rewards, or choose an RL preset",
    ),
    broken_supervised(
        "learningRate: 1e-6",
        "miniBatchSize: 32\n    epochs: 2",
        "14:20: spec.actor.miniBatchSize: preset sft makes one optimizer step of data.promptsPerStep rows: remove"
        " actor.miniBatchSize, or choose an RL preset",
        "15:13: spec.actor.epochs: preset sft reads each row of a step once: remove actor.epochs, or choose an RL"
        " preset",
    ),
    broken_supervised(
        "    steps: 100",
        "    steps: 100\n    validateBeforeTraining: false",
        "18:29: spec.training.validateBeforeTraining: preset sft does not validate: remove"
        " training.validateBeforeTraining, or choose an RL preset",
    ),
    broken(
        "name: exact",
        "name: mean",
        "18:13: spec.rewards.functions[0].name: reward/mean, std, min and max are metrics of the sum: choose another"
        " name",
    ),
    broken(
        "  training:",
        "  cluster: {nodes: 100}\n  training:",
        "9:21: spec.data.promptsPerStep: each rank needs a sample of every optimizer step: raise data.promptsPerStep or"
        " actor.miniBatchSize, or lower cluster.nodes",
    ),
    broken(
        "  training:",
        "  checkpoint: {volume: {existingClaim: c, size: 5Gi}}\n  training:",
        "20:40: spec.checkpoint.volume.existingClaim: a claim that exists has its size, class and mode already: remove"
        " size, storageClassName and accessMode, or existingClaim",
    ),
    broken(
        "  training:",
        "  cluster: {head: {cpu: 2, memory: 8GB}}\n  training:",
        "20:25: spec.cluster.head.cpu: must be a Kubernetes quantity such as 500m, 8 or 64Gi, as text; got 2. Put it in"
        " quotes",
        "20:36: spec.cluster.head.memory: must be a Kubernetes quantity such as 500m, 8 or 64Gi, as text; got '8GB'",
    ),
    broken(
        "  training:",
        "  cluster: {head: {memory: '0'}, worker: {memory: 0Gi, sharedMemory: '0.0'}}\n  training:",
        f"20:28: spec.cluster.head.memory: memory{_SIZED}",
        f"20:51: spec.cluster.worker.memory: memory{_SIZED}",
        f"20:70: spec.cluster.worker.sharedMemory: sharedMemory{_SIZED}",
    ),
    broken(
        "  training:",
        "  cluster: {head: {memory: 64m}, worker: {memory: '16', sharedMemory: '0.0001'}}\n  training:",
        f"20:28: spec.cluster.head.memory: memory{_SIZED}",
        f"20:51: spec.cluster.worker.memory: memory{_SIZED}",
        f"20:71: spec.cluster.worker.sharedMemory: sharedMemory{_SIZED}",
    ),
    broken(
        "  training:",
        "  checkpoint: {volume: {size: 0Ti}}\n  training:",
        f"20:31: spec.checkpoint.volume.size: size{_SIZED}",
    ),
    broken_model(
        f"{_RM}, memory: 0Gi}}",
        f"20:65: spec.rewards.models[0].memory: memory{_SIZED}",
    ),
    broken(
        "  training:",
        "  checkpoint: {volume: {subPath: a/../b}}\n  training:",
        "20:34: spec.checkpoint.volume.subPath: checkpoint.volume.subPath is a folder within the volume: begin it"
        " without '/', and leave out '..'",
    ),
    broken(
        "  training:",
        "  checkpoint: {volume: {subPath: /a}}\n  training:",
        "20:34: spec.checkpoint.volume.subPath: checkpoint.volume.subPath is a folder within the volume: begin it"
        " without '/', and leave out '..'",
    ),
    broken(
        "  training:",
        "  cluster: {gpuResource: 'Bad Resource!!'}\n  training:",
        "20:26: spec.cluster.gpuResource: must be a resource's name with its domain, such as nvidia.com/gpu; got 'Bad"
        " Resource!!'",
    ),
    broken(
        "  training:",
        "  cluster: {gpuResource: gpu}\n  training:",
        "20:26: spec.cluster.gpuResource: must be a resource's name with its domain, such as nvidia.com/gpu; got 'gpu'",
    ),
    broken(
        "  training:",
        "  managedBy: me\n  training:",
        f"{_MANAGER}'me'",
    ),
    broken(
        "  training:",
        "  managedBy: example.com/\n  training:",
        f"{_MANAGER}'example.com/'",
    ),
    broken(
        "  training:",
        "  managedBy: Example.com/other\n  training:",
        f"{_MANAGER}'Example.com/other'",
    ),
    broken(
        "  training:",
        "  volumes: [{name: a}, {name: b}, {name: a}]\n  training:",
        "20:42: spec.volumes[2].name: 'a' stands in this list already. Rename it",
    ),
    broken(
        "  training:",
        "  volumes: [{name: job}]\n  training:",
        "20:12: spec.volumes: checkpoints, job, auth and shared-memory are the operator's own volumes, shared-mem is"
        " KubeRay's: choose another name; spec.checkpoint.volume says where checkpoints go",
    ),
    broken(
        "  training:",
        "  volumes: [{name: shared-mem}]\n  training:",
        "20:12: spec.volumes: checkpoints, job, auth and shared-memory are the operator's own volumes, shared-mem is"
        " KubeRay's: choose another name; spec.checkpoint.volume says where checkpoints go",
    ),
    broken(
        "  training:",
        "  volumes: [{name: a}]\n  volumeMounts: [{name: a, mountPath: /a}, {name: a, mountPath: /a}]\n  training:",
        "21:65: spec.volumeMounts[1].mountPath: '/a' stands in this list already. Rename it",
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: {path}}}]\n  training:",
            "21:17: spec.volumeMounts: the operator mounts its own volumes at /checkpoints, /etc/rljob/job and"
            " /dev/shm: choose another path",
        )
        for path in ("/checkpoints", "/checkpoints/", "//checkpoints/.", "/etc/./rljob//job", "/dev/shm/", "dev/shm")
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: {path}}}]\n  training:",
            "21:39: spec.volumeMounts[0].mountPath: a volume mount's mountPath is compared with other paths: write it"
            " without '..'",
        )
        for path in ("/a/../checkpoints", "/..", "../checkpoints")
    ),
    *(
        broken(
            "  training:",
            f"  volumes: [{{name: a}}]\n  volumeMounts: [{{name: a, mountPath: /a, subPath: {path}}}]\n  training:",
            "21:52: spec.volumeMounts[0].subPath: a volume mount's subPath is a folder within the volume: begin it"
            " without '/', and leave out '..'",
        )
        for path in ("../x", "a/../../b", "/a", "..")
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {spec: {volumes: [{name: checkpoints}]}}}}\n  training:",
        "20:47: spec.cluster.head.template.spec.volumes: checkpoints, job and auth are the operator's own volumes:"
        " choose another name; spec.checkpoint.volume says where checkpoints go",
    ),
    broken(
        "  training:",
        "  cluster: {worker: {template: {spec: {volumes: [{name: auth}]}}}}\n  training:",
        "20:49: spec.cluster.worker.template.spec.volumes: checkpoints, job and auth are the operator's own volumes:"
        " choose another name; spec.checkpoint.volume says where checkpoints go",
    ),
    *(
        broken(
            "  training:",
            f"  cluster: {{head: {{template: {{spec: {{{entries}: [{{name: a}}, {{name: a}}]}}}}}}}}\n  training:",
            f"20:{59 + len(entries)}: spec.cluster.head.template.spec.{entries}[1].name: 'a' stands in this list"
            " already. Rename it",
        )
        for entries in ("volumes", "containers", "initContainers")
    ),
    broken(
        "  training:",
        "  volumes: [{name: a}]\n  volumeMounts: [{name: nope, mountPath: /x}]\n  training:",
        "21:17: spec.volumeMounts: a volume can be mounted only where there is one of its name: add it to volumes, or"
        " correct the name in volumeMounts",
    ),
    broken(
        "  training:",
        "  volumes: [{emptyDir: {}}]\n  volumeMounts: [{name: 7}]\n  training:",
        "20:13: spec.volumes[0].name: is required. Name of the volume",
        "21:18: spec.volumeMounts[0].mountPath: is required. The path in the container",
        "21:25: spec.volumeMounts[0].name: must be lowercase letters, digits and '-', with a letter or digit at both"
        " ends; got 7. Put it in quotes",
    ),
    broken(
        "  training:",
        "  volumes: [{NAME: a}]\n  training:",
        "20:13: spec.volumes[0].name: is required. Name of the volume",
    ),
    broken(
        "  training:",
        "  envFrom: [{foo: {name: x}}]\n  training:",
        "20:13: spec.envFrom[0].secretRef: variables come from one object: set either configMapRef or secretRef",
        "20:14: spec.envFrom[0].foo: unknown field. The fields here are prefix, configMapRef, secretRef",
    ),
    broken(
        "  training:",
        "  envFrom: [{secretRef: {name: x}, configMapRef: {name: x}}]\n  training:",
        "20:25: spec.envFrom[0].secretRef: variables come from one object: set either configMapRef or secretRef",
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {spec: {tolerations: x}}}, worker: {template: {spec: {volumes: [x]}}}}\n"
        "  training:",
        "20:51: spec.cluster.head.template.spec.tolerations: must be a list; got 'x'. Write it as a list, in [ ]",
        "20:94: spec.cluster.worker.template.spec.volumes[0]: must be a mapping of fields; got 'x'",
    ),
    broken(
        "  training:",
        "  cluster: {head: {template: {metadata: {labels: x}}}, worker: {template: {spec: x}}}\n  training:",
        "20:50: spec.cluster.head.template.metadata.labels: must be a mapping of fields; got 'x'",
        "20:82: spec.cluster.worker.template.spec: must be a mapping of fields; got 'x'",
    ),
    broken_model(
        _RM + ", template: {spec: {tolerations: [x], initContainers: z}}}",
        "20:89: spec.rewards.models[0].template.spec.tolerations[0]: must be a mapping of fields; got 'x'",
        "20:109: spec.rewards.models[0].template.spec.initContainers: must be a list; got 'z'. Write it as a list, in"
        " [ ]",
    ),
    broken(
        "  training:",
        "  cluster: {ranksPerNode: 4}\n  training:",
        "20:27: spec.cluster.ranksPerNode: each GPU has one rank: remove ranksPerNode, or set it to gpusPerNode",
    ),
    broken(
        "  training:",
        "  sft: {steps: 3, batchSize: 4}\n  training:",
        "20:30: spec.sft.batchSize: each rank needs a row of every supervised step: raise sft.batchSize, or lower"
        " cluster.nodes",
    ),
    broken_supervised(
        "{preset: sft}",
        "{preset: sft, loss: clip}\n  sft: {steps: 3}",
        "15:23: spec.algorithm.preset: preset sft is supervised and reads no other field of algorithm: remove them, or"
        " choose an RL preset",
        "16:8: spec.sft: preset sft is supervised from its first step: remove sft, or choose an RL preset",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: dapo, clipRatio: 0.2}\n  training:",
        "20:40: spec.algorithm.clipRatio: algorithm.clipRatio has an effect only where loss is clip or dual_clip:"
        " remove it, or change that",
    ),
    broken(
        "  training:",
        "  algorithm: {clipRatioHigh: 0.3, clipRatioC: 3, gamma: 0.9}\n  training:",
        "20:30: spec.algorithm.clipRatioHigh: algorithm.clipRatioHigh has an effect only where loss is decoupled_clip:"
        " remove it, or change that",
        "20:47: spec.algorithm.clipRatioC: algorithm.clipRatioC has an effect only where loss is dual_clip: remove it,"
        " or change that",
        "20:57: spec.algorithm.gamma: algorithm.gamma has an effect only where advantage is reinforce_plus_plus: remove"
        " it, or change that",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: dr_grpo, kl: {coefficient: 0.1}}\n  training:",
        "20:50: spec.algorithm.kl.coefficient: algorithm.kl.coefficient has an effect only where kl.placement is loss"
        " or reward: remove it, or change that",
    ),
    broken(
        "  training:",
        "  algorithm: {kl: {target: 3, controller: adaptive}}\n  training:",
        "20:43: spec.algorithm.kl.controller: the adaptive controller steers a penalty in the reward: set"
        " algorithm.kl.placement to reward, or algorithm.kl.controller to fixed",
    ),
    broken(
        "  training:",
        "  algorithm: {kl: {target: 1, horizon: 3}, dynamicSampling: {maxRounds: 2}}\n  training:",
        "20:28: spec.algorithm.kl.target: algorithm.kl.target has an effect only where kl.controller is adaptive:"
        " remove it, or change that",
        "20:40: spec.algorithm.kl.horizon: algorithm.kl.horizon has an effect only where kl.controller is adaptive:"
        " remove it, or change that",
        "20:73: spec.algorithm.dynamicSampling.maxRounds: algorithm.dynamicSampling.maxRounds has an effect only where"
        " dynamicSampling.enabled is true: remove it, or change that",
    ),
    broken(
        "    functions:",
        "    timeout: 0ms\n    functions:",
        "17:14: spec.rewards.timeout: rewards.timeout must be above 0s: set it to 30s, say",
    ),
    broken_model(
        "{name: mean, path: m, kind: classifier}",
        "20:21: spec.rewards.models[0].name: reward/mean, std, min and max are metrics of the sum: choose another name"
        " for the reward model",
    ),
    *(
        broken_model(
            f"{{name: {name}, path: m, kind: classifier}}",
            "20:21: spec.rewards.models[0].name: KubeRay gives the Service of a Ray cluster's head a name that ends in"
            " -head-svc, perhaps another job's cluster: choose another name for the reward model",
        )
        for name in ("head-svc", "a-head-svc")
    ),
    broken_model(
        "{name: exact, path: m, kind: classifier}",
        "20:13: spec.rewards.models: a reward model and a reward function have the same name: rename one, both are"
        " reward/NAME in metrics",
    ),
    broken_model(
        _RM + "}, " + _RM + "}",
        "20:65: spec.rewards.models[1].name: 'rm' stands in this list already. Rename it",
    ),
    broken_model(
        _RM + ", scorePattern: x}",
        "20:45: spec.rewards.models[0].kind: a classifier answers with a number: remove scorePattern and maxTokens, or"
        " set kind to generative",
    ),
    broken_model(
        "{name: rm, path: m, kind: generative, promptTemplate: '{response}'}",
        "20:40: spec.rewards.models[0].kind: a generative reward model needs promptTemplate, what it is asked, and"
        " scorePattern, where its answer has the score",
    ),
    broken_model(
        _RM + ", promptTemplate: '{prompt}'}",
        "20:73: spec.rewards.models[0].promptTemplate: promptTemplate must contain {response}, or all responses would"
        " score alike",
    ),
    broken_model(
        _RM + ", timeout: 11m}",
        "20:66: spec.rewards.models[0].timeout: timeout of a reward model must be above 0s and not exceed its"
        " lostAfter: set it to 2m, say",
    ),
    broken_model(
        "{name: aaaaaaaaaaaaaaaaaaaa, path: m, kind: reward}",
        "20:21: spec.rewards.models[0].name: must have at most 19 characters, not 20; got 'aaaaaaaaaaaaaaaaaaaa'",
        "20:58: spec.rewards.models[0].kind: must be one of classifier, generative; got 'reward'",
    ),
    broken_supervised(
        "  training:",
        "  rewards: {models: [{name: a, path: m, kind: classifier}]}\n  training:",
        "16:12: spec.rewards: preset sft scores nothing: remove rewards, or choose an RL preset",
    ),
    broken(
        "  training:",
        "  recovery: {backoff: {initial: 90s}}\n  training:",
        "20:33: spec.recovery.backoff.initial: recovery.backoff.initial must not exceed recovery.backoff.max: lower it,"
        " or raise recovery.backoff.max",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{action: restart}, {onExitCodes: [75, 76], action: give_up}]}\n  training:",
        "20:22: spec.recovery.rules[0].onExitCodes: a recovery rule must say which failures it is for: set onExitCodes"
        " or onReasons",
        "20:55: spec.recovery.rules[1].onExitCodes: 76 (stopped on request) and 77 (another attempt took over) are no"
        " failures: remove them from onExitCodes",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onReasons: [RankLost, Fenced], action: restart}]}\n  training:",
        "20:34: spec.recovery.rules[0].onReasons: StoppedOnRequest and Fenced (another attempt took over) are no"
        " failures: remove them from onReasons",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onReasons: [RankLots, OomKilled], action: give_up}]}\n  training:",
        "20:34: spec.recovery.rules[0].onReasons: onReasons knows RankLost, EngineLost, RewardsLost, Infrastructure,"
        " DriverLost, DriverHung, RayLost, Bug, Job, Data, Reward, NoUsableCheckpoint and"
        " StorageFull: correct the word, or match by onExitCodes",
    ),
    broken(
        "  training:",
        "  recovery: {rules: [{onExitCodes: [-9, 0], onReasons: [rank hung], action: ignore}]}\n  training:",
        "20:37: spec.recovery.rules[0].onExitCodes[0]: must be from 1 to 255; got -9",
        "20:41: spec.recovery.rules[0].onExitCodes[1]: must be from 1 to 255; got 0",
        "20:57: spec.recovery.rules[0].onReasons[0]: must be one CamelCase word; got 'rank hung'",
        "20:77: spec.recovery.rules[0].action: must be one of restart, restart_uncharged, give_up; got 'ignore'",
    ),
    broken(
        "  training:",
        "  activeDeadline: 0s\n  training:",
        "20:19: spec.activeDeadline: activeDeadline must be above 0s, or the job ends as it starts: set it to 12h, say,"
        " or remove it",
    ),
    broken(
        "  training:",
        "  recovery: {hangAfter: 500ms, takeoverWithin: 0s, nodeLostAfter: 10ms}\n  training:",
        "20:25: spec.recovery.hangAfter: recovery.hangAfter must be 1s or more, or sound processes count as lost: set"
        " it to 1m, say",
        "20:48: spec.recovery.takeoverWithin: recovery.takeoverWithin must be above 0s: set it to 120s, say",
        "20:67: spec.recovery.nodeLostAfter: recovery.nodeLostAfter must be 1s or more: set it to 60s, say",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: dapo, kl: {estimator: k1, controller: fixed}}\n  training:",
        "20:45: spec.algorithm.kl.estimator: algorithm.kl.estimator has an effect only where kl.placement is loss or"
        " reward: remove it, or change that",
        "20:61: spec.algorithm.kl.controller: algorithm.kl.controller has an effect only where kl.placement is loss or"
        " reward: remove it, or change that",
    ),
    broken(
        "  training:",
        "  algorithm: {preset: rloo, clipRatioLow: 0.1}\n  training:",
        "20:43: spec.algorithm.clipRatioLow: algorithm.clipRatioLow has an effect only where loss is decoupled_clip:"
        " remove it, or change that",
    ),
)

BROKEN_YAML = (
    broken(
        "Qwen/Qwen2.5-0.5B-Instruct",
        '"\\ud83d"',
        "6:17: spec.model.path: holds half a character: an escape of D800 to DFFF without its other half",
    ),
    broken(
        "learningRate: 1e-6", "learningRate: .nan", "14:19: spec.actor.learningRate: must be a finite number; got .nan"
    ),
    broken(
        "    samplesPerPrompt: 8",
        "    samplesPerPrompt: 8\n    samplesPerPrompt: 16",
        "13:5: spec.rollout.samplesPerPrompt: is set twice, first in line 12. Remove one of the two",
    ),
    broken(
        "    samplesPerPrompt: 8",
        "\tsamplesPerPrompt: 8",
        "12:1: not readable as YAML: a tab cannot indent YAML. Use spaces",
    ),
    broken(
        "    samplesPerPrompt: 8",
        "     samplesPerPrompt: 8",
        "12:22: not readable as YAML: a second ':' in one line, or a line indented too far. Quote text with ': ' in it",
    ),
    broken(
        "    samplesPerPrompt: 8",
        "   samplesPerPrompt: 8",
        "12:4: not readable as YAML: this line's indentation fits no block above it. Indent it like its neighbours",
    ),
    broken(
        "    samplesPerPrompt: 8",
        "    samplesPerPrompt 8",
        "12:5: not readable as YAML: a key without ':'. Write KEY: VALUE, and quote text of several lines",
    ),
    broken(
        "[/data/train.parquet]",
        "[/data/train.parquet",
        "8:12: not readable as YAML: a list in [ ] is not closed, or lacks a comma. Close it with ]",
    ),
    broken(
        "engine: vllm",
        "engine: 'vllm",
        "11:13: not readable as YAML: a quote is not closed. Close it, or double it inside the text",
    ),
    broken(
        "engine: vllm",
        "engine: *engine",
        "11:13: not readable as YAML: an alias without its anchor. Define &NAME before *NAME",
    ),
    broken(
        "engine: vllm",
        "engine: !env ENGINE",
        "11:13: spec.rollout.engine: Kubernetes does not know the YAML tag !env. Remove the tag",
    ),
    broken(
        "engine: vllm",
        "engine: @vllm",
        "11:13: not readable as YAML: text cannot begin with this character. Put the text in quotes",
    ),
    broken("engine: vllm", "engine: vllm\x01", "11:1: YAML cannot hold this control character. Remove it"),
    broken("engine: vllm", "[engine]: vllm", "11:5: spec.rollout: a key must be text. Write a name before the ':'"),
    broken("engine: vllm", "<<: vllm", "11:9: spec.rollout[<<]: must be an alias of a mapping, such as *defaults"),
    broken(
        "    learningRate: 1e-6",
        "    &a learningRate: *a",
        "14:5: spec.actor.learningRate: must be a number; got 'learningRate'",
    ),
    file(
        "an endless alias",
        "a: &a [*a]\n",
        "1:1: holds more than 100000 values or 200 levels once its aliases are followed. Write it without nested"
        " anchors",
    ),
    file("an empty file", "", "1:1: is empty. An RLJob begins with apiVersion: rljob.dev/v1alpha1 and kind: RLJob"),
    file(
        "comments only",
        "# nothing yet\n---\n",
        "1:1: is empty. An RLJob begins with apiVersion: rljob.dev/v1alpha1 and kind: RLJob",
    ),
    file(
        "text",
        "hello\n",
        "1:1: must be a mapping of fields; got 'hello'. Its fields are apiVersion, kind, metadata, spec, status",
    ),
    file(
        "a list",
        "- kind: RLJob\n",
        "1:1: must be a mapping of fields; got a list. Its fields are apiVersion, kind, metadata, spec, status",
    ),
    file(
        "another kind",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
        "1:1: holds no RLJob. An RLJob begins with apiVersion: rljob.dev/v1alpha1 and kind: RLJob",
    ),
    file(
        "a kind of verl",
        "data:\n  train_batch_size: 8\n",
        "1:1: apiVersion: is required. Always rljob.dev/v1alpha1",
        "1:1: kind: is required. Always RLJob",
        "1:1: metadata: is required. Name and labels",
        "1:1: spec: is required. What to train, on what, and how",
        "1:1: data: unknown field. Did you mean spec.data or spec.sft.data?",
    ),
    file(
        "the second of two",
        JOB + "---\n" + OTHER.replace("engine: vllm", "engine: vlm"),
        "33:13: spec.rollout.engine: must be one of vllm, hf; got 'vlm'. Did you mean vllm?",
    ),
    file(
        "one twice",
        JOB + "---\n" + JOB,
        "26:9: metadata.name: is the name of the RLJob that begins in line 1. Rename one of the two",
    ),
    file(
        "one twice, and neither right",
        JOB.replace("steps: 100", "steps: 0") + "---\n" + JOB.replace("engine: vllm", "engine: vlm"),
        "21:12: spec.training.steps: must be from 1 to 1000000000; got 0",
        "26:9: metadata.name: is the name of the RLJob that begins in line 1. Rename one of the two",
        "33:13: spec.rollout.engine: must be one of vllm, hf; got 'vlm'. Did you mean vllm?",
    ),
    file(
        "both of two",
        JOB.replace("steps: 100", "steps: 0") + "---\n" + OTHER.replace("engine: vllm", "engine: vlm"),
        "21:12: spec.training.steps: must be from 1 to 1000000000; got 0",
        "33:13: spec.rollout.engine: must be one of vllm, hf; got 'vlm'. Did you mean vllm?",
    ),
)
