#include "millrace/engine/ops/common/sequences.h"

#include <algorithm>
#include <numeric>

#include "millrace/engine/device/host_memory.h"

namespace millrace::engine::ops {

at::Tensor Sequences::PositionsOn(at::Device device) const {
  const std::scoped_lock lock(data_->mutex);
  at::Tensor& there = data_->positions_there;
  if (!there.defined() || there.device() != device) there = ToDevice(data_->positions, device);
  return there;
}

at::Tensor Sequences::BoundsOn(at::Device device) const {
  const std::scoped_lock lock(data_->mutex);
  at::Tensor& there = data_->bounds_there;
  if (!there.defined() || there.device() != device) {
    there = ToDevice(at::tensor(at::ArrayRef(data_->bounds), at::kInt), device);
  }
  return there;
}

Sequences Sequences::Even(std::int64_t rows, std::int64_t length, std::int64_t past) {
  TORCH_CHECK(rows > 0 && length > 0, rows, " sequences of ", length, " tokens are none");
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(rows) + 1);
  for (std::size_t row = 0; row < bounds.size(); ++row) bounds[row] = static_cast<std::int64_t>(row) * length;
  return {std::move(bounds), std::vector<std::int64_t>(static_cast<std::size_t>(rows), past)};
}

Sequences Sequences::Cut(std::span<const std::int32_t> bounds, std::int64_t tokens) {
  const bool rise = std::ranges::adjacent_find(bounds, std::ranges::greater_equal()) == bounds.end();
  TORCH_CHECK(bounds.size() > 1 && rise && bounds.front() == 0 && bounds.back() == tokens,
              "documents must begin at the first of ", tokens, " tokens, end with the last and each have some");
  return {{bounds.begin(), bounds.end()}, std::vector<std::int64_t>(bounds.size() - 1)};
}

Sequences Sequences::Following(std::span<const std::int64_t> lengths, std::span<const std::int64_t> past) {
  TORCH_CHECK(
      !lengths.empty() && lengths.size() == past.size() && std::ranges::min(lengths) > 0 && std::ranges::min(past) >= 0,
      "sequences need tokens, and the number of tokens before them");
  std::vector<std::int64_t> bounds(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), bounds.begin() + 1);
  return {std::move(bounds), {past.begin(), past.end()}};
}

Sequences Sequences::Following(std::span<const std::int64_t> lengths, std::span<const std::int64_t> past,
                               at::Tensor positions) {
  Sequences sequences = Following(lengths, past);
  TORCH_CHECK(positions.numel() == sequences.tokens(), positions.numel(), " positions for ", sequences.tokens(),
              " tokens");
  const std::scoped_lock lock(sequences.data_->mutex);
  sequences.data_->positions_there = std::move(positions);
  return sequences;
}

Sequences Sequences::Slice(std::int64_t first, std::int64_t last) const {
  std::vector<std::int64_t> bounds, past;
  for (std::int64_t i = first; i <= last; ++i) bounds.push_back(begin(i) - begin(first));
  for (std::int64_t i = first; i < last; ++i) past.push_back(this->past(i));
  return {std::move(bounds), std::move(past)};
}

Sequences::Sequences(std::vector<std::int64_t> bounds, std::vector<std::int64_t> past) {
  auto data = std::make_shared<Data>();
  data->bounds = std::move(bounds);
  data->past = std::move(past);
  data_ = data;
  data->longest_first.resize(data->bounds.size() - 1);
  std::iota(data->longest_first.begin(), data->longest_first.end(), 0);
  std::ranges::stable_sort(data->longest_first, std::ranges::greater(), [&](std::int64_t i) { return length(i); });
  data->positions = at::empty({tokens()}, at::kInt);
  auto* const position = data->positions.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < count(); ++i) {
    data->limit = std::max(data->limit, this->past(i) + length(i));
    std::iota(position + begin(i), position + begin(i + 1), static_cast<std::int32_t>(this->past(i)));
  }
}

}  // namespace millrace::engine::ops
