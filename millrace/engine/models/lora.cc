#include "millrace/engine/models/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "millrace/engine/config/frozen_sample.h"
#include "millrace/engine/config/lora_options.h"

namespace millrace::engine {
namespace {

/// Returns whether the parameter is an adapter's of a module that `target` names.
bool IsAdapterOf(std::string_view target, std::string_view parameter) {
  if (!parameter.ends_with(kLoraDown)) return false;
  parameter.remove_suffix(kLoraDown.size());
  return target == "all-linear" || TargetMatches(target, parameter);
}

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

/// The first row of a weight's module among those of all modules with magnitudes, by the weight's name.
using FirstRows = std::map<std::string, std::int64_t>;

std::string WeightUnder(const std::string& magnitude) {
  return magnitude.substr(0, magnitude.size() - kLoraMagnitude.size()) + ".weight";
}

/// Adds the squares of a piece of a matrix to the sums of its rows [rows of the whole matrix].
void AddRowSquares(const NamedParameter& parameter, const OwnedPiece& piece, const at::Tensor& sums) {
  const std::int64_t columns = parameter.tensor.size(1);
  const bool divides_rows = !parameter.slice.whole() && parameter.slice.dim == 0;
  const std::int64_t first_row = divides_rows ? parameter.slice.begin : 0;
  for (std::int64_t done = 0; done < piece.elements();) {
    const std::int64_t row = (piece.first + done) / columns, column = (piece.first + done) % columns;
    const std::int64_t left = piece.elements() - done;
    // Whole rows at once; before and behind them, a part of one.
    const std::int64_t rows = column == 0 && left >= columns ? left / columns : 1;
    const std::int64_t wide = rows == 1 ? std::min(columns - column, left) : columns;
    const at::Tensor part = piece.values.detach().narrow(0, done, rows * wide).view({rows, wide});
    const at::Tensor norms = at::linalg_vector_norm(part, 2, at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat);
    sums.narrow(0, first_row + row, rows).add_(norms.square().to(sums.device()));
    done += rows * wide;
  }
}

float RowNorm(const QuantizedMatrix& matrix, std::int64_t row) {
  std::vector<float> elements(static_cast<std::size_t>(matrix.columns()));
  matrix.Dequantize({.row = row, .rows = 1, .columns = matrix.columns()}, elements.data(), matrix.columns());
  double sum = 0;
  for (const float element : elements) sum += double{element} * element;
  return static_cast<float>(std::sqrt(sum));
}

/// Returns whether this rank counts what it owns in a sum over the shard axis. Without divided state, all of its ranks
/// hold the same.
bool CountsOwned(const ParameterBuffer& parameters, const StateRanks& ranks) {
  return parameters.sharding().divides_state() || ranks.shard == nullptr || ranks.shard->rank() == 0;
}

}  // namespace

Status InitializeMagnitudes(const ParameterBuffer& parameters, const QuantizedWeights* quantized,
                            const StateRanks& ranks) {
  FirstRows first_rows;
  std::int64_t rows = 0;
  for (const NamedParameter& parameter : parameters.parameters()) {
    if (!parameter.name.ends_with(kLoraMagnitude)) continue;
    if (first_rows.emplace(WeightUnder(parameter.name), rows).second) rows += parameter.whole_shape[0];
  }
  if (rows == 0) return {};
  const at::Tensor squares = at::zeros({rows}, at::kFloat);
  for (const OwnedPiece& piece : parameters.owned_pieces()) {
    const NamedParameter& parameter = parameters.parameters()[piece.parameter];
    const auto found = first_rows.find(parameter.name);
    if (found == first_rows.end() || !CountsOwned(parameters, ranks) || !ranks.IsFirstHolder(parameter)) continue;
    AddRowSquares(parameter, piece, squares.narrow(0, found->second, parameter.whole_shape[0]));
  }
  if (ranks.stage != nullptr) MR_TRY(ranks.stage->AllReduce(squares));
  const at::Tensor norms = squares.sqrt();
  for (const OwnedPiece& piece : parameters.owned_pieces()) {
    const NamedParameter& parameter = parameters.parameters()[piece.parameter];
    if (!parameter.name.ends_with(kLoraMagnitude)) continue;
    const std::string weight = WeightUnder(parameter.name);
    const std::int64_t first = (parameter.slice.whole() ? 0 : parameter.slice.begin) + piece.first;
    at::Tensor mine = norms.narrow(0, first_rows.at(weight) + first, piece.elements());
    if (quantized != nullptr && quantized->contains(weight)) {
      for (std::int64_t i = 0; i < piece.elements(); ++i) mine[i] = RowNorm(*quantized->at(weight), first + i);
    }
    piece.values.detach().copy_(mine);
  }
  return {};
}

Result<std::uint64_t> FrozenFingerprint(const ParameterBuffer& parameters, const StateRanks& ranks) {
  std::uint64_t sum = 0;
  const bool counts = CountsOwned(parameters, ranks);
  for (const OwnedPiece& piece : parameters.owned_pieces()) {
    const NamedParameter& parameter = parameters.parameters()[piece.parameter];
    if (!counts || parameter.trainable || !ranks.Counts(parameter)) continue;
    std::uint64_t elements = 1;
    for (const std::int64_t extent : parameter.whole_shape) elements *= static_cast<std::uint64_t>(extent);
    for (const SampledElement& element : SampleWeight(parameter.name, elements)) {
      const auto place = PlaceInSlice(parameter, static_cast<std::int64_t>(element.place));
      if (!place || *place < piece.first || *place >= piece.first + piece.elements()) continue;
      sum += element.Hash(piece.values[*place - piece.first].item<float>());
    }
  }
  const at::Tensor all = at::full({1}, static_cast<std::int64_t>(sum), at::kLong);
  if (ranks.model != nullptr) MR_TRY(ranks.model->AllReduce(all));
  return static_cast<std::uint64_t>(all.item<std::int64_t>());
}

TrainedNames TrainedWithLora(const ModelConfig& config, const LoraOptions& options) {
  TrainedNames trained{.freeze = {"*"}};
  for (const std::string_view kind : {kLoraDown, kLoraUp, kLoraMagnitude})
    trained.except.push_back(fmt::format("*{}", kind));
  trained.except.insert(trained.except.end(), options.whole.begin(), options.whole.end());
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
    return Fail(Code::kInvalidArgument,
                "{}: no linear layer of the model is called \"{}\"; write names such as q_proj, or all-linear", key,
                targets[i]);
  }
  return {};
}

}  // namespace millrace::engine
