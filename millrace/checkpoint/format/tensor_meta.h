// Element type and shape of a tensor.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/checkpoint/format/dtype.h"

namespace millrace::checkpoint {

/// Says what the elements of a tensor are and how many there are. A value type.
struct TensorMeta {
  DType dtype = DType::kF32;                                              ///< the type of an element
  std::vector<std::int64_t> shape;                                        ///< empty: a scalar
  std::uint64_t elements() const;                                         ///< the product of the shape
  std::uint64_t bytes() const { return elements() * DTypeBytes(dtype); }  ///< of all elements
  /// Fails with kCorrupt if a dimension is negative or if bytes() does not fit 63 bits. `name` is the tensor's.
  Status Check(std::string_view name) const;
  bool operator==(const TensorMeta&) const = default;
};

}  // namespace millrace::checkpoint
