#include "millrace/engine/models/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "millrace/base/hash/random.h"
#include "millrace/engine/adapters/lora_options.h"
#include "millrace/engine/parameters/name_hash.h"

namespace millrace::engine {
namespace {

/// Returns whether the parameter is an adapter's of a module that `target` names.
bool IsAdapterOf(std::string_view target, std::string_view parameter) {
  if (!parameter.ends_with(kLoraDown)) return false;
  parameter.remove_suffix(kLoraDown.size());
  return target == "all-linear" || TargetMatches(target, parameter);
}

/// How many elements of each weight the fingerprint has. A model that differs in a hundredth of its elements is
/// recognised from a single weight with a probability of one half, and from ten of them with 0.998.
constexpr std::uint64_t kSampledElements = 64;

/// Returns where an element of the whole tensor is in the flattened slice; nothing if the slice lacks it.
std::optional<std::int64_t> PlaceInSlice(const NamedParameter& parameter, std::int64_t element) {
  const TensorSlice& slice = parameter.slice;
  if (slice.whole()) return element;
  std::int64_t inner = 1;
  for (std::size_t dim = slice.dim + 1; dim < parameter.whole_shape.size(); ++dim) inner *= parameter.whole_shape[dim];
  const std::int64_t extent = parameter.whole_shape[slice.dim];
  const std::int64_t line = element / inner, outer = line / extent, at = line % extent - slice.begin;
  if (at < 0 || at >= slice.extent) return std::nullopt;
  return (outer * slice.extent + at) * inner + element % inner;
}

}  // namespace

Result<std::uint64_t> FrozenFingerprint(const ParameterBuffer& parameters, const StateRanks& ranks) {
  std::uint64_t sum = 0;
  // Without divided state, all ranks of the shard axis hold the same.
  const bool counts = parameters.sharding().divides_state() || ranks.shard == nullptr || ranks.shard->rank() == 0;
  for (const OwnedPiece& piece : parameters.owned_pieces()) {
    const NamedParameter& parameter = parameters.parameters()[piece.parameter];
    if (!counts || parameter.trainable || !ranks.Counts(parameter)) continue;
    const std::uint64_t key = HashName(0, parameter.name);
    std::uint64_t elements = 1;
    for (const std::int64_t extent : parameter.whole_shape) elements *= static_cast<std::uint64_t>(extent);
    for (std::uint64_t i = 0; i < kSampledElements; ++i) {
      const std::uint64_t draw = Mix64(key + i);
      const auto place = PlaceInSlice(parameter, static_cast<std::int64_t>(draw % elements));
      if (!place || *place < piece.first || *place >= piece.first + piece.elements()) continue;
      const auto value = piece.values[*place - piece.first].item<float>();
      sum += Mix64(draw ^ std::bit_cast<std::uint32_t>(value));
    }
  }
  const at::Tensor all = at::full({1}, static_cast<std::int64_t>(sum), at::kLong);
  if (ranks.model != nullptr) MR_TRY(ranks.model->AllReduce(all));
  return static_cast<std::uint64_t>(all.item<std::int64_t>());
}

TrainedNames TrainedWithLora(const ModelConfig& config) {
  TrainedNames trained{.freeze = {"*"}, .except = {"*" + std::string(kLoraDown), "*" + std::string(kLoraUp)}};
  if (config.predicts_rows() && !config.predicts_tokens()) {
    trained.except.push_back(fmt::format("{}.*", config.class_layer()));
  }
  return trained;
}

Status CheckTargets(std::string_view key, const ParameterBuffer& parameters, const std::vector<std::string>& targets,
                    const StateRanks& ranks) {
  at::Tensor matches = at::zeros({static_cast<std::int64_t>(targets.size())}, at::kByte);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    matches[static_cast<std::int64_t>(i)] = std::ranges::any_of(
        parameters.parameters(), [&](const NamedParameter& p) { return IsAdapterOf(targets[i], p.name); });
  }
  if (ranks.model != nullptr && !targets.empty()) MR_TRY(ranks.model->AllReduce(matches, Reduction::kMax));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (matches[static_cast<std::int64_t>(i)].item<bool>()) continue;
    return Fail(Code::kInvalidArgument, "{}: no linear layer of the model is called \"{}\"", key, targets[i]);
  }
  return {};
}

}  // namespace millrace::engine
