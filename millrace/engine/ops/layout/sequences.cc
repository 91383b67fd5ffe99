#include "millrace/engine/ops/layout/sequences.h"

#include <algorithm>
#include <numeric>

namespace millrace::engine::ops {

Sequences Sequences::Even(std::int64_t rows, std::int64_t length, std::int64_t past) {
  TORCH_CHECK(rows > 0 && length > 0, rows, " sequences of ", length, " tokens are none");
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(rows) + 1);
  for (std::size_t row = 0; row < bounds.size(); ++row) bounds[row] = static_cast<std::int64_t>(row) * length;
  return {std::move(bounds), past};
}

Sequences Sequences::Cut(std::span<const std::int32_t> bounds, std::int64_t tokens) {
  const bool rise = std::ranges::adjacent_find(bounds, std::ranges::greater_equal()) == bounds.end();
  TORCH_CHECK(bounds.size() > 1 && rise && bounds.front() == 0 && bounds.back() == tokens,
              "documents must begin at the first of ", tokens, " tokens, end with the last and each have some");
  return {{bounds.begin(), bounds.end()}, 0};
}

Sequences::Sequences(std::vector<std::int64_t> bounds, std::int64_t past) {
  auto data = std::make_shared<Data>(Data{.bounds = std::move(bounds), .past = past});
  data_ = data;
  data->longest_first.resize(data->bounds.size() - 1);
  std::iota(data->longest_first.begin(), data->longest_first.end(), 0);
  std::ranges::stable_sort(data->longest_first, std::ranges::greater(), [&](std::int64_t i) { return length(i); });
  data->positions = at::empty({tokens()}, at::kInt);
  auto* const position = data->positions.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < count(); ++i) {
    std::iota(position + begin(i), position + begin(i + 1), static_cast<std::int32_t>(past));
  }
}

}  // namespace millrace::engine::ops
