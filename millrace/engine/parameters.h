// The weights of a model in one block of memory, and their gradients in another.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// Name, shape and initial values of a parameter.
struct ParameterSpec {
  enum class Init { kNormal, kOnes };
  std::string name;  ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::kNormal;
  bool joins_previous = false;  ///< lies directly after the parameter before it, so that one GEMM can use both
  int uses = 1;                 ///< the number of ops that add to its gradient in a backward pass (2: a tied embedding)
};

/// A parameter of a ParameterBuffer. The tensors are views into it.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;       ///< shares storage with the model
  at::Tensor gradient;     ///< float32; undefined until ParameterBuffer::EnableGradients
  std::int64_t begin = 0;  ///< first element in ParameterBuffer::values() and gradients()
  int uses = 1;
  std::int64_t elements() const { return tensor.numel(); }
};

class ParameterBuffer;

/// The weight argument of an op: one parameter, or several that lie side by side, stacked along their first dimension.
struct Weight {
  at::Tensor value;     ///< requires grad once gradients are enabled
  at::Tensor gradient;  ///< the op's backward adds to it; undefined: backward returns the gradient to autograd
  ParameterBuffer* owner = nullptr;
  std::int64_t begin = 0, end = 0;  ///< elements of the owner's buffers

  /// Reports that an op's backward has added to `gradient` (ParameterBuffer::on_gradient).
  void GradientAdded() const;
};

/// Holds all parameters of a model in one tensor, in the order of their specs. After EnableGradients() it also holds
/// their gradients in another tensor of the same layout. So all-reduce, clipping, the optimizer and a snapshot are each
/// one pass over memory. Parameters start on 64-byte boundaries unless joined; gaps are zero. Gradients are always
/// float32. Cannot be copied or moved: ops keep pointers to it. One thread at a time.
class ParameterBuffer {
 public:
  ParameterBuffer(const std::vector<ParameterSpec>& specs, at::ScalarType dtype, at::Device device);
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  /// Fills the parameters with N(0, stddev) or ones. Each element depends only on seed, name and index.
  void Initialize(std::uint64_t seed, double stddev);
  /// Allocates gradients, sets them to zero, and makes the values require grad.
  void EnableGradients();

  at::Tensor values() const { return values_; }        ///< [size]
  at::Tensor gradients() const { return gradients_; }  ///< [size] float32, or undefined
  std::int64_t size() const { return values_.numel(); }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  /// Returns `count` joined parameters from `first` on as one weight. Valid as long as this buffer.
  Weight Use(std::size_t first, std::size_t count = 1);

  /// Called on the thread of the backward pass when an op has added to gradients [begin, end). May be empty.
  std::function<void(std::int64_t begin, std::int64_t end)> on_gradient;

 private:
  std::vector<ParameterSpec> specs_;
  at::Tensor values_, gradients_;
  std::vector<NamedParameter> parameters_;
};

/// Returns the memory of a contiguous CPU tensor.
MutableByteSpan BytesOf(const at::Tensor& tensor);
/// Converts the type names of safetensors: "F32", "BF16", "F16", "I64". Errors: kUnsupported on others.
Result<at::ScalarType> ParseScalarType(std::string_view name);
std::string_view ScalarTypeName(at::ScalarType type);
/// Copies little-endian elements of type `type`, such as a file's, into `into` and converts them to its type.
/// Errors: kInvalidArgument if the sizes do not match.
Status CopyInto(const at::Tensor& into, at::ScalarType type, ByteSpan bytes);

}  // namespace millrace::engine
