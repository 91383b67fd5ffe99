// The peaks of NVIDIA's GPUs, by the names that their driver gives.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::plan {

/// Floating-point operations a second in dense products, as NVIDIA's data sheets promise them.
struct GpuPeaks {
  double f32 = 0;
  double tf32 = 0;
  double bf16 = 0;  ///< of float16, too
  double fp8 = 0;   ///< 0: it has none
};

/// Returns the peaks of a card: "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB". Nothing if it is not one of the A100,
/// H100, GH200, H200 and B200.
std::optional<GpuPeaks> PeaksOf(std::string_view card);

}  // namespace millrace::plan
