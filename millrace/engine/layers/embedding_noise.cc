#include "millrace/engine/layers/embedding_noise.h"

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

}  // namespace millrace::engine
