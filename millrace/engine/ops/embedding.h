// Table look-up.
#pragma once

#include <ATen/ATen.h>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// Returns the rows `ids` (int64 [N]) of a table [rows, hidden]: [N, hidden].
at::Tensor Embedding(const Weight& table, const at::Tensor& ids);

}  // namespace millrace::engine::ops
