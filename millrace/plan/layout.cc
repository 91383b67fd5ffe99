#include "millrace/plan/layout.h"

#include <algorithm>
#include <string_view>

namespace millrace::plan {
namespace {

using engine::MeshAxis;

Status CheckTensor(const ModelShape& model, std::int64_t ranks) {
  if (ranks == 1) return {};
  struct Divided {
    std::string_view what;
    std::int64_t count;
  };
  for (const Divided& each :
       {Divided{"attention heads", model.num_heads}, Divided{"channels of the MLP", model.intermediate_size}}) {
    if (each.count % ranks != 0) {
      return Fail(
          Code::kInvalidArgument,
          "{} {} do not divide among {} tensor-parallel ranks; choose a train.parallel.tensor that divides them",
          each.count, each.what, ranks);
    }
  }
  if (model.num_kv_heads % ranks != 0 && ranks % model.num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{} key-value heads do not divide among {} tensor-parallel ranks, nor the ranks among the heads; "
                "choose another train.parallel.tensor",
                model.num_kv_heads, ranks);
  }
  return {};
}

}  // namespace

std::vector<engine::BlockRange> Layout::Stages(const TrainingSetup& setup) const {
  const engine::PartWork work = engine::WorkOfParts(setup.model.Parts(setup.sequence_length), options);
  return engine::DivideBlocks(setup.model.num_layers, work.head / work.block, options.pipeline, options.virtual_stages);
}

Result<Layout> MakeLayout(const TrainingSetup& setup, const engine::ParallelOptions& options) {
  const engine::MeshShape shape = MR_TRY(engine::ShapeOf(options, setup.ranks));
  Layout layout{.options = options, .shape = shape};
  MR_TRY(engine::Mesh::Make(layout.shape, setup.ranks, options.placement));
  MR_TRY(CheckTensor(setup.model, options.tensor));
  const std::int64_t rows = layout.data_ranks() * setup.micro_batch;
  if (setup.global_batch % rows != 0) {
    return Fail(Code::kInvalidArgument,
                "train.global_batch {} is not a multiple of {} data-parallel ranks times train.micro_batch {}",
                setup.global_batch, layout.data_ranks(), setup.micro_batch);
  }
  layout.microbatches = setup.global_batch / rows;
  if (options.sequence && setup.micro_tokens() % options.tensor != 0) {
    return Fail(Code::kInvalidArgument,
                "{} tokens of a micro-batch do not divide among {} tensor-parallel ranks; change train.micro_batch or "
                "train.parallel.tensor",
                setup.micro_tokens(), options.tensor);
  }
  const std::int64_t stages = std::int64_t{options.pipeline} * options.virtual_stages;
  if (stages > setup.model.num_layers) {
    return Fail(
        Code::kInvalidArgument,
        "{} stages (pipeline {} × virtual_stages {}) are more than {} blocks; lower one of them in train.parallel",
        stages, options.pipeline, options.virtual_stages, setup.model.num_layers);
  }
  return layout;
}

RankSpan SpanOf(const Layout& layout, MeshAxis axis, int ranks_per_machine) {
  const std::string_view name = layout.options.placement;
  const std::string_view order = name == "cluster" ? "DPT" : name == "spread" ? "TPD" : name;
  const auto extent = [&](char letter) -> std::int64_t {
    return letter == 'D' ? layout.data_ranks() : letter == 'P' ? layout.shape.pipeline : layout.shape.tensor;
  };
  const char letter = axis == MeshAxis::kTensor ? 'T' : axis == MeshAxis::kPipeline ? 'P' : 'D';
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); order[--i] != letter;) stride *= extent(order[i]);
  // Of the data axis, shards are neighbours.
  RankSpan span{.ranks = axis == MeshAxis::kShard ? layout.shape.shard : extent(letter)};
  span.per_machine = std::clamp<std::int64_t>((ranks_per_machine + stride - 1) / stride, 1, span.ranks);
  return span;
}

}  // namespace millrace::plan
