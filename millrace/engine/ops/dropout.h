// Dropout whose choices are the same under any layout of the run.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace millrace::engine::ops {

/// The samples of a micro-batch, as dropout counts them. A sample's choices depend on its number, so they are the same
/// in any micro-batch, on any rank, when recomputed, and after a resume.
struct DropoutRows {
  std::uint64_t seed = 0, step = 0;
  std::uint64_t first_sample = 0;  ///< row r is sample first_sample + r of the global batch
  std::int64_t row_length = 0;     ///< tokens
};

/// One place in a model where elements are dropped. A default site drops nothing.
struct DropoutSite {
  double probability = 0;
  std::uint64_t site = 0;  ///< identifies the place in the model
  DropoutRows rows;
  std::int64_t first_token = 0;   ///< the first row of x, counted in the micro-batch: ranks may divide the tokens
  std::int64_t first_column = 0;  ///< the first column of x: ranks may divide them
  std::int64_t first_head = 0;    ///< of attention: ranks may divide the heads
  bool active() const { return probability > 0; }
  /// Returns Philox's key for this site and step.
  std::uint64_t key() const;
};

/// Returns x [N, columns] where each element is zero with the site's probability, and divided by 1 - probability
/// otherwise. Choices come from Philox 4x32-10 (Salmon et al. 2011), keyed by seed, step and site, at the counter
/// (column, position in the row, sample). The backward pass computes them anew.
at::Tensor Dropout(const at::Tensor& x, const DropoutSite& site);

}  // namespace millrace::engine::ops
