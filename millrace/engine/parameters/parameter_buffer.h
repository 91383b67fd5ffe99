// The weights of a model and their gradients, in groups whose memory ranks may divide between them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/engine/parameters/memory.h"
#include "millrace/engine/parameters/sharding.h"
#include "millrace/engine/parameters/tensor_slice.h"
#include "millrace/engine/parameters/weight.h"

namespace millrace::engine {

/// The part that a rank holds of a parameter, and its initial values.
struct ParameterSpec {
  enum class Init { kNormal, kUniform, kOnes, kZeros };
  std::string name;                 ///< Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  TensorSlice slice = {};           ///< the part that this rank holds
  int repeats = 1;  ///< consecutive tensor ranks that hold the same slice, if it is not the whole tensor
  Init init = Init::kNormal;
  double stddev = 0.02;           ///< of kNormal and kUniform
  bool joins_previous = false;    ///< lies directly after the parameter before it, so that one GEMM can use both
  bool transposed = false;        ///< Hugging Face's files hold the transpose of this matrix (GPT-2's Conv1D)
  bool partial_gradient = false;  ///< ranks that hold the same slice each see some of the tokens or heads
  /// The first and the last stage of a pipeline both hold it: a tied embedding. Each sees a part of its gradient.
  bool shared_by_stages = false;
};

/// The parameters that are trained: globs over names. The others are frozen.
struct TrainedNames {
  std::vector<std::string> freeze = {};
  std::vector<std::string> except = {};  ///< trained, although `freeze` matches
  bool Trains(std::string_view name) const;
};

/// A parameter of a ParameterBuffer. The tensors are views into its group, and have memory when the group has.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;       ///< the slice; shares storage with the model
  at::Tensor gradient;     ///< float32; undefined until ParameterBuffer::EnableGradients, or if frozen
  std::int64_t begin = 0;  ///< first element in the buffer
  std::size_t group = 0;
  bool transposed = false;
  bool partial_gradient = false;
  bool shared_by_stages = false;
  std::vector<std::int64_t> whole_shape = {};
  TensorSlice slice = {};
  int repeats = 1;
  bool trainable = true;
  std::int64_t elements() const { return tensor.numel(); }
  /// Returns how many of `tensor_ranks` ranks hold the same slice. They are consecutive, and their number divides
  /// `tensor_ranks`.
  int Holders(int tensor_ranks) const { return slice.whole() ? tensor_ranks : repeats; }
};

/// Consecutive parameters whose memory comes and goes together: those that one part of a model declares (its embedding,
/// a block, its head). If some of a part's parameters are frozen, they are one group, and the others are another. A
/// parameter that two stages of a pipeline share has a group of its own, so that both stages divide it alike.
struct ParameterGroup {
  /// Elements of the buffer. A group has a multiple of 16 · Sharding::parts() elements; zeros fill it up.
  std::int64_t begin = 0, end = 0;
  bool trainable = true;           ///< false: frozen, with neither gradients nor optimizer state
  std::int64_t trained_begin = 0;  ///< the first element among those of all trainable groups
  /// For the first group of a part: the groups whose parameters the part uses. These are its own ones and, for a tied
  /// head, that of the embedding. Empty for other groups.
  std::vector<std::size_t> uses = {};
  std::int64_t size() const { return end - begin; }
};

/// Elements that this rank updates, and that are consecutive in memory: its part of a trainable group, or the whole
/// buffer.
/// All spans, one after the other, are the layout of the optimizer's state.
struct OwnedSpan {
  std::int64_t begin = 0;  ///< of the first element among all that this rank updates
  at::Tensor values;       ///< [n]; always has memory
  at::Tensor gradients;    ///< [n] float32; undefined until EnableGradients
};

/// The part of one parameter that this rank saves and, unless it is frozen, updates.
struct OwnedPiece {
  std::size_t parameter = 0;     ///< its number
  std::size_t span = 0;          ///< which the piece is in; 0 if frozen
  std::int64_t first = 0;        ///< first element in the flattened slice of the parameter
  std::int64_t begin = 0;        ///< first element among all that this rank updates; 0 if frozen
  at::Tensor values, gradients;  ///< [elements]; views of the group's; no gradients if frozen
  bool trainable = true;
  std::int64_t elements() const { return values.numel(); }
};

/// Gets a call when a part of the model begins or ends to use a group. So parameters need to be there only while they
/// are used, and gradients can go when they are complete. Calls come on the thread that runs the model. They may throw.
class GroupHooks {
 public:
  virtual ~GroupHooks() = default;
  /// A forward pass is about to read the group's parameters.
  virtual void BeforeForward(std::size_t group) = 0;
  virtual void AfterForward(std::size_t group) = 0;
  /// A backward pass is about to read the group's parameters and to add to its gradients. It calls AfterBackward() when
  /// all of its additions are made, perhaps after the next micro-batch's pass has begun.
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

/// Holds the parameters of a model, in the order of their declaration, and their gradients after EnableGradients().
/// Both are divided into groups alike. A group's values are one contiguous tensor, and so are its gradients. Parameters
/// start on 64-byte boundaries unless joined; gaps are zero. Gradients are always float32. Frozen
/// parameters have no gradients, and nothing updates them.
///
/// A Sharding says what this rank keeps. It owns one of `parts()` equal parts of each group, the part()-th. Without
/// sharding it owns everything, and all groups are one tensor. With divides_values(), a group's values have memory only
/// from AllocateValues() to FreeValues(); with divides_gradients(), its gradients only from AllocateGradients() to
/// FreeGradients(). Tensors and Weights that refer to them stay valid meanwhile, but must not be used. The owned
/// elements always have memory. So clipping, the optimizer and a snapshot are each one pass over the owned elements.
///
/// Cannot be copied or moved: ops keep pointers to it. One thread at a time.
class ParameterBuffer {
 public:
  explicit ParameterBuffer(Sharding sharding = {}, TrainedNames trained = {})
      : sharding_(sharding), trained_(std::move(trained)) {}
  ParameterBuffer(const ParameterBuffer&) = delete;
  ParameterBuffer& operator=(const ParameterBuffer&) = delete;

  /// Begins a part of the model: the group of the parameters that are declared from now on. Its number is
  /// groups().size() - 1. Without a call there is one part.
  /// REQUIRES: Allocate() was not called.
  void BeginGroup();
  /// Adds a parameter and returns its number. Throws ErrorException with kInvalidArgument if it joins another, and only
  /// one of the two is frozen.
  /// REQUIRES: Allocate() was not called.
  std::size_t Declare(ParameterSpec spec);
  /// Returns the number of the parameter with this name. Throws c10::Error if there is none.
  std::size_t Find(std::string_view name) const;
  /// Declares that the part uses `count` joined parameters from `first` on, as one weight. The handle can be
  /// dereferenced after Allocate().
  /// REQUIRES: Allocate() was not called.
  WeightHandle Use(std::size_t first, std::size_t count = 1);
  /// Allocates the parameters that this rank keeps, and sets them to zero.
  void Allocate(at::ScalarType dtype, at::Device device);
  /// Fills the parameters that are `wanted` by their names, or all, as their specs say, group by group. Each element
  /// depends only on seed, name and index in the whole tensor, so it is the same under any division among ranks.
  void Initialize(std::uint64_t seed, const std::function<bool(const std::string& name)>& wanted = {});
  /// Allocates the gradients that this rank keeps, sets them to zero, and makes the trainable values require grad.
  void EnableGradients();

  const Sharding& sharding() const { return sharding_; }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }
  at::Device device() const { return options_.device(); }
  const at::TensorOptions& options() const { return options_; }  ///< of values
  /// Returns all values [size], or the gradients of all trainable groups [trained_size] float32 (undefined until
  /// EnableGradients).
  /// Throws c10::Error if the sharding divides them.
  at::Tensor values() const;
  at::Tensor gradients() const;
  std::int64_t size() const { return size_; }                  ///< of all groups
  std::int64_t trained_size() const { return trained_size_; }  ///< of the trainable groups
  bool has_gradients() const { return gradients_.defined(); }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  /// Returns the number of elements that this rank updates and saves. Pieces are in the order of parameters. A
  /// parameter of which this rank owns nothing has no piece, others have one.
  std::int64_t owned_size() const { return size_ / sharding_.parts(); }
  std::int64_t owned_trained_size() const { return trained_size_ / sharding_.parts(); }
  const std::vector<OwnedSpan>& owned_spans() const { return spans_; }
  const std::vector<OwnedPiece>& owned_pieces() const { return pieces_; }
  /// The pieces that are not frozen.
  auto trained_pieces() const { return std::views::filter(pieces_, &OwnedPiece::trainable); }

  /// Returns all values of a group [groups()[group].size()], or its gradients. They may have no memory.
  const at::Tensor& GroupValues(std::size_t group) const { return memory_[group].values; }
  const at::Tensor& GroupGradients(std::size_t group) const { return memory_[group].gradients; }
  /// Returns the part of a group that this rank owns. Unless the sharding divides them, it lies in the group's tensor.
  at::Tensor OwnedValues(std::size_t group) const;
  at::Tensor OwnedGradients(std::size_t group) const;  ///< undefined if the group is frozen
  bool HasValues(std::size_t group) const { return MemoryBytes(memory_[group].values) > 0; }
  bool HasGradients(std::size_t group) const {
    return groups_[group].trainable && MemoryBytes(memory_[group].gradients) > 0;
  }
  /// Give a group memory, or take it. New values are undefined, new gradients are zero.
  /// REQUIRES: sharding().divides_values(), or divides_gradients() and the group is trainable.
  void AllocateValues(std::size_t group);
  void FreeValues(std::size_t group);
  void AllocateGradients(std::size_t group);
  void FreeGradients(std::size_t group);
  /// Returns the bytes that values and gradients have now. Free blocks, which wait for the next group, do not count.
  std::int64_t ValueBytes() const;
  std::int64_t GradientBytes() const;
  /// Returns the bytes of all blocks that values and gradients come from, free or not.
  std::int64_t PooledBytes() const { return pool_.bytes(); }

  GroupHooks* hooks = nullptr;  ///< borrowed; may be null

 private:
  /// One call of Use().
  struct WeightUse {
    std::size_t first, count;
    Weight weight;
  };
  struct GroupMemory {
    at::Tensor values, gradients;
    std::int64_t values_block = 0, gradients_block = 0;  ///< bytes of the blocks of `pool_` that they have
  };
  void StartGroup();
  std::size_t GroupFor(const ParameterSpec& spec, bool trainable);
  void PlaceGroups();
  void MakeViews(WeightUse& use);
  void MakeOwned();
  void InitializeGroup(std::span<const std::size_t> parameters, std::uint64_t seed);

  const Sharding sharding_;
  const TrainedNames trained_;
  std::vector<ParameterSpec> specs_;
  std::int64_t size_ = 0, trained_size_ = 0;
  std::size_t part_ = 0;                ///< the first group of the part that is being declared
  std::optional<std::size_t> open_[2];  ///< the part's groups that take further parameters: frozen, trainable
  bool allocated_ = false;
  at::TensorOptions options_;  ///< of values
  /// All groups, or with divides_values() the owned parts of all groups. The gradients are divided in the same way.
  at::Tensor values_, gradients_;
  MemoryPool pool_;                  ///< of what comes and goes, in the host's memory
  std::vector<GroupMemory> memory_;  ///< by group
  std::vector<NamedParameter> parameters_;
  std::vector<ParameterGroup> groups_;
  std::vector<OwnedSpan> spans_;
  std::vector<OwnedPiece> pieces_;
  std::deque<WeightUse> uses_;  ///< handles point into it
};

}  // namespace millrace::engine
