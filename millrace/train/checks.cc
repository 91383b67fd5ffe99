#include "millrace/train/checks.h"

namespace millrace::train {

Status CheckOptions(const Options& options) {
  if (options.data.objective == data::Objective::kDpo && !options.lora) {
    return Fail(Code::kUnsupported, "train.objective dpo needs lora: the reference is the model without its adapters");
  }
  if (options.compile_only && options.compile != Compile::kOn) {
    return Fail(Code::kInvalidArgument, "only a step with train.compile on can be compiled");
  }
  if (options.steps.has_value() == options.epochs.has_value()) {
    return Fail(Code::kInvalidArgument, "a run takes either train.steps or train.epochs");
  }
  return {};
}

Error WithAdviceOnMemory(const Error& error, const Options& options) {
  if (error.code() != Code::kResourceExhausted || options.device.is_cpu()) return error;
  return Error(Code::kResourceExhausted,
               fmt::format("{}. Take a smaller train.micro_batch, train.parallel.recompute: full, a larger "
                           "train.parallel.zero, or lora",
                           error.message()));
}

Status CheckDevices(engine::Collective& world, const Options& options) {
  MR_TRY(engine::CheckPrecision("train.precision", PrecisionOf(options), options.device));
  if (options.fp8 == engine::ops::Fp8Scaling::kBlock) {
    MR_TRY(engine::CheckBlockScaling("train.fp8_scaling", options.device));
  }
  const bool on_cpu = options.device.is_cpu();
  const at::Tensor kinds = at::zeros({world.size()}, at::kByte);
  MR_TRY(world.AllGather(kinds, at::full({1}, on_cpu ? 0 : 1, at::kByte)));
  for (int rank = 0; rank < world.size(); ++rank) {
    if (kinds[rank].item<bool>() == kinds[0].item<bool>()) continue;
    const auto name = [&](int of) { return kinds[of].item<bool>() ? "a GPU" : "the CPU"; };
    return Fail(Code::kInvalidArgument,
                "rank {} computes on {}, rank 0 on {}: with train.device cuda or cpu, all ranks do alike", rank,
                name(rank), name(0));
  }
  return {};
}

Status CheckPlain(const RankLayout& layout, const Options& options) {
  if (options.compile != Compile::kOff) return {};
  if (options.fp8 != engine::ops::Fp8Scaling::kNone) {
    return Fail(Code::kUnsupported,
                "train.compile off: plain operations do not multiply in FP8; take auto, or train.precision: bf16");
  }
  if (layout.tensor().size() > 1) {
    return Fail(Code::kUnsupported,
                "train.compile off: plain operations do not divide a head among the ranks of train.parallel.tensor; "
                "take auto or on");
  }
  return {};
}

Result<NetworkFigures> CheckNetwork(engine::Collective& world, const Options& options, Heartbeat& heartbeat) {
  if (!options.check_network || world.size() == 1) return NetworkFigures{};
  NetworkFigures figures = MR_TRY(MeasureNetwork(world, options.written_by.host, *options.clock));
  if (world.rank() != 0 || figures.links.empty()) return figures;
  options.log.Info("measured the network between machines",
                   {{"links", figures.links.size()},
                    {"all_reduce_us", figures.all_reduce_latency_s * 1e6},
                    {"all_reduce_mb_per_s", figures.all_reduce_bytes_per_s / 1e6}});
  for (const std::string& sentence : SlowLinks(figures)) options.log.Warning(sentence);
  for (const SlowMachine& slow : SlowMachines(figures)) {
    options.log.Warning(slow.sentence);
    MR_TRY(heartbeat.AddLine(fmt::format("slow {} {}", slow.rank, slow.sentence)));
  }
  return figures;
}

Status CheckBatch(const RankLayout& layout, const Options& options) {
  const int rows = layout.data_ranks() * options.micro_batch;
  if (options.micro_batch < 1 || options.global_batch < 1 || options.global_batch % rows != 0) {
    return Fail(Code::kInvalidArgument,
                "train.global_batch {} is not a multiple of {} data-parallel ranks times train.micro_batch {}",
                options.global_batch, layout.data_ranks(), options.micro_batch);
  }
  const int tokens = options.micro_batch * options.data.sequence_length;
  if (layout.tensor().divides_tokens() && tokens % layout.tensor().size() != 0) {
    return Fail(Code::kInvalidArgument,
                "train.parallel.sequence: {} tokens (train.micro_batch {} times data.sequence_length {}) do not divide "
                "among {} tensor-parallel ranks",
                tokens, options.micro_batch, options.data.sequence_length, layout.tensor().size());
  }
  return {};
}

}  // namespace millrace::train
