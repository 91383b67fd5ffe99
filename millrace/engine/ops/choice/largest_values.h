// The largest absolute values of what linear layers multiply in FP8, from which delayed scaling guesses the next ones
// (Micikevicius et al. 2022, "FP8 formats for deep learning"; Transformer Engine's delayed scaling).
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstddef>
#include <vector>

namespace millrace::engine::ops {

/// A tensor of a linear layer that is cast to 8 bits.
enum class Fp8Tensor { kInput, kWeight, kOutputGradient };
inline constexpr std::size_t kFp8Tensors = 3;
/// A number of each tensor of a layer.
using OfFp8Tensors = std::array<float, kFp8Tensors>;

/// Guesses for the passes of a step, and what the passes see. Both are numbers on the device, so that no cast waits for
/// the host. The passes of one step are on one thread; the other functions are called between steps.
class LargestValues {
 public:
  LargestValues(std::size_t layers, at::Device device);
  std::size_t layers() const { return known_.size(); }

  /// Returns whether the next passes have a guess for this tensor.
  bool Guesses(std::size_t layer, Fp8Tensor tensor) const { return known_.at(layer)[static_cast<std::size_t>(tensor)]; }
  /// Returns the guess: [1], of float32.
  at::Tensor guess(std::size_t layer, Fp8Tensor tensor) const { return At(guesses_, layer, tensor); }
  /// Returns where casts note what they see, if it is larger than what is there: [1], of float32.
  at::Tensor seen(std::size_t layer, Fp8Tensor tensor) const { return At(seen_, layer, tensor); }

  /// Returns what was seen since the last call, and forgets it. Waits for the device. 0: nothing was cast, or zeros.
  std::vector<OfFp8Tensors> TakeSeen();
  /// Sets the guesses. 0: there is none.
  void Guess(const std::vector<OfFp8Tensors>& guesses);

 private:
  static at::Tensor At(const at::Tensor& table, std::size_t layer, Fp8Tensor tensor);

  at::Tensor guesses_, seen_;  ///< [layers, kFp8Tensors]
  std::vector<std::array<bool, kFp8Tensors>> known_;
};

/// Returns the guess for the next step: the largest value that was seen, or an earlier one that was larger. Those count
/// for half as much after 256 steps, one bit of the format's exponent. What is not finite, or 0, changes nothing.
float NextGuess(float guess, float seen);

}  // namespace millrace::engine::ops
