#include "millrace/train/run_model.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "millrace/engine/errors.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/make_optimizer.h"
#include "millrace/engine/sharding/divided_gradients.h"
#include "millrace/engine/weights/read_weights.h"

namespace millrace::train {
namespace {

/// Reads the weights of the model that the run starts from.
Status ReadModelWeights(OpenedModel& opened, engine::Model& model, engine::Collective& group, const Options& options) {
  if (!opened.weights) return {};
  std::vector<std::string> absent;
  MR_TRY(engine::ReadWeights(opened.weights->reader(), model, opened.config->generates() ? nullptr : &absent));
  for (const std::string& name : absent) {
    options.log.Warning("the model.from has no such weight; it begins at random", {{"weight", name}});
  }
  MR_TRY(group.Barrier());  // rank 0 may hold the checkpoint for all
  opened.weights.reset();
  return {};
}

/// Prepares the adapter of a model whose weights were read. Returns the fingerprint of these; empty without an adapter.
Result<std::string> PrepareAdapter(OpenedModel& opened, engine::Model& model, const RankLayout& layout,
                                   engine::Collective& group) {
  std::string base;
  const std::optional<engine::LoraOptions>& lora = opened.lora;
  if (lora) {
    MR_TRY(engine::CheckTargets("lora.targets", model.buffer(), lora->targets, layout.state()));
    const std::uint64_t frozen = MR_TRY(engine::FrozenFingerprint(model.buffer(), layout.state()));
    base = fmt::format("{:016x}", frozen + (opened.quantized ? engine::Fingerprint(*opened.quantized) : 0));
  }
  if (opened.adapter) {
    MR_TRY(engine::ReadAdapter(opened.adapter->reader(), model));
    MR_TRY(group.Barrier());
    opened.adapter.reset();
  } else if (lora) {
    MR_TRY(engine::InitializeMagnitudes(model.buffer(), opened.quantized.get(), layout.state()));
  }
  return base;
}

Result<std::unique_ptr<engine::Model>> MakeShare(const OpenedModel& opened, const RankLayout& layout,
                                                 const Options& options) {
  engine::ModelShare share = layout.ShareOf(*opened.config, options.data.sequence_length);
  share.freeze = options.freeze;
  share.lora = opened.lora;
  share.quantized = opened.quantized;
  // The head of a model that does not generate may be missing in the weights. Then it begins at random.
  if (opened.weights && opened.config->generates()) share.initial_values = engine::InitialValues::kAdapters;
  auto model =
      MR_TRY(engine::MakeModel(opened.config, options.precision, options.device, options.seed, std::move(share)));
  MR_TRY(engine::CheckGlobs("train.freeze", model->buffer(), options.freeze, layout.state()));
  const engine::ParallelOptions& parallel = layout.options();
  model->SetRecompute(parallel.recompute, parallel.recompute_every, parallel.offload_activations);
  return model;
}

}  // namespace

int MicroBatchesOf(const Options& options, const RankLayout& layout) {
  return options.global_batch / (layout.data_ranks() * options.micro_batch);
}

Result<RunModel> MakeRunModel(OpenedModel& opened, const RankLayout& layout, engine::Collective& group,
                              const Options& options) {
  RunModel run;
  run.model = MR_TRY(MakeShare(opened, layout, options));
  MR_TRY(ReadModelWeights(opened, *run.model, group, options));
  run.base_fingerprint = MR_TRY(PrepareAdapter(opened, *run.model, layout, group));
  auto optimizer = MR_TRY(engine::CatchTorch("allocating gradients and optimizer state", [&] {
    run.model->buffer().EnableGradients();
    return engine::MakeOptimizer(run.model->buffer(), options.optimizer, layout.state());
  }));
  run.optimizer = MR_TRY(std::move(optimizer));
  if (options.fp8 == engine::ops::Fp8Scaling::kDelayed) {
    run.scales = MR_TRY(DelayedScales::Make(group, LayerNames(*run.model), options.device));
  }
  const engine::ParallelOptions& parallel = layout.options();
  run.exchange = std::make_unique<engine::DataExchange>(
      run.model->buffer(), layout.state(),
      engine::DataExchangeOptions{
          .reshard = parallel.reshard, .reduce_in_bf16 = parallel.reduce_in_bf16, .overlap = parallel.overlap});
  const engine::PipelineOptions pipeline{.schedule = parallel.schedule,
                                         .virtual_stages = parallel.virtual_stages,
                                         .micro_batches = MicroBatchesOf(options, layout)};
  run.passes = std::make_unique<engine::PipelineRunner>(*run.model, layout.pipeline(), pipeline, *options.clock);
  run.tensors =
      StateTensors(*run.model, *run.optimizer, opened.lora ? SavedParameters::kAdapter : SavedParameters::kModel);
  return run;
}

}  // namespace millrace::train
