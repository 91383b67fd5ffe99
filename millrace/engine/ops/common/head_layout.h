// The layout of queries, keys and values in the rows of one matrix.
#pragma once

#include <cstdint>

namespace millrace::engine::ops {

/// The layout of a row of [N, (heads + 2·kv_heads)·head_dim]: all queries, then all keys, then all values.
struct HeadLayout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
};

}  // namespace millrace::engine::ops
