#include "millrace/engine/models/make_model.h"

#include <algorithm>

#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/model_family.h"
#include "millrace/engine/errors.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/models/lora.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {

// Each family's folder defines both. CMakeLists.txt of engine/config writes the list from the names of the folders.
#define MILLRACE_FAMILY(Name) \
  ModelFamily Name##Family(); \
  std::unique_ptr<Model> Build##Name(std::shared_ptr<const ModelConfig> config);
#include "family_list.inc"
#undef MILLRACE_FAMILY

namespace {

/// Returns a model without layers.
std::unique_ptr<Model> Build(const std::shared_ptr<const ModelConfig>& config) {
  const auto is_of = [&](const ModelFamily& family) {
    return std::ranges::find(family.model_types, config->family()) != family.model_types.end();
  };
#define MILLRACE_FAMILY(Name) \
  if (is_of(Name##Family())) return Build##Name(config);
#include "family_list.inc"
#undef MILLRACE_FAMILY
  TORCH_INTERNAL_ASSERT(false, "no family has the model type ", config->family());
}

}  // namespace

Result<std::unique_ptr<Model>> MakeModel(std::shared_ptr<const ModelConfig> config, at::ScalarType dtype,
                                         at::Device device, std::uint64_t seed, ModelShare share) {
  MR_TRY(config->Validate("model"));
  MR_TRY(CheckDivision(*config, share.ranks.size()));
  if (share.lora) MR_TRY(CheckLora(*share.lora, "lora"));
  if (dtype != at::kFloat && dtype != at::kBFloat16 && (dtype != at::kHalf || device.is_cpu())) {
    return Fail(Code::kUnsupported, "a model computes in F32 or BF16, and on a GPU also in F16, not {}",
                ScalarTypeName(dtype));
  }
  return CatchTorch("creating the model", [&]() -> std::unique_ptr<Model> {
    auto buffer =
        std::make_unique<ParameterBuffer>(share.sharding, share.lora ? TrainedWithLora(*config, *share.lora)
                                                                     : TrainedNames{.freeze = std::move(share.freeze)});
    if (share.stages.empty()) share.stages = {{.first = 0, .last = config->sizes().num_layers}};
    const bool both_ends = share.stages.front().embeds && share.stages.back().predicts;
    LayerFactory make(*buffer, config->initializer_range(), share.ranks, both_ends, std::move(share.lora),
                      share.quantized.get());
    std::unique_ptr<Model> model = Build(config);
    model->MakeLayers(std::move(share.stages), make);
    model->buffer_ = std::move(buffer);
    model->buffer_->Allocate(dtype, device);
    const bool adapters_only = share.initial_values == InitialValues::kAdapters;
    if (share.initial_values != InitialValues::kNone) {
      model->buffer_->Initialize(seed, [&](const std::string& name) { return !adapters_only || IsOfAdapter(name); });
    }
    model->Prepare(device);
    return model;
  });
}

std::vector<std::string> TransposedWeights(const ModelConfig& config) {
  ParameterBuffer buffer;
  LayerFactory make(buffer, config.initializer_range());
  const std::shared_ptr<const ModelConfig> borrowed(std::shared_ptr<void>(), &config);
  Build(borrowed)->MakeLayers(DivideModel(config, {}, /*length=*/1), make);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : buffer.specs()) {
    const bool is_new = names.empty() || names.back() != spec.name;  // queries, keys and values are slices of one
    if (spec.transposed && is_new) names.push_back(spec.name);
  }
  return names;
}

Status CheckDivision(const ModelConfig& config, int ranks) {
  if (ranks == 1) return {};
  const ModelSizes sizes = config.sizes();
  struct Divided {
    std::string_view what;
    std::int64_t count;
  };
  for (const Divided& each :
       {Divided{"attention heads", sizes.num_heads}, Divided{"channels of the MLP", sizes.intermediate_size}}) {
    if (each.count % ranks != 0) {
      return Fail(
          Code::kInvalidArgument,
          "{} {} do not divide among {} tensor-parallel ranks; choose a train.parallel.tensor that divides them",
          each.count, each.what, ranks);
    }
  }
  if (sizes.num_kv_heads % ranks != 0 && ranks % sizes.num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{} key-value heads do not divide among {} tensor-parallel ranks, nor the ranks among the heads; "
                "choose another train.parallel.tensor",
                sizes.num_kv_heads, ranks);
  }
  const std::int64_t share = (sizes.vocab_size + ranks - 1) / ranks;
  if (share * (ranks - 1) >= sizes.vocab_size) {
    return Fail(
        Code::kInvalidArgument,
        "a vocabulary of {} leaves some of {} tensor-parallel ranks without tokens; lower train.parallel.tensor",
        sizes.vocab_size, ranks);
  }
  return {};
}

}  // namespace millrace::engine
