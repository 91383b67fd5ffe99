#include "millrace/checkpoint/convert/huggingface/adapted_base.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/checkpoint/convert/huggingface/base_weights.h"
#include "millrace/checkpoint/convert/tensors/quantized_names.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/frozen_sample.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/peft_config.h"

namespace millrace::checkpoint {
namespace {

/// Requests in flight.
constexpr int kSampleReads = 16;

/// What a run wrote down about the model that it adapted.
struct AdaptedModel {
  std::string fingerprint;  ///< in hexadecimal digits
  DType dtype;              ///< of the weights in the run
  std::shared_ptr<const engine::ModelConfig> config;
};

/// Returns nothing if no run of ours made the adapter.
std::optional<AdaptedModel> AdaptedModelOf(const Reader& adapter) {
  const Json& meta = adapter.manifest().meta;
  const Json *train = JsonFind(meta, "train"), *json = JsonFind(meta, kMetaModelConfig);
  if (train == nullptr || json == nullptr) return std::nullopt;
  std::string fingerprint = JsonString(*train, "base_fingerprint").value_or("");
  const std::string dtype = JsonString(*json, "torch_dtype").value_or("");
  auto config = engine::ParseModelConfig(*json, adapter.name());
  if (fingerprint.empty() || !config) return std::nullopt;
  constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
  for (const auto& [name, type] : kTypes) {
    if (name == dtype) return AdaptedModel{std::move(fingerprint), type, *std::move(config)};
  }
  return std::nullopt;
}

/// Returns the parameters of the model that the adapter has whole, so they were not frozen.
std::set<std::string> TrainedWhole(const Manifest& adapter) {
  std::set<std::string> trained;
  for (const auto& [tensor, meta] : adapter.tensors) {
    std::string_view name = tensor;
    if (!name.starts_with(kAdapterGroup)) continue;
    name.remove_prefix(kAdapterGroup.size());
    if (name.starts_with(engine::kPeftPrefix)) name.remove_prefix(engine::kPeftPrefix.size());
    if (!engine::IsOfAdapter(name)) trained.emplace(name);
  }
  return trained;
}

/// A sampled element of a stored weight.
struct SampleRead {
  engine::SampledElement element;
  std::string tensor;
  DType dtype = DType::kF32;
  std::uint64_t begin = 0;  ///< in the tensor
  std::array<std::byte, sizeof(float)> stored = {};
};

/// Adds the sampled elements of a weight. A tensor [in, out] is the transpose of the weight.
void AddSample(const std::string& weight, const std::string& tensor, const TensorMeta& meta, bool transposed,
               std::vector<SampleRead>& reads) {
  for (const engine::SampledElement& element : engine::SampleWeight(weight, meta.elements())) {
    std::uint64_t begin = element.place;
    if (transposed) {
      const auto in = static_cast<std::uint64_t>(meta.shape[0]), out = static_cast<std::uint64_t>(meta.shape[1]);
      begin = element.place % in * out + element.place / in;
    }
    reads.push_back({.element = element, .tensor = tensor, .dtype = meta.dtype, .begin = begin});
  }
}

/// Returns the elements to read of all frozen weights; nothing if they cannot be compared.
/// Errors: kPreconditionFailed if a weight is missing.
Result<std::optional<std::vector<SampleRead>>> SampleOf(const Reader& adapter, const engine::ModelConfig& config,
                                                        const Reader& base, const engine::QuantizedWeights* quantized) {
  const engine::ModelFamily& family = *engine::FindFamily(config.family());
  const std::set<std::string> trained = TrainedWhole(adapter.manifest());
  std::vector<SampleRead> reads;
  for (const std::string& weight : config.Shape().ParameterNames()) {
    if (trained.contains(weight) || (quantized != nullptr && quantized->contains(weight))) continue;
    const auto tensor = FindWeight(base.manifest(), weight);
    if (!tensor && !config.generates()) return std::nullopt;
    if (!tensor) {
      return Fail(Code::kPreconditionFailed,
                  "{} lacks the weight {} of the model that {} adapts; give the base that the adapter was trained on",
                  base.name(), weight, adapter.name());
    }
    const TensorMeta& meta = base.manifest().tensors.at(*tensor);
    if (!IsFloat(meta.dtype) || meta.elements() == 0) return std::nullopt;
    const bool transposed =
        family.names.transposed_blocks && !StoresTransposed(base.manifest(), weight) && IsQuantizable(weight, meta);
    AddSample(weight, *tensor, meta, transposed, reads);
  }
  return reads;
}

}  // namespace

Status CheckAdaptedBase(const Reader& adapter, Reader& base, const engine::QuantizedWeights* quantized,
                        const object::Call& call) {
  const auto adapted = AdaptedModelOf(adapter);
  std::optional<engine::Quantization> kind;
  if (quantized != nullptr && !quantized->empty()) kind = quantized->begin()->second->kind();
  if (!adapted || QuantizedWhileTraining(adapter.manifest()) != kind) return {};
  auto reads = MR_TRY(SampleOf(adapter, *adapted->config, base, quantized));
  if (!reads) return {};
  std::vector<Reader::TensorRange> wanted;
  for (SampleRead& read : *reads) {
    wanted.push_back({.tensor = read.tensor,
                      .begin = read.begin,
                      .into = MutableByteSpan(read.stored).first(DTypeBytes(read.dtype))});
  }
  MR_TRY(base.ReadMany(wanted, kSampleReads, call));
  std::uint64_t sum = quantized != nullptr ? engine::Fingerprint(*quantized) : 0;
  for (const SampleRead& read : *reads) {
    std::array<std::byte, sizeof(float)> rounded;
    StoreFloat(adapted->dtype, LoadFloat(read.dtype, read.stored.data()), rounded.data());
    sum += read.element.Hash(LoadFloat(adapted->dtype, rounded.data()));
  }
  if (fmt::format("{:016x}", sum) == adapted->fingerprint) return {};
  return Fail(Code::kPreconditionFailed,
              "{} adapts a model with other weights than those of {}; name the model.from of its run with --base",
              adapter.name(), base.name());
}

}  // namespace millrace::checkpoint
