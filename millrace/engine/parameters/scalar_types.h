// Element types by the names that files use, and elements as bytes.
#pragma once

#include <ATen/ATen.h>

#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// Returns the memory of a contiguous CPU tensor.
MutableByteSpan BytesOf(const at::Tensor& tensor);
/// Converts the type names of safetensors: "F32", "BF16", "F16", "I64". Errors: kUnsupported on others.
Result<at::ScalarType> ParseScalarType(std::string_view name);
std::string_view ScalarTypeName(at::ScalarType type);
/// Copies little-endian elements of type `type`, such as a file's, into `into` and converts them to its type. `into`
/// may be a transposed view.
/// Errors: kInvalidArgument if the sizes do not match.
Status CopyInto(const at::Tensor& into, at::ScalarType type, ByteSpan bytes);

}  // namespace millrace::engine
