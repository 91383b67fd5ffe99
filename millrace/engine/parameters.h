// The weights of a model and their gradients, each in one run of memory.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// What a parameter is called, its shape and how it starts.
struct ParameterSpec {
  enum class Init { kNormal, kOnes };
  std::string name;  ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::kNormal;
  bool joins_previous = false;  ///< lies directly behind the one before it, so that one GEMM can use both
  int uses = 1;                 ///< how many ops add to its gradient in one backward pass (2: a tied embedding)
};

/// One parameter: views into the buffers.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;       ///< shares storage with the model
  at::Tensor gradient;     ///< float32; undefined until ParameterBuffer::EnableGradients
  std::int64_t begin = 0;  ///< first element in ParameterBuffer::values() and gradients()
  int uses = 1;
  std::int64_t elements() const { return tensor.numel(); }
};

class ParameterBuffer;

/// A weight as an op takes it: one parameter, or several that lie side by side, stacked along their first dimension.
struct Weight {
  at::Tensor value;     ///< requires grad once gradients are enabled
  at::Tensor gradient;  ///< where the op's backward adds; undefined: it returns the gradient to autograd instead
  ParameterBuffer* owner = nullptr;
  std::int64_t begin = 0, end = 0;  ///< elements of the owner's buffers

  /// To be called by an op's backward once it has added to `gradient`.
  void GradientAdded() const;
};

/// Holds all parameters of a model in one tensor, in the order of their specs, and once asked to, their gradients in
/// another of the same layout. So that all-reduce, clipping, the optimizer and a snapshot are each one pass over
/// memory. Parameters start on 64-byte boundaries unless joined; the gaps are zero. Gradients are float32 whatever the
/// parameters' type. Neither copied nor moved: ops keep pointers to it. One thread at a time.
class ParameterBuffer {
 public:
  ParameterBuffer(const std::vector<ParameterSpec>& specs, at::ScalarType dtype, at::Device device);
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  /// Fills the parameters: N(0, stddev) or ones. Every element depends on seed, name and index alone.
  void Initialize(std::uint64_t seed, double stddev);
  /// Allocates gradients, zeroed, and makes the values require grad.
  void EnableGradients();

  at::Tensor values() const { return values_; }        ///< [size]
  at::Tensor gradients() const { return gradients_; }  ///< [size] float32, or undefined
  std::int64_t size() const { return values_.numel(); }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  /// `count` joined parameters from `first` on as one weight. Lives as long as this buffer.
  Weight Use(std::size_t first, std::size_t count = 1);

  /// Called when an op has added its share to gradients [begin, end), in the thread of the backward pass. Empty:
  /// nobody.
  std::function<void(std::int64_t begin, std::int64_t end)> on_gradient;

 private:
  std::vector<ParameterSpec> specs_;
  at::Tensor values_, gradients_;
  std::vector<NamedParameter> parameters_;
};

/// The memory of a contiguous CPU tensor.
MutableByteSpan BytesOf(const at::Tensor& tensor);
/// safetensors' names: "F32", "BF16", "F16", "I64". Fails with kUnsupported on others.
Result<at::ScalarType> ParseScalarType(std::string_view name);
std::string_view ScalarTypeName(at::ScalarType type);
/// Copies raw little-endian elements of type `type` (as a file holds them) into `into`, converting to its type. Fails
/// with kInvalidArgument when the sizes do not match.
Status CopyInto(const at::Tensor& into, at::ScalarType type, ByteSpan bytes);

}  // namespace millrace::engine
