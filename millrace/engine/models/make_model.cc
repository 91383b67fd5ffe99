#include "millrace/engine/models/make_model.h"

#include "millrace/engine/errors.h"
#include "millrace/engine/layers/layer_factory.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {

Result<std::unique_ptr<Model>> MakeModel(std::shared_ptr<const ModelConfig> config, at::ScalarType dtype,
                                         at::Device device, std::uint64_t seed, ModelShare share) {
  MR_TRY(config->Validate("model"));
  MR_TRY(CheckDivision(*config, share.ranks.size()));
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    return Fail(Code::kUnsupported, "a model computes in F32 or BF16, not {}", ScalarTypeName(dtype));
  }
  return CatchTorch("creating the model", [&]() -> std::unique_ptr<Model> {
    auto buffer = std::make_unique<ParameterBuffer>(share.sharding, std::move(share.freeze));
    if (share.stages.empty()) share.stages = DivideModel(*config, 1);
    const bool both_ends = share.stages.front().embeds && share.stages.back().predicts;
    LayerFactory make(*buffer, config->initializer_range(), share.ranks, both_ends);
    std::unique_ptr<Model> model = config->Build(config);
    model->MakeLayers(std::move(share.stages), make);
    model->buffer_ = std::move(buffer);
    model->buffer_->Allocate(dtype, device);
    model->buffer_->Initialize(seed);
    model->Prepare(device);
    return model;
  });
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
      return Fail(Code::kInvalidArgument, "{} {} do not divide among {} tensor-parallel ranks", each.count, each.what,
                  ranks);
    }
  }
  if (sizes.num_kv_heads % ranks != 0 && ranks % sizes.num_kv_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{} key-value heads do not divide among {} tensor-parallel ranks, nor the ranks among the heads",
                sizes.num_kv_heads, ranks);
  }
  const std::int64_t share = (sizes.vocab_size + ranks - 1) / ranks;
  if (share * (ranks - 1) >= sizes.vocab_size) {
    return Fail(Code::kInvalidArgument, "a vocabulary of {} leaves some of {} tensor-parallel ranks without tokens",
                sizes.vocab_size, ranks);
  }
  return {};
}

}  // namespace millrace::engine
