#include "millrace/engine/models/make_model.h"

#include "millrace/engine/errors.h"
#include "millrace/engine/models/llama.h"

namespace millrace::engine {

namespace {

constexpr double kInitialStddev = 0.02;  // initializer_range of transformers' LlamaConfig

}  // namespace

Result<std::unique_ptr<Model>> MakeModel(const ModelConfig& config, at::ScalarType dtype, at::Device device,
                                         std::uint64_t seed) {
  MR_TRY(config.Validate("model"));
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    return Fail(Code::kUnsupported, "a model computes in F32 or BF16, not {}", ScalarTypeName(dtype));
  }
  return CatchTorch("creating the model", [&]() -> std::unique_ptr<Model> {
    auto model = MakeLlama(config, dtype, device);
    model->buffer().Initialize(seed, kInitialStddev);
    return model;
  });
}

}  // namespace millrace::engine
