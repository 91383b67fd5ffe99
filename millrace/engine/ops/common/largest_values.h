// Records the largest absolute values of the tensors that linear layers cast to FP8. From them, delayed scaling
// predicts the largest values of the next step (amax), and with these the scales of the casts (Micikevicius et al.
// 2022, "FP8 formats for deep learning"; Transformer Engine's delayed scaling).
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstddef>
#include <vector>

namespace millrace::engine::ops {

/// A tensor of a linear layer that is cast to 8 bits.
enum class Fp8Tensor { kInput, kWeight, kOutputGradient };
inline constexpr std::size_t kFp8Tensors = 3;
/// One number for each of these tensors of a layer.
using OfFp8Tensors = std::array<float, kFp8Tensors>;

/// Two numbers for each layer and tensor: the predicted largest value (amax) that the passes of a step use, and the
/// largest value that the passes see. Both are on the device, so that no cast waits for the host. All passes of a step
/// run on one thread. Call the other functions between steps.
class LargestValues {
 public:
  LargestValues(std::size_t layers, at::Device device);
  std::size_t layers() const { return known_.size(); }

  /// Returns whether the next passes have an amax for this tensor.
  bool HasAmax(std::size_t layer, Fp8Tensor tensor) const { return known_.at(layer)[static_cast<std::size_t>(tensor)]; }
  /// Returns the amax as a tensor [1] of float32.
  at::Tensor amax(std::size_t layer, Fp8Tensor tensor) const { return At(amax_, layer, tensor); }
  /// Returns a tensor [1] of float32. A cast writes its largest value there, if that is larger than the content.
  at::Tensor seen(std::size_t layer, Fp8Tensor tensor) const { return At(seen_, layer, tensor); }

  /// Returns the largest values since the last call, and sets them to 0. Waits for the device. 0: nothing was cast, or
  /// only zeros.
  std::vector<OfFp8Tensors> TakeSeen();
  /// Sets the amax of all layers and tensors. 0: none.
  void SetAmax(const std::vector<OfFp8Tensors>& amaxes);

 private:
  static at::Tensor At(const at::Tensor& table, std::size_t layer, Fp8Tensor tensor);

  at::Tensor amax_, seen_;  ///< [layers, kFp8Tensors]
  std::vector<std::array<bool, kFp8Tensors>> known_;
};

/// Returns the amax for the next step: the maximum of `seen` and the decayed old one. Each step reduces an amax by the
/// factor 2^(-1/256). So a value counts half after 256 steps, which is one step of the format's exponent. If `seen` is
/// 0 or not finite, returns the old amax.
float DecayedAmax(float amax, float seen);

}  // namespace millrace::engine::ops
