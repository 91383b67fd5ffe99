#include "millrace/engine/layers/embedding.h"

#include <cmath>

#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/ops/cpu/philox.h"
#include "millrace/engine/ops/dispatch.h"

namespace millrace::engine {
namespace {

/// Tells the noise from places of dropout, whose numbers are small or hashes of names: "neftune".
constexpr std::uint64_t kNoiseSite = 0x6E656674756E65;

/// Returns a number in [-1, 1) with the 24 bits that a float32 has.
float Uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-23F - 1; }

}  // namespace

at::Tensor AddNoise(const at::Tensor& x, const EmbeddingNoise& noise) {
  if (!noise.active()) return x;
  const std::int64_t columns = x.size(1), length = noise.rows.row_length;
  const auto magnitude = static_cast<float>(noise.alpha / std::sqrt(static_cast<double>(length * columns)));
  const std::uint64_t key = ops::DropoutSite{.site = kNoiseSite, .rows = noise.rows}.key();
  const at::Tensor added = at::empty({x.size(0), columns}, at::kFloat);
  ops::ParallelRows(x.size(0), columns, [&](cpu::Rows part) {
    for (std::int64_t row = part.begin; row < part.end; ++row) {
      const std::int64_t token = noise.first_token + row;
      const std::uint64_t sample = noise.rows.first_sample + static_cast<std::uint64_t>(token / length);
      float* out = added.data_ptr<float>() + row * columns;
      for (std::int64_t column = 0; column < columns; column += 4) {
        const cpu::PhiloxWords random =
            cpu::Philox(key, static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(token % length),
                        static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32));
        for (std::int64_t i = 0; i < std::min<std::int64_t>(4, columns - column); ++i) {
          out[column + i] = magnitude * Uniform(random.words[i]);
        }
      }
    }
  });
  return (x + ToDevice(added, x.device())).to(x.scalar_type());
}

at::Tensor Embedding::Forward(const at::Tensor& ids) const {
  if (ranks_.size() == 1) return ops::Embedding(*table_, ids);
  if (!divided_) {
    // Every rank looks up its own tokens. Without sequence parallelism, these are all of them.
    if (!ranks_.sequence_parallel) return ops::Embedding(*table_, ids);
    const std::int64_t rows = ids.size(0) / ranks_.size();
    return ops::Embedding(*table_, ids.narrow(0, ranks_.rank() * rows, rows));
  }
  // Tokens of other ranks are looked up as the first row, and then removed.
  const auto [first, count] = ranks_.ShareOf(rows_);
  const at::Tensor mine = (ids >= first).logical_and(ids < first + count);
  const at::Tensor local = (ids - first).masked_fill(mine.logical_not(), 0);
  const at::Tensor found = ops::Embedding(*table_, local);
  return ops::LeaveDividedLayer(found * mine.unsqueeze(1).to(found.scalar_type()), ranks_);
}

}  // namespace millrace::engine
