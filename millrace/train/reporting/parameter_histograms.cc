#include "millrace/train/reporting/parameter_histograms.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <span>

#include "millrace/base/threads/sync.h"
#include "millrace/engine/errors.h"

namespace millrace::train {
namespace {

using metrics::FloatHistogram;

constexpr std::int64_t kPieceElements = 4 << 20;  // converted at a time: 16 MiB of float32
constexpr std::int64_t kGrain = 1 << 18;          // of a thread: some 100 microseconds
constexpr std::size_t kParametersAtOnce = 32;     // in an all-reduce: half a megabyte

/// Counts a tensor's elements times `scale`.
void Count(const at::Tensor& tensor, double scale, FloatHistogram& into) {
  for (std::int64_t first = 0; first < tensor.numel(); first += kPieceElements) {
    at::Tensor part = tensor.narrow(0, first, std::min(kPieceElements, tensor.numel() - first)).detach();
    part = part.to(at::kCPU, at::kFloat);
    if (scale != 1) part = part * scale;
    const std::span<const float> numbers(part.data_ptr<float>(), static_cast<std::size_t>(part.numel()));
    Mutex mutex;
    at::parallel_for(0, part.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      FloatHistogram counted;
      counted.Add(numbers.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
      const MutexLock lock(mutex);
      into.Add(counted);
    });
  }
}

/// Gathers texts without line feeds. Returns all of them, sorted, each once.
Result<std::vector<std::string>> UniteTexts(engine::Collective& world, const std::vector<std::string>& mine) {
  std::string lines;
  for (const std::string& text : mine) lines += text + "\n";
  const at::Tensor longest = at::scalar_tensor(static_cast<std::int64_t>(lines.size()), at::kLong);
  MR_TRY(world.AllReduce(longest, engine::Reduction::kMax));
  const std::int64_t length = longest.item<std::int64_t>();
  const at::Tensor padded = at::zeros({length}, at::kByte);
  std::ranges::copy(lines, padded.data_ptr<std::uint8_t>());
  const at::Tensor all = at::zeros({length * world.size()}, at::kByte);
  MR_TRY(world.AllGather(all, padded));
  std::vector<std::string> united;
  std::string text;
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const auto character = static_cast<char>(all.data_ptr<std::uint8_t>()[i]);
    if (character == '\n') {
      united.push_back(std::move(text));
      text.clear();
    } else if (character != '\0') {
      text += character;
    }
  }
  std::ranges::sort(united);
  united.erase(std::ranges::unique(united).begin(), united.end());
  return united;
}

/// Calls `visit` with each histogram of a parameter.
template <class Visit>
void ForEachOf(ParameterHistogram& parameter, Visit visit) {
  visit(parameter.weights);
  visit(parameter.gradients);
}

}  // namespace

Result<ParameterHistograms> ParameterHistograms::Make(engine::Collective& world, const engine::ParameterBuffer& buffer,
                                                      const engine::StateRanks& ranks) {
  std::vector<std::string> mine;
  for (const engine::OwnedPiece& piece : buffer.owned_pieces()) {
    if (piece.trainable) mine.push_back(buffer.parameters()[piece.parameter].name);
  }
  std::vector<std::string> names = MR_TRY(UniteTexts(world, mine));
  return ParameterHistograms(world, buffer, ranks, std::move(names));
}

Result<std::vector<ParameterHistogram>> ParameterHistograms::Collect(double scale) const {
  std::vector<ParameterHistogram> histograms(names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) histograms[i].name = names_[i];
  MR_TRY(CountOwned(histograms, scale));
  MR_TRY(AddOverRanks(histograms));
  return histograms;
}

Status ParameterHistograms::CountOwned(std::vector<ParameterHistogram>& histograms, double scale) const {
  if (ranks_.replica != nullptr && ranks_.replica->rank() != 0) return {};  // it has what the first replica has
  return engine::CatchTorch("histograms of parameters", [&] {
    for (const engine::OwnedPiece& piece : buffer_->owned_pieces()) {
      const engine::NamedParameter& parameter = buffer_->parameters()[piece.parameter];
      if (!piece.trainable || !ranks_.Counts(parameter)) continue;
      const auto at = std::ranges::lower_bound(histograms, parameter.name, {}, &ParameterHistogram::name);
      Count(piece.values, 1, at->weights);
      Count(piece.gradients, scale, at->gradients);
    }
  });
}

Status ParameterHistograms::AddOverRanks(std::vector<ParameterHistogram>& histograms) const {
  constexpr std::int64_t kNumbers = FloatHistogram::kBins + 1;
  for (std::size_t first = 0; first < histograms.size(); first += kParametersAtOnce) {
    const auto some = std::span(histograms).subspan(first, std::min(kParametersAtOnce, histograms.size() - first));
    const auto rows = static_cast<std::int64_t>(2 * some.size());
    const at::Tensor counts = at::zeros({rows, kNumbers}, at::kLong), bounds = at::zeros({rows, 2}, at::kDouble);
    auto* count = counts.data_ptr<std::int64_t>();
    auto* bound = bounds.data_ptr<double>();
    for (ParameterHistogram& parameter : some) {
      ForEachOf(parameter, [&](FloatHistogram& histogram) {
        count = std::ranges::copy(histogram.counts(), count).out;
        *count++ = histogram.not_finite();
        *bound++ = -histogram.least();
        *bound++ = histogram.greatest();
      });
    }
    MR_TRY(world_->AllReduce(counts));
    MR_TRY(world_->AllReduce(bounds, engine::Reduction::kMax));
    const auto* counted = counts.data_ptr<std::int64_t>();
    const auto* bounded = bounds.data_ptr<double>();
    for (ParameterHistogram& parameter : some) {
      ForEachOf(parameter, [&](FloatHistogram& histogram) {
        std::copy_n(counted, FloatHistogram::kBins, histogram.counts().begin());
        histogram.not_finite() = counted[FloatHistogram::kBins];
        counted += kNumbers;
        histogram.least() = -bounded[0];
        histogram.greatest() = bounded[1];
        bounded += 2;
      });
    }
  }
  return {};
}

}  // namespace millrace::train
