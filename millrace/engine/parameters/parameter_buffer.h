// The weights of a model in one block of memory, and their gradients in another.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/engine/parameters/tensor_slice.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine {

/// What a rank holds of a parameter, and its initial values.
struct ParameterSpec {
  enum class Init { kNormal, kOnes, kZeros };
  std::string name;                 ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  TensorSlice slice = {};           ///< the part that this rank holds
  Init init = Init::kNormal;
  double stddev = 0.02;           ///< of kNormal
  bool joins_previous = false;    ///< lies directly after the parameter before it, so that one GEMM can use both
  bool transposed = false;        ///< Hugging Face's files hold the transpose of this matrix (GPT-2's Conv1D)
  bool multiplies = false;        ///< each token is multiplied with this matrix; counts as FLOPs
  bool partial_gradient = false;  ///< tensor ranks hold the same values, but each sees some of the tokens
  /// The first and the last stage of a pipeline both hold it: a tied embedding. Each sees a part of its gradient.
  bool shared_by_stages = false;
};

/// A parameter of a ParameterBuffer. The tensors are views into it.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;       ///< the slice; shares storage with the model
  at::Tensor gradient;     ///< float32; undefined until ParameterBuffer::EnableGradients
  std::int64_t begin = 0;  ///< first element in ParameterBuffer::values() and gradients()
  int uses = 0;            ///< the number of ops that add to its gradient in a backward pass (2: a tied embedding)
  bool transposed = false;
  bool partial_gradient = false;
  bool shared_by_stages = false;
  std::vector<std::int64_t> whole_shape = {};
  TensorSlice slice = {};
  std::int64_t elements() const { return tensor.numel(); }
};

/// The parameters that one part of a model declares: its embedding, a block, or its head. They are consecutive.
struct ParameterGroup {
  std::int64_t begin = 0, end = 0;  ///< elements of the buffers
  /// The groups whose parameters the part uses: its own one and, for a tied head, that of the embedding.
  std::vector<std::size_t> uses = {};
};

/// Is told when a part of the model begins and ends to use a group. So parameters need to be there only while they are
/// used, and gradients can go when they are complete. Calls come on the thread that runs the model. They may throw.
class GroupHooks {
 public:
  virtual ~GroupHooks() = default;
  /// A forward pass is about to read the group's parameters.
  virtual void BeforeForward(std::size_t group) = 0;
  virtual void AfterForward(std::size_t group) = 0;
  /// A backward pass is about to read the group's parameters and to add to its gradients.
  virtual void BeforeBackward(std::size_t group) = 0;
  virtual void AfterBackward(std::size_t group) = 0;
};

/// A layer's reference to its weights. Valid as long as the ParameterBuffer that made it. A default handle refers to no
/// weight, and its weight is undefined.
class WeightHandle {
 public:
  WeightHandle() = default;
  const Weight& operator*() const;
  const Weight* operator->() const { return &**this; }

 private:
  friend class ParameterBuffer;
  explicit WeightHandle(const Weight* weight) : weight_(weight) {}
  const Weight* weight_ = nullptr;
};

/// Holds all parameters of a model in one tensor, in the order of their declaration. After EnableGradients() it also
/// holds their gradients in another tensor of the same layout. So all-reduce, clipping, the optimizer and a snapshot
/// are each one pass over memory. Parameters start on 64-byte boundaries unless joined; gaps are zero. Gradients are
/// always float32. Cannot be copied or moved: ops keep pointers to it. One thread at a time.
class ParameterBuffer {
 public:
  ParameterBuffer() = default;
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  /// Begins the group of the parameters that are declared from now on. Without a call there is one group.
  /// REQUIRES: Allocate() was not called.
  void BeginGroup();
  /// Adds a parameter and returns its number.
  /// REQUIRES: Allocate() was not called.
  std::size_t Declare(ParameterSpec spec);
  /// Returns the number of the parameter with this name. Throws c10::Error if there is none.
  std::size_t Find(std::string_view name) const;
  /// Declares that one more op uses `count` joined parameters from `first` on, as one weight. The handle can be
  /// dereferenced after Allocate().
  /// REQUIRES: Allocate() was not called.
  WeightHandle Use(std::size_t first, std::size_t count = 1);
  /// Declares that each token is multiplied with a parameter (ParameterSpec::multiplies).
  void DeclareMatrix(std::size_t parameter) { specs_[parameter].multiplies = true; }
  /// Allocates the parameters and sets them to zero.
  void Allocate(at::ScalarType dtype, at::Device device);
  /// Fills the parameters as their specs say. Each element depends only on seed, name and index in the whole tensor, so
  /// it is the same under any division among ranks.
  void Initialize(std::uint64_t seed);
  /// Allocates gradients, sets them to zero, and makes the values require grad.
  void EnableGradients();

  at::Tensor values() const { return values_; }        ///< [size]
  at::Tensor gradients() const { return gradients_; }  ///< [size] float32, or undefined
  std::int64_t size() const { return size_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  /// Called on the thread of the backward pass when an op has added to gradients [begin, end). May be empty.
  std::function<void(std::int64_t begin, std::int64_t end)> on_gradient;
  GroupHooks* hooks = nullptr;  ///< borrowed; may be null

 private:
  /// One call of Use().
  struct WeightUse {
    std::size_t first, count;
    Weight weight;
  };
  void MakeViews(WeightUse& use);

  std::vector<ParameterSpec> specs_;
  std::int64_t size_ = 0;
  at::Tensor values_, gradients_;
  std::vector<NamedParameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::deque<WeightUse> uses_;  ///< handles point into it
};

}  // namespace millrace::engine
