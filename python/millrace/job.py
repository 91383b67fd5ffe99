"""The keys of a job file as Python types: tools/job_keys.py makes this module from the declarations of the keys.

Each section is a dict with typed keys, which can be written as keyword arguments:

    job = millrace.job.Job(name="small", train=millrace.job.Train(steps=1000, precision="bf16"), data=…)
    millrace.Estimator(job=job)

Type checkers know the words of each key. `millrace job render` and the Estimator check the values.
"""

# fmt: off
from __future__ import annotations

from typing import Any, Dict, List, Literal, TypedDict, Union


class DataSource(TypedDict, total=False):
    """The section `data.sources[]`."""

    #: The objects with the records: an object, a prefix that ends in `/`, a glob, or `@` and the URL of a list of such URLs.
    url: str
    #: Passes over this source per epoch.
    weight: float
    #: What the objects contain.
    format: str
    #: The split of a data set, for example `train`.
    split: str


class LogMetricDefinition(TypedDict, total=False):
    """The section `log.metric_definitions[]`."""


    Name: str

    Regex: str


class ModelConfig(TypedDict, total=False):
    """The section `model.config`."""

    #: Width of the residual stream: a multiple of 2 × `num_heads`.
    hidden_size: int
    #: Number of blocks.
    num_layers: int
    #: Attention heads.
    num_heads: int
    #: Key and value heads.
    num_kv_heads: int
    #: Width of the feed-forward layer.
    intermediate_size: int
    #: Size of the vocabulary; 0: the tokenizer's.
    vocab_size: int
    #: Most positions of a sequence; 0: `data.sequence_length`.
    max_position_embeddings: int
    #: As in the config.json of Hugging Face's library.
    type_vocab_size: Any
    #: As in the config.json of Hugging Face's library.
    hidden_act: Any
    #: As in the config.json of Hugging Face's library.
    layer_norm_eps: Any
    #: As in the config.json of Hugging Face's library.
    initializer_range: Any
    #: As in the config.json of Hugging Face's library.
    classifier_dropout: Any
    #: As in the config.json of Hugging Face's library.
    hidden_dropout_prob: Any
    #: As in the config.json of Hugging Face's library.
    attention_probs_dropout_prob: Any
    #: As in the config.json of Hugging Face's library.
    head_dim: Any
    #: As in the config.json of Hugging Face's library.
    rms_norm_eps: Any
    #: As in the config.json of Hugging Face's library.
    rope_theta: Any
    #: As in the config.json of Hugging Face's library.
    rope_scaling: Any
    #: As in the config.json of Hugging Face's library.
    rope_local_base_freq: Any
    #: As in the config.json of Hugging Face's library.
    attention_bias: Any
    #: As in the config.json of Hugging Face's library.
    attention_dropout: Any
    #: As in the config.json of Hugging Face's library.
    query_pre_attn_scalar: Any
    #: As in the config.json of Hugging Face's library.
    attn_logit_softcapping: Any
    #: As in the config.json of Hugging Face's library.
    final_logit_softcapping: Any
    #: As in the config.json of Hugging Face's library.
    sliding_window: Any
    #: As in the config.json of Hugging Face's library.
    sliding_window_pattern: Any
    #: As in the config.json of Hugging Face's library.
    layer_types: Any
    #: As in the config.json of Hugging Face's library.
    tie_word_embeddings: Any
    #: As in the config.json of Hugging Face's library.
    partial_rotary_factor: Any
    #: As in the config.json of Hugging Face's library.
    activation_function: Any
    #: As in the config.json of Hugging Face's library.
    layer_norm_epsilon: Any
    #: As in the config.json of Hugging Face's library.
    embd_pdrop: Any
    #: As in the config.json of Hugging Face's library.
    attn_pdrop: Any
    #: As in the config.json of Hugging Face's library.
    resid_pdrop: Any
    #: As in the config.json of Hugging Face's library.
    rotary_dim: Any
    #: As in the config.json of Hugging Face's library.
    mlp_bias: Any
    #: As in the config.json of Hugging Face's library.
    embedding_multiplier: Any
    #: As in the config.json of Hugging Face's library.
    attention_multiplier: Any
    #: As in the config.json of Hugging Face's library.
    logits_scaling: Any
    #: As in the config.json of Hugging Face's library.
    residual_multiplier: Any
    #: As in the config.json of Hugging Face's library.
    use_sliding_window: Any
    #: As in the config.json of Hugging Face's library.
    max_window_layers: Any
    #: As in the config.json of Hugging Face's library.
    original_max_position_embeddings: Any
    #: As in the config.json of Hugging Face's library.
    no_rope_layer_interval: Any
    #: As in the config.json of Hugging Face's library.
    no_rope_layers: Any


class DataMlm(TypedDict, total=False):
    """The section `data.mlm`."""

    #: Share of a row's tokens that are to be predicted.
    probability: float
    #: The most tokens of a row to predict.
    max_predictions: int
    #: Mask all pieces of a word or none of them.
    whole_word: bool
    #: Rows are pairs of texts, half of them random.
    next_sentence: bool
    #: Share of the rows that are cut to a random length.
    short_sequences: float


class DataClassification(TypedDict, total=False):
    """The section `data.classification`."""

    #: The text to be classified.
    text: str
    #: A second text.
    pair: str
    #: The class of the record.
    label: str
    #: The names of the classes in order. Without names, labels are numbers from 0.
    classes: List[Union[str, float, bool]]


class DataPreference(TypedDict, total=False):
    """The section `data.preference`."""

    #: Template of the prompt.
    prompt: str
    #: Template of the better answer.
    chosen: str
    #: Template of the other answer.
    rejected: str

DataSplitPart = Literal["train", "held_out"]


class DataSplit(TypedDict, total=False):
    """The section `data.split`."""

    #: Share of the records in the part `held_out`, chosen by content.
    held_out: float
    #: The part that is read.
    part: DataSplitPart
    #: Seed of the choice.
    seed: int


class DataShuffle(TypedDict, total=False):
    """The section `data.shuffle`."""

    #: Seed of the order.
    seed: int
    #: The number of records among which the order is random. 0 or 1: each source keeps its order.
    window: int


class DataCache(TypedDict, total=False):
    """The section `data.cache`."""

    #: Folder on a local disk.
    path: str
    #: Largest size of the folder. The least recently used data make room.
    size: Union[str, int]

TrainOptimizerName = Literal["adamw", "lamb", "sgd"]
TrainOptimizerMoments = Literal["f32", "bf16"]


class TrainOptimizer(TypedDict, total=False):
    """The section `train.optimizer`."""

    #: The optimizer.
    name: TrainOptimizerName
    #: Peak learning rate.
    lr: float
    #: Decay of the two moments.
    betas: List[float]
    #: Added to the root of the second moment.
    eps: float
    #: Weight decay, on matrices only.
    weight_decay: float
    #: Momentum.
    momentum: float
    #: Nesterov's momentum.
    nesterov: bool
    #: Parameters that do not decay either.
    no_decay: List[Union[str, float, bool]]
    #: Limit of the gradient's global norm; 0: none.
    clip_norm: float
    #: What the optimizer's moments are kept in.
    moments: TrainOptimizerMoments
    #: Keep no master copy of bfloat16 weights.
    stochastic_rounding: bool
    #: Keep moments and master copy in the host's memory.
    offload: bool

TrainScheduleName = Literal["cosine", "constant", "linear", "polynomial", "wsd", "inverse_sqrt"]
TrainScheduleDecay = Literal["1-sqrt", "linear"]


class TrainSchedule(TypedDict, total=False):
    """The section `train.schedule`."""

    #: Shape after the warm-up: see below.
    name: TrainScheduleName
    #: Length of the linear rise from 0.
    warmup_steps: int
    #: The same as a share of all steps. Give at most one of the two.
    warmup_proportion: float
    #: Rate at the last step.
    min_lr: float
    #: The exponent.
    power: float
    #: The share of all steps before the decay.
    stable_share: float
    #: How the rate falls.
    decay: TrainScheduleDecay
    #: Steps of the fall; 0: the warm-up steps, or 10,000 without a warm-up.
    timescale: int

TrainDpoLossType = Literal["sigmoid", "ipo"]


class TrainDpo(TypedDict, total=False):
    """The section `train.dpo`."""

    #: How close the model stays to the reference.
    beta: float
    #: The loss.
    loss_type: TrainDpoLossType
    #: Share of pairs that are the wrong way round.
    label_smoothing: float


class TrainLoss(TypedDict, total=False):
    """The section `train.loss`."""

    #: As in torch's `cross_entropy`.
    label_smoothing: float
    #: Adds `z_loss` · logsumexp(logits)² per token; PaLM has 1e-4.
    z_loss: float

TrainSpikesAction = Literal["none", "skip_step", "roll_back"]


class TrainSpikes(TypedDict, total=False):
    """The section `train.spikes`."""

    #: What follows a jump.
    action: TrainSpikesAction
    #: Standard deviations above the mean that make a jump.
    sigma: float
    #: Steps whose losses and norms it is measured by.
    window: int

TrainParallelLayout = Literal["given", "auto"]
TrainParallelPlacement = Literal["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"]
TrainParallelOptimize = Literal["speed", "memory"]
TrainParallelReduce = Literal["f32", "bf16"]
TrainParallelSchedule = Literal["1f1b", "simple", "interleaved", "zero_bubble"]
TrainParallelRecompute = Literal["none", "selective", "full"]


class TrainParallel(TypedDict, total=False):
    """The section `train.parallel`."""

    #: `auto`: the planner chooses all but `placement` and `reduce`.
    layout: TrainParallelLayout
    #: Which ranks are neighbours.
    placement: TrainParallelPlacement
    #: What `layout: auto` looks for.
    optimize: TrainParallelOptimize
    #: How much memory counts for `layout: auto`.
    memory_weight: float
    #: Type in which ranks exchange gradients.
    reduce: TrainParallelReduce
    #: Ranks that see different samples.
    data: Union[Literal["auto"], int]
    #: Of these, ranks that divide state between them.
    shard: Union[Literal["auto"], int]
    #: Ranks that divide each layer between them.
    tensor: int
    #: They also divide the tokens between the layers.
    sequence: bool
    #: Order of a pipeline's work: see below.
    schedule: TrainParallelSchedule
    #: Ranks that have different layers: the number of stages.
    pipeline: Union[int, Literal["simple", "interleaved"]]
    #: Stages of each rank; 2 or more with `interleaved`.
    virtual_stages: int
    #: What the ranks of `shard` divide: see below.
    zero: int
    #: With `zero: 3`: free a block's weights between its passes.
    reshard: bool
    #: Sum gradients while backward passes run.
    overlap: bool
    #: What a backward pass computes again.
    recompute: TrainParallelRecompute
    #: With `recompute: full` and N: one of N blocks is computed again.
    recompute_every: int
    #: With `recompute: full`: inputs of these blocks wait on the host.
    offload_activations: bool
    #: Micro-batches of each data-parallel rank in a step.
    microbatches: int


class TrainProfile(TypedDict, total=False):
    """The section `train.profile`."""

    #: The first and the last step of the trace.
    steps: List[int]

CheckpointBestMode = Literal["min", "max"]


class CheckpointBest(TypedDict, total=False):
    """The section `checkpoint.best`."""

    #: How many of the best stay.
    keep: int
    #: The metric: `loss`, or with `eval` `eval_loss`, `eval_accuracy` and others.
    metric: str
    #: Which values are best.
    mode: CheckpointBestMode


class CheckpointLocal(TypedDict, total=False):
    """The section `checkpoint.local`."""

    #: Folder on the machine.
    path: str
    #: Steps between two checkpoints there.
    every_steps: int
    #: How many of the newest stay there.
    keep: int
    #: Machines that each rank's file is on.
    copies: int
    #: Save there while a checkpoint to `url` is on its way.
    beside: bool


class RunElastic(TypedDict, total=False):
    """The section `run.elastic`."""

    #: The fewest.
    min: int
    #: The most.
    max: int


class LogHistograms(TypedDict, total=False):
    """The section `log.histograms`."""

    #: Steps between two of them; 0: none.
    every_steps: int

LogWandbMode = Literal["auto", "online", "offline"]


class LogWandb(TypedDict, total=False):
    """The section `log.wandb`."""

    #: The project. `WANDB_PROJECT` comes before the default.
    project: str
    #: The user or team.
    entity: str
    #: The run's name.
    name: str
    #: Runs that belong together.
    group: str
    #: Tags of the run.
    tags: List[Union[str, float, bool]]
    #: `auto`: `WANDB_MODE`, or else online if there is a key.
    mode: LogWandbMode
    #: Where the files go. `WANDB_DIR` comes before the default.
    folder: str


class LogMlflow(TypedDict, total=False):
    """The section `log.mlflow`."""

    #: The tracking server, without a user's name or password.
    url: str
    #: The experiment. `MLFLOW_EXPERIMENT_NAME` comes before the default.
    experiment: str
    #: The run's name.
    run_name: str
    #: Tags of the run.
    tags: Dict[str, Union[str, float, bool]]

ModelFamily = Literal["bert", "gemma2", "gemma3_text", "glm4", "gpt2", "gptj", "granite", "llama", "mistral", "ministral", "qwen2", "qwen3", "olmo2", "phi3", "smollm3"]

_Model = TypedDict("_Model", {"from": str}, total=False)


class Model(_Model, total=False):
    """The section `model`."""

    #: Architecture: the `model_type` of Hugging Face's `config.json`. Ignored with `from`.
    family: ModelFamily
    #: Classes of `train.objective: classification`.
    num_labels: int
    #: Sizes of a model with random weights.
    config: ModelConfig

DataMode = Literal["pack", "pad", "sft"]
DataLayout = Literal["template", "auto", "alpaca", "guanaco", "turns", "llama2", "llama3", "chatml", "zephyr", "gemma"]


class Data(TypedDict, total=False):
    """The section `data`."""

    #: Where the records are: see `data.sources`.
    sources: List[DataSource]
    #: How a record becomes text: fields of the record in braces. `{{` and `}}` are braces themselves.
    template: str
    #: The tokenizer's file, or a model that came with one, named as in `model.from`.
    tokenizer: str
    #: Length of one sequence.
    sequence_length: int
    #: How records fill sequences.
    mode: DataMode
    #: The layout of the records' conversations.
    layout: DataLayout
    #: For `layout: template`: the answer of a record, in `mode: sft`.
    response: str
    #: What begins a prompt.
    instruction_template: str
    #: What begins an answer.
    response_template: str
    #: For `pad`, `sft` and `dpo`: fit whole documents into rows.
    best_fit: bool
    #: For `pad`: split a long document into several sequences.
    split_long: bool
    #: Keep documents of one row apart.
    boundaries: bool
    #: Pairs of texts and hidden tokens.
    mlm: DataMlm
    #: The fields of a record.
    classification: DataClassification
    #: The prompt and its two answers.
    preference: DataPreference
    #: Which part of the records is held out.
    split: DataSplit
    #: How the order is shuffled.
    shuffle: DataShuffle
    #: Number of unusable records that are allowed.
    max_broken: int
    #: Objects of the same sizes count as the same data.
    same_by_size: bool
    #: Where record indexes go, if the bucket of the data cannot be written.
    index_cache: str
    #: A local disk that keeps fetched and decoded data.
    cache: DataCache
    #: Threads per rank that read and tokenize ahead.
    threads: int

TrainObjective = Literal["causal_lm", "mlm", "classification", "dpo"]
TrainPrecision = Literal["f32", "tf32", "bf16", "fp16", "fp8"]
TrainFp8Scaling = Literal["current", "delayed", "block"]
TrainDevice = Literal["auto", "cpu", "cuda"]
TrainCompile = Literal["auto", "on", "off"]


class Train(TypedDict, total=False):
    """The section `train`."""

    #: What the model learns.
    objective: TrainObjective
    #: Passes over the data. The steps follow from the data's length.
    epochs: float
    #: Length of the run.
    steps: int
    #: The steps after which this run ends. The schedule keeps its length.
    steps_this_run: int
    #: Sequences per optimizer step, over all ranks.
    global_batch: int
    #: Sequences per forward and backward pass on one rank.
    micro_batch: int
    #: Of weights and products.
    precision: TrainPrecision
    #: With `precision: fp8`: which numbers share a scale, and where it comes from.
    fp8_scaling: TrainFp8Scaling
    #: Where the ranks compute.
    device: TrainDevice
    #: Parameters that are not trained.
    freeze: List[Union[str, float, bool]]
    #: AdamW, LAMB or SGD.
    optimizer: TrainOptimizer
    #: Learning rate over the steps.
    schedule: TrainSchedule
    #: Noise of the embeddings.
    neftune_alpha: float
    #: The loss of pairs of answers.
    dpo: TrainDpo
    #: What is minimised beside the cross-entropy.
    loss: TrainLoss
    #: What to do when the loss jumps.
    spikes: TrainSpikes
    #: How the work is divided among ranks.
    parallel: Union[Literal["auto"], TrainParallel]
    #: How the passes are computed.
    compile: TrainCompile
    #: With `compile: on`: the folder where compiled steps are kept.
    compile_cache: str
    #: A trace of some steps.
    profile: TrainProfile
    #: Seed of random weights.
    seed: int
    #: Compute threads per rank; 0: as many as the machine has for it.
    threads: int

LoraBase = Literal["f32", "tf32", "bf16", "fp16", "fp8", "int8", "nf4"]


class Lora(TypedDict, total=False):
    """The section `lora`."""

    #: Start from this adapter: a run's checkpoint, an imported one or a folder of PEFT.
    adapter: str
    #: Rank: rows of A, columns of B.
    r: int
    #: The product of B and A counts `alpha`/`r` times.
    alpha: float
    #: `alpha`/√`r` instead (Kalajdzievski 2023).
    rslora: bool
    #: Learn the norms of the weights' rows by themselves.
    dora: bool
    #: The layers that get an adapter.
    targets: Union[str, List[str]]
    #: Probability of dropping an element of an adapter's input.
    dropout: float
    #: LoRA+: how much faster B learns than A.
    loraplus_lr_ratio: float
    #: How the model's weights are kept.
    base: LoraBase


class Eval(TypedDict, total=False):
    """The section `eval`."""

    #: Steps between two evaluations; 0: none.
    every_steps: int
    #: Most sequences of an evaluation.
    samples: int
    #: Records to evaluate, as in `data.sources`.
    sources: List[DataSource]
    #: Evaluate the held-out part of the data.
    held_out: Literal[True]
    #: The reported figures.
    metrics: List[Literal["loss", "perplexity", "accuracy"]]

CheckpointWhenBusy = Literal["wait", "skip", "delay"]


class Checkpoint(TypedDict, total=False):
    """The section `checkpoint`."""

    #: Where checkpoints go.
    url: str
    #: Where `url` is mounted, if it is a bucket.
    path: str
    #: Steps between two checkpoints.
    every_steps: int
    #: How many of the newest checkpoints stay.
    keep_last: int
    #: Steps that are multiples of it stay for ever; 0: none.
    keep_every: int
    #: The best checkpoints by a metric, which stay too.
    best: CheckpointBest
    #: What happens if the last checkpoint is still being uploaded.
    when_busy: CheckpointWhenBusy
    #: Bytes a second that a rank uploads at most; 0: no limit.
    bandwidth: Union[str, int]
    #: Most time of a rank's upload.
    upload_limit: str
    #: Checkpoints on the machines' own disks, made more often.
    local: CheckpointLocal

RunLauncher = Literal["local", "slurm", "ssh", "kubernetes", "jobset", "mpijob", "sagemaker"]


class Run(TypedDict, total=False):
    """The section `run`."""

    #: What starts the processes; `sagemaker`: in a container of SageMaker.
    launcher: RunLauncher
    #: Machines; 1 with `local`. With `ssh`: all hosts.
    nodes: int
    #: Ranks on each machine.
    processes_per_node: int
    #: What the planner knows of the machines.
    machine: str
    #: Restarts over the whole run.
    max_restarts: int
    #: Silence that counts as a hang.
    hang_timeout: str
    #: A program of yours that runs as each rank.
    command: List[Union[str, float, bool]]
    #: Variables of every rank, such as `{NCCL_DEBUG: INFO}`. No secrets: a job file is not secret.
    env: Dict[str, Union[str, float, bool]]
    #: The program's code, which travels with the job. It runs there.
    source: str
    #: Where the program runs, on every machine.
    directory: str
    #: Where each bucket or prefix is mounted: `/path`, or `/path:ro` for reading only.
    mounts: Dict[str, Union[str, float, bool]]
    #: What is checked of a machine before each attempt.
    health_checks: Union[bool, List[Literal["clock", "disk", "memory", "network", "cpu", "shm", "gpu"]]]
    #: The machines are spot instances of EC2.
    spot: bool
    #: Nodes beyond `nodes` that take the place of lost ones.
    spares: int
    #: Numbers of ranks to go on with.
    elastic: RunElastic
    #: Option of `sbatch` of this name.
    partition: str
    #: Option of `sbatch` of this name.
    account: str
    #: Option of `sbatch` of this name.
    qos: str
    #: Option of `sbatch` of this name.
    constraint: str
    #: Limit, in whole minutes. The job saves before it and goes on later.
    time: str
    #: Nodes that are not used.
    exclude: List[Union[str, float, bool]]
    #: Processors of each node; 0: whole nodes.
    cpus_per_node: int
    #: Further options of `sbatch`.
    slurm_options: List[Union[str, float, bool]]
    #: The machines, as `ssh` takes them; the first has rank 0.
    hosts: List[Union[str, float, bool]]
    #: A hostfile of an MPI program.
    hostfile: str
    #: Options of `ssh`, one word each.
    ssh_options: List[Union[str, float, bool]]
    #: The `millrace` on the hosts; `millrace-train` is beside it.
    millrace_path: str
    #: How long a host may be away before the job fails.
    connect_timeout: str
    #: The containers' image, which is required. It has Millrace in `/usr/bin`.
    image: str
    #: When the image is pulled.
    image_pull_policy: str
    #: Secrets for the registry.
    image_pull_secrets: List[Union[str, float, bool]]
    #: Which cluster of the kubeconfig.
    context: str
    #: Where the objects are.
    namespace: str
    #: What each pod requests, and its limits.
    resources: Dict[str, Union[str, float, bool]]
    #: Labels that nodes must have.
    node_selector: Dict[str, Union[str, float, bool]]
    #: As Kubernetes writes them.
    tolerations: List[Dict[str, Any]]
    #: What is mounted where.
    volumes: List[Dict[str, Any]]
    #: A Secret with the keys for `run.mounts` and `checkpoint.url` of `run.command`.
    mounts_secret: str
    #: Size of `/dev/shm`; 0: as the container runtime decides.
    shared_memory: Union[str, int]
    #: A PriorityClass.
    priority: str
    #: A LocalQueue of Kueue, which starts the job.
    queue: str
    #: Who the pods are.
    service_account: str
    #: Secrets whose entries become variables of the environment.
    env_from: List[Union[str, float, bool]]
    #: User and group of the containers, but not of an MPIJob's (root).
    user: int
    #: Of all objects and pods.
    labels: Dict[str, Union[str, float, bool]]
    #: Of all objects and pods.
    annotations: Dict[str, Union[str, float, bool]]


class Cost(TypedDict, total=False):
    """The section `cost`."""

    #: Price of one machine; 0: unknown.
    price_per_hour: float
    #: Printed behind amounts.
    currency: str
    #: The job saves and ends when it has cost this amount.
    cap: float


class Log(TypedDict, total=False):
    """The section `log`."""

    #: Steps between two lines of figures.
    every_steps: int
    #: The folder where status, events and logs are kept.
    url: str
    #: The folder where event files go: figures, the job file, hyperparameters.
    tensorboard: str
    #: Histograms of weights and gradients, in TensorBoard: steps between two, in `every_steps`.
    histograms: LogHistograms
    #: Where rank 0 answers `GET /metrics`.
    metrics_listen: str
    #: Keys that a scraper must send, a key in each line.
    metrics_key_file: str
    #: Listen beyond loopback without keys.
    metrics_insecure: bool
    #: Gets notes when the job starts, fails and ends.
    webhook: str
    #: A file with that URL, if the URL is a secret.
    webhook_file: str
    #: Logs the run in Weights & Biases.
    wandb: LogWandb
    #: Logs the run in MLflow.
    mlflow: LogMlflow
    #: A Python file whose functions get the run's events.
    callbacks: str
    #: Runs `callbacks` and W&B's package: a path, or a name in `PATH`.
    python: str
    #: Metrics found in the output of rank 0.
    metric_definitions: List[LogMetricDefinition]


class Job(TypedDict, total=False):
    """A job file."""

    #: Name of the job: in `millrace job status`, in the logs and for the state folder.
    name: str
    #: The model that learns.
    model: Model
    #: What it learns from.
    data: Data
    #: How it learns.
    train: Train
    #: Adapters that are trained in place of the model (LoRA).
    lora: Lora
    #: Losses of records that are not trained on.
    eval: Eval
    #: Where the state of the run is saved, and when.
    checkpoint: Checkpoint
    #: What starts the ranks, and where.
    run: Run
    #: The price of the machines.
    cost: Cost
    #: What is told of the job, and to whom.
    log: Log


#: Words of other programs, and the key of a job file that takes the same values.
WORDS: Dict[str, str] = {
    "max_steps": "train.steps",
    "num_train_epochs": "train.epochs",
    "num_epochs": "train.epochs",
    "train_iters": "train.steps",
    "learning_rate": "train.optimizer.lr",
    "adam_epsilon": "train.optimizer.eps",
    "adam_eps": "train.optimizer.eps",
    "max_grad_norm": "train.optimizer.clip_norm",
    "max_norm": "train.optimizer.clip_norm",
    "clip_grad": "train.optimizer.clip_norm",
    "gradient_clipping": "train.optimizer.clip_norm",
    "warmup_ratio": "train.schedule.warmup_proportion",
    "lr_warmup_fraction": "train.schedule.warmup_proportion",
    "lr_warmup_iters": "train.schedule.warmup_steps",
    "label_smoothing_factor": "train.loss.label_smoothing",
    "neftune_noise_alpha": "train.neftune_alpha",
    "model_name_or_path": "model.from",
    "base_model": "model.from",
    "model_type": "model.family",
    "num_hidden_layers": "model.config.num_layers",
    "num_attention_heads": "model.config.num_heads",
    "num_key_value_heads": "model.config.num_kv_heads",
    "num_query_groups": "model.config.num_kv_heads",
    "ffn_hidden_size": "model.config.intermediate_size",
    "tokenizer_name": "data.tokenizer",
    "tokenizer_name_or_path": "data.tokenizer",
    "tokenizer_model": "data.tokenizer",
    "hf_assets_path": "data.tokenizer",
    "max_seq_length": "data.sequence_length",
    "max_length": "data.sequence_length",
    "block_size": "data.sequence_length",
    "sequence_len": "data.sequence_length",
    "cutoff_len": "data.sequence_length",
    "seq_len": "data.sequence_length",
    "seq_length": "data.sequence_length",
    "val_set_size": "data.split.held_out",
    "val_size": "data.split.held_out",
    "data_seed": "data.shuffle.seed",
    "max_predictions_per_seq": "data.mlm.max_predictions",
    "dataloader_num_workers": "data.threads",
    "preprocessing_num_workers": "data.threads",
    "lora_r": "lora.r",
    "lora_rank": "lora.r",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "target_modules": "lora.targets",
    "lora_target_modules": "lora.targets",
    "lora_target": "lora.targets",
    "use_rslora": "lora.rslora",
    "use_dora": "lora.dora",
    "pref_beta": "train.dpo.beta",
    "pref_loss": "train.dpo.loss_type",
    "save_steps": "checkpoint.every_steps",
    "save_interval": "checkpoint.every_steps",
    "num_steps_per_checkpoint": "checkpoint.every_steps",
    "save_total_limit": "checkpoint.keep_last",
    "keep_latest_k": "checkpoint.keep_last",
    "eval_steps": "eval.every_steps",
    "eval_interval": "eval.every_steps",
    "logging_steps": "log.every_steps",
    "log_interval": "log.every_steps",
    "log_freq": "log.every_steps",
    "tensor_parallel_degree": "train.parallel.tensor",
    "pipeline_parallel_degree": "train.parallel.pipeline",
}

#: The type of each key, as JSON Schema names it; "any" of a key with several.
TYPES: Dict[str, str] = {
    "name": "string",
    "model.family": "string",
    "model.from": "string",
    "model.num_labels": "integer",
    "model.config.hidden_size": "integer",
    "model.config.num_layers": "integer",
    "model.config.num_heads": "integer",
    "model.config.num_kv_heads": "integer",
    "model.config.intermediate_size": "integer",
    "model.config.vocab_size": "integer",
    "model.config.max_position_embeddings": "integer",
    "model.config.type_vocab_size": "any",
    "model.config.hidden_act": "any",
    "model.config.layer_norm_eps": "any",
    "model.config.initializer_range": "any",
    "model.config.classifier_dropout": "any",
    "model.config.hidden_dropout_prob": "any",
    "model.config.attention_probs_dropout_prob": "any",
    "model.config.head_dim": "any",
    "model.config.rms_norm_eps": "any",
    "model.config.rope_theta": "any",
    "model.config.rope_scaling": "any",
    "model.config.rope_local_base_freq": "any",
    "model.config.attention_bias": "any",
    "model.config.attention_dropout": "any",
    "model.config.query_pre_attn_scalar": "any",
    "model.config.attn_logit_softcapping": "any",
    "model.config.final_logit_softcapping": "any",
    "model.config.sliding_window": "any",
    "model.config.sliding_window_pattern": "any",
    "model.config.layer_types": "any",
    "model.config.tie_word_embeddings": "any",
    "model.config.partial_rotary_factor": "any",
    "model.config.activation_function": "any",
    "model.config.layer_norm_epsilon": "any",
    "model.config.embd_pdrop": "any",
    "model.config.attn_pdrop": "any",
    "model.config.resid_pdrop": "any",
    "model.config.rotary_dim": "any",
    "model.config.mlp_bias": "any",
    "model.config.embedding_multiplier": "any",
    "model.config.attention_multiplier": "any",
    "model.config.logits_scaling": "any",
    "model.config.residual_multiplier": "any",
    "model.config.use_sliding_window": "any",
    "model.config.max_window_layers": "any",
    "model.config.original_max_position_embeddings": "any",
    "model.config.no_rope_layer_interval": "any",
    "model.config.no_rope_layers": "any",
    "data.sources": "array",
    "data.template": "string",
    "data.tokenizer": "string",
    "data.sequence_length": "integer",
    "data.mode": "string",
    "data.layout": "string",
    "data.response": "string",
    "data.instruction_template": "string",
    "data.response_template": "string",
    "data.best_fit": "boolean",
    "data.split_long": "boolean",
    "data.boundaries": "boolean",
    "data.max_broken": "integer",
    "data.same_by_size": "boolean",
    "data.index_cache": "string",
    "data.threads": "integer",
    "data.mlm.probability": "number",
    "data.mlm.max_predictions": "integer",
    "data.mlm.whole_word": "boolean",
    "data.mlm.next_sentence": "boolean",
    "data.mlm.short_sequences": "number",
    "data.classification.text": "string",
    "data.classification.pair": "string",
    "data.classification.label": "string",
    "data.classification.classes": "array",
    "data.preference.prompt": "string",
    "data.preference.chosen": "string",
    "data.preference.rejected": "string",
    "data.split.held_out": "number",
    "data.split.part": "string",
    "data.split.seed": "integer",
    "data.shuffle.seed": "integer",
    "data.shuffle.window": "integer",
    "data.cache.path": "string",
    "data.cache.size": "any",
    "train.objective": "string",
    "train.epochs": "number",
    "train.steps": "integer",
    "train.steps_this_run": "integer",
    "train.global_batch": "integer",
    "train.micro_batch": "integer",
    "train.precision": "string",
    "train.fp8_scaling": "string",
    "train.device": "string",
    "train.freeze": "array",
    "train.neftune_alpha": "number",
    "train.parallel": "any",
    "train.compile": "string",
    "train.compile_cache": "string",
    "train.seed": "integer",
    "train.threads": "integer",
    "train.optimizer.name": "string",
    "train.optimizer.lr": "number",
    "train.optimizer.betas": "array",
    "train.optimizer.eps": "number",
    "train.optimizer.weight_decay": "number",
    "train.optimizer.momentum": "number",
    "train.optimizer.nesterov": "boolean",
    "train.optimizer.no_decay": "array",
    "train.optimizer.clip_norm": "number",
    "train.optimizer.moments": "string",
    "train.optimizer.stochastic_rounding": "boolean",
    "train.optimizer.offload": "boolean",
    "train.schedule.name": "string",
    "train.schedule.warmup_steps": "integer",
    "train.schedule.warmup_proportion": "number",
    "train.schedule.min_lr": "number",
    "train.schedule.power": "number",
    "train.schedule.stable_share": "number",
    "train.schedule.decay": "string",
    "train.schedule.timescale": "integer",
    "train.dpo.beta": "number",
    "train.dpo.loss_type": "string",
    "train.dpo.label_smoothing": "number",
    "train.loss.label_smoothing": "number",
    "train.loss.z_loss": "number",
    "train.spikes.action": "string",
    "train.spikes.sigma": "number",
    "train.spikes.window": "integer",
    "train.parallel.layout": "string",
    "train.parallel.placement": "string",
    "train.parallel.optimize": "string",
    "train.parallel.memory_weight": "number",
    "train.parallel.reduce": "string",
    "train.parallel.data": "any",
    "train.parallel.shard": "any",
    "train.parallel.tensor": "integer",
    "train.parallel.sequence": "boolean",
    "train.parallel.schedule": "string",
    "train.parallel.pipeline": "any",
    "train.parallel.virtual_stages": "integer",
    "train.parallel.zero": "integer",
    "train.parallel.reshard": "boolean",
    "train.parallel.overlap": "boolean",
    "train.parallel.recompute": "string",
    "train.parallel.recompute_every": "integer",
    "train.parallel.offload_activations": "boolean",
    "train.parallel.microbatches": "integer",
    "train.profile.steps": "array",
    "lora.adapter": "string",
    "lora.r": "integer",
    "lora.alpha": "number",
    "lora.rslora": "boolean",
    "lora.dora": "boolean",
    "lora.targets": "any",
    "lora.dropout": "number",
    "lora.loraplus_lr_ratio": "number",
    "lora.base": "string",
    "eval.every_steps": "integer",
    "eval.samples": "integer",
    "eval.sources": "array",
    "eval.held_out": "string",
    "eval.metrics": "array",
    "checkpoint.url": "string",
    "checkpoint.path": "string",
    "checkpoint.every_steps": "integer",
    "checkpoint.keep_last": "integer",
    "checkpoint.keep_every": "integer",
    "checkpoint.when_busy": "string",
    "checkpoint.bandwidth": "any",
    "checkpoint.upload_limit": "string",
    "checkpoint.best.keep": "integer",
    "checkpoint.best.metric": "string",
    "checkpoint.best.mode": "string",
    "checkpoint.local.path": "string",
    "checkpoint.local.every_steps": "integer",
    "checkpoint.local.keep": "integer",
    "checkpoint.local.copies": "integer",
    "checkpoint.local.beside": "boolean",
    "run.launcher": "string",
    "run.nodes": "integer",
    "run.processes_per_node": "integer",
    "run.machine": "string",
    "run.max_restarts": "integer",
    "run.hang_timeout": "string",
    "run.command": "array",
    "run.env": "object",
    "run.source": "string",
    "run.directory": "string",
    "run.mounts": "object",
    "run.health_checks": "any",
    "run.spot": "boolean",
    "run.spares": "integer",
    "run.partition": "string",
    "run.account": "string",
    "run.qos": "string",
    "run.constraint": "string",
    "run.time": "string",
    "run.exclude": "array",
    "run.cpus_per_node": "integer",
    "run.slurm_options": "array",
    "run.hosts": "array",
    "run.hostfile": "string",
    "run.ssh_options": "array",
    "run.millrace_path": "string",
    "run.connect_timeout": "string",
    "run.image": "string",
    "run.image_pull_policy": "string",
    "run.image_pull_secrets": "array",
    "run.context": "string",
    "run.namespace": "string",
    "run.resources": "object",
    "run.node_selector": "object",
    "run.tolerations": "array",
    "run.volumes": "array",
    "run.mounts_secret": "string",
    "run.shared_memory": "any",
    "run.priority": "string",
    "run.queue": "string",
    "run.service_account": "string",
    "run.env_from": "array",
    "run.user": "integer",
    "run.labels": "object",
    "run.annotations": "object",
    "run.elastic.min": "integer",
    "run.elastic.max": "integer",
    "cost.price_per_hour": "number",
    "cost.currency": "string",
    "cost.cap": "number",
    "log.every_steps": "integer",
    "log.url": "string",
    "log.tensorboard": "string",
    "log.metrics_listen": "string",
    "log.metrics_key_file": "string",
    "log.metrics_insecure": "boolean",
    "log.webhook": "string",
    "log.webhook_file": "string",
    "log.callbacks": "string",
    "log.python": "string",
    "log.metric_definitions": "array",
    "log.histograms.every_steps": "integer",
    "log.wandb.project": "string",
    "log.wandb.entity": "string",
    "log.wandb.name": "string",
    "log.wandb.group": "string",
    "log.wandb.tags": "array",
    "log.wandb.mode": "string",
    "log.wandb.folder": "string",
    "log.mlflow.url": "string",
    "log.mlflow.experiment": "string",
    "log.mlflow.run_name": "string",
    "log.mlflow.tags": "object",
}

#: The default of each key that has one.
DEFAULTS: Dict[str, Any] = {
    "model.family": "llama",
    "model.from": "",
    "model.config.hidden_size": 256,
    "model.config.num_layers": 4,
    "model.config.num_heads": 4,
    "model.config.vocab_size": 0,
    "model.config.max_position_embeddings": 0,
    "data.template": "{text}",
    "data.sequence_length": 256,
    "data.mode": "pack",
    "data.layout": "template",
    "data.response": "{response}",
    "data.instruction_template": "",
    "data.best_fit": False,
    "data.split_long": False,
    "data.boundaries": False,
    "data.same_by_size": False,
    "data.index_cache": "",
    "data.threads": 2,
    "data.mlm.probability": 0.15,
    "data.mlm.whole_word": False,
    "data.mlm.next_sentence": True,
    "data.mlm.short_sequences": 0.1,
    "data.classification.text": "sentence",
    "data.classification.pair": "",
    "data.classification.label": "label",
    "data.classification.classes": [],
    "data.preference.prompt": "{prompt}",
    "data.preference.chosen": "{chosen}",
    "data.preference.rejected": "{rejected}",
    "data.split.held_out": 0.0,
    "data.split.part": "train",
    "data.split.seed": 1,
    "data.shuffle.seed": 1,
    "data.shuffle.window": 262144,
    "data.cache.path": "",
    "data.cache.size": 21474836480,
    "train.objective": "causal_lm",
    "train.global_batch": 8,
    "train.micro_batch": 1,
    "train.precision": "f32",
    "train.fp8_scaling": "current",
    "train.device": "auto",
    "train.freeze": [],
    "train.neftune_alpha": 0.0,
    "train.compile": "auto",
    "train.compile_cache": "",
    "train.seed": 42,
    "train.threads": 0,
    "train.optimizer.name": "adamw",
    "train.optimizer.lr": 0.0003,
    "train.optimizer.betas": [0.9, 0.95],
    "train.optimizer.eps": 1e-08,
    "train.optimizer.weight_decay": 0.1,
    "train.optimizer.momentum": 0.9,
    "train.optimizer.nesterov": False,
    "train.optimizer.no_decay": [],
    "train.optimizer.clip_norm": 1.0,
    "train.optimizer.moments": "f32",
    "train.optimizer.stochastic_rounding": False,
    "train.optimizer.offload": False,
    "train.schedule.name": "cosine",
    "train.schedule.warmup_steps": 0,
    "train.schedule.warmup_proportion": 0.0,
    "train.schedule.min_lr": 0.0,
    "train.schedule.power": 1.0,
    "train.schedule.stable_share": 0.9,
    "train.schedule.decay": "1-sqrt",
    "train.schedule.timescale": 0,
    "train.dpo.beta": 0.1,
    "train.dpo.loss_type": "sigmoid",
    "train.dpo.label_smoothing": 0.0,
    "train.loss.label_smoothing": 0.0,
    "train.loss.z_loss": 0.0,
    "train.spikes.action": "none",
    "train.spikes.sigma": 6.0,
    "train.spikes.window": 128,
    "train.parallel.layout": "given",
    "train.parallel.placement": "cluster",
    "train.parallel.optimize": "speed",
    "train.parallel.reduce": "f32",
    "train.parallel.data": "auto",
    "train.parallel.shard": "auto",
    "train.parallel.tensor": 1,
    "train.parallel.sequence": False,
    "train.parallel.schedule": "1f1b",
    "train.parallel.pipeline": 1,
    "train.parallel.virtual_stages": 1,
    "train.parallel.zero": 0,
    "train.parallel.reshard": True,
    "train.parallel.overlap": True,
    "train.parallel.recompute": "none",
    "train.parallel.recompute_every": 1,
    "train.parallel.offload_activations": False,
    "lora.adapter": "",
    "lora.r": 8,
    "lora.alpha": 8.0,
    "lora.rslora": False,
    "lora.dora": False,
    "lora.targets": ["all-linear"],
    "lora.dropout": 0.0,
    "lora.loraplus_lr_ratio": 1.0,
    "lora.base": "f32",
    "eval.every_steps": 0,
    "eval.samples": 256,
    "eval.held_out": True,
    "eval.metrics": ["loss", "perplexity"],
    "checkpoint.url": "",
    "checkpoint.path": "",
    "checkpoint.every_steps": 100,
    "checkpoint.keep_last": 3,
    "checkpoint.keep_every": 0,
    "checkpoint.when_busy": "wait",
    "checkpoint.bandwidth": 0,
    "checkpoint.upload_limit": "none",
    "checkpoint.best.keep": 0,
    "checkpoint.best.metric": "loss",
    "checkpoint.best.mode": "min",
    "checkpoint.local.path": "",
    "checkpoint.local.every_steps": 10,
    "checkpoint.local.keep": 2,
    "checkpoint.local.copies": 1,
    "checkpoint.local.beside": True,
    "run.launcher": "local",
    "run.nodes": 1,
    "run.processes_per_node": 1,
    "run.machine": "",
    "run.max_restarts": 3,
    "run.hang_timeout": "auto",
    "run.command": [],
    "run.env": {},
    "run.source": "",
    "run.directory": "",
    "run.mounts": {},
    "run.health_checks": True,
    "run.spot": False,
    "run.spares": 0,
    "run.partition": "",
    "run.account": "",
    "run.qos": "",
    "run.constraint": "",
    "run.time": "none",
    "run.exclude": [],
    "run.cpus_per_node": 0,
    "run.slurm_options": [],
    "run.hosts": [],
    "run.hostfile": "",
    "run.ssh_options": [],
    "run.millrace_path": "",
    "run.connect_timeout": "10m",
    "run.image": "",
    "run.image_pull_policy": "",
    "run.image_pull_secrets": [],
    "run.context": "",
    "run.namespace": "",
    "run.resources": {},
    "run.node_selector": {},
    "run.tolerations": [],
    "run.volumes": [],
    "run.mounts_secret": "",
    "run.shared_memory": 0,
    "run.priority": "",
    "run.queue": "",
    "run.service_account": "",
    "run.env_from": [],
    "run.user": 1000,
    "run.labels": {},
    "run.annotations": {},
    "run.elastic.min": 1,
    "cost.price_per_hour": 0.0,
    "cost.currency": "USD",
    "log.every_steps": 1,
    "log.url": "",
    "log.tensorboard": "",
    "log.metrics_listen": "",
    "log.metrics_key_file": "",
    "log.metrics_insecure": False,
    "log.webhook": "",
    "log.webhook_file": "",
    "log.callbacks": "",
    "log.python": "python3",
    "log.metric_definitions": [],
    "log.histograms.every_steps": 0,
    "log.wandb.project": "",
    "log.wandb.entity": "",
    "log.wandb.name": "",
    "log.wandb.group": "",
    "log.wandb.tags": [],
    "log.wandb.mode": "auto",
    "log.wandb.folder": "",
    "log.mlflow.url": "",
    "log.mlflow.experiment": "",
    "log.mlflow.run_name": "",
    "log.mlflow.tags": {},
}
