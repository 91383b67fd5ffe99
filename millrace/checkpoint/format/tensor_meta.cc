#include "millrace/checkpoint/format/tensor_meta.h"

#include <algorithm>
#include <limits>

#include "millrace/base/result.h"

namespace millrace::checkpoint {
namespace {

/// Sizes and offsets of files are signed 64-bit integers in many interfaces.
constexpr std::uint64_t kMaxTensorBytes = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::uint64_t TensorMeta::elements() const {
  std::uint64_t product = 1;
  for (std::int64_t dimension : shape) product *= static_cast<std::uint64_t>(dimension);
  return product;
}

Status TensorMeta::Check(std::string_view name) const {
  std::uint64_t bytes = DTypeBytes(dtype);
  bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (std::int64_t dimension : shape) {
    if (dimension < 0) return Fail(Code::kCorrupt, "tensor {}: negative dimension {}", name, dimension);
    if (!empty && static_cast<std::uint64_t>(dimension) > kMaxTensorBytes / bytes)
      return Fail(Code::kCorrupt, "tensor {}: impossibly large shape", name);
    if (!empty) bytes *= static_cast<std::uint64_t>(dimension);
  }
  return {};
}

}  // namespace millrace::checkpoint
