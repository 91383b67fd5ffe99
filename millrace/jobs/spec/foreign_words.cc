#include "millrace/jobs/spec/foreign_words.h"

#include "millrace/jobs/spec/spec_schema.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>

namespace millrace::jobs {
namespace {

constexpr std::string_view kSageMaker = "SageMaker's model-parallel library", kTitan = "torchtitan",
                           kMegatron = "Megatron-LM", kDeepSpeed = "DeepSpeed", kNvidiaBert = "NVIDIA's BERT",
                           kTransformers = "transformers", kPeft = "PEFT", kPeftScripts = "scripts for PEFT",
                           kTrl = "trl", kAxolotl = "axolotl", kLlamaFactory = "LLaMA-Factory",
                           kMegatronAndAxolotl = "Megatron-LM and axolotl",
                           kMegatronAndTitan = "Megatron-LM and torchtitan",
                           kDeepSpeedAndBert = "DeepSpeed and NVIDIA's BERT",
                           kFactoryAndTitan = "LLaMA-Factory and torchtitan", kParallel = "train.parallel";
constexpr std::string_view kNoContext = "leave it out; sequences are not divided among ranks by this version",
                           kNoExperts = "leave it out; there are no experts in the models of this version";

constexpr ForeignWord kWords[] = {
    // Length of the run and batches.
    {"max_steps", kTransformers, "write train.steps", {}, "train.steps"},
    {"num_train_epochs", kTransformers, "write train.epochs", {}, "train.epochs"},
    {"num_epochs", kAxolotl, "write train.epochs", {}, "train.epochs"},
    {"train_iters", kMegatron, "write train.steps", {}, "train.steps"},
    {"per_device_train_batch_size", kTransformers,
     "write train.micro_batch, and in train.global_batch the sequences of all ranks in a step"},
    {"train_micro_batch_size_per_gpu", kDeepSpeed, "write train.micro_batch"},
    {"local_batch_size", kTitan, "write train.micro_batch"},
    {"micro_batch_size", kMegatronAndAxolotl, "write train.micro_batch"},
    {"global_batch_size", kMegatronAndTitan, "write train.global_batch"},
    {"train_batch_size", kDeepSpeedAndBert, "write train.global_batch"},
    {"gradient_accumulation_steps", kTransformers,
     "write train.global_batch: micro_batch × accumulation × data-parallel ranks"},
    {"per_device_eval_batch_size", kTransformers, "leave it out; evaluations have passes of train.micro_batch"},
    // Optimizer and schedule.
    {"learning_rate", kTransformers, "write train.optimizer.lr", {}, "train.optimizer.lr"},
    {"optim", kTransformers, "write train.optimizer.name: adamw, lamb or sgd"},
    {"adam_beta1", kTransformers, "write train.optimizer.betas"},
    {"adam_beta2", kTransformers, "write train.optimizer.betas"},
    {"adam_epsilon", kTransformers, "write train.optimizer.eps", {}, "train.optimizer.eps"},
    {"adam_eps", kMegatron, "write train.optimizer.eps", {}, "train.optimizer.eps"},
    {"max_grad_norm", kTransformers, "write train.optimizer.clip_norm", {}, "train.optimizer.clip_norm"},
    {"max_norm", kTitan, "write train.optimizer.clip_norm", {}, "train.optimizer.clip_norm"},
    {"clip_grad", kMegatron, "write train.optimizer.clip_norm", {}, "train.optimizer.clip_norm"},
    {"gradient_clipping", kDeepSpeed, "write train.optimizer.clip_norm", {}, "train.optimizer.clip_norm"},
    {"lr_scheduler_type", kTransformers, "write train.schedule.name"},
    {"lr_scheduler", kAxolotl, "write train.schedule.name"},
    {"lr_decay_style", kMegatron, "write train.schedule.name"},
    {"decay_type", kTitan, "write train.schedule.name"},
    {"warmup_ratio", kTransformers, "write train.schedule.warmup_proportion", {}, "train.schedule.warmup_proportion"},
    {"lr_warmup_fraction", kMegatron, "write train.schedule.warmup_proportion", {}, "train.schedule.warmup_proportion"},
    {"lr_warmup_iters", kMegatron, "write train.schedule.warmup_steps", {}, "train.schedule.warmup_steps"},
    {"decay_ratio", kTitan, "write train.schedule.stable_share: 1 less it"},
    {"min_lr_factor", kTitan, "write train.schedule.min_lr: lr times it"},
    {"label_smoothing_factor", kTransformers, "write train.loss.label_smoothing", {}, "train.loss.label_smoothing"},
    {"neftune_noise_alpha", kTransformers, "write train.neftune_alpha", {}, "train.neftune_alpha"},
    // Precision, memory and speed.
    {"bf16", kTransformers, "write train.precision: bf16"},
    {"fp16", kTransformers, "write train.precision: fp16"},
    {"tf32", kTransformers, "write train.precision: tf32"},
    {"mixed_precision_param", kTitan, "write train.precision"},
    {"gradient_checkpointing", kTransformers, "write train.parallel.recompute: full"},
    {"torch_compile", kTransformers, "write train.compile: on"},
    {"deepspeed", kTransformers, "write train.parallel.zero"},
    {"fsdp", kTransformers, "write train.parallel.zero: 3"},
    {"flash_attention", kAxolotl, "leave it out; attention is always computed so"},
    {"flash_attn", kLlamaFactory, "leave it out; attention is always computed so"},
    {"attn_implementation", kTransformers, "leave it out; attention is always computed as in FlashAttention"},
    {"enable_profiling", kTitan, "write train.profile"},
    // Model.
    {"model_name_or_path", kTransformers, "write model.from", {}, "model.from"},
    {"base_model", kAxolotl, "write model.from", {}, "model.from"},
    {"model_type", kTransformers, "write model.family", {}, "model.family"},
    {"num_hidden_layers", kTransformers, "write model.config.num_layers", {}, "model.config.num_layers"},
    {"num_attention_heads", kTransformers, "write model.config.num_heads", {}, "model.config.num_heads"},
    {"num_key_value_heads", kTransformers, "write model.config.num_kv_heads", {}, "model.config.num_kv_heads"},
    {"num_query_groups", kMegatron, "write model.config.num_kv_heads", {}, "model.config.num_kv_heads"},
    {"ffn_hidden_size", kMegatron, "write model.config.intermediate_size", {}, "model.config.intermediate_size"},
    // Data.
    {"tokenizer_name", kTransformers, "write data.tokenizer", {}, "data.tokenizer"},
    {"tokenizer_name_or_path", kTransformers, "write data.tokenizer", {}, "data.tokenizer"},
    {"tokenizer_model", kMegatron, "write data.tokenizer", {}, "data.tokenizer"},
    {"hf_assets_path", kTitan, "write data.tokenizer", {}, "data.tokenizer"},
    {"max_seq_length", kTrl, "write data.sequence_length", {}, "data.sequence_length"},
    {"max_length", kTrl, "write data.sequence_length", {}, "data.sequence_length"},
    {"block_size", kTransformers, "write data.sequence_length", {}, "data.sequence_length"},
    {"sequence_len", kAxolotl, "write data.sequence_length", {}, "data.sequence_length"},
    {"cutoff_len", kLlamaFactory, "write data.sequence_length", {}, "data.sequence_length"},
    {"seq_len", kTitan, "write data.sequence_length", {}, "data.sequence_length"},
    {"seq_length", kMegatron, "write data.sequence_length", {}, "data.sequence_length"},
    {"datasets", kAxolotl, "write data.sources"},
    {"dataset", kFactoryAndTitan, "write data.sources"},
    {"dataset_name", kTransformers, "write data.sources"},
    {"train_file", kTransformers, "write data.sources"},
    {"dataset_path", kTitan, "write data.sources"},
    {"data_path", kMegatron, "write data.sources"},
    {"dataset_text_field", kTrl, "write data.template, such as {text}"},
    {"packing", kTrl, "write data.mode: pack, or data.best_fit: true"},
    {"sample_packing", kAxolotl, "write data.mode: pack, or data.best_fit: true"},
    {"pad_to_sequence_len", kAxolotl, "write data.mode: pad"},
    {"train_on_inputs", kAxolotl, "write data.mode: sft to learn answers alone"},
    {"chat_template", kAxolotl, "write data.layout"},
    {"val_set_size", kAxolotl, "write data.split.held_out", {}, "data.split.held_out"},
    {"val_size", kLlamaFactory, "write data.split.held_out", {}, "data.split.held_out"},
    {"data_seed", kTransformers, "write data.shuffle.seed", {}, "data.shuffle.seed"},
    {"max_predictions_per_seq", kNvidiaBert, "write data.mlm.max_predictions", {}, "data.mlm.max_predictions"},
    {"dataloader_num_workers", kTransformers, "write data.threads", {}, "data.threads"},
    {"preprocessing_num_workers", kLlamaFactory, "write data.threads", {}, "data.threads"},
    // Adapters and preferences.
    {"lora_r", kPeftScripts, "write lora.r", {}, "lora.r"},
    {"lora_rank", kLlamaFactory, "write lora.r", {}, "lora.r"},
    {"lora_alpha", kPeft, "write lora.alpha", {}, "lora.alpha"},
    {"lora_dropout", kPeft, "write lora.dropout", {}, "lora.dropout"},
    {"target_modules", kPeft, "write lora.targets", {}, "lora.targets"},
    {"lora_target_modules", kAxolotl, "write lora.targets", {}, "lora.targets"},
    {"lora_target", kLlamaFactory, "write lora.targets", {}, "lora.targets"},
    {"lora_target_linear", kAxolotl, "leave it out; lora.targets are all linear layers by default"},
    {"use_rslora", kPeft, "write lora.rslora", {}, "lora.rslora"},
    {"use_dora", kPeft, "write lora.dora", {}, "lora.dora"},
    {"modules_to_save", kPeft, "leave it out; an adapter of lora.adapter may have whole modules"},
    {"peft_type", kPeft, "leave it out; the section lora is LoRA"},
    {"finetuning_type", kLlamaFactory, "write the section lora, or leave it out to train the whole model"},
    {"load_in_4bit", kTransformers, "write lora.base: nf4"},
    {"load_in_8bit", kTransformers, "write lora.base: int8"},
    {"quantization_bit", kLlamaFactory, "write lora.base: nf4, int8 or fp8"},
    {"stage", kLlamaFactory, "write train.objective"},
    {"pref_beta", kLlamaFactory, "write train.dpo.beta", {}, "train.dpo.beta"},
    {"pref_loss", kLlamaFactory, "write train.dpo.loss_type", {}, "train.dpo.loss_type"},
    // Checkpoints, evaluations and logs.
    {"output_dir", kTransformers, "write checkpoint.url"},
    {"save", kMegatron, "write checkpoint.url"},
    {"save_steps", kTransformers, "write checkpoint.every_steps", {}, "checkpoint.every_steps"},
    {"save_interval", kMegatron, "write checkpoint.every_steps", {}, "checkpoint.every_steps"},
    {"num_steps_per_checkpoint", kNvidiaBert, "write checkpoint.every_steps", {}, "checkpoint.every_steps"},
    {"save_strategy", kTransformers, "write checkpoint.every_steps"},
    {"save_total_limit", kTransformers, "write checkpoint.keep_last", {}, "checkpoint.keep_last"},
    {"keep_latest_k", kTitan, "write checkpoint.keep_last", {}, "checkpoint.keep_last"},
    {"load_best_model_at_end", kTransformers, "write checkpoint.best.keep: 1"},
    {"metric_for_best_model", kTransformers, "write checkpoint.best.metric"},
    {"greater_is_better", kTransformers, "write checkpoint.best.mode: min or max"},
    {"resume_from_checkpoint", kTransformers,
     "leave it out; a run goes on from the newest checkpoint of checkpoint.url"},
    {"eval_steps", kTransformers, "write eval.every_steps", {}, "eval.every_steps"},
    {"eval_interval", kMegatron, "write eval.every_steps", {}, "eval.every_steps"},
    {"eval_iters", kMegatron, "write eval.samples"},
    {"eval_strategy", kTransformers, "write eval.every_steps"},
    {"evaluation_strategy", kTransformers, "write eval.every_steps"},
    {"logging_steps", kTransformers, "write log.every_steps", {}, "log.every_steps"},
    {"log_interval", kMegatron, "write log.every_steps", {}, "log.every_steps"},
    {"log_freq", kTitan, "write log.every_steps", {}, "log.every_steps"},
    {"logging_dir", kTransformers, "write log.tensorboard"},
    {"tensorboard_dir", kMegatron, "write log.tensorboard"},
    {"enable_tensorboard", kTitan, "write log.tensorboard"},
    {"report_to", kTransformers, "write log.tensorboard, log.wandb or log.mlflow"},
    {"run_name", kTransformers, "write log.wandb.name or log.mlflow.run_name"},
    {"wandb_project", kAxolotl, "write log.wandb.project"},
    {"wandb_entity", kAxolotl, "write log.wandb.entity"},
    {"wandb_name", kAxolotl, "write log.wandb.name"},
    {"mlflow_tracking_uri", kAxolotl, "write log.mlflow.url"},
    {"mlflow_experiment_name", kAxolotl, "write log.mlflow.experiment"},
    // How ranks divide the work.
    {"tensor_parallel_degree", "SageMaker's model-parallel library and torchtitan", "write tensor", kParallel,
     "train.parallel.tensor"},
    {"pipeline_parallel_degree", "SageMaker's model-parallel library and torchtitan", "write pipeline", kParallel,
     "train.parallel.pipeline"},
    {"shard_optimizer_state", kSageMaker, "write zero: 1", kParallel},
    {"sharded_data_parallel_degree", kSageMaker, "write zero: 3 and shard", kParallel},
    {"prescaled_batch", kSageMaker, "leave it out; tensor-parallel ranks always get the same samples", kParallel},
    {"auto_partition", kSageMaker, "leave it out; stages are always divided by their work", kParallel},
    {"default_partition", kSageMaker, "leave it out; stages are always divided by their work", kParallel},
    {"horovod", kSageMaker, "write data", kParallel},
    {"data_parallel_replicate_degree", kTitan, "write shard: data-parallel ranks divided by it", kParallel},
    {"data_parallel_shard_degree", kTitan, "write zero: 3 and shard", kParallel},
    {"fsdp_reshard_after_forward", kTitan, "write reshard: true or false", kParallel},
    {"mixed_precision_reduce", kTitan, "write reduce: f32 or bf16", kParallel},
    {"enable_async_tensor_parallel", kTitan, "leave it out", kParallel},
    {"disable_loss_parallel", kTitan, "leave it out; the loss is always divided as the head is", kParallel},
    {"pipeline_parallel_schedule", kTitan, "write schedule", kParallel},
    {"pipeline_parallel_layers_per_stage", kTitan, "write virtual_stages", kParallel},
    {"pipeline_parallel_microbatch_size", kTitan, "write train.micro_batch, or microbatches", kParallel},
    {"activation_checkpoint", kTitan, "write recompute", kParallel},
    {"selective_ac_option", kTitan, "write recompute: full and recompute_every, or recompute: selective", kParallel},
    {"context_parallel_degree", kTitan, kNoContext, kParallel},
    {"expert_parallel_degree", kTitan, kNoExperts, kParallel},
    {"tensor_model_parallel_size", kMegatron, "write tensor", kParallel},
    {"pipeline_model_parallel_size", kMegatron, "write pipeline", kParallel},
    {"num_layers_per_virtual_pipeline_stage", kMegatron,
     "write schedule: interleaved and virtual_stages: layers / (pipeline × it)", kParallel},
    {"num_virtual_stages_per_pipeline_rank", kMegatron, "write schedule: interleaved and virtual_stages", kParallel},
    {"virtual_pipeline_model_parallel_size", kMegatron, "write schedule: interleaved and virtual_stages", kParallel},
    {"sequence_parallel", kMegatron, "write sequence: true", kParallel},
    {"use_distributed_optimizer", kMegatron, "write zero: 1", kParallel},
    {"num_distributed_optimizer_instances", kMegatron, "write shard: data-parallel ranks divided by it", kParallel},
    {"data_parallel_sharding_strategy", kMegatron, "write zero: 1, 2 or 3", kParallel},
    {"use_megatron_fsdp", kMegatron, "write zero: 3", kParallel},
    {"use_torch_fsdp2", kMegatron, "write zero: 3", kParallel},
    {"recompute_activations", kMegatron, "write recompute: selective", kParallel},
    {"recompute_granularity", kMegatron, "write recompute", kParallel},
    {"recompute_method", kMegatron, "write recompute: full and recompute_every", kParallel},
    {"recompute_num_layers", kMegatron, "write recompute: full and recompute_every", kParallel},
    {"overlap_grad_reduce", kMegatron, "write overlap: true or false", kParallel},
    {"overlap_param_gather", kMegatron, "leave it out; weights are always gathered ahead", kParallel},
    {"accumulate_allreduce_grads_in_fp32", kMegatron, "leave it out; gradients are always added up in float32",
     kParallel},
    {"grad_reduce_in_bf16", kMegatron, "write reduce: bf16", kParallel},
    {"context_parallel_size", kMegatron, kNoContext, kParallel},
    {"expert_model_parallel_size", kMegatron, kNoExperts, kParallel},
    {"zero_optimization", kDeepSpeed, "write zero: 0, 1, 2 or 3", kParallel},
    {"zero_stage", kDeepSpeed, "write zero: 0, 1, 2 or 3", kParallel},
    {"communication_data_type", kDeepSpeed, "write reduce: f32 or bf16", kParallel},
    {"allreduce_post_accumulation", kNvidiaBert,
     "leave it out; with zero 0 and 1 gradients are always summed once a step", kParallel},
    {"allreduce_post_accumulation_fp16", kNvidiaBert, "write reduce: bf16", kParallel},
};

}  // namespace

std::span<const ForeignWord> ForeignWords() { return kWords; }

const ForeignWord* FindForeignWord(std::string_view key) {
  std::string plain(key);
  std::ranges::replace(plain, '-', '_');
  plain.erase(0, plain.find_first_not_of('_'));
  const auto found = std::ranges::find(kWords, plain, &ForeignWord::word);
  return found != std::end(kWords) ? &*found : nullptr;
}

std::string KeyHint(std::string_view section, std::string_view name) {
  if (const ForeignWord* word = FindForeignWord(name); word != nullptr) {
    const bool elsewhere = !word->section.empty() && word->section != section;
    return fmt::format("is a word of {}: {}{}", word->programs, word->advice,
                       elsewhere ? fmt::format(", in {}", word->section) : "");
  }
  constexpr std::size_t kMax = 3;  // more would be no hint
  const std::vector<std::string> paths = KeysNamed(name);
  if (paths.empty() || paths.size() > kMax) return "";
  return fmt::format("is not a key of {}: write {}", section.empty() ? "the job file itself" : section,
                     fmt::join(paths, " or "));
}

}  // namespace millrace::jobs
