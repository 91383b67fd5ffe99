// Trains small models on the ranks of a mesh, for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/collectives/connect.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/layout/mesh.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/optim/make_optimizer.h"
#include "millrace/engine/pipeline/pipeline_runner.h"
#include "millrace/engine/sharding/data_exchange.h"
#include "millrace/engine/sharding/divided_gradients.h"

namespace millrace::engine {

/// A small model by its name: "llama", "tied" (a Llama whose head is its embedding) or "gpt2".
inline std::shared_ptr<const ModelConfig> TinyConfig(const std::string& name) {
  Json json = {{"vocab_size", 67}};  // divides among no ranks
  if (name == "gpt2") {
    json.update({{"model_type", "gpt2"}, {"n_embd", 24}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 16}});
  } else {
    json.update({{"model_type", "llama"}, {"hidden_size", 24}, {"intermediate_size", 40}, {"num_hidden_layers", 2}});
    json.update({{"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"max_position_embeddings", 16}});
    json["tie_word_embeddings"] = name == "tied";
  }
  return ParseModelConfig(json, "config.json").value();
}

/// The layout and options with which ranks train.
struct TrainingLayout {
  int zero = 0;
  MeshShape mesh = {};
  int micro_batches = 1;
  DataExchangeOptions exchange = {.bucket_bytes = 4 << 10};
  bool sequence = false;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int virtual_stages = 1;
  std::string ToText() const {
    return fmt::format("zero {} pipeline {} replica {} shard {} tensor {} micro-batches {} schedule {}", zero,
                       mesh.pipeline, mesh.replica, mesh.shard, mesh.tensor, micro_batches, static_cast<int>(schedule));
  }
};

struct TrainingTask {
  std::string model = "llama";
  at::ScalarType dtype = at::kFloat;
  OptimizerOptions optimizer = {};
  int steps = 3;
  std::vector<std::string> freeze = {};
  std::optional<LoraOptions> lora = {};  ///< it drops elements only if one rank has all rows
};

/// One rank of a mesh with its model. Members are public: tests look at them.
struct RankTrainer {
  using Group = std::unique_ptr<Collective>;
  static constexpr std::int64_t kRows = 24, kLength = 8;

  /// `wrap` may wrap the groups of the shard and the replica axis.
  RankTrainer(Collective& world, const TrainingTask& task, const TrainingLayout& layout,
              const std::function<Group(Group)>& wrap = {})
      : world(world),
        layout(layout),
        drops(task.lora && task.lora->dropout > 0),
        mesh(Mesh::Make(layout.mesh, world.size()).value()) {
    const auto split = [&](std::string name, std::initializer_list<MeshAxis> axes) {
      return Open(std::move(name), mesh.Group(world.rank(), axes));
    };
    pipeline = split("pipeline", {MeshAxis::kPipeline});
    shard = split("shard", {MeshAxis::kShard});
    replica = split("replica", {MeshAxis::kReplica});
    tensor = split("tensor", {MeshAxis::kTensor});
    stage = split("stage", {MeshAxis::kShard, MeshAxis::kTensor});
    whole = split("model", {MeshAxis::kPipeline, MeshAxis::kShard, MeshAxis::kTensor});
    if (wrap) shard = wrap(std::move(shard));
    if (wrap) replica = wrap(std::move(replica));
    ranks = {.shard = shard.get(),
             .replica = replica.get(),
             .tensor = {tensor.get(), layout.sequence},
             .stage = stage.get(),
             .model = whole.get()};
    const auto config = TinyConfig(task.model);
    const bool tied = task.model != "llama" && layout.mesh.pipeline > 1;
    if (tied) ranks.tied = pipeline.get();  // of two stages
    model = MakeModel(config, task.dtype, at::kCPU, 5,
                      {.ranks = ranks.tensor,
                       .stages = StagesOfRank(*config,
                                              {.pipeline = pipeline->size(), .virtual_stages = layout.virtual_stages},
                                              kLength, pipeline->rank()),
                       .sharding = {.ranks = shard->size(), .rank = shard->rank(), .zero = layout.zero},
                       .freeze = task.freeze,
                       .lora = task.lora})
                .value();
    const bool has_magnitudes = task.lora && task.lora->dora;
    if (has_magnitudes) ThrowIfFailed(InitializeMagnitudes(model->buffer(), nullptr, ranks));
    model->buffer().EnableGradients();
    optimizer = MakeOptimizer(model->buffer(), task.optimizer, ranks).value();
    exchange = std::make_unique<DataExchange>(model->buffer(), ranks, layout.exchange);
    hooks = model->buffer().hooks;
    if (has_magnitudes) exchange->ShareValues(ChangedValues::kTrained);
    runner = std::make_unique<PipelineRunner>(*model, pipeline->size() > 1 ? pipeline.get() : nullptr,
                                              PipelineOptions{.schedule = layout.schedule,
                                                              .virtual_stages = layout.virtual_stages,
                                                              .micro_batches = layout.micro_batches});
  }

  /// Runs one step on the rows of a global batch that are this rank's. Returns the mean loss of all rows and keeps the
  /// gradient's norm. Throws if a rank is lost.
  double Step(int number) {
    const at::Tensor ids = at::randint(67, {kRows, kLength + 1},
                                       at::detail::createCPUGenerator(static_cast<std::uint64_t>(number)), at::kLong)
                               .slice(0, mesh.DataRank(world.rank()), kRows, mesh.data_ranks());
    exchange->BeginStep(layout.micro_batches);
    const std::int64_t rows = ids.size(0) / layout.micro_batches;
    const auto batch_of = [&](int i) -> Result<std::shared_ptr<const ModelBatch>> {
      const at::Tensor mine = ids.narrow(0, i * rows, rows);
      ModelBatch batch{.inputs = mine.narrow(1, 0, kLength).contiguous(),
                       .labels = mine.narrow(1, 1, kLength).contiguous()};
      if (drops && mesh.data_ranks() == 1) {
        batch.dropout = {.seed = 7,
                         .step = static_cast<std::uint64_t>(number),
                         .first_sample = static_cast<std::uint64_t>(i * rows),
                         .row_length = kLength};
      }
      return std::make_shared<const ModelBatch>(std::move(batch));
    };
    const auto sums = runner->Train(batch_of);
    if (!sums) throw ErrorException(sums.error());
    if (before_finish) before_finish();
    ThrowIfFailed(Finish());
    const double scale = 1.0 / (kRows * kLength);
    norm = GradientNorm(model->buffer(), scale, ranks);
    optimizer->Step(1e-2, scale * ClipScale(norm, 0.5));
    exchange->ShareValues(ChangedValues::kTrained);
    const at::Tensor sum = at::scalar_tensor(tensor->rank() == 0 ? sums->loss : 0, at::kDouble).view({1});
    ThrowIfFailed(world.AllReduce(sum));
    return sum.item<double>() * scale;
  }

  /// Puts the owned elements into the whole tensors of all ranks. Elements that several ranks own must have the same
  /// bits.
  void Collect(std::map<std::string, at::Tensor>& weights) const {
    for (const OwnedPiece& piece : model->buffer().owned_pieces()) {
      const NamedParameter& parameter = model->Parameters()[piece.parameter];
      at::Tensor& tensor_of_all = weights[parameter.name];
      if (!tensor_of_all.defined()) {
        tensor_of_all = at::full(parameter.whole_shape, std::numeric_limits<float>::quiet_NaN());
      }
      const at::Tensor slice = parameter.slice.whole()
                                   ? tensor_of_all
                                   : tensor_of_all.narrow(static_cast<std::int64_t>(parameter.slice.dim),
                                                          parameter.slice.begin, parameter.slice.extent);
      const at::Tensor flat = slice.reshape({-1}).clone();
      const at::Tensor into = flat.narrow(0, piece.first, piece.elements());
      const at::Tensor values = piece.values.to(at::kFloat);
      EXPECT_TRUE(into.isnan().logical_or(into == values).all().item<bool>())
          << "ranks drift apart: " << parameter.name;
      into.copy_(values);
      at::Tensor(slice).copy_(flat.view(slice.sizes()));
    }
  }

  Collective& world;
  const TrainingLayout layout;
  const bool drops;
  const Mesh mesh;
  Group pipeline, shard, replica, tensor, stage, whole;
  StateRanks ranks;
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<DataExchange> exchange;
  std::unique_ptr<PipelineRunner> runner;
  GroupHooks* hooks = nullptr;  ///< the exchange, or null
  double norm = 0;
  std::function<void()> before_finish;  ///< called between the passes of a step and its Finish()

 private:
  Group Open(std::string name, const std::vector<int>& members) {
    return world.Split(std::move(name), members).value();
  }
  Status Finish() {
    auto waited = exchange->Finish();
    if (!waited) return Fail(waited.error());
    return {};
  }
};

/// The results of all ranks after some steps.
struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;  ///< whole tensors
};

/// Trains one rank of a world. Ranks call it at the same time with the same `trained`.
inline void TrainRank(Collective& world, const TrainingTask& task, const TrainingLayout& layout, std::mutex& mutex,
                      Trained& trained) {
  RankTrainer trainer(world, task, layout);
  std::vector<double> losses, norms;
  for (int step = 0; step < task.steps; ++step) {
    losses.push_back(trainer.Step(step));
    norms.push_back(trainer.norm);
  }
  const std::lock_guard lock(mutex);
  if (!trained.norms.empty()) {
    EXPECT_EQ(norms, trained.norms) << "ranks have the same bits";
  }
  trained.losses = std::move(losses);
  trained.norms = std::move(norms);
  trainer.Collect(trained.weights);
}

/// Runs `work` on a thread for each rank.
inline void OnThreads(int ranks, const std::function<void(Collective&)>& work) {
  auto groups = collectives::ConnectThreads(ranks);
  std::vector<std::jthread> threads;
  for (auto& group : groups) {
    threads.emplace_back([&work, group = std::move(group)] { work(*group); });
  }
}

inline Trained Train(const TrainingTask& task, const TrainingLayout& layout) {
  Trained trained;
  std::mutex mutex;
  OnThreads(static_cast<int>(layout.mesh.ranks()),
            [&](Collective& world) { TrainRank(world, task, layout, mutex, trained); });
  return trained;
}

}  // namespace millrace::engine
