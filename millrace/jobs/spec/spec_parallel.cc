#include "millrace/jobs/spec/spec_parallel.h"

#include <algorithm>
#include <string>

namespace millrace::jobs {
namespace {

constexpr std::string_view kSageMaker = "SageMaker's model-parallel library", kTitan = "torchtitan",
                           kMegatron = "Megatron-LM", kDeepSpeed = "DeepSpeed", kNvidiaBert = "NVIDIA's BERT";
constexpr std::string_view kNoContext = "leave it out; sequences are not divided among ranks by this version",
                           kNoExperts = "leave it out; there are no experts in the models of this version";

constexpr ForeignWord kWords[] = {
    {"tensor_parallel_degree", "SageMaker's model-parallel library and torchtitan", "write tensor"},
    {"pipeline_parallel_degree", "SageMaker's model-parallel library and torchtitan", "write pipeline"},
    {"shard_optimizer_state", kSageMaker, "write zero: 1"},
    {"sharded_data_parallel_degree", kSageMaker, "write zero: 3 and shard"},
    {"prescaled_batch", kSageMaker, "leave it out; tensor-parallel ranks always get the same samples"},
    {"auto_partition", kSageMaker, "leave it out; stages are always divided by their work"},
    {"default_partition", kSageMaker, "leave it out; stages are always divided by their work"},
    {"horovod", kSageMaker, "write data"},
    {"data_parallel_replicate_degree", kTitan, "write shard: data-parallel ranks divided by it"},
    {"data_parallel_shard_degree", kTitan, "write zero: 3 and shard"},
    {"fsdp_reshard_after_forward", kTitan, "write reshard: true or false"},
    {"mixed_precision_reduce", kTitan, "write reduce: f32 or bf16"},
    {"enable_async_tensor_parallel", kTitan, "leave it out"},
    {"disable_loss_parallel", kTitan, "leave it out; the loss is always divided as the head is"},
    {"pipeline_parallel_schedule", kTitan, "write schedule"},
    {"pipeline_parallel_layers_per_stage", kTitan, "write virtual_stages"},
    {"pipeline_parallel_microbatch_size", kTitan, "write train.micro_batch, or microbatches"},
    {"activation_checkpoint", kTitan, "write recompute"},
    {"selective_ac_option", kTitan, "write recompute: full and recompute_every, or recompute: selective"},
    {"context_parallel_degree", kTitan, kNoContext},
    {"expert_parallel_degree", kTitan, kNoExperts},
    {"tensor_model_parallel_size", kMegatron, "write tensor"},
    {"pipeline_model_parallel_size", kMegatron, "write pipeline"},
    {"num_layers_per_virtual_pipeline_stage", kMegatron,
     "write schedule: interleaved and virtual_stages: layers / (pipeline × it)"},
    {"num_virtual_stages_per_pipeline_rank", kMegatron, "write schedule: interleaved and virtual_stages"},
    {"virtual_pipeline_model_parallel_size", kMegatron, "write schedule: interleaved and virtual_stages"},
    {"sequence_parallel", kMegatron, "write sequence: true"},
    {"use_distributed_optimizer", kMegatron, "write zero: 1"},
    {"num_distributed_optimizer_instances", kMegatron, "write shard: data-parallel ranks divided by it"},
    {"data_parallel_sharding_strategy", kMegatron, "write zero: 1, 2 or 3"},
    {"use_megatron_fsdp", kMegatron, "write zero: 3"},
    {"use_torch_fsdp2", kMegatron, "write zero: 3"},
    {"recompute_activations", kMegatron, "write recompute: selective"},
    {"recompute_granularity", kMegatron, "write recompute"},
    {"recompute_method", kMegatron, "write recompute: full and recompute_every"},
    {"recompute_num_layers", kMegatron, "write recompute: full and recompute_every"},
    {"overlap_grad_reduce", kMegatron, "write overlap: true or false"},
    {"overlap_param_gather", kMegatron, "leave it out; weights are always gathered ahead"},
    {"accumulate_allreduce_grads_in_fp32", kMegatron, "leave it out; gradients are always added up in float32"},
    {"grad_reduce_in_bf16", kMegatron, "write reduce: bf16"},
    {"micro_batch_size", kMegatron, "write train.micro_batch"},
    {"global_batch_size", kMegatron, "write train.global_batch"},
    {"context_parallel_size", kMegatron, kNoContext},
    {"expert_model_parallel_size", kMegatron, kNoExperts},
    {"zero_optimization", kDeepSpeed, "write zero: 0, 1, 2 or 3"},
    {"zero_stage", kDeepSpeed, "write zero: 0, 1, 2 or 3"},
    {"communication_data_type", kDeepSpeed, "write reduce: f32 or bf16"},
    {"allreduce_post_accumulation", kNvidiaBert,
     "leave it out; with zero 0 and 1 gradients are always summed once a step"},
    {"allreduce_post_accumulation_fp16", kNvidiaBert, "write reduce: bf16"},
};

}  // namespace

std::span<const ForeignWord> ForeignParallelWords() { return kWords; }

const ForeignWord* FindForeignWord(std::span<const ForeignWord> words, std::string_view key) {
  std::string plain(key);
  std::ranges::replace(plain, '-', '_');
  plain.erase(0, plain.find_first_not_of('_'));
  const auto found = std::ranges::find(words, plain, &ForeignWord::word);
  return found != words.end() ? &*found : nullptr;
}

}  // namespace millrace::jobs
